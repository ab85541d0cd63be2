//! Replicated regions for Rust: memory that each node has a copy of, for what is read far more often than written.
//!
//! ```
//! use nearfar_alloc::Replicated;
//!
//! let mut table = Replicated::new("", 1 << 20)?;      // a copy on each node with CPUs
//! table.write(4096, b"read everywhere")?;
//! let mut text = [0; 15];
//! table.read(4096, &mut text)?;                       // from the copy of this thread's node
//! assert_eq!(&text, b"read everywhere");
//!
//! let view = table.view();                            // nobody writes while it is there
//! std::thread::scope(|scope| {
//!     scope.spawn(|| assert_eq!(&view.bytes()[4096..4100], b"read"));
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![expect(unsafe_code, reason = "memory that threads share is looked at")]

use std::sync::Arc;
use std::vec::Vec;

use crate::region::Region;
use crate::regions;

pub use crate::region::{OutOfRegion, ReplicatedStats};
pub use crate::regions::ReplicatedError;

/// A replicated region: bytes with a copy on each of some nodes. Threads read and write it as they like; each granule (4 KiB,
/// unless said otherwise) is read whole and never older than the reading thread has seen it.
#[derive(Debug)]
pub struct Replicated {
    region: Arc<Region>,
}

impl Replicated {
    /// Makes one of `size` zeroes, of words: nodes, and options behind a `;` ("0-3;granule=64k;quiet=1s", docs/alloc.md). Without
    /// nodes it is those with CPUs. Nothing is resident before it is written or read.
    ///
    /// # Errors
    /// [`ReplicatedError`]: it is not written as regions are, such nodes are not here, or have less memory.
    pub fn new(text: &str, size: usize) -> Result<Self, ReplicatedError> {
        Ok(Self { region: regions::create(text, size)? })
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.region.size
    }

    /// Whose the copies are, home first.
    #[must_use]
    pub fn nodes(&self) -> Vec<u32> {
        self.region.nodes.iter().map(|node| u32::from(node.0)).collect()
    }

    /// Reads from the copy of the calling thread's node, or from home what that has not yet.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing is read then.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRegion> {
        // SAFETY: as many bytes, which are nobody else's and so not the region's.
        unsafe { self.region.read(offset, into.as_mut_ptr() as usize, into.len()) }
    }

    /// Writes at home, which all others read from until they have a copy again.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing is written then.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        // SAFETY: as many bytes, which nobody writes: those of a view of this region are not there while it may be written.
        unsafe { self.region.write(offset, from.as_ptr() as usize, from.len()) }
    }

    /// Waits until every copy is what was written before.
    pub fn sync(&self) {
        self.region.sync();
    }

    /// The bytes as they are, synced, to be looked at without copying; while they are, nobody can write.
    pub fn view(&mut self) -> View<'_> {
        self.sync();
        View { region: &self.region }
    }

    /// Where the copy of the calling thread's node is, of [`Self::len`] bytes. It shows what was written before the last
    /// [`Self::sync`]; of what was written since, any part or none, until the next. It stays as long as the region.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.region.view()
    }

    /// Figures since it was made.
    #[must_use]
    pub fn stats(&self) -> ReplicatedStats {
        self.region.stats()
    }
}

/// A region that nobody writes, for any number of threads to look at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    region: &'a Region,
}

impl<'a> View<'a> {
    /// The bytes in the copy of the calling thread's node, or the nearest. A thread that comes to run on another may ask again;
    /// all copies are alike.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        // SAFETY: a copy has as many bytes, mapped as long as the region is. Nobody writes them: who could would have to share
        // the region, which is borrowed for this alone, and copies are made of what was written, which sync has seen to. A child
        // of fork that writes it all the same breaks what `fork` wants of its caller in Rust.
        unsafe { core::slice::from_raw_parts(self.region.view(), self.region.size) }
    }
}
