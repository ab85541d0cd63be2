//! The guest's side: the first process of the guest, which starts the command, carries its streams over the port and tells
//! how it ended. If the host goes away, so does the guest.
//!
//! Here: finding the port and the life of the runner. `command.rs` starts the command, `pump.rs` moves the bytes,
//! `forget.rs` has CPUs forget translations.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::system::RebootCommand;

use crate::clock::Deadline;
use crate::wire::{Frame, Hello, VERSION};

mod command;
mod forget;
mod pump;

pub(crate) use command::exec_in_terminal;

/// The port's name on both sides.
pub(crate) const PORT: &str = "nearfar";

/// What can go wrong in the guest. It is printed on the console, and the machine stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    /// Not in a guest, or one without the port.
    #[error(
        "no virtio port named {PORT}; this command is started inside the lab's guest, not by hand"
    )]
    NoPort,
    /// A system call.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: rustix::io::Errno,
    },
    /// A thread.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
    /// The port.
    #[error("the port: {0}")]
    Port(#[from] std::io::Error),
    /// The host said something that makes no sense.
    #[error("the host: {0}")]
    Wire(#[from] crate::wire::WireError),
}

/// Adds what was tried to a system call's error.
fn doing(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> GuestError {
    move |source| GuestError::Os { what, source }
}

/// Runs as the guest's first process, on CPUs that keep translations for so long; returns only if it must not go on.
pub(crate) fn run(reenter: &[String], translations: Duration) -> Result<(), GuestError> {
    let served = open_port()
        .and_then(|port| forget::start(translations).and_then(|()| serve(port, reenter)));
    rustix::fs::sync();
    if let Err(error) = &served {
        say(&error.to_string());
    }
    power_off();
    served
}

fn serve(port: OwnedFd, reenter: &[String]) -> Result<(), GuestError> {
    let mut pump = pump::Pump::new(port)?;
    pump.send(&Frame::Hello(Hello { version: VERSION }));
    pump.serve(reenter)
}

/// Stops the machine at once; outside a guest (not the first process) it does nothing.
fn power_off() {
    if std::process::id() == 1 {
        let _ = rustix::system::reboot(RebootCommand::PowerOff);
    }
}

/// A line on the guest's console, which the host keeps as a log.
fn say(text: &str) {
    let _ = fs::write("/dev/console", format!("nearfar-lab: {text}\n"));
}

/// A port's name comes from the host, and on a busy one later than we do.
const PORT_LIMIT: Duration = Duration::from_secs(30);

fn open_port() -> Result<OwnedFd, GuestError> {
    let limit = Deadline::after(Some(PORT_LIMIT));
    let ours = loop {
        // Not there at all outside a guest.
        let ports = fs::read_dir("/sys/class/virtio-ports").map_err(|_| GuestError::NoPort)?;
        let ours = ports.flatten().find(|port| {
            fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == PORT)
        });
        match ours {
            Some(ours) => break ours,
            None if limit.passed() || std::process::id() != 1 => return Err(GuestError::NoPort),
            None => crate::clock::sleep(Duration::from_millis(10)),
        }
    };
    let device = PathBuf::from("/dev").join(ours.file_name());
    Ok(fs::OpenOptions::new().read(true).write(true).open(device)?.into())
}
