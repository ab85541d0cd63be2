//! A measured program: waits for its exit and reads its resource usage (wait4).
#![expect(unsafe_code, reason = "wait4 and kill, which std does not have")]

use std::fs;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::process::{Child, Command, Stdio};

/// Resource usage of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// CPU time in seconds, user and system, including children that it waited for.
    pub(crate) seconds: f64,
    /// Peak resident memory in KiB; of several programs, the largest peak.
    pub(crate) peak_kib: f64,
}

impl Used {
    /// Adds the usage of a program that ran after this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.peak_kib = self.peak_kib.max(other.peak_kib);
    }
}

/// A running program; it is killed on drop if it has not ended.
pub(crate) struct Running {
    child: Child,
    ended: bool,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn();
        let child =
            child.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        Ok(Self { child, ended: false })
    }

    /// Peak resident memory so far, in KiB. (The figure from wait4 would start from this process's own peak.)
    pub(crate) fn peak_kib(&self) -> Result<f64, String> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let figure = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        figure.ok_or_else(|| format!("{path}: no VmHWM"))
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        // SAFETY: a child that has not been waited for; a signal.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
    }

    /// Waits for the program to end; an unsuccessful exit status is an error.
    pub(crate) fn end(mut self) -> Result<Used, String> {
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // If stderr can't be read, the error message is merely less detailed.
            let _ = stderr.read_to_string(&mut said);
        }
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        let id = self.child.id().cast_signed();
        // SAFETY: valid pointers for the status and the usage; the child has not been waited for.
        let waited = unsafe { libc::wait4(id, &raw mut status, 0, usage.as_mut_ptr()) };
        self.ended = waited == id;
        if !self.ended || !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
            return Err(format!("it ended with wait status {status:#x}: {}", said.trim()));
        }
        // SAFETY: all zeroes is a valid value, and wait4 has filled it in.
        let usage = unsafe { usage.assume_init() };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Ok(Used {
            seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            peak_kib: usage.ru_maxrss as f64,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // The kill fails if the program has already ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
