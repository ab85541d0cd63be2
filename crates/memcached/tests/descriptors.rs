//! The server in a process without free descriptors. It is a separate process, as all threads of one share its
//! descriptors.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]
#![expect(clippy::panic, reason = "how a test fails")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use nearfar_cache::Cache;
use nearfar_memcached::server;
use nearfar_memcached::server::{Config, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[expect(clippy::disallowed_methods, reason = "looks again and again, not for so long")]
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..24_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: not in two minutes");
}

fn ask(socket: &mut TcpStream, text: &str) -> String {
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    socket.write_all(text.as_bytes()).unwrap();
    let mut answer = [0; 4];
    socket.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn counted(server: &Server, name: &str) -> u64 {
    let metrics = server.metrics();
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(name));
    values.find_map(|value| value.trim().parse().ok()).unwrap()
}

#[test]
fn a_connection_without_a_free_descriptor_waits_and_others_continue() {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..before }).unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = Config { tcp: vec![any], metrics: Some(any), ..Config::default() };
    let cache = Cache::new(&nearfar_cache::Config::of_bytes(16 << 20)).unwrap();
    let server = Server::start(Arc::new(cache), config).unwrap();
    let mut first = TcpStream::connect(server.addresses()[0]).unwrap();
    assert_eq!(ask(&mut first, "mn\r\n"), "MN\r\n");

    let mut files: Vec<File> = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    files.truncate(files.len() - 2);
    let mut last = TcpStream::connect(server.addresses()[0]).unwrap();
    soon("it has the last descriptor", || File::open("/dev/null").is_err());
    files.pop();
    let mut second = TcpStream::connect(server.addresses()[0]).unwrap();
    soon("it can't be accepted", || counted(&server, "nearfar_cache_accept_errors_total") > 0);
    assert_eq!(ask(&mut first, "mn\r\n"), "MN\r\n");
    second.write_all(b"mn\r\n").unwrap();
    assert_eq!(counted(&server, "nearfar_cache_accepting"), 0);
    files.clear();
    let mut answer = [0; 4];
    second.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    second.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"MN\r\n");
    soon("it goes on", || counted(&server, "nearfar_cache_accepting") == 1);
    assert_eq!(ask(&mut last, "mn\r\n"), "MN\r\n");
    let mut scraper = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
    assert_eq!(ask(&mut scraper, "GET /metrics HTTP/1.1\r\n\r\n"), "HTTP");

    // A server requests the descriptors it may need, and gets the permitted number.
    let allowed = server::allow_descriptors(200).unwrap();
    assert!(allowed >= 264 || before.maximum.is_some_and(|most| most < 264));
    assert_eq!(getrlimit(Resource::Nofile).current, Some(allowed));
}
