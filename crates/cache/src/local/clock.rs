//! The one place of a cache in a program that reads clocks: the coarse one, as each operation does, which takes a few nanoseconds.
//! It is libc's, as that of crate rustix looks for the kernel's page of clocks by itself, which ends programs under Valgrind.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]
#![expect(unsafe_code, reason = "the coarse clock is libc's")]

use std::time::SystemTime;

/// Seconds since it was made; it begins at 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: i64,
    unix_zero: u32,
    cas_first: u64,
}

impl Clock {
    pub(super) fn start() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_zero = u32::try_from(unix.as_secs()).unwrap_or(u32::MAX).saturating_sub(1);
        // Sixteen million a second: no cache gives as many.
        let cas_first =
            (unix.as_secs() << 24) + (u64::from(unix.subsec_nanos()) << 24) / 1_000_000_000;
        Self { zero: coarse() - 1, unix_zero, cas_first }
    }

    /// A number above all that a cache opened earlier has given to its items.
    pub(super) const fn cas_first(self) -> u64 {
        self.cas_first
    }

    /// The Unix second in which it stood at 0.
    pub(super) const fn unix_zero(self) -> u32 {
        self.unix_zero
    }

    #[inline]
    pub(super) fn second(self) -> u32 {
        u32::try_from(coarse() - self.zero).unwrap_or(u32::MAX)
    }
}

fn coarse() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for the time; it fails for clocks that there are not alone, and Linux has had this one since 2.6.32.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec
}
