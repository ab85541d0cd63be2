//! Processes with a shared address space, by kcmp(2), and the largest memory and CPU time, by getrusage(2).
#![expect(unsafe_code, reason = "calls that no safe crate offers")]

use std::time::Duration;

/// `KCMP_VM` of linux/kcmp.h: compares address spaces.
const KCMP_VM: libc::c_int = 1;

/// The largest resident memory in KiB of this process (`RUSAGE_SELF`), or of any of its descendants that has ended and was
/// waited for (`RUSAGE_CHILDREN`). It includes that of a process before it executed its program.
pub(crate) fn peak_kib(of: libc::c_int) -> u64 {
    usage(of).ru_maxrss.cast_unsigned()
}

/// CPU time of descendants of this process that have ended and were waited for.
pub(crate) fn cpu_of_children() -> Duration {
    let usage = usage(libc::RUSAGE_CHILDREN);
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec.cast_unsigned(), 0)
            + Duration::from_micros(time.tv_usec.cast_unsigned())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn usage(of: libc::c_int) -> libc::rusage {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid place for the figures.
    unsafe { libc::getrusage(of, usage.as_mut_ptr()) };
    // SAFETY: zeros are figures, if the call has written none.
    unsafe { usage.assume_init() }
}

/// Whether two processes have one address space; `None` if the kernel does not report it (CONFIG_KCMP, permission, or
/// one has ended).
pub(crate) fn share_memory(one: u32, other: u32) -> Option<bool> {
    let number = |pid: u32| i32::try_from(pid).ok();
    let (one, other) = (number(one)?, number(other)?);
    // SAFETY: kcmp takes five numbers and accesses no memory of this process.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_u64, 0_u64) };
    match order {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}
