//! Listening sockets, and the connections accepted from them.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::config::{Config, Error, Unix};
use super::stream::Stream;

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, Placed),
}

/// A socket created in the file system. It is removed with its listener, unless another has replaced it.
#[derive(Debug)]
pub(super) struct Placed {
    path: PathBuf,
    /// Device and inode number.
    file: (u64, u64),
}

impl Drop for Placed {
    fn drop(&mut self) {
        if file(&self.path).is_ok_and(|file| file == self.file) {
            // It may have been removed already.
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
    let socket = socket().map_err(|why| Error::Listen { at: address.to_string(), why })?;
    Ok(TcpListener::from_std(socket.into()))
}

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes a socket without a listener. One that can't be tested is left alone.
fn clear(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::NoSocket { path: path.to_owned() });
        }
        Ok(_) => (),
        // There is none; other errors of the path are found by bind.
        Err(_) => return Ok(()),
    }
    let failed = |why| Error::Listen { at: path.display().to_string(), why };
    let socket = stream_socket().map_err(failed)?;
    let asked = SocketAddrUnix::new(path).and_then(|at| rustix::net::connect(&socket, &at));
    match asked {
        // A listener with a full queue is one, too.
        Ok(()) | Err(Errno::AGAIN) => Err(Error::InUse { path: path.to_owned() }),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        Err(error) => Err(failed(error.into())),
    }
}

/// Binds a socket so that its file is created with this mode. Nothing is changed by path afterwards: in a directory of
/// another user the name may lead to any file by then.
fn bind_with_mode(socket: &OwnedFd, at: &SocketAddrUnix, mode: u32) -> io::Result<()> {
    static ONE: Mutex<()> = Mutex::new(());
    // The file gets the socket's mode, less the umask, which all threads share: it is changed for this call only, to a
    // value that does not widen the permissions of files created concurrently.
    rustix::fs::fchmod(socket, Mode::from_raw_mode(mode))?;
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = rustix::process::umask(Mode::from_raw_mode(!mode & 0o077));
    let bound = rustix::net::bind(socket, at);
    rustix::process::umask(before);
    drop(one);
    Ok(bound?)
}

fn unix(unix: &Unix, backlog: i32) -> Result<Listener, Error> {
    let path = &unix.path;
    clear(path)?;
    let listener = || -> io::Result<Listener> {
        let socket = stream_socket()?;
        bind_with_mode(&socket, &SocketAddrUnix::new(path)?, unix.mode)?;
        let placed = Placed { path: path.clone(), file: file(path)? };
        rustix::net::listen(&socket, backlog)?;
        Ok(Listener::Unix(UnixListener::from_std(socket.into()), placed))
    };
    listener().map_err(|why| Error::Listen { at: path.display().to_string(), why })
}

impl Listener {
    /// All listeners of a configuration.
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
        let bound = bound.map_err(|why| Error::Listen { at: address.to_string(), why })?;
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

    /// Accepts a connection; returns it and its origin.
    pub(super) fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, from) = listener.accept()?;
                // Replies are written whole; Nagle's algorithm would only delay them.
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
