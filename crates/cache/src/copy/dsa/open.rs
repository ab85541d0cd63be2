//! Opening a work queue, and finding out how it takes descriptors.
//!
//! First the portal is tried: if the CPU has the instruction and the kernel the will to map it. Else descriptors are written
//! to the file. Either way the queue proves itself with a descriptor that does nothing, before it is trusted with memory.
#![expect(unsafe_code, reason = "a descriptor is handed over")]

use std::path::PathBuf;

use rustix::fs::{FileType, Mode as Rights, OFlags};

use super::discover::WorkQueue;
use super::format::{Descriptor, Status};
use super::line::{self, lines};
use super::portal::Portal;
use super::queue::{Limits, Queue, QueueConfig};
use super::submit::{Submit, SubmitError, WriteDoor};

/// Why a work queue can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It can't be opened.
    #[error("can't open {}: {source}; the queue needs an owner or group that this process has", path.display())]
    Open {
        /// The device node.
        path: PathBuf,
        /// The errno.
        source: std::io::Error,
    },
    /// It is a file or directory.
    #[error("{} is no device; is the root a copy of a machine?", path.display())]
    NotADevice {
        /// What should be a device node.
        path: PathBuf,
    },
    /// It takes no descriptors.
    #[error("{} takes no descriptors: no portal ({portal}), and {source}", path.display())]
    Refused {
        /// The device node.
        path: PathBuf,
        /// Why there was no portal.
        portal: String,
        /// Why descriptors can't be written.
        source: ProbeError,
    },
}

/// Why a queue did not prove itself.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It refused the descriptor.
    #[error("{0}")]
    Submit(#[from] SubmitError),
    /// It was full all the time.
    #[error("it was full each time of {tries}")]
    Full {
        /// How often it was tried.
        tries: u32,
    },
    /// It took the descriptor and nothing came of it.
    #[error("a descriptor that does nothing was not done within {polls} polls")]
    Silent {
        /// How often its record was looked at.
        polls: u32,
    },
    /// It answered something else than that it is done.
    #[error("a descriptor that does nothing came back with {status:#x}, {}", Status(*status).says())]
    Failed {
        /// The status.
        status: u8,
    },
}

/// Opens a queue that was discovered.
///
/// # Errors
/// If it can't be opened, or takes no descriptors.
pub fn open(found: &WorkQueue, config: QueueConfig) -> Result<Queue, OpenError> {
    let path = || found.path.clone();
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let wrong = |errno: rustix::io::Errno| OpenError::Open { path: path(), source: errno.into() };
    let file = rustix::fs::open(&found.path, flags, Rights::empty()).map_err(wrong)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(wrong)?.st_mode);
    if matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Err(OpenError::NotADevice { path: path() });
    }
    let limits = Limits::of(found);
    let (file, portal) = match Portal::map(file, found.mode) {
        Ok(mut portal) => match probe(&mut portal, config) {
            Ok(()) => return Ok(Queue::new(Box::new(portal), limits, config)),
            Err(error) => {
                drop(portal);
                let file = rustix::fs::open(&found.path, flags, Rights::empty());
                (file.map_err(wrong)?, error.to_string())
            }
        },
        Err(no) => (no.file, no.why),
    };
    let mut door = WriteDoor::new(file);
    match probe(&mut door, config) {
        Ok(()) => Ok(Queue::new(Box::new(door), limits, config)),
        Err(source) => Err(OpenError::Refused { path: path(), portal, source }),
    }
}

/// Has a queue do nothing, once.
///
/// # Errors
/// If it does not.
pub fn probe(door: &mut dyn Submit, config: QueueConfig) -> Result<(), ProbeError> {
    let record = lines(1);
    let noop = Descriptor::noop().recorded_at(line::address(&record));
    let mut tries = 0;
    // SAFETY: the operation touches nothing but its record, which is a line of its own until it is over: it is freed after
    // that was seen, or never.
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
    // The record may still be written: its line stays for ever.
    Box::leak(record);
    Err(ProbeError::Silent { polls: config.patience })
}
