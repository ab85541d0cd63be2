//! The guest's side: the first process of the guest, which starts the command, carries its streams over the port and
//! reports its exit status. If the host's end closes, the guest powers off.
//!
//! Here: finding the port and the life of the runner. `command.rs` starts the command, `pump.rs` moves the bytes,
//! `forget.rs` limits the lifetime of translations.

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

/// The port's name on host and guest.
pub(crate) const PORT: &str = "nearfar";

/// Errors in the guest. They are printed on the console, and the machine stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    /// This is not a guest, or one without the port.
    #[error(
        "no virtio port named {PORT}; this command is started inside the lab's guest, not by hand"
    )]
    NoPort,
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The error.
        source: rustix::io::Errno,
    },
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
    /// Input or output on the port failed.
    #[error("the port: {0}")]
    Port(#[from] std::io::Error),
    /// The host sent an invalid frame.
    #[error("the host: {0}")]
    Wire(#[from] crate::wire::WireError),
}

/// Adds the operation to a system call's error.
fn doing(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> GuestError {
    move |source| GuestError::Os { what, source }
}

/// Runs as the guest's first process, limiting translations to this lifetime; returns only on failure.
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

/// Writes a line to the guest's console, which the host keeps as a log.
fn say(text: &str) {
    let _ = fs::write("/dev/console", format!("nearfar-lab: {text}\n"));
}

/// The host announces the port's name, on a busy host after this process has started.
const PORT_LIMIT: Duration = Duration::from_secs(30);

fn open_port() -> Result<OwnedFd, GuestError> {
    let limit = Deadline::after(Some(PORT_LIMIT));
    let ours = loop {
        // The directory does not exist outside a guest.
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
