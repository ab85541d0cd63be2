//! CPUs that forget translations, as real ones do.
//!
//! A real CPU has room for some two thousand address translations and so soon walks the page tables again, which sets
//! accessed bits. The emulator has room for far more, and uses what it has without setting any: pages that a program
//! alone on its CPU uses all the time look idle. It forgets them where the CPU turns to another address space. So this
//! process, whose address space is not the command's, has a thread on each CPU that wakes up again and again. (Threads
//! of the first process: no signal that the command could send reaches them, and they take no memory but stacks.)

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::{GuestError, doing};

/// The smallest stack that every C library allows for, and enough to sleep on.
const STACK: usize = 64 << 10;

/// The highest priority without a real-time policy: those of the command keep their right of way over each other.
const NICE: i32 = -20;

/// From now on, no CPU of this machine keeps a translation of the command longer than `translations`, as far as the
/// guest's scheduler is prompt; none: as long as the emulator likes.
pub(super) fn start(translations: Duration) -> Result<(), GuestError> {
    if translations.is_zero() {
        return Ok(());
    }
    let all = rustix::thread::sched_getaffinity(None).map_err(doing("asking for the CPUs"))?;
    // Threads inherit both from the one that starts them.
    set_nice(NICE)?;
    for cpu in 0..CpuSet::MAX_CPU {
        let mut only = CpuSet::new();
        only.set(cpu);
        match rustix::thread::sched_setaffinity(None, &only) {
            // Behind the last one: they are numbered in a row. (Which are ours would not tell: isolated ones are nobody's.)
            Err(Errno::INVAL) if cpu > 0 => break,
            set => set.map_err(doing("choosing a CPU"))?,
        }
        std::thread::Builder::new()
            .name(format!("forget/{cpu}"))
            .stack_size(STACK)
            .spawn(move || {
                loop {
                    crate::clock::sleep(translations);
                }
            })
            .map_err(GuestError::Thread)?;
    }
    rustix::thread::sched_setaffinity(None, &all).map_err(doing("going back to all CPUs"))?;
    set_nice(0)
}

fn set_nice(nice: i32) -> Result<(), GuestError> {
    rustix::process::setpriority_process(None, nice).map_err(doing("choosing a priority"))
}
