//! Notifications to the service manager (sd_notify(3)): ready, watchdog, stopping.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. The socket is connected once, at the start: a service that
//! confines itself can't do so later. The units are in `share/systemd`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

use nearfar_kernel::clock::Stopwatch;

/// Interval of watchdog notifications, if that is not too long.
const OFTEN: Duration = Duration::from_secs(1);

/// The service manager, if there is one.
#[derive(Debug)]
pub struct Supervisor {
    socket: Option<UnixDatagram>,
    /// Interval of watchdog notifications; `None` if there is no watchdog.
    interval: Option<Duration>,
    notified: Stopwatch,
    is_ready: bool,
}

impl Supervisor {
    /// The service manager that started this process. Call it before the process confines itself.
    #[must_use]
    pub fn find() -> Self {
        // A service manager that does not listen is no error.
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|address| connected(&address).ok());
        // Much more often than required, so that a long iteration has nearly all of the time.
        let interval = sd_notify::watchdog_enabled().map(|interval| (interval / 2).min(OFTEN));
        Self { socket, interval, notified: Stopwatch::start(), is_ready: false }
    }

    /// Reports that the service is ready, the first time it is called.
    pub fn ready(&mut self, status: &str) {
        if !self.is_ready {
            self.is_ready = true;
            self.say(&[NotifyState::Ready, NotifyState::Status(status)]);
        }
    }

    /// Sends a watchdog notification when due; to be called in each iteration of the service's loop.
    pub fn alive(&mut self) {
        if self.interval.is_some_and(|interval| self.notified.elapsed() >= interval) {
            self.notified = Stopwatch::start();
            self.say(&[NotifyState::Watchdog]);
        }
    }

    fn say(&self, states: &[NotifyState<'_>]) {
        if let Some(socket) = &self.socket {
            let lines: String = states.iter().map(|state| format!("{state}\n")).collect();
            let _ = socket.send(lines.as_bytes());
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.say(&[NotifyState::Stopping]);
    }
}

/// A socket to a path, or to a name without a file (`@NAME`).
fn connected(address: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    match address.as_bytes() {
        [b'@', name @ ..] => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        _ => socket.connect(address)?,
    }
    Ok(socket)
}
