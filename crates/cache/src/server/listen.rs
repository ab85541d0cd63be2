//! Sockets to listen on, and what is accepted there.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::config::{Config, Error, Unix};
use super::stream::Stream;

/// A socket that is listened on.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, Placed),
}

/// A socket that was made in the file system. It goes with its listener, unless another has taken its place.
#[derive(Debug)]
pub(super) struct Placed {
    path: PathBuf,
    /// Device and number.
    file: (u64, u64),
}

impl Drop for Placed {
    fn drop(&mut self) {
        if file(&self.path).is_ok_and(|file| file == self.file) {
            // Whoever removed it before has done what this does.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
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

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes a socket that nobody listens on any more. One that can't be asked whether anybody does is left alone.
fn clear(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::NoSocket { path: path.to_owned() });
        }
        Ok(_) => (),
        // Nothing is there; or what is wrong with the path is found when it is bound.
        Err(_) => return Ok(()),
    }
    let failed = |source| Error::Listen { at: path.display().to_string(), source };
    let socket = stream_socket().map_err(failed)?;
    let asked = SocketAddrUnix::new(path).and_then(|at| rustix::net::connect(&socket, &at));
    match asked {
        // Who has no room for another connection listens all the same.
        Ok(()) | Err(Errno::AGAIN) => Err(Error::InUse { path: path.to_owned() }),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        Err(error) => Err(failed(error.into())),
    }
}

fn unix(unix: &Unix, backlog: i32) -> Result<Listener, Error> {
    let path = &unix.path;
    clear(path)?;
    let listener = || -> io::Result<Listener> {
        let socket = stream_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let placed = Placed { path: path.clone(), file: file(path)? };
        // Nobody can connect before it is listened on, so nobody does before the mode is right.
        fs::set_permissions(path, fs::Permissions::from_mode(unix.mode))?;
        rustix::net::listen(&socket, backlog)?;
        Ok(Listener::Unix(UnixListener::from_std(socket.into()), placed))
    };
    listener().map_err(|source| Error::Listen { at: path.display().to_string(), source })
}

impl Listener {
    /// All that a configuration asks for.
    pub(super) fn all(config: &Config) -> Result<Vec<Self>, Error> {
        let mut all = Vec::new();
        for address in &config.tcp {
            all.push(Self::on_tcp(*address, config.backlog)?);
        }
        if let Some(at) = &config.unix {
            all.push(unix(at, config.backlog)?);
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
            Self::Unix(_, placed) => format!("unix:{}", placed.path.display()),
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
