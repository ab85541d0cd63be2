// SPDX-License-Identifier: GPL-2.0-or-later
//! The host's clock, waiting, and how the host schedules threads; no other module of this crate accesses them.
#![expect(unsafe_code, reason = "asks the kernel for exact waits")]

use std::ffi::{c_int, c_uint, c_ulong};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static START: OnceLock<Instant> = OnceLock::new();

/// Nanoseconds since the first call.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn real_ns() -> u64 {
    let start = *START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn wait(nanoseconds: u64) {
    std::thread::sleep(Duration::from_nanos(nanoseconds));
}

/// Makes the calling thread's sleeps end on time, not up to 50 us later.
pub(crate) fn exact_waits() {
    const PR_SET_TIMERSLACK: c_int = 29;
    unsafe extern "C" {
        fn prctl(option: c_int, ...) -> c_int;
    }
    let slack_ns: c_ulong = 1;
    // SAFETY: PR_SET_TIMERSLACK takes one unsigned long and accesses no memory; on failure, sleeps are only less exact.
    unsafe { prctl(PR_SET_TIMERSLACK, slack_ns) };
}

/// Lets the calling thread precede other programs of the host, where it may: vCPUs wait for each other, so one that the
/// host keeps waiting holds up all.
pub(crate) fn precede_others() {
    const PRIO_PROCESS: c_int = 0;
    const NICE: c_int = -15;
    unsafe extern "C" {
        fn setpriority(which: c_int, who: c_uint, nice: c_int) -> c_int;
    }
    // SAFETY: accesses no memory. On Linux 0 is the calling thread; without the capability nothing changes.
    unsafe { setpriority(PRIO_PROCESS, 0, NICE) };
}

/// The host kernel's account of a thread.
pub(crate) struct Thread {
    stat: Option<File>,
    schedstat: Option<File>,
}

impl Thread {
    /// The calling thread.
    pub(crate) fn this() -> Self {
        let open = |name: &str| {
            // `thread-self` names the thread that opens it.
            File::open(format!("/proc/thread-self/{name}")).ok()
        };
        Self { stat: open("stat"), schedstat: open("schedstat") }
    }

    /// Whether it runs or waits for a CPU, and is not blocked.
    pub(crate) fn is_runnable(&self) -> bool {
        let mut text = [0; 128];
        let length = self.stat.as_ref().and_then(|stat| stat.read_at(&mut text, 0).ok());
        // The state follows the name, which is in parentheses.
        let text = &text[..length.unwrap_or(0)];
        let end = text.iter().rposition(|byte| *byte == b')');
        end.is_some_and(|end| text.get(end + 2) == Some(&b'R'))
    }

    /// How long it has waited for a CPU so far, in nanoseconds.
    pub(crate) fn waited_ns(&self) -> u64 {
        let mut text = [0; 64];
        let length = self.schedstat.as_ref().and_then(|stat| stat.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..length.unwrap_or(0)]).unwrap_or_default();
        text.split_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0)
    }
}
