//! cache-disk: the disk tier of a cache, on NVMe (or any file): large objects in regions written one after another, small ones in sets.
//!
//! Contents: [`Disk`], opened on a file or block device, and its parts: [`Config`], [`Keeper`] (the tier's view of the
//! index), [`Reader`] (many reads at once), [`Device`] (storage). Large objects are found by a [`Place`] of 40 bits
//! that the caller keeps in its index; small ones by key. Every object has a checksum and its key, both checked when it
//! is read: damaged, incomplete and other keys' objects count as misses. Not in this module: the choice of objects to
//! demote, and the index. No NVMe device was available: it was run on files, through ext4 and tmpfs. Start at
//! `tier.rs`, then `log.rs` and `sets.rs`.

mod admit;
mod buffer;
mod claim;
mod config;
mod device;
mod entry;
mod error;
mod event;
mod evict;
mod file;
mod flush;
mod footer;
#[cfg(any(fuzzing, test))]
pub mod fuzz;
mod locks;
mod log;
mod meta;
mod open;
mod outcome;
mod place;
mod read;
mod reader;
mod recover;
mod region;
mod set;
mod sets;
mod shared;
mod stats;
mod superblock;
mod table;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
#[cfg(test)]
mod tests;
mod tier;
mod uring;
mod vacant;
mod words;
mod writer;

pub use admit::Offer;
pub use buffer::{Aligned, BLOCK};
pub use config::{Access, AfterCrash, Config};
pub use device::{Device, Done, Job, Queue, Wait};
pub use error::{Error, Refused};
pub use evict::{Fate, Keeper};
pub use file::BlockFile;
pub use log::Object;
pub use meta::Meta;
pub use outcome::{Item, Outcome, Where};
pub use place::{PLACE_BITS, Place, Places, REACH, UNIT};
pub use reader::{Full, Reader};
pub use recover::{Opened, Recovered};
pub use stats::Stats;
pub use tier::{Disk, Ticked};
