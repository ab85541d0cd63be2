//! Opens a work queue, and determines its submission method.
//!
//! The portal is tried first, if the CPU has the instruction and the kernel permits the mapping. Otherwise descriptors
//! are written to the file. In both cases a no-op descriptor tests the queue before it gets access to memory.
#![expect(unsafe_code, reason = "a descriptor is handed over")]

use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode as Rights, OFlags};

use super::discover::WorkQueue;
use super::format::{Descriptor, Status};
use super::line::{self, lines};
use super::portal::Portal;
use super::queue::{Queue, QueueConfig};
use super::submit::{Submit, SubmitError, WriteDoor};

/// Reason why a work queue is unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// It cannot be opened.
    #[error("can't open {}: {source}; the queue needs an owner or group that this process has", path.display())]
    Open {
        /// The device node.
        path: PathBuf,
        /// The errno.
        source: std::io::Error,
    },
    /// It is a file or directory.
    #[error("{} is no device", path.display())]
    NotADevice {
        /// The path that should be a device node.
        path: PathBuf,
    },
    /// It accepts no descriptors.
    #[error("{} takes no descriptors: no portal ({portal}), and {source}", path.display())]
    Refused {
        /// The device node.
        path: PathBuf,
        /// Reason why there is no portal.
        portal: String,
        /// Reason why descriptors cannot be written.
        source: ProbeError,
    },
}

/// Reason why the test of a queue failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// It refused the descriptor.
    #[error("{0}")]
    Submit(#[from] SubmitError),
    /// It stayed full.
    #[error("it was full each time of {tries}")]
    Full {
        /// Number of attempts.
        tries: u32,
    },
    /// It accepted the descriptor but never completed it.
    #[error("a descriptor that does nothing was not done within {polls} polls")]
    Silent {
        /// Number of polls of its record.
        polls: u32,
    },
    /// It completed with another status than success.
    #[error("a descriptor that does nothing came back with {status:#x}, {}", Status(*status).says())]
    Failed {
        /// The status.
        status: u8,
    },
}

/// Opens a discovered queue with its device node in the directory `nodes`.
///
/// # Errors
/// [`OpenError`] if it cannot be opened, or accepts no descriptors.
pub(super) fn open(
    found: &WorkQueue,
    nodes: &Path,
    config: QueueConfig,
) -> Result<Queue, OpenError> {
    let node = nodes.join(&found.name);
    let path = || node.clone();
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let wrong = |errno: rustix::io::Errno| OpenError::Open { path: path(), source: errno.into() };
    let file = rustix::fs::open(&node, flags, Rights::empty()).map_err(wrong)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(wrong)?.st_mode);
    if matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Err(OpenError::NotADevice { path: path() });
    }
    let limits = || found.clone();
    let (file, portal) = match Portal::map(file, found.mode) {
        Ok(mut portal) => match probe(&mut portal, config) {
            Ok(()) => return Ok(Queue::new(Box::new(portal), limits(), config)),
            Err(error) => {
                drop(portal);
                let file = rustix::fs::open(&node, flags, Rights::empty());
                (file.map_err(wrong)?, error.to_string())
            }
        },
        Err(no) => (no.file, no.why),
    };
    let mut door = WriteDoor::new(file);
    match probe(&mut door, config) {
        Ok(()) => Ok(Queue::new(Box::new(door), limits(), config)),
        Err(source) => Err(OpenError::Refused { path: path(), portal, source }),
    }
}

/// Tests a queue with one no-op descriptor.
///
/// # Errors
/// [`ProbeError`] if it does not complete.
pub(super) fn probe(door: &mut dyn Submit, config: QueueConfig) -> Result<(), ProbeError> {
    let record = lines(1);
    let noop = Descriptor::noop().recorded_at(line::address(&record));
    let mut tries = 0;
    // SAFETY: the operation accesses only its record, a line of its own, which is freed after completion was observed,
    // or never.
    while unsafe { door.submit(&[noop]) }? == 0 {
        if tries == config.retries_max {
            return Err(ProbeError::Full { tries });
        }
        tries += 1;
        super::queue::wait(door, config, tries);
    }
    for polls in 0..config.patience {
        match record[0].record().map(|record| record.status) {
            None => super::queue::wait(door, config, polls),
            Some(Status::SUCCESS) => return Ok(()),
            Some(Status(status)) => return Err(ProbeError::Failed { status }),
        }
    }
    // The record may still be written: its line is leaked.
    Box::leak(record);
    Err(ProbeError::Silent { polls: config.patience })
}
