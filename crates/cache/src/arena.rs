//! Memory for items, as 64-bit words that many threads read and write concurrently.
//!
//! A reader copies an item without a lock, and afterwards checks the item's version to detect a concurrent write. The
//! copied words may therefore change during the copy: all accesses are relaxed atomic accesses to 64-bit words, which
//! makes such races defined behaviour (fences are the caller's). On x86-64, long runs are copied by the processor's
//! string instruction in inline assembly, which the compiler does not analyse. Nothing is unmapped before the arena is
//! dropped.
#![expect(unsafe_code, reason = "shared mapped memory, addressed by offset")]

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::io;

use nearfar_kernel::mempolicy::{self, Existing, Policy};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of a word.
pub(crate) const WORD: usize = 8;
/// Runs longer than this many bytes are copied by the string instruction.
const LONG: usize = 512;
/// Alignment of arenas: a huge page.
const ALIGN: usize = 2 << 20;

/// Page size of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// Transparent huge pages where the kernel provides them.
    #[default]
    Huge,
    /// Base pages.
    Base,
}

/// A mapping of words.
#[derive(Debug)]
pub(crate) struct Arena {
    words: NonNull<AtomicU64>,
    len: usize,
    mapped: (usize, usize),
    /// Incremented whenever some 16-bit version in this arena may wrap around (`item.rs`).
    epoch: AtomicU64,
    node: Option<u32>,
    is_kept: AtomicBool,
}

// SAFETY: the mapping is owned, lives until drop, and is reached through atomics or exclusive runs only.
unsafe impl Send for Arena {}
// SAFETY: as above; all shared access is atomic.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` (rounded up to whole huge pages) of zeroed memory with this policy.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(bytes: usize, pages: PageSize, policy: &Policy) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let length = bytes + ALIGN;
        // SAFETY: a new private mapping at an address chosen by the kernel touches no existing memory.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let skip = at.addr().next_multiple_of(ALIGN) - at.addr();
        let base = at.wrapping_byte_add(skip).cast::<AtomicU64>();
        let mapped = (at.expose_provenance(), length);
        let words = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        let (epoch, is_kept) = (AtomicU64::new(0), AtomicBool::new(false));
        let node = match policy {
            Policy::Bind(nodes) if nodes.len() == 1 => {
                nodes.iter().next().map(|node| node.0.into())
            }
            _ => None,
        };
        let arena = Self { words, len: bytes / WORD, mapped, epoch, node, is_kept };
        let advice = match pages {
            PageSize::Huge => Advice::LinuxHugepage,
            PageSize::Base => Advice::LinuxNoHugepage,
        };
        if !cfg!(miri) {
            // A kernel without huge pages refuses the advice, which changes nothing. SAFETY: this mapping is owned;
            // advice about huge pages does not change its contents.
            let _ = unsafe { rustix::mm::madvise(base.cast(), bytes, advice) };
            if *policy != Policy::Default {
                let bound = mempolicy::bind(base.addr(), bytes, policy, Existing::Stay);
                bound.map_err(io::Error::other)?;
            }
        }
        Ok(arena)
    }

    /// The epoch; to be read before the data it applies to.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Starts a new epoch, ordered after all earlier stores.
    pub(crate) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Release);
    }

    /// Whether `words` words from `at` on, and one more, are in the arena.
    pub(crate) const fn has(&self, at: usize, words: usize) -> bool {
        at < self.len && words < self.len - at
    }

    /// The word at index `at`.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.len, "a word beyond the arena");
        // SAFETY: at < len, so the address is in the mapping, which lives as long as self.
        let word = unsafe { self.words.add(at) };
        // SAFETY: mapped, aligned (a page boundary plus whole words) and only ever accessed as atomic words.
        unsafe { word.as_ref() }
    }

    /// Prefetches the cache line of a word.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch affects only caches, for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.words.as_ptr().wrapping_add(at).cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }

    /// Returns the memory of these words to the kernel; they read as 0 afterwards.
    pub(crate) fn discard(&self, at: usize, words: usize) {
        assert!(at + words <= self.len, "a range beyond the arena");
        if cfg!(miri) {
            (at..at + words).for_each(|at| self.word(at).store(0, Relaxed));
            return;
        }
        let from = self.words.as_ptr().wrapping_add(at).cast();
        // SAFETY: the range is within this private mapping; its words are referenced only as atomics, whose values may
        // change.
        let done = unsafe { rustix::mm::madvise(from, words * WORD, Advice::LinuxDontNeed) };
        if done.is_err() {
            (at..at + words).for_each(|at| self.word(at).store(0, Relaxed));
        }
    }

    /// Whether the bytes from byte `skip` of word `at` equal `bytes`. The result may be wrong if they are written
    /// concurrently.
    #[inline]
    pub(crate) fn is_equal(&self, at: usize, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let mut at = at;
        for one in words {
            if self.word(at).load(Relaxed) != u64::from_le_bytes(*one) {
                return false;
            }
            at += 1;
        }
        rest.is_empty() || {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            let mask = (1_u64 << (rest.len() * 8)) - 1;
            self.word(at).load(Relaxed) & mask == u64::from_le_bytes(last)
        }
    }

    /// Appends `length` bytes to `out`, from byte `skip` counted from word `at`.
    #[inline]
    pub(crate) fn read(&self, at: usize, skip: usize, length: usize, out: &mut Vec<u8>) {
        let (mut at, shift) = (at + skip / WORD, (skip % WORD) * 8);
        assert!(at + length.div_ceil(WORD) < self.len, "bytes beyond the arena");
        out.reserve(length + WORD);
        let start = out.len();
        if length > LONG && cfg!(all(target_arch = "x86_64", not(miri))) {
            let from = self.words.as_ptr().wrapping_add(at).cast::<u8>().wrapping_add(shift / 8);
            let to = out.as_mut_ptr().wrapping_add(start);
            // SAFETY: `from` has `length` bytes in the mapping (asserted), `to` has them reserved.
            unsafe { copy_racing(from, to, length) };
        } else {
            let to = out.as_mut_ptr().wrapping_add(start);
            let mut done = 0;
            let mut this = self.word(at).load(Relaxed);
            while done < length {
                let word = if shift == 0 {
                    let word = this;
                    if done + WORD < length {
                        this = self.word(at + 1).load(Relaxed);
                    }
                    word
                } else {
                    let next = self.word(at + 1).load(Relaxed);
                    let word = (this >> shift) | (next << (64 - shift));
                    this = next;
                    word
                };
                let to = to.wrapping_add(done).cast::<u64>();
                // SAFETY: `length + WORD` bytes from `start` are reserved and done < length, so eight bytes fit here.
                unsafe { to.write_unaligned(word.to_le()) };
                at += 1;
                done += WORD;
            }
        }
        // SAFETY: `length` bytes from `start` have been written, by whole words or the string instruction.
        unsafe { out.set_len(start + length) };
    }

    /// Copies bytes to `to`, from byte `skip` counted from word `at`.
    pub(crate) fn read_to(&self, at: usize, skip: usize, to: &mut [u8]) {
        let (mut at, shift) = (at + skip / WORD, (skip % WORD) * 8);
        assert!(at + to.len().div_ceil(WORD) < self.len, "bytes beyond the arena");
        if to.len() > LONG && cfg!(all(target_arch = "x86_64", not(miri))) {
            let from = self.words.as_ptr().wrapping_add(at).cast::<u8>().wrapping_add(shift / 8);
            // SAFETY: `from` has that many bytes in the mapping (asserted); `to` is a slice of the same length outside
            // of it.
            unsafe { copy_racing(from, to.as_mut_ptr(), to.len()) };
            return;
        }
        for part in to.chunks_mut(WORD) {
            let low = self.word(at).load(Relaxed) >> shift;
            let high = if shift == 0 { 0 } else { self.word(at + 1).load(Relaxed) << (64 - shift) };
            part.copy_from_slice(&(low | high).to_le_bytes()[..part.len()]);
            at += 1;
        }
    }

    /// Writes `parts` consecutively from word `at` on; the rest of the last word becomes 0.
    #[inline]
    pub(crate) fn write(&self, at: usize, parts: &[&[u8]]) {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        assert!(at + total.div_ceil(WORD) <= self.len, "bytes beyond the arena");
        let (mut at, mut held, mut bits) = (at, 0_u64, 0_u32);
        for part in parts {
            let mut part = *part;
            if bits == 0 && part.len() > LONG && cfg!(all(target_arch = "x86_64", not(miri))) {
                let whole = part.len() / WORD * WORD;
                let to = self.words.as_ptr().wrapping_add(at).cast::<u8>();
                // SAFETY: `to` has `whole` bytes in the mapping (asserted), and so does `part`.
                unsafe { copy_racing(part.as_ptr(), to, whole) };
                at += whole / WORD;
                part = &part[whole..];
            }
            let (words, rest) = part.as_chunks::<WORD>();
            for one in words {
                let word = u64::from_le_bytes(*one);
                self.word(at).store(held | (word << bits), Relaxed);
                held = if bits == 0 { 0 } else { word >> (64 - bits) };
                at += 1;
            }
            for byte in rest {
                held |= u64::from(*byte) << bits;
                bits += 8;
                if bits == 64 {
                    self.word(at).store(held, Relaxed);
                    (at, held, bits) = (at + 1, 0, 0);
                }
            }
        }
        if bits > 0 {
            self.word(at).store(held, Relaxed);
        }
    }

    /// The address of words that are here. Others may be using them meanwhile, as atomic words.
    pub(crate) fn address(&self, at: usize, words: usize) -> *mut u8 {
        assert!(at <= self.len && words <= self.len - at, "words beyond the arena");
        self.words.as_ptr().wrapping_add(at).cast()
    }

    /// The NUMA node that it is bound to, if it is a single one.
    pub(crate) const fn node(&self) -> Option<u32> {
        self.node
    }

    #[cfg(test)]
    pub(crate) fn set_node(&mut self, node: u32) {
        self.node = Some(node);
    }

    /// Never unmaps it: a device may read or write here at any time.
    pub(crate) fn keep_mapped(&self) {
        self.is_kept.store(true, Relaxed);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let (at, length) = self.mapped;
        if *self.is_kept.get_mut() {
            return;
        }
        // SAFETY: mapped in new() with this address and length, and nothing refers to it any more.
        let gone =
            unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(at), length) };
        debug_assert!(gone.is_ok(), "a mapping of ours can be unmapped");
    }
}

/// Copies bytes that other threads may be reading or writing, by an instruction the compiler does not analyse.
///
/// # Safety
/// Both runs have `length` bytes mapped, the source readable, the destination writable; they do not overlap.
#[inline]
unsafe fn copy_racing(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") length => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's promise; not reached, as longer runs are copied by words where there is no string
    // instruction.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena() -> Arena {
        Arena::new(1, PageSize::Base, &Policy::Default).expect("two MiB can be had")
    }

    #[test]
    fn discarded_memory_reads_as_zero() {
        let arena = arena();
        arena.write(512, &[&[7; 4096]]);
        arena.discard(512, 512);
        assert_eq!(arena.word(512).load(Relaxed), 0);
        assert_eq!(arena.word(1023).load(Relaxed), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        #[test]
        fn bytes_are_read_back_as_written(first in 0..40_usize, second in 0..1500_usize, at in 0..64_usize, seed: u8) {
            let bytes: Vec<u8> = (0..first + second).map(|i| u8::try_from(i * 31 % 251).unwrap_or(0).wrapping_add(seed)).collect();
            let arena = arena();
            arena.write(at, &[&bytes[..first], &bytes[first..]]);
            let mut out = vec![9];
            arena.read(at, 0, bytes.len(), &mut out);
            prop_assert_eq!(&out[1..], &bytes[..]);
            prop_assert!(arena.is_equal(at, &bytes[..first]));
            out.clear();
            arena.read(at, first, second, &mut out);
            prop_assert_eq!(&out[..], &bytes[first..]);
            out.fill(0);
            arena.read_to(at, first, &mut out);
            prop_assert_eq!(&out[..], &bytes[first..]);
            if first > 0 {
                let mut other = bytes[..first].to_vec();
                other[first - 1] ^= 1;
                prop_assert!(!arena.is_equal(at, &other));
            }
        }
    }
}
