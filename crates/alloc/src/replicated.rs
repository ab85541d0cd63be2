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
//! let view = table.view();                            // excludes writers while it exists
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

/// A replicated region: bytes with a copy on each of several nodes. Threads read and write it concurrently; each
/// granule (4 KiB by default) is read whole, and never older than the reading thread has seen it.
#[derive(Debug)]
pub struct Replicated {
    region: Arc<Region>,
}

impl Replicated {
    /// Creates a region of `size` zeroes. `text` has nodes, and options behind a `;` ("0-3;granule=64k;quiet=1s",
    /// docs/alloc.md). The default is the nodes with CPUs. No memory is resident before it is written or read.
    ///
    /// # Errors
    /// [`ReplicatedError`]: the text is not a region, or such nodes do not exist or have too little memory.
    pub fn new(text: &str, size: usize) -> Result<Self, ReplicatedError> {
        Ok(Self { region: regions::create(text, size)? })
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.region.size
    }

    /// The node of each copy, home first.
    #[must_use]
    pub fn nodes(&self) -> Vec<u32> {
        self.region.nodes.iter().map(|node| u32::from(node.0)).collect()
    }

    /// Reads from the copy of the calling thread's node, or from home where that copy is not up to date.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing is read then.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRegion> {
        // SAFETY: as many bytes, exclusively borrowed and so not the region's.
        unsafe { self.region.read(offset, into.as_mut_ptr() as usize, into.len()) }
    }

    /// Writes to the home copy, from which all threads read until their node's copy is made again.
    ///
    /// # Errors
    /// [`OutOfRegion`]; nothing is written then.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        // SAFETY: as many bytes, which no thread writes: a view of this region can't exist while it may be written.
        unsafe { self.region.write(offset, from.as_ptr() as usize, from.len()) }
    }

    /// Waits until every copy contains all earlier writes.
    pub fn sync(&self) {
        self.region.sync();
    }

    /// Syncs and returns direct access to the bytes; writes are impossible while the view exists.
    pub fn view(&mut self) -> View<'_> {
        self.sync();
        View { region: &self.region }
    }

    /// Address of the copy for the calling thread's node, of [`Self::len`] bytes. It shows all writes before the last
    /// [`Self::sync`]; later writes appear in part or not at all until the next. Valid as long as the region.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.region.view()
    }

    /// Statistics since its creation.
    #[must_use]
    pub fn stats(&self) -> ReplicatedStats {
        self.region.stats()
    }
}

/// A region that no thread writes, for any number of threads to read directly.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    region: &'a Region,
}

impl<'a> View<'a> {
    /// The bytes in the copy of the calling thread's node, or the nearest. A thread that moves to another node may call
    /// this again; all copies are equal.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        // SAFETY: a copy has that many bytes, mapped as long as the region is. No thread writes them: a writer would
        // have to share the region, which is exclusively borrowed, and making copies is finished, which sync has
        // ensured. A child of fork that writes it nevertheless violates the requirements of `fork` in Rust.
        unsafe { core::slice::from_raw_parts(self.region.view(), self.region.size) }
    }
}
