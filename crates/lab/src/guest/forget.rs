//! Limits the lifetime of address translations in emulated CPUs.
//!
//! A real CPU has room for some two thousand translations and so soon walks the page tables again, which sets accessed
//! bits. The emulator has room for far more, and sets no accessed bit when it uses one: pages that a program alone on
//! its CPU uses all the time look idle. The emulator drops all translations when a CPU switches to another address
//! space. So this process, whose address space is not the command's, has a thread on each CPU that wakes up
//! periodically. (Threads of the first process: no signal that the command could send reaches them, and they take no
//! memory but stacks.)

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::{GuestError, doing};

/// A stack size that every C library accepts, and enough to sleep on.
const STACK: usize = 64 << 10;

/// The highest priority without a real-time policy, so that relative priorities of the command's threads keep their
/// effect.
const NICE: i32 = -20;

/// Starts the threads: from now on, no CPU of this machine keeps a translation of the command longer than
/// `translations`, subject to the guest's scheduling delay; zero: no limit beyond the emulator's.
pub(super) fn start(translations: Duration) -> Result<(), GuestError> {
    if translations.is_zero() {
        return Ok(());
    }
    let all = rustix::thread::sched_getaffinity(None).map_err(doing("asking for the CPUs"))?;
    // Threads inherit both from the thread that starts them.
    set_nice(NICE)?;
    for cpu in 0..CpuSet::MAX_CPU {
        let mut only = CpuSet::new();
        only.set(cpu);
        match rustix::thread::sched_setaffinity(None, &only) {
            // Beyond the last CPU: they are numbered consecutively. (The affinity mask would not tell: it lacks
            // isolated CPUs.)
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
