//! Words of a file that several processes have mapped at once.
//!
//! Rules: a [`Shared`] owns its mapping from `mmap` to `munmap` and shows nothing of it but single words, loaded and stored
//! whole, as others may store at any time. A file that is cut off under it would end the process; so who maps one trusts its
//! owner, which the caller sees to.
#![expect(unsafe_code, reason = "maps a file and reads words at addresses")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// What may be done with the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: NonNull<c_void>,
    words: usize,
    access: Access,
}

// SAFETY: the mapping is not bound to a thread, and its words are only touched by atomic loads and stores.
unsafe impl Send for Shared {}

impl Shared {
    /// The first `words` words of a file, which has as many.
    pub(crate) fn map(file: &File, words: usize, access: Access) -> io::Result<Self> {
        if file.metadata()?.len() < words as u64 * 8 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let rights = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no existing mapping is replaced.
        let mapping = unsafe {
            rustix::mm::mmap(ptr::null_mut(), words * 8, rights, MapFlags::SHARED, file, 0)
        };
        let mapping = NonNull::new(mapping?).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { mapping, words, access })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.words, "a place within the mapping");
        // SAFETY: at < words, so it is inside the mapping.
        let word = unsafe { self.mapping.cast::<AtomicU64>().add(at) };
        // SAFETY: mapped as long as `self` lives, aligned as a page is, and words are numbers whatever is in them.
        unsafe { word.as_ref() }
    }

    /// A word, which others may store at the same time.
    pub(crate) fn load(&self, at: usize) -> u64 {
        u64::from_le(self.word(at).load(Ordering::Acquire))
    }

    /// Stores a word, after all that were stored before it.
    pub(crate) fn store(&self, at: usize, word: u64) {
        assert!(self.access == Access::Write, "mapped for writing");
        self.word(at).store(word.to_le(), Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this is the mapping `map` made, whole; `self` goes away, and with it the last way to reach it.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.words * 8) };
    }
}
