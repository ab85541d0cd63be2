//! A connection's byte stream: TCP, a Unix socket, or TLS over TCP.

use std::io;
use std::os::fd::AsRawFd;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use super::socket::{Got, plain, put, straight};
#[cfg(feature = "tls")]
use super::tls::TlsStream;
use crate::proto::Counters;

/// A connection's byte stream.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Stream {
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Got> {
        match self {
            Self::Tcp(socket) => plain(socket, buffer),
            Self::Unix(socket) => plain(socket, buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }

    /// Reads at most `more` bytes to the end of `room`; `None` if it needs an intermediate buffer.
    pub(super) fn read_straight(
        &mut self,
        room: &mut Vec<u8>,
        more: usize,
    ) -> Option<io::Result<Got>> {
        match self {
            Self::Tcp(socket) => Some(straight(socket, room, more)),
            Self::Unix(socket) => Some(straight(socket, room, more)),
            #[cfg(feature = "tls")]
            Self::Tls(_) => None,
        }
    }

    /// Writes; returns the number of bytes accepted, 0 if none now.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => put(socket, bytes),
            Self::Unix(socket) => put(socket, bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    /// Whether it has accepted bytes that the socket has not.
    pub(super) fn holds(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.holds(),
            _ => false,
        }
    }

    /// Whether requests can be read: over TLS, after the handshake.
    pub(super) fn is_open(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.is_open(),
            _ => true,
        }
    }

    /// Maximum bytes that it has accepted and still holds.
    pub(super) fn memory(&self) -> usize {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.memory(),
            _ => 0,
        }
    }

    /// Passes accepted bytes to the socket. Returns whether the socket accepted any.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unnecessary_wraps, reason = "TLS alone keeps bytes")
    )]
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
            _ => Ok(false),
        }
    }

    /// Signals the end of the stream, if possible without waiting.
    pub(super) fn end(&mut self) {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.end(),
            _ => (),
        }
    }

    /// Counts a violation of the protocol by the peer.
    pub(super) fn count_error(&self, counts: &Counters) {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) if stream.is_open() => counts.ssl_proto_errors.one(),
            _ => counts.ssl_handshake_errors.one(),
        }
    }

    pub(super) fn number(&self) -> i32 {
        match self {
            Self::Tcp(socket) => socket.as_raw_fd(),
            Self::Unix(socket) => socket.as_raw_fd(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.fd().as_raw_fd(),
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE;
        match self {
            Self::Tcp(socket) => registry.register(socket, token, interest),
            Self::Unix(socket) => registry.register(socket, token, interest),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => registry.register(stream.socket(), token, interest),
        }
    }

    /// Starts or stops polling for writing.
    pub(super) fn watch(
        &mut self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => registry.reregister(socket, token, interest),
            Self::Unix(socket) => registry.reregister(socket, token, interest),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => registry.reregister(stream.socket(), token, interest),
        }
    }
}
