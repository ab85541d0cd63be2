//! Sockets to listen on, and what is accepted there.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::config::{Config, Error, Unix};
use super::stream::Stream;

/// A socket that is listened on.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, Unix),
}

fn tcp(address: SocketAddr, backlog: i32) -> Result<TcpListener, Error> {
    let socket = || -> io::Result<OwnedFd> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, backlog)?;
        Ok(socket)
    };
    let socket = socket().map_err(|source| Error::Listen { at: address.to_string(), source })?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Removes a socket that nobody listens on any more.
fn clear(unix: &Unix) -> Result<(), Error> {
    let path = &unix.path;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::NoSocket { path: path.clone() });
        }
        Ok(_) => (),
        // Nothing is there; or what is wrong with the path is found when it is bound.
        Err(_) => return Ok(()),
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(Error::InUse { path: path.clone() });
    }
    let at = path.display().to_string();
    fs::remove_file(path).map_err(|source| Error::Listen { at, source })
}

fn unix(unix: &Unix, backlog: i32) -> Result<UnixListener, Error> {
    clear(unix)?;
    let socket = || -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, stream, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&unix.path)?)?;
        // Nobody can connect before it is listened on, so nobody does before the mode is right.
        fs::set_permissions(&unix.path, fs::Permissions::from_mode(unix.mode))?;
        rustix::net::listen(&socket, backlog)?;
        Ok(socket)
    };
    let at = || unix.path.display().to_string();
    let socket = socket().map_err(|source| Error::Listen { at: at(), source })?;
    Ok(UnixListener::from_std(socket.into()))
}

impl Listener {
    /// All that a configuration asks for.
    pub(super) fn all(config: &Config) -> Result<Vec<Self>, Error> {
        let mut all = Vec::new();
        for address in &config.tcp {
            all.push(Self::on_tcp(*address, config.backlog)?);
        }
        if let Some(at) = &config.unix {
            all.push(Self::Unix(unix(at, config.backlog)?, at.clone()));
        }
        if all.is_empty() { Err(Error::Nowhere) } else { Ok(all) }
    }

    pub(super) fn on_tcp(address: SocketAddr, backlog: i32) -> Result<Self, Error> {
        let listener = tcp(address, backlog)?;
        let bound = listener.local_addr();
        let bound = bound.map_err(|source| Error::Listen { at: address.to_string(), source })?;
        Ok(Self::Tcp(listener, bound))
    }

    /// The address, if it is TCP.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, address) => Some(*address),
            Self::Unix(..) => None,
        }
    }

    /// As `stats conns` shows it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Tcp(_, address) => format!("tcp:{address}"),
            Self::Unix(_, unix) => format!("unix:{}", unix.path.display()),
        }
    }

    pub(super) fn number(&self) -> i32 {
        match self {
            Self::Tcp(listener, _) => listener.as_raw_fd(),
            Self::Unix(listener, _) => listener.as_raw_fd(),
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let listener: &mut dyn Source = match self {
            Self::Tcp(listener, _) => listener,
            Self::Unix(listener, _) => listener,
        };
        registry.register(listener, token, Interest::READABLE)
    }

    /// A connection, and where it comes from.
    pub(super) fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, from) = listener.accept()?;
                // Replies are written whole; waiting for more would only make them late.
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), format!("tcp:{from}")))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), "unix:".to_owned()))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, unix) = self {
            // Whoever removed it before has done what this does.
            let _ = fs::remove_file(&unix.path);
        }
    }
}
