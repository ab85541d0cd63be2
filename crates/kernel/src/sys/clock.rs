//! Clocks: the monotonic one, which all processes share, and the CPU time of this process.
#![expect(unsafe_code, reason = "clocks that the standard library does not show as numbers")]

use nearfar_topology::Nanoseconds;

/// Time on the monotonic clock.
pub(crate) fn monotonic() -> Nanoseconds {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of this process.
pub(crate) fn own_cpu() -> Nanoseconds {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> Nanoseconds {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the time.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    Nanoseconds(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
}
