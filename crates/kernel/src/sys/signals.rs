//! Waiting for signals instead of handlers: a mask, sigtimedwait(2), and a child that starts without the mask.
#![expect(unsafe_code, reason = "signal masks and sigtimedwait, which no safe crate offers")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use libc::{c_int, sigset_t, timespec};
use rustix::process::Pid;

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct Set(sigset_t);

/// A received signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// Its number.
    pub(crate) signal: c_int,
    /// Whether the kernel sent it (a terminal's Ctrl-C, an alarm), not a process by kill(2).
    pub(crate) from_kernel: bool,
}

impl Set {
    /// The set of `signals`.
    pub(crate) fn of(signals: &[c_int]) -> io::Result<Self> {
        let mut set = MaybeUninit::<sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set it is given room for.
        check(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
        // SAFETY: initialised by sigemptyset, which reported success.
        let mut set = unsafe { set.assume_init() };
        for signal in signals {
            // SAFETY: `set` is an initialised set; a number that is no signal gives EINVAL.
            check(unsafe { libc::sigaddset(&raw mut set, *signal) })?;
        }
        Ok(Self(set))
    }
}

/// Blocks `set` in the calling thread and its future threads; returns the previous mask.
pub(crate) fn block(set: &Set) -> io::Result<Set> {
    let mut before = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: pthread_sigmask reads an initialised set and writes the old one to the room it is given.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set.0, before.as_mut_ptr()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: written by pthread_sigmask, which reported success.
    Ok(Set(unsafe { before.assume_init() }))
}

/// Ensures that children can be waited for even if this process was started with SIGCHLD ignored.
pub(crate) fn keep_children() -> io::Result<()> {
    // SAFETY: SIG_DFL is a valid disposition for SIGCHLD and runs no code of ours.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends any signal, real-time ones included; nothing happens if the process has ended.
pub(crate) fn send(pid: Pid, signal: i32) {
    // SAFETY: kill reads no memory of this process.
    let _ = unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
}

/// Waits for one of `set`, all of which are blocked, for at most `timeout`; `None` if none arrived.
pub(crate) fn wait(set: &Set, timeout: Duration) -> io::Result<Option<Came>> {
    let timeout = timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: sigtimedwait reads an initialised set and a timespec that live until it returns, and writes the
    // siginfo_t it is given room for.
    let signal =
        unsafe { libc::sigtimedwait(&raw const set.0, info.as_mut_ptr(), &raw const timeout) };
    if signal < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    // SAFETY: zeroed, which is a valid siginfo_t, then filled by sigtimedwait.
    let info = unsafe { info.assume_init() };
    Ok(Some(Came { signal, from_kernel: info.si_code == libc::SI_KERNEL }))
}

/// Makes the child start with `mask` instead of this process's.
pub(crate) fn start_with_mask(command: &mut Command, mask: Set) {
    let set_mask = move || {
        // SAFETY: the mask is an initialised set, owned by the closure; the old one is not requested.
        let error = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut())
        };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    };
    // SAFETY: the closure runs between fork and exec; it makes one async-signal-safe call, allocates nothing on
    // success (from_raw_os_error does not allocate either) and touches no lock.
    unsafe { command.pre_exec(set_mask) };
}

fn check(status: c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
