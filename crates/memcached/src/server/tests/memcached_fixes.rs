//! Clients that memcached crashed on, or kept memory for, until it was fixed in 2026: those that do not read their
//! replies.

use std::net::TcpStream;

use super::{AT_REST, Client, config, dial, item, serve, soon, value, waits};
use crate::server::Config;

const ITEMS: usize = 5000;
const DUMP: &str = "lru_crawler metadump all\r\n";

/// Stores items whose lines in a dump are long.
fn fill(client: &mut Client<TcpStream>) {
    let key = |number: usize| format!("{number:04}{}", "%".repeat(240));
    let lines = (0..ITEMS).map(|number| format!("set {} 0 0 1 noreply\r\nx\r\n", key(number)));
    client.say(lines.collect::<String>());
    client.ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_dump_waits_for_its_reader_is_complete_and_does_not_block_others() {
    let server = serve(Config { threads: 1, ..config() });
    let (mut client, mut other) = (dial(&server), dial(&server));
    fill(&mut client);
    let dump = other.ask_until(DUMP, "END\r\n");
    assert_eq!(dump.lines().count(), ITEMS + 2);
    client.say(DUMP.repeat(10));
    soon("its replies wait", || waits(&mut other));
    // One dump, at most twice its size in memory, however many were requested.
    assert!(other.figure("read_buf_bytes") < 2 * dump.len() as u64 + (1 << 20));
    let mut gone = dial(&server);
    gone.say(DUMP.repeat(10));
    drop(gone);
    for _ in 0..10 {
        client.hears(&dump);
    }
    client.ask("mn\r\n", "MN\r\n");
    soon("the other reader is gone", || other.figure("curr_connections") == 2);
    soon("what they held is given back", || other.figure("read_buf_bytes") <= AT_REST);
}

#[test]
fn a_client_that_does_not_read_its_dump_is_closed() {
    let server = serve(Config { threads: 1, stalled_seconds: 1, ..config() });
    let (mut client, mut other) = (dial(&server), dial(&server));
    fill(&mut client);
    client.say(DUMP.repeat(10));
    soon("it is closed", || other.figure("slow_kicks") == 1);
    assert_eq!(other.figure("curr_connections"), 1);
    assert!(other.figure("read_buf_bytes") <= AT_REST);
    other.ask("mn\r\n", "MN\r\n");
}

#[test]
fn an_endless_get_pauses_while_its_replies_are_not_read() {
    const KEYS: usize = 5000;
    let server = serve(config());
    let (mut client, mut other) = (dial(&server), dial(&server));
    let value = value(1, 9000);
    client.sets("a", &value);
    client.say("get".to_owned() + &" a".repeat(KEYS));
    soon("its replies wait", || waits(&mut other));
    assert!(other.figure("read_buf_bytes") < 1 << 20);
    let last = item("a", &value);
    let one = last.strip_suffix(b"END\r\n").unwrap();
    for _ in 1..KEYS {
        client.hears(one);
    }
    client.ask("\r\n", &last);
    soon("what it held is given back", || other.figure("read_buf_bytes") <= AT_REST);
}
