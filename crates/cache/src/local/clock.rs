//! Clocks of an embedded cache; no other file of it reads clocks. They are the coarse ones, which every operation can
//! read in a few nanoseconds, through libc: crate rustix looks up the kernel's vDSO by itself, which ends programs
//! under Valgrind.
#![expect(unsafe_code, reason = "the coarse clocks are libc's")]

use crate::store::cas_at;

const NS_PER_S: i64 = 1_000_000_000;

/// Seconds since it was created, beginning at 1; its seconds begin with those of the wall clock at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero_ns: i64,
    unix_ns: i64,
}

impl Clock {
    pub(super) fn start() -> Self {
        let unix_ns = coarse_ns(libc::CLOCK_REALTIME_COARSE).max(0);
        let began_ns = coarse_ns(libc::CLOCK_MONOTONIC_COARSE) - unix_ns % NS_PER_S;
        Self { zero_ns: began_ns - NS_PER_S, unix_ns }
    }

    /// A CAS number above all those that an earlier instance has given to its items.
    pub(super) const fn cas_first(self) -> u64 {
        cas_at(self.unix_ns.unsigned_abs())
    }

    /// The Unix second at which it was 0.
    pub(super) fn unix_zero(self) -> u32 {
        u32::try_from(self.unix_ns / NS_PER_S - 1).unwrap_or(0)
    }

    #[inline]
    pub(super) fn second(self) -> u32 {
        let ns = coarse_ns(libc::CLOCK_MONOTONIC_COARSE) - self.zero_ns;
        u32::try_from(ns / NS_PER_S).unwrap_or(u32::MAX)
    }
}

fn coarse_ns(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for the time; the call fails only for unknown clocks, and Linux has had these since 2.6.32.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec * NS_PER_S + now.tv_nsec
}
