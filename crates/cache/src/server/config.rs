//! How a server is set up, and what can go wrong with that.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::proto::Settings;

/// Seconds from one look at idle connections to the next, and the steps of the store's clock.
pub(super) const TICK_SECONDS: u32 = 1;

/// A socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unix {
    /// Where it is. What is left there of a server that is no more is removed.
    pub path: PathBuf,
    /// Who may connect, as file modes say it: 0o700 is the owner alone.
    pub mode: u32,
}

/// What becomes of connections above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overload {
    /// They are told so and closed, as memcached does by default (`maxconns_fast`).
    Refuse,
    /// They wait until another has been closed.
    Wait,
}

/// TLS for TCP. PEM files.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate and those up to a root.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// If given, clients need a certificate that comes from one of these.
    pub client_roots: Option<PathBuf>,
}

/// How a server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses to listen on; port 0 is any that is free. 127.0.0.1:11211 unless said otherwise: there is no authentication, so
    /// whoever reaches an address may do everything.
    pub tcp: Vec<SocketAddr>,
    /// A socket in the file system to listen on, too. None.
    pub unix: Option<Unix>,
    /// Where `GET /metrics` is answered. Nowhere.
    pub metrics: Option<SocketAddr>,
    /// Threads that serve connections. 4, memcached's `-t`.
    pub threads: usize,
    /// Connections at a time. 1024, memcached's `-c`.
    pub connections_max: usize,
    /// What becomes of more. They are refused.
    pub overload: Overload,
    /// Connections that the kernel keeps until they are accepted. 1024, memcached's `-b`.
    pub backlog: i32,
    /// Bytes that connections may hold in all for what is half sent and what is not taken; more, and the one that asks is closed.
    /// 256 MiB; 0 is any number.
    pub buffer_bytes_max: usize,
    /// A connection that asks nothing for so many seconds is closed. 0: never.
    pub idle_seconds: u32,
    /// A connection that takes none of the replies that wait for it for so many seconds is closed. 60; 0: never.
    pub stalled_seconds: u32,
    /// When the server is stopped, connections have so many seconds to finish what they began. 5.
    pub drain_seconds: u32,
    /// What clients may do, and how much at once.
    pub protocol: Settings,
    /// TLS on all TCP addresses. None.
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
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to listen on.
    #[error("nothing to listen on: give an address or the path of a socket")]
    Nowhere,
    /// An address can't be listened on.
    #[error("listening on {at}: {source}; give another address, or stop what uses it")]
    Listen {
        /// The address or path.
        at: String,
        /// What the system says.
        source: io::Error,
    },
    /// Another server listens on a socket.
    #[error("listening on {}: another server does; stop it, or give another path", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A file is where the socket should be.
    #[error("listening on {}: what is there is no socket; remove it, or give another path", path.display())]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// The system lacks something.
    #[error("starting {what}: {source}")]
    Start {
        /// What was to be started.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A certificate or key can't be used.
    #[cfg(feature = "tls")]
    #[error("TLS by {}: {why}; a PEM file is wanted", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}
