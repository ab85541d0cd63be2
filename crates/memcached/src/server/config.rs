//! Configuration of a server, and errors of starting it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::proto::Settings;

/// Interval of checks for idle connections, and of the store's clock.
pub(super) const TICK_SECONDS: u32 = 1;

/// A Unix socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unix {
    /// Its path. A socket left there by a dead server is removed.
    pub path: PathBuf,
    /// Permissions to connect, as a file mode: 0o700 is the owner only.
    pub mode: u32,
}

/// The treatment of connections above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overload {
    /// They get an error and are closed, as in memcached by default (`maxconns_fast`).
    Refuse,
    /// They wait until another has been closed.
    Wait,
}

/// TLS for TCP. PEM files.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate and its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// If given, clients need a certificate issued by one of these authorities.
    pub client_roots: Option<PathBuf>,
}

/// Configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses to listen on; port 0 is any free one. Default: 127.0.0.1:11211; there is no authentication, so any
    /// client that reaches an address may run every command.
    pub tcp: Vec<SocketAddr>,
    /// A Unix socket to listen on as well. Default: none.
    pub unix: Option<Unix>,
    /// Address of `GET /metrics`. Default: none.
    pub metrics: Option<SocketAddr>,
    /// Threads that serve connections. Default: 4. memcached's `-t`.
    pub threads: usize,
    /// Maximum simultaneous connections. Default: 1024. memcached's `-c`.
    pub connections_max: usize,
    /// The treatment of further ones. Default: refused.
    pub overload: Overload,
    /// Length of the kernel's queue of connections not yet accepted. Default: 1024. memcached's `-b`.
    pub backlog: i32,
    /// Maximum bytes that all connections may hold for partial requests and unsent replies; beyond it, the requesting
    /// connection is closed. Default: 256 MiB; 0: no limit.
    pub buffer_bytes_max: usize,
    /// Seconds without a request after which a connection is closed. 0: never.
    pub idle_seconds: u32,
    /// Seconds after which a connection is closed that accepts none of its pending replies, or sends nothing of a TLS
    /// handshake. Default: 60; 0: never.
    pub stalled_seconds: u32,
    /// Seconds for connections to complete their requests when the server is stopped. Default: 5.
    pub drain_seconds: u32,
    /// Permissions and limits of clients.
    pub protocol: Settings,
    /// Additional names and values for `stats settings`, about the serving process.
    pub about: Vec<(&'static str, String)>,
    /// TLS on all TCP addresses. Default: none.
    #[cfg(feature = "tls")]
    pub tls: Option<Tls>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tcp: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 11211))],
            unix: None,
            metrics: None,
            threads: 4,
            connections_max: 1024,
            overload: Overload::Refuse,
            backlog: 1024,
            buffer_bytes_max: 256 << 20,
            idle_seconds: 0,
            stalled_seconds: 60,
            drain_seconds: 5,
            protocol: Settings::default(),
            about: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

fn way_out(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::AddrInUse => "give another address, or stop the program that uses it",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address; give another",
        io::ErrorKind::NotFound => "create the socket's directory, or give another path",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE, sockets a directory that this user may write to"
        }
        _ => "give another address",
    }
}

/// Reasons why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No address to listen on.
    #[error("nothing to listen on: give an address or the path of a socket")]
    Nowhere,
    /// An address on which it can't listen.
    #[error("listening on {at}: {why}; {}", way_out(.why))]
    Listen {
        /// The address or path.
        at: String,
        /// The system's error.
        why: io::Error,
    },
    /// Another server listens on a socket.
    #[error("listening on {}: another server does; stop it, or give another path", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A file other than a socket is at the path.
    #[error("listening on {}: the file there is not a socket; remove it, or give another path", path.display())]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// A missing resource of the system.
    #[error("starting {what}: {why}")]
    Start {
        /// The part that could not be started.
        what: &'static str,
        /// The system's error.
        why: io::Error,
    },
    /// A certificate or key can't be used.
    #[cfg(feature = "tls")]
    #[error("TLS by {}: {why}; a PEM file is wanted", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// The error in it.
        why: String,
    },
}
