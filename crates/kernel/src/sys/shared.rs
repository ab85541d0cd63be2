//! Words of a file that several processes have mapped.
//!
//! Rules: a [`Shared`] owns its mapping from `mmap` to `munmap` and gives access only to single words, loaded and
//! stored atomically, as other processes may store at any time. Truncating the file would end this process; so the
//! mapping process trusts the file's owner, which the caller must check.
#![expect(unsafe_code, reason = "maps a file and reads words at addresses")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// Permitted access to the words.
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

// SAFETY: the mapping is not bound to a thread, and its words are only accessed by atomic loads and stores.
unsafe impl Send for Shared {}

impl Shared {
    /// Maps the first `words` words of a file, which must have that many.
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
        // SAFETY: mapped as long as `self` lives, aligned as a page is, and any bits are valid words.
        unsafe { word.as_ref() }
    }

    /// Loads a word, which other processes may store concurrently.
    pub(crate) fn load(&self, at: usize) -> u64 {
        u64::from_le(self.word(at).load(Ordering::Acquire))
    }

    /// Stores a word, ordered after all earlier stores.
    pub(crate) fn store(&self, at: usize, word: u64) {
        assert!(self.access == Access::Write, "mapped for writing");
        self.word(at).store(word.to_le(), Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping created by `map`; `self` is dropped, and with it the last reference.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.words * 8) };
    }
}
