//! A work queue's portal: a page of the device to which descriptors are stored in one piece.
//!
//! Rules: a [`Portal`] owns its mapping from `mmap` to `munmap` and accesses it only by the two instructions for
//! 64-byte stores. ENQCMD is for shared queues: it returns whether the queue accepted the descriptor. MOVDIR64B is for
//! dedicated ones: it returns nothing, and an excess descriptor is lost, so the driver keeps count. Both use the next
//! 64 bytes of the page each time: the device accepts any of them, and stores to one place would be serialised. CPUID
//! reports the instructions of the CPU. Never run so far: neither the device nor a CPU with either instruction was
//! available.
#![expect(unsafe_code, reason = "a page of a device is mapped and stored to")]

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

use super::discover::Mode;
use super::format::{DESCRIPTOR_BYTES, Descriptor};
use super::submit::{Submit, SubmitError};

const PAGE: usize = 4096;

/// A mapped portal.
#[derive(Debug)]
pub(super) struct Portal {
    page: NonNull<c_void>,
    mode: Mode,
    next: usize,
    /// Kept open while mapped: the kernel drains the queue once both are gone.
    _file: OwnedFd,
}

// SAFETY: the mapping is not bound to a thread, and only `&mut self` stores to it.
unsafe impl Send for Portal {}

/// Reason why there is no portal; returns the file.
#[derive(Debug)]
pub(super) struct NoPortal {
    pub(super) file: OwnedFd,
    pub(super) why: String,
}

/// The name of the instruction that the CPU lacks for such a queue; `None` if it has it.
fn missing(mode: Mode) -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let ecx = core::arch::x86_64::__cpuid_count(7, 0).ecx;
    #[cfg(not(target_arch = "x86_64"))]
    let ecx = 0_u32;
    let (bit, name) = match mode {
        Mode::Dedicated => (28, "MOVDIR64B"),
        Mode::Shared => (29, "ENQCMD"),
    };
    (ecx >> bit & 1 == 0).then_some(name)
}

impl Portal {
    /// Maps the portal of an open work queue.
    pub(super) fn map(file: OwnedFd, mode: Mode) -> Result<Self, NoPortal> {
        if let Some(name) = missing(mode) {
            return Err(NoPortal { file, why: format!("this CPU has no {name}") });
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no existing mapping is replaced.
        let page =
            unsafe { rustix::mm::mmap(ptr::null_mut(), PAGE, ProtFlags::WRITE, flags, &file, 0) };
        match page.map(NonNull::new) {
            Ok(Some(page)) => Ok(Self { page, mode, next: 0, _file: file }),
            Ok(None) => Err(NoPortal { file, why: "it was mapped at address 0".into() }),
            Err(errno) => Err(NoPortal { file, why: errno.to_string() }),
        }
    }
}

impl Submit for Portal {
    // SAFETY: (of the callers) as the trait requires.
    unsafe fn submit(&mut self, descriptors: &[Descriptor]) -> Result<usize, SubmitError> {
        super::super::cpu::fence();
        for (taken, descriptor) in descriptors.iter().enumerate() {
            let place = self.page.as_ptr().cast::<u8>().wrapping_add(self.next);
            self.next = (self.next + DESCRIPTOR_BYTES) % PAGE;
            // SAFETY: `map` checked the instruction and mapped the page, in which `next` is a multiple of 64; the
            // caller vouches for the device's accesses by the descriptor.
            if !unsafe { store(place, descriptor, self.mode) } {
                return Ok(taken);
            }
        }
        Ok(descriptors.len())
    }

    fn takes_batches(&self) -> bool {
        true
    }
}

/// Stores a descriptor to a portal in one piece; returns whether it was accepted.
///
/// # Safety
/// The CPU has the instruction for `mode`. `place` is 64 bytes of a mapped portal, aligned to 64. The descriptor meets
/// the requirements of [`Submit::submit`].
#[cfg(target_arch = "x86_64")]
unsafe fn store(place: *mut u8, descriptor: &Descriptor, mode: Mode) -> bool {
    let descriptor = ptr::from_ref(descriptor);
    let refused: u8;
    match mode {
        // SAFETY: reads 64 bytes at `descriptor`, which is one, and stores them to `place`, as the caller promises;
        // sets flags.
        Mode::Shared => unsafe {
            core::arch::asm!(
                "enqcmd {place}, [{descriptor}]",
                "setz {refused}",
                place = in(reg) place,
                descriptor = in(reg) descriptor,
                refused = out(reg_byte) refused,
                options(nostack),
            );
        },
        // SAFETY: as above, without flags.
        Mode::Dedicated => unsafe {
            core::arch::asm!(
                "movdir64b {place}, [{descriptor}]",
                "xor {refused}, {refused}",
                place = in(reg) place,
                descriptor = in(reg) descriptor,
                refused = out(reg_byte) refused,
                options(nostack),
            );
        },
    }
    refused == 0
}

/// Other architectures lack these instructions, and `map` refuses there.
///
/// # Safety
/// Nothing is stored.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store(_: *mut u8, _: &Descriptor, _: Mode) -> bool {
    false
}

impl Drop for Portal {
    fn drop(&mut self) {
        // SAFETY: this is the complete mapping of `map`; `self`, the only way to access it, is being dropped.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_cpu_instruction_is_reported_and_the_file_is_returned() {
        for mode in [Mode::Shared, Mode::Dedicated] {
            let file = OwnedFd::from(tempfile::tempfile().unwrap());
            if let (Some(name), Err(no)) = (missing(mode), Portal::map(file, mode)) {
                assert!(no.why.contains(name), "{}", no.why);
                rustix::io::write(&no.file, b"still open").unwrap();
            }
        }
    }
}
