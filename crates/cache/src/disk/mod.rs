//! The tier on NVMe (or any file): large objects in regions written one after another, small ones in sets.
//!
//! Here: [`Disk`], opened on a file or block device, and what it needs: [`Config`], [`Keeper`] (the index, as the tier asks it),
//! [`Reader`] (many reads at once), [`Device`] (what is written to). Large objects are found by a [`Place`] of 40 bits that the
//! caller keeps in its index; small ones by key. Every object carries a checksum and its key, and is checked when it is read:
//! what is damaged, half written or of another key is a miss. Not here: which objects are demoted, and the index.
//! No NVMe device was at hand: it was run on files, through ext4 and tmpfs. Start at `tier.rs`, then `log.rs` and `sets.rs`.

mod admit;
mod buffer;
mod config;
mod device;
mod entry;
mod error;
mod evict;
mod file;
mod flush;
mod footer;
mod log;
mod place;
mod read;
mod reader;
mod recover;
mod region;
mod set;
mod sets;
mod stats;
mod superblock;
#[cfg(test)]
pub(crate) mod tests;
mod tier;
mod uring;
mod words;
mod writer;

pub use admit::Offer;
pub use buffer::{Aligned, BLOCK};
pub use config::{Access, Config, Recover};
pub use device::{Device, Done, Job, Queue, Wait};
pub use error::{Error, Refused};
pub use evict::{Fate, Keeper};
pub use file::BlockFile;
pub use log::Object;
pub use place::{PLACE_BITS, Place, Places, REACH, UNIT};
pub use reader::{Full, Item, Outcome, Reader, Where};
pub use recover::{Opened, Recovered};
pub use stats::Stats;
pub use tier::{Disk, Ticked};
