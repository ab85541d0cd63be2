//! Starts a program with given CPUs and memory placement, and supervises it until it ends.
//!
//! Policy and affinity belong to threads and are inherited, so they are set in a thread created for the start: this
//! process keeps its own. Signals are waited for instead of handled: those sent to this process are forwarded to the
//! program; those of the terminal reach the program directly, as it is in the same process group. Job-control signals
//! (Ctrl-Z) stop this process as well, as the shell expects. Orphans of the program become children of this process
//! (subreaper) and so stay in its tree.

use std::fmt;
use std::io;
use std::process::Command;
use std::time::Duration;

use libc::c_int;
use nearfar_topology::{Bytes, CpuId};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, wait};

use crate::affinity::{self, AffinityError};
use crate::mempolicy::{self, Policy, PolicyError};
use crate::sys::{process, signals};

/// CPUs and memory placement of a program; `None` leaves the present ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The CPUs.
    pub cpus: Option<Vec<CpuId>>,
    /// The memory policy.
    pub policy: Option<Policy>,
}

/// A placement the kernel refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The CPUs.
    #[error(transparent)]
    Cpus(#[from] AffinityError),
    /// The memory policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Reasons why a program was not started, or not supervised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The placement was refused; nothing was started.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The program could not be executed.
    #[error("can't execute: {0}")]
    Execute(io::Error),
    /// A call of this process failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
}

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Status(u8),
    /// By this signal.
    Signal(u8),
}

impl Ended {
    /// The status a shell would show: 128 and the signal, if one ended it.
    #[must_use]
    pub fn shell_status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

impl Placement {
    /// Applies the placement to the calling thread, and so to its children and after exec.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn apply(&self) -> Result<(), PlacementError> {
        if let Some(cpus) = &self.cpus {
            affinity::set(cpus)?;
        }
        if let Some(policy) = &self.policy {
            mempolicy::set(policy)?;
        }
        Ok(())
    }
}

/// A running program.
pub struct Watched {
    pid: Pid,
    signals: signals::Set,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// Starts `command` with `placement`. To be called once, before this process has other threads.
///
/// # Errors
/// [`WatchError`]; nothing runs then.
pub fn start(mut command: Command, placement: &Placement) -> Result<Watched, WatchError> {
    let call = |call| move |source| WatchError::Call { call, source };
    let signals = signals::Set::of(&watched()).map_err(call("sigaddset"))?;
    signals::keep_children().map_err(call("signal"))?;
    set_child_subreaper(Some(getpid())).map_err(|errno| call("prctl")(errno.into()))?;
    let mask = signals::block(&signals).map_err(call("sigprocmask"))?;
    signals::start_with_mask(&mut command, mask);
    let started = std::thread::scope(|scope| {
        let starter = scope.spawn(|| -> Result<u32, WatchError> {
            placement.apply()?;
            command.spawn().map(|child| child.id()).map_err(WatchError::Execute)
        });
        starter.join().unwrap_or_else(|_| Err(call("thread")(io::ErrorKind::Other.into())))
    });
    let pid = i32::try_from(started?).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| call("fork")(io::ErrorKind::InvalidData.into()))?;
    Ok(Watched { pid, signals })
}

/// The signals waited for: SIGCHLD, and every signal that should be forwarded. Not those of job control, not those
/// raised by faults of this process, and not the two that the C library reserves.
fn watched() -> Vec<c_int> {
    let ours = [
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGSYS,
        libc::SIGPIPE,
        32,
        33,
    ];
    (1..=libc::SIGRTMAX()).filter(|signal| !ours.contains(signal)).collect()
}

impl Watched {
    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The largest resident memory that a single process of the program had, by the kernel's own account, once the program
    /// has ended; `None` if it does not exceed that of this process, which each of them had before it executed a program.
    #[must_use]
    pub fn peak_of_a_process(&self) -> Option<Bytes> {
        let peak = process::peak_kib(libc::RUSAGE_CHILDREN);
        (peak > process::peak_kib(libc::RUSAGE_SELF)).then(|| Bytes(peak.saturating_mul(1024)))
    }

    /// Waits at most `timeout` for its end, forwarding signals; `None` if it still runs.
    ///
    /// # Errors
    /// [`WatchError::Call`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<Ended>, WatchError> {
        let came = signals::wait(&self.signals, timeout)
            .map_err(|source| WatchError::Call { call: "sigtimedwait", source })?;
        match came {
            Some(came) if came.signal == libc::SIGCHLD => {}
            // It may have ended already; then the signal is dropped.
            Some(came) if !came.from_kernel => signals::send(self.pid, came.signal),
            Some(_) | None => {}
        }
        self.reap()
    }

    /// Reaps children that have ended, adopted ones included; returns the program's end if it was among them.
    fn reap(&self) -> Result<Option<Ended>, WatchError> {
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                Ok(None) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    return Err(WatchError::Call { call: "waitpid", source: errno.into() });
                }
            };
            if pid == self.pid {
                let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
                let signal = status.terminating_signal().map(|signal| Ended::Signal(byte(signal)));
                let exited = status.exit_status().map(|status| Ended::Status(byte(status)));
                return Ok(signal.or(exited));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_maps_to_the_shells_exit_status() {
        assert_eq!(Ended::Signal(15).shell_status(), 143);
        assert_eq!(Ended::Status(7).shell_status(), 7);
    }

    #[test]
    fn job_control_and_fault_signals_are_not_watched() {
        let watched = watched();
        assert!(watched.contains(&libc::SIGTERM) && watched.contains(&libc::SIGCHLD));
        assert!(!watched.contains(&libc::SIGTSTP) && !watched.contains(&libc::SIGSEGV));
    }
}
