//! Submission of descriptors to a work queue: the only difference between a portal, `write()` and a queue in software.
//!
//! [`WriteDoor`] is here: for devices subject to CVE-2024-21823 current kernels let only privileged processes map the
//! portal, and accept whole descriptors by `write()` instead. One system call can submit a group of them, but batch
//! descriptors are refused, as the kernel cannot check the memory that they point to.
#![expect(unsafe_code, reason = "descriptors have memory written by address")]

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::format::{DESCRIPTOR_BYTES, Descriptor};

/// Descriptors per `write()`: a page, which a pipe also accepts atomically.
const WRITE_MAX: usize = 4096 / DESCRIPTOR_BYTES;

/// Reason why a queue accepts no more descriptors, apart from being full.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubmitError {
    /// The kernel refused.
    #[error("the work queue refused descriptors: {source}; the CPU copies instead")]
    Refused {
        /// The errno.
        source: std::io::Error,
    },
    /// Part of a descriptor was accepted.
    #[error(
        "the work queue took {bytes} bytes, which is no number of descriptors; is it a work queue?"
    )]
    Torn {
        /// Bytes accepted.
        bytes: usize,
    },
}

/// A submission method for a work queue.
pub(super) trait Submit: fmt::Debug + Send {
    /// Submits descriptors in order; returns the number accepted, which is less than all if the queue is full.
    ///
    /// # Errors
    /// If none was accepted and the queue will accept no more of this kind.
    ///
    /// # Safety
    /// Until a descriptor's operation is complete, the memory that it reads and writes by address, its completion
    /// record included, must be mapped, and no other memory may be affected. Addresses have exposed provenance.
    unsafe fn submit(&mut self, descriptors: &[Descriptor]) -> Result<usize, SubmitError>;

    /// Whether batch descriptors are accepted.
    fn takes_batches(&self) -> bool;

    /// Called once per poll while waiting. A device in software may work here.
    fn idle(&mut self) {}
}

/// A work queue that takes descriptors by `write()`.
#[derive(Debug)]
pub(super) struct WriteDoor {
    file: OwnedFd,
}

impl WriteDoor {
    /// Submits to this file, opened as non-blocking.
    pub(super) fn new(file: OwnedFd) -> Self {
        Self { file }
    }
}

impl Submit for WriteDoor {
    // SAFETY: (of the callers) as the trait requires; here bytes are written to a file and nothing else.
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
