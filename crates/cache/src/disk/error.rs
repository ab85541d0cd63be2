//! What can go wrong: when a device is opened, and when an object is offered. Reads know hits and misses only.

use std::io;
use std::path::PathBuf;

/// Why a tier can't be opened, or closed in good order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration contradicts itself.
    #[error("cache on disk: {0}")]
    Config(String),
    /// Something else is in the file.
    #[error("{}: holds something else than a cache, and is left as it is; give another path, or remove it", .path.display())]
    Foreign {
        /// The file or device.
        path: PathBuf,
    },
    /// A later or earlier program made it.
    #[error("{}: holds a cache of format {found}, this program knows {known}; remove it to begin anew", .path.display())]
    Version {
        /// The file or device.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version this program writes.
        known: u32,
    },
    /// It was made with other sizes.
    #[error("{}: was made with {what} {found}, now {asked} is asked for; ask for the same, or remove it", .path.display())]
    Geometry {
        /// The file or device.
        path: PathBuf,
        /// Which size.
        what: &'static str,
        /// As found.
        found: u64,
        /// As configured.
        asked: u64,
    },
    /// Both superblocks are damaged.
    #[error("{}: is a cache whose superblocks are both damaged; remove it to begin anew", .path.display())]
    Damaged {
        /// The file or device.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error("{}: is in use by another process", .path.display())]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// The file system has no room.
    #[error("{}: no room for {bytes} bytes; free some, or configure fewer", .path.display())]
    Full {
        /// The file or device.
        path: PathBuf,
        /// Bytes asked for.
        bytes: u64,
    },
    /// There is no memory for buffers or tables.
    #[error("no memory for {bytes} bytes of buffers")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The system refused something else.
    #[error("{}: {call}: {source}", .path.display())]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What was asked.
        call: &'static str,
        /// What came back.
        source: io::Error,
    },
}

/// Why an object was not taken. The caller goes on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is larger than a region, or than a small object may be.
    #[error("the object has {bytes} bytes, at most {limit} can be stored here")]
    TooLarge {
        /// Bytes of key and value.
        bytes: usize,
        /// The most there may be.
        limit: usize,
    },
    /// All buffers are being written, or no region is free: the device is slower than its callers, or nobody ticks.
    #[error("all buffers are full; they are being written, or a tick has to free regions")]
    Busy,
    /// Who was to fill in the value gave up.
    #[error("the value went away while it was copied")]
    Abandoned,
    /// The part of the device it belongs to is out of order, or the tier has no such part.
    #[error("there is no part of the device for it that works")]
    Unavailable,
    /// The tier was closed.
    #[error("the tier is closed")]
    Closed,
}
