//! Address of a server: HOST:PORT, or unix:PATH.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;

/// Time limit of a connection attempt.
const CONNECTING: Duration = Duration::from_secs(2);

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// HOST:PORT.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(1..) => Ok(Self::Tcp(text.into())),
            _ => Err("write HOST:PORT or unix:PATH, where a memcached server listens".into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Connects; reads and writes block.
    pub(crate) fn connect(&self) -> anyhow::Result<Connection> {
        self.try_connect().with_context(|| {
            format!("{self}: no connection; is a memcached server listening there?")
        })
    }

    fn try_connect(&self) -> io::Result<Connection> {
        match self {
            Self::Unix(path) => Ok(Connection::Unix(UnixStream::connect(path)?)),
            Self::Tcp(address) => {
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECTING) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Connection::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

/// A connection of either kind.
#[derive(Debug)]
pub(crate) enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Makes reads and writes non-blocking.
    pub(crate) fn without_waiting(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// Sets a time limit for reads and writes.
    pub(crate) fn with_patience(&self, patience: Duration) -> io::Result<()> {
        let patience = Some(patience);
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
        }
    }

    /// Whether the other end is certainly on this machine.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()),
            Self::Unix(_) => true,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print_as_typed() {
        for text in ["127.0.0.1:11211", "[::1]:1", "cache.example:65535", "unix:/run/mc.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "127.0.0.1", ":11211", "host:0", "host:65536", "host:x", "/a/b"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
