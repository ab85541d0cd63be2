//! The end of a server: by its handle, by a client's command, and during clients' requests.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::{cache, config, dial, item, serve, soon, value, waits};
use crate::proto::Settings;
use crate::server::{Config, Server};
use nearfar_cache::store::{Decide, Head, Meta, Refused, Store};

#[test]
fn a_drain_completes_started_requests() {
    let cache = cache();
    let config = Config { drain_seconds: 60, ..config() };
    let server = Server::start(Arc::clone(&cache) as Arc<_>, config).unwrap();
    let (mut busy, mut idle) = (dial(&server), dial(&server));
    idle.ask("mn\r\n", "MN\r\n");
    busy.ask("mn\r\nset a 0 0 10\r\n01234", "MN\r\n");
    soon("it waits for a value", || {
        idle.ask_until("stats conns\r\n", "END\r\n").contains("conn_nread")
    });
    server.stop().drain();
    idle.hears_end();
    let address = server.addresses()[0];
    soon("nobody listens", || TcpStream::connect(address).is_err());
    busy.ask("56789\r\n", "STORED\r\n");
    busy.hears_end();
    server.wait().unwrap();
    assert!(cache.get(b"a", &mut Vec::new()));
}

#[test]
fn a_drain_sends_waiting_replies() {
    let server = serve(Config { drain_seconds: 60, ..config() });
    let (mut late, mut other) = (dial(&server), dial(&server));
    let large = value(3, 500_000);
    late.sets("a", &large);
    late.say("get a\r\n".repeat(60));
    soon("its replies wait", || waits(&mut other));
    server.stop().drain();
    other.hears_end();
    for _ in 0..60 {
        late.hears(item("a", &large));
    }
    late.hears_end();
    server.wait().unwrap();
}

#[test]
fn a_drain_ends_unfinished_requests_after_its_time_limit() {
    let server = serve(Config { drain_seconds: 1, ..config() });
    let mut client = dial(&server);
    client.ask("mn\r\nset a 0 0 10\r\n01234", "MN\r\n");
    server.stop().drain();
    server.wait().unwrap();
    client.hears_end();
}

#[test]
fn the_clock_runs_until_the_last_connection_is_done() {
    let cache = cache();
    let config = Config { drain_seconds: 60, ..config() };
    let server = Server::start(Arc::clone(&cache) as Arc<_>, config).unwrap();
    let mut client = dial(&server);
    client.ask("set a 0 1 1\r\nx\r\n", "STORED\r\n");
    client.say("get");
    server.stop().drain();
    let before = cache.now();
    soon("time goes on", || cache.now() > before);
    client.ask(" a\r\n", "END\r\n");
    client.hears_end();
    server.wait().unwrap();
}

#[test]
fn a_client_may_end_a_server_if_that_is_allowed() {
    for word in ["shutdown\r\n", "shutdown graceful\r\n"] {
        let protocol = Settings { shutdown: true, ..Settings::default() };
        let server = serve(Config { protocol, ..config() });
        let (mut client, mut other) = (dial(&server), dial(&server));
        other.ask("mn\r\n", "MN\r\n");
        client.ask("shutdown now\r\n", "CLIENT_ERROR invalid shutdown mode\r\n");
        client.say(word);
        client.hears_end();
        other.hears_end();
        server.wait().unwrap();
    }
}

#[test]
fn an_immediate_stop_waits_for_no_client() {
    let server = serve(Config { drain_seconds: 1000, ..config() });
    let mut client = dial(&server);
    client.ask("mn\r\nset a 0 0 10\r\n01234", "MN\r\n");
    server.stop().drain();
    server.stop().now();
    server.wait().unwrap();
    client.hears_end();
}

#[test]
fn a_dropped_server_releases_its_port() {
    let server = serve(config());
    let address = server.addresses()[0];
    let mut client = dial(&server);
    client.ask("mn\r\n", "MN\r\n");
    drop(server);
    client.hears_end();
    let server = serve(Config { tcp: vec![address], ..config() });
    dial(&server).ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_half_closed_client_still_gets_all_replies() {
    let server = serve(config());
    let mut client = dial(&server);
    let large = value(4, 300_000);
    client.sets("a", &large);
    client.say("get a\r\n".repeat(30));
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.stream.read_to_end(&mut all).unwrap();
    assert!(all == item("a", &large).repeat(30));
}

/// A store that panics on any call.
#[derive(Debug)]
struct Broken;

impl Store for Broken {
    fn now(&self) -> u32 {
        1
    }
    fn set_now(&self, _: u32) {}
    fn get(&self, _: &[u8], _: &mut Vec<u8>, _: &mut Head<'_>) -> Option<Meta> {
        panic!("broken, as this test wants it")
    }
    fn edit(&self, _: &[u8], _: &mut Vec<u8>, _: &mut Decide<'_>) -> Result<(), Refused> {
        Ok(())
    }
    fn flush(&self, _: u32) {}
    fn each(&self, _: &mut dyn FnMut(&[u8], &Meta, usize) -> bool) {}
    fn resize(&self, _: u64) -> bool {
        false
    }
    fn stats(&self, _: &mut dyn FnMut(&str, u64)) {}
}

#[test]
fn a_server_ends_if_one_of_its_threads_ends() {
    let server = Server::start(Arc::new(Broken), config()).unwrap();
    let (mut client, mut other) = (dial(&server), dial(&server));
    other.ask("mn\r\n", "MN\r\n");
    client.say("get a\r\n");
    client.hears_end();
    other.hears_end();
    let failed = server.wait().unwrap_err();
    assert!(failed.thread.starts_with("cache-"), "{failed}");
    assert_eq!(failed.why, "broken, as this test wants it");
}
