//! Clients that accept no replies, are idle, exceed the limit of connections, or need too much memory.

use super::{AT_REST, config, dial, item, serve, soon, value, waits};
use crate::server::{Config, Overload};

#[test]
fn a_client_that_reads_no_replies_is_closed_and_its_memory_freed() {
    let server = serve(Config { stalled_seconds: 5, ..config() });
    let (mut client, mut other) = (dial(&server), dial(&server));
    client.sets("a", &value(1, 900_000));
    client.say("get a\r\n".repeat(60));
    soon("its replies wait", || waits(&mut other));
    assert!(other.figure("read_buf_bytes") > 0, "what it has not taken is counted");
    soon("it is closed", || other.figure("slow_kicks") == 1);
    assert!(other.figure("read_buf_bytes") <= AT_REST);
    assert_eq!(other.figure("curr_connections"), 1);
    other.ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_client_that_reads_replies_slowly_is_not_closed() {
    let server = serve(Config { stalled_seconds: 4, ..config() });
    let (mut client, mut other) = (dial(&server), dial(&server));
    let large = value(1, 200_000);
    client.sets("a", &large);
    client.say("get a\r\n".repeat(100));
    let start = other.figure("uptime");
    // Each read takes more than the system buffers, so that the server can write in every second; all take twice the limit.
    for taken in 0..100 {
        client.hears(item("a", &large));
        let second = start + taken / 12;
        soon("time goes on", || other.figure("uptime") >= second);
    }
    assert_eq!(other.figure("slow_kicks"), 0);
    client.ask("mn\r\n", "MN\r\n");
}

#[test]
fn an_idle_client_is_closed() {
    let server = serve(Config { idle_seconds: 5, ..config() });
    let (mut idle, mut other) = (dial(&server), dial(&server));
    idle.ask("mn\r\n", "MN\r\n");
    soon("it is closed", || other.figure("idle_kicks") == 1);
    idle.hears_end();
    assert_eq!(other.figure("curr_connections"), 1);
}

#[test]
fn one_connection_too_many_is_refused() {
    let server = serve(Config { connections_max: 2, ..config() });
    let (mut one, mut two) = (dial(&server), dial(&server));
    one.ask("mn\r\n", "MN\r\n");
    two.ask("mn\r\n", "MN\r\n");
    let mut three = dial(&server);
    three.hears("ERROR Too many open connections\r\n");
    three.hears_end();
    assert_eq!((one.figure("rejected_connections"), one.figure("curr_connections")), (1, 2));
    drop(two);
    soon("there is a place", || one.figure("curr_connections") == 1);
    dial(&server).ask("mn\r\n", "MN\r\n");
}

#[test]
fn one_connection_too_many_waits_for_a_slot() {
    let server = serve(Config { connections_max: 2, overload: Overload::Wait, ..config() });
    let (mut one, mut two) = (dial(&server), dial(&server));
    two.ask("mn\r\n", "MN\r\n");
    let mut three = dial(&server);
    three.say("mn\r\n");
    soon("nothing is accepted", || one.figure("accepting_conns") == 0);
    assert_eq!((one.figure("curr_connections"), one.figure("rejected_connections")), (2, 0));
    drop(two);
    three.hears("MN\r\n");
    drop(three);
    soon("connections are accepted", || one.figure("accepting_conns") == 1);
    assert!(one.figure("listen_disabled_num") > 0);
}

#[test]
fn a_client_above_the_memory_limit_of_connections_is_closed() {
    let server = serve(Config { buffer_bytes_max: 1 << 20, threads: 1, ..config() });
    let (mut one, mut two) = (dial(&server), dial(&server));
    let large = value(5, 900_000);
    one.say("set a 0 0 900000\r\n");
    one.say(&large[..400_000]);
    soon("it holds its value", || dial(&server).figure("read_buf_bytes") >= 900_000);
    two.say("set b 0 0 900000\r\n");
    two.say(&large[..100_000]);
    two.hears_end();
    assert_eq!(dial(&server).figure("read_buf_oom"), 1);
    one.say(&large[400_000..]);
    one.ask("\r\n", "STORED\r\n");
    one.ask("get a b\r\n", item("a", &large));
}

#[test]
fn freed_buffers_do_not_count_against_the_memory_limit() {
    let server = serve(Config { buffer_bytes_max: 4 << 20, threads: 1, ..config() });
    let large = value(5, 900_000);
    let mut clients: Vec<_> = (0..16).map(|_| dial(&server)).collect();
    for client in &mut clients {
        client.sets("a", &large);
    }
    for client in &mut clients {
        client.ask("get a\r\n", item("a", &large));
    }
    assert_eq!(clients[0].figure("read_buf_oom"), 0);
}

#[test]
fn an_incomplete_request_keeps_no_more_memory_than_it_needs() {
    let server = serve(config());
    let (mut client, mut other) = (dial(&server), dial(&server));
    let large = value(6, 900_000);
    client.sets("a", &large);
    client.say("get a\r\n".repeat(30));
    soon("its replies wait", || waits(&mut other));
    assert!(other.figure("read_buf_bytes") > 0, "what it has not taken is counted");
    for _ in 0..30 {
        client.hears(item("a", &large));
    }
    client.say("ge");
    soon("it holds no more", || other.figure("read_buf_bytes") <= AT_REST);
    client.ask("t b\r\n", "END\r\n");
}

#[test]
fn a_thousand_connections_at_rest_hold_nothing() {
    let server = serve(Config { connections_max: 1100, ..config() });
    crate::server::allow_descriptors(2300).unwrap();
    let mut clients: Vec<_> = (0..500).map(|_| dial(&server)).collect();
    for client in &mut clients {
        client.ask("mn\r\n", "MN\r\n");
    }
    let first = &mut clients[0];
    assert_eq!(first.figure("curr_connections"), 500);
    assert_eq!(first.figure("read_buf_bytes"), 0);
    clients.truncate(1);
    soon("the others are gone", || clients[0].figure("curr_connections") == 1);
}
