//! How descriptors get to a work queue: the one thing in which a portal, `write()` and a queue in software differ.
//!
//! [`WriteDoor`] is here: current kernels let only the privileged map the portal of a device that is subject to
//! CVE-2024-21823, and take whole descriptors by `write()` instead. They take several at once, so one system call hands over
//! a group, but refuse batch descriptors there, as they can't check what these point to.
#![expect(unsafe_code, reason = "descriptors have memory written by address")]

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::format::{DESCRIPTOR_BYTES, Descriptor};

/// Descriptors in one `write()`: a page, which a pipe too takes whole or not at all.
const WRITE_MAX: usize = 4096 / DESCRIPTOR_BYTES;

/// Why a queue takes no more, other than that it is full.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The kernel refused.
    #[error("the work queue refused descriptors: {source}; the CPU copies instead")]
    Refused {
        /// The errno.
        source: std::io::Error,
    },
    /// Part of a descriptor was taken.
    #[error(
        "the work queue took {bytes} bytes, which is no number of descriptors; is it a work queue?"
    )]
    Torn {
        /// Bytes taken.
        bytes: usize,
    },
}

/// A way to a work queue.
pub trait Submit: fmt::Debug + Send {
    /// Hands over descriptors, in order, and says how many were taken: fewer, if the queue is full.
    ///
    /// # Errors
    /// If none was taken and more of this kind won't be.
    ///
    /// # Safety
    /// Until a descriptor's operation is over: what it reads and writes by address, its completion record among it, is mapped
    /// and no other memory is harmed by that. Addresses are of exposed provenance.
    unsafe fn submit(&mut self, descriptors: &[Descriptor]) -> Result<usize, SubmitError>;

    /// Whether batch descriptors are taken.
    fn takes_batches(&self) -> bool;

    /// Called once in each turn of waiting. A device in software may work here.
    fn idle(&mut self) {}
}

/// A work queue that takes descriptors by `write()`.
#[derive(Debug)]
pub struct WriteDoor {
    file: OwnedFd,
}

impl WriteDoor {
    /// Writes to this file, which does not block.
    #[must_use]
    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }
}

impl Submit for WriteDoor {
    // SAFETY: (of the callers) as the trait says; here bytes are written to a file and nothing else.
    unsafe fn submit(&mut self, descriptors: &[Descriptor]) -> Result<usize, SubmitError> {
        let mut bytes = [0; WRITE_MAX * DESCRIPTOR_BYTES];
        let count = descriptors.len().min(WRITE_MAX);
        for (place, descriptor) in bytes.as_chunks_mut().0.iter_mut().zip(descriptors) {
            *place = descriptor.to_bytes();
        }
        let bytes = &bytes[..count * DESCRIPTOR_BYTES];
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, bytes)) {
            Ok(taken) if taken.is_multiple_of(DESCRIPTOR_BYTES) => Ok(taken / DESCRIPTOR_BYTES),
            Ok(bytes) => Err(SubmitError::Torn { bytes }),
            Err(Errno::AGAIN) => Ok(0),
            Err(errno) => Err(SubmitError::Refused { source: errno.into() }),
        }
    }

    fn takes_batches(&self) -> bool {
        false
    }
}
