// SPDX-License-Identifier: GPL-2.0-or-later
//! The host's clock, and waiting: the only place of this crate that knows either.
#![expect(unsafe_code, reason = "asks the kernel for exact waits")]

use std::ffi::{c_int, c_ulong};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static START: OnceLock<Instant> = OnceLock::new();

/// Nanoseconds since this was first asked.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn real_ns() -> u64 {
    let start = *START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn wait(nanoseconds: u64) {
    std::thread::sleep(Duration::from_nanos(nanoseconds));
}

/// Has the calling thread's waits end when they should, not up to 50 us later.
pub(crate) fn exact_waits() {
    const PR_SET_TIMERSLACK: c_int = 29;
    unsafe extern "C" {
        fn prctl(option: c_int, ...) -> c_int;
    }
    let slack_ns: c_ulong = 1;
    // SAFETY: PR_SET_TIMERSLACK takes one unsigned long and touches no memory; where refused, waits are just coarser.
    unsafe { prctl(PR_SET_TIMERSLACK, slack_ns) };
}
