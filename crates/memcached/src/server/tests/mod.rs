//! The server over real sockets, on loopback and in temporary directories, with the cache itself.
//!
//! Tests poll for conditions every few milliseconds ([`soon`]); no duration is asserted. Clients expect the exact
//! replies: after an unexpected one they fail at the next.

mod below;
mod commands;
mod ends;
mod limits;
mod memcached_fixes;
mod metrics;
mod sockets;
mod threads;
#[cfg(feature = "tls")]
mod tls;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::{Config, Server};
use nearfar_cache::Cache;

/// Timeout of a client's reads.
const PATIENCE: Duration = Duration::from_secs(120);

/// Maximum bytes held by an idle connection; tests have few of them.
const AT_REST: u64 = 8 << 10;

/// Waits until it is so.
#[track_caller]
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

/// A cache that takes items of a mebibyte.
fn cache() -> Arc<Cache> {
    let config = nearfar_cache::Config {
        slab: Some(4 << 20),
        items: Some(20_000),
        ..nearfar_cache::Config::of_bytes(32 << 20)
    };
    Arc::new(Cache::new(&config).unwrap())
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// At a free port, with two threads.
fn config() -> Config {
    Config { tcp: vec![loopback()], threads: 2, ..Config::default() }
}

fn serve(config: Config) -> Server {
    Server::start(cache(), config).unwrap()
}

/// Why a server does not start.
fn refused(config: Config) -> String {
    Server::start(cache(), config).unwrap_err().to_string()
}

/// A client of a server.
struct Client<S> {
    stream: S,
}

fn socket(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.addresses()[0]).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

fn dial(server: &Server) -> Client<TcpStream> {
    Client { stream: socket(server) }
}

fn dial_unix(path: &std::path::Path) -> Client<UnixStream> {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client { stream }
}

impl<S: Read + Write> Client<S> {
    fn say(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).unwrap();
    }

    /// Reads this many bytes, or fewer if no more arrive.
    fn heard(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        let mut have = 0;
        while have < bytes {
            match self.stream.read(&mut all[have..]) {
                Ok(0) | Err(_) => break,
                Ok(more) => have += more,
            }
        }
        all.truncate(have);
        all
    }

    #[track_caller]
    fn hears(&mut self, expected: impl AsRef<[u8]>) {
        let (heard, expected) = (self.heard(expected.as_ref().len()), expected.as_ref());
        let shown = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
        assert!(
            heard == expected,
            "heard {} bytes, {}, not {} bytes, {}",
            heard.len(),
            shown(&heard),
            expected.len(),
            shown(expected)
        );
    }

    #[track_caller]
    fn ask(&mut self, text: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        self.say(text);
        self.hears(expected);
    }

    /// Sends a request and reads until `end`.
    #[track_caller]
    fn ask_until(&mut self, text: &str, end: &str) -> String {
        self.say(text);
        let mut all = Vec::new();
        let mut part = [0; 4096];
        while !all.ends_with(end.as_bytes()) {
            let bytes = self.stream.read(&mut part).unwrap();
            assert!(bytes > 0, "closed after {}", all.escape_ascii());
            all.extend_from_slice(&part[..bytes]);
        }
        String::from_utf8(all).unwrap()
    }

    /// Checks that the connection is closed without further output.
    #[track_caller]
    fn hears_end(&mut self) {
        let mut part = [0; 100];
        match self.stream.read(&mut part) {
            Ok(bytes) => assert_eq!(part[..bytes].escape_ascii().to_string(), ""),
            Err(error) => {
                let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(kinds.contains(&error.kind()), "{error}");
            }
        }
    }

    /// A figure of `stats`.
    #[track_caller]
    fn figure(&mut self, name: &str) -> u64 {
        let stats = self.ask_until("stats\r\n", "END\r\n");
        let value = stats.lines().find_map(|line| {
            let (one, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
            (one == name).then(|| value.parse().unwrap())
        });
        value.unwrap_or_else(|| panic!("no {name} in {stats}"))
    }

    /// Stores `value` under a key.
    #[track_caller]
    fn sets(&mut self, key: &str, value: &[u8]) {
        self.say(format!("set {key} 0 0 {}\r\n", value.len()));
        self.say(value);
        self.ask("\r\n", "STORED\r\n");
    }
}

/// Whether replies wait for any client of the server to which this one is connected.
fn waits<S: Read + Write>(client: &mut Client<S>) -> bool {
    client.ask_until("stats conns\r\n", "END\r\n").contains("conn_mwrite")
}

/// Bytes that are easily distinguished from others.
fn value(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| b'a' + u8::try_from((at * 7 + at / 250 + seed) % 26).unwrap()).collect()
}

/// The reply of `get` for an item.
fn item(key: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("VALUE {key} 0 {}\r\n", value.len());
    [head.as_bytes(), value, b"\r\nEND\r\n"].concat()
}
