//! Errors of opening a device, and of offering an object. Reads have only hits and misses.

use std::io;
use std::path::PathBuf;

/// Why a tier can't be opened, or closed in good order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration contradicts itself.
    #[error("cache on disk: {0}")]
    Config(String),
    /// It is neither a file nor a block device.
    #[error("{}: is neither a file nor a block device; give a path of one", .path.display())]
    Kind {
        /// As given.
        path: PathBuf,
    },
    /// There is none of this name in /dev.
    #[error("{}: there is no such device; lsblk shows which there are", .path.display())]
    NoDevice {
        /// As given.
        path: PathBuf,
    },
    /// A symbolic link, which others may change.
    #[error("{}: is a symbolic link; give the file or device it leads to", .path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// Other users own it or may write to it.
    #[error("{}: {why}", .path.display())]
    Untrusted {
        /// The file or device.
        path: PathBuf,
        /// The owner or mode found, and how to fix it.
        why: String,
    },
    /// It holds foreign data.
    #[error(
        "{}: holds {found} at byte {at}, no cache, and is left as it is; give another path, or wipe it if nothing in it is \
         needed: blkdiscard -z for a device, rm for a file",
        .path.display()
    )]
    Foreign {
        /// The file or device.
        path: PathBuf,
        /// The name of its label, if that is known.
        found: &'static str,
        /// The address of the label, or of the first byte that is not zero.
        at: u64,
    },
    /// Neither a cache nor known foreign data was found in it.
    #[error(
        "{}: has {bytes} bytes and no cache in them; if nothing in it is needed, allow to overwrite it with --disk-format (the \
         setting disk-format=yes)",
        .path.display()
    )]
    Unformatted {
        /// The file or device.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Made by a different version of this program.
    #[error("{}: holds a cache of format {found}, this program knows {known}; wipe or remove it to begin anew", .path.display())]
    Version {
        /// The file or device.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version this program writes.
        known: u32,
    },
    /// Made with other sizes.
    #[error("{}: was formatted with {what} {found}, requested is {asked}; request the same, or format it anew with \
             --disk-format (the setting disk-format=yes)", .path.display())]
    Geometry {
        /// The file or device.
        path: PathBuf,
        /// The name of the size.
        what: &'static str,
        /// The size found.
        found: u64,
        /// The size configured.
        asked: u64,
    },
    /// In use by another process, or by the kernel: it is mounted, or part of another device.
    #[error("{}: is in use: another process has it open, or it is mounted or part of another device", .path.display())]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// The file system has no room.
    #[error("{}: no room for {} MiB; free some, or give a smaller size", .path.display(), .bytes >> 20)]
    Full {
        /// The file or device.
        path: PathBuf,
        /// Requested bytes.
        bytes: u64,
    },
    /// No memory for buffers or tables.
    #[error("no memory for {bytes} bytes of buffers")]
    Memory {
        /// Requested bytes.
        bytes: usize,
    },
    /// Another error of the system.
    #[error("{}: {call}: {source}", .path.display())]
    Io {
        /// The file or device.
        path: PathBuf,
        /// The failed operation.
        call: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Reasons why an object was refused. The caller continues without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Larger than a region, or than the maximum of a small object.
    #[error("the object has {bytes} bytes, at most {limit} can be stored here")]
    TooLarge {
        /// Bytes of key and value.
        bytes: usize,
        /// The maximum.
        limit: usize,
    },
    /// All buffers are being written, or no region is free: the device is slower than its callers, or no thread ticks.
    #[error("all buffers are full; they are being written, or a tick has to free regions")]
    Busy,
    /// The caller's `fill` gave up.
    #[error("the value went away while it was copied")]
    Abandoned,
    /// The part of the device it belongs to is retired, or the tier has no such part.
    #[error("there is no part of the device for it that works")]
    Unavailable,
    /// The tier was closed.
    #[error("the tier is closed")]
    Closed,
}
