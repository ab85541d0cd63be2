//! Memory for a replicated region: a file without a name (memfd), mapped twice, with a part for each node.
//!
//! ```text
//! part of a copy    data, up to a page boundary | a word a granule (`granule`), up to a page boundary
//! file              home's part | the others' parts | a life a granule, up to a page boundary | a page of counts
//! ```
//!
//! Each part is bound to its node, the data behind the parts to home's; the binding of such a file applies to all
//! processes that map it, including children of fork. There is one mapping for writing, and a read-only one for direct
//! views. No file descriptor stays open, and no page is resident before it is touched.
#![expect(unsafe_code, reason = "memory is mapped here")]

use core::sync::atomic::AtomicU64;

use nearfar_kernel::mempolicy::{self, Existing, Policy, PolicyError};
use nearfar_topology::NodeId;

use crate::sys::{self, PAGE};

/// Offsets in the file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) copies: usize,
    /// Data of a copy, in whole pages.
    data: usize,
    /// Distance between two parts.
    stride: usize,
    /// Length of the file.
    total: usize,
}

impl Layout {
    /// `None` if there is not enough address space.
    pub(crate) fn new(size: usize, granule: usize, copies: usize) -> Option<Self> {
        let words = size.div_ceil(granule).checked_mul(8)?.checked_next_multiple_of(PAGE)?;
        let data = size.checked_next_multiple_of(granule.max(PAGE))?;
        let stride = data.checked_add(words)?;
        let total = stride.checked_mul(copies)?.checked_add(words)?.checked_add(PAGE)?;
        // The file's size and distances between addresses are signed.
        (total <= isize::MAX as usize).then_some(Self { copies, data, stride, total })
    }

    /// Bytes of a copy with its words: the most memory it takes of its node.
    pub(crate) const fn of_copy(&self) -> usize {
        self.stride
    }
}

/// Counters, in a page of their own.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Counts {
    /// Granules written.
    pub(crate) writes: AtomicU64,
    /// Granules whose copies were invalidated.
    pub(crate) collapses: AtomicU64,
    /// Copies made of granules.
    pub(crate) copies: AtomicU64,
    /// Granules that are never copied again.
    pub(crate) settled: AtomicU64,
    /// Value of `writes` when sync last found everything copied.
    pub(crate) synced: AtomicU64,
}

/// The memory.
#[derive(Debug)]
pub(crate) struct Shared {
    layout: Layout,
    /// Address of the writable mapping.
    base: usize,
    /// Address of the read-only mapping.
    seen: usize,
}

/// Reasons why the memory can't be made.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A system call failed, with this errno.
    Call(&'static str, i32),
    /// Binding failed.
    Policy(PolicyError),
}

impl Shared {
    /// Makes the memory, with the first part on the first of the nodes, and so on.
    pub(crate) fn new(layout: Layout, nodes: &[NodeId]) -> Result<Self, Refused> {
        let file = File::new(layout.total)?;
        let map = |protection| {
            // SAFETY: a new mapping at an address chosen by the kernel.
            let at =
                unsafe { sys::mmap(0, layout.total, [protection, libc::MAP_SHARED, file.0], 0) };
            at.map_err(|error| Refused::Call("mmap", error))
        };
        let base = map(libc::PROT_READ | libc::PROT_WRITE)?;
        let seen = map(libc::PROT_READ).inspect_err(|_| sys::unmap_own(base, layout.total))?;
        let shared = Self { layout, base, seen };
        for (copy, node) in nodes.iter().enumerate() {
            shared.bind(copy * layout.stride, layout.stride, *node)?;
        }
        let behind = layout.copies * layout.stride;
        if let Some(home) = nodes.first() {
            shared.bind(behind, layout.total - behind, *home)?;
        }
        Ok(shared)
    }

    fn bind(&self, offset: usize, length: usize, node: NodeId) -> Result<(), Refused> {
        let policy = Policy::Bind([node].into_iter().collect());
        let bound = mempolicy::bind(self.base + offset, length, &policy, Existing::Stay);
        bound.map_err(Refused::Policy)
    }

    /// Address of a copy's data, for writing.
    #[inline]
    pub(crate) fn data(&self, copy: usize) -> usize {
        self.base + copy * self.layout.stride
    }

    /// Address of a copy's data in the read-only mapping, which ends with the data.
    pub(crate) fn view(&self, copy: usize) -> usize {
        self.seen + copy * self.layout.stride
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.layout.total, "within the file");
        // SAFETY: within the mapping, which lasts as long as `self`; words are aligned as pages are, are only used as
        // atomics, and are zero at first.
        unsafe { &*((self.base + offset) as *const AtomicU64) }
    }

    /// The word of a granule beside a copy.
    #[inline]
    pub(crate) fn version(&self, copy: usize, granule: usize) -> &AtomicU64 {
        self.word(copy * self.layout.stride + self.layout.data + granule * 8)
    }

    /// A granule's life.
    #[inline]
    pub(crate) fn life(&self, granule: usize) -> &AtomicU64 {
        self.word(self.layout.copies * self.layout.stride + granule * 8)
    }

    pub(crate) fn counts(&self) -> &Counts {
        let page = self.base + self.layout.total - PAGE;
        // SAFETY: the last page of the mapping, which lasts as long as `self`; atomics that are zero at first.
        unsafe { &*(page as *const Counts) }
    }

    /// Offset and length of a copy's part.
    pub(crate) const fn part(&self, copy: usize) -> (usize, usize) {
        (self.base + copy * self.layout.stride, self.layout.stride)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        sys::unmap_own(self.base, self.layout.total);
        sys::unmap_own(self.seen, self.layout.total);
    }
}

/// The file while it is mapped.
struct File(i32);

impl File {
    fn new(length: usize) -> Result<Self, Refused> {
        // A file beyond RLIMIT_FSIZE would not be refused: the process would get a fatal signal.
        if length as u64 > file_size_most() {
            return Err(Refused::Call("ftruncate", libc::EFBIG));
        }
        let file = File(create()?);
        #[expect(clippy::cast_possible_wrap, reason = "a layout's total fits")]
        // SAFETY: our own file.
        let done = unsafe { libc::ftruncate(file.0, length as libc::off_t) };
        if done == 0 { Ok(file) } else { Err(Refused::Call("ftruncate", sys::errno())) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more.
        unsafe { libc::close(self.0) };
    }
}

fn create() -> Result<i32, Refused> {
    const NAME: &core::ffi::CStr = c"nearfar-replicated";
    // Not executable: Linux 6.3 wants that stated, and earlier kernels do not know the flag.
    for flags in [libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL, libc::MFD_CLOEXEC] {
        // SAFETY: a string.
        let file = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
        if file >= 0 {
            return Ok(file);
        }
        if sys::errno() != libc::EINVAL {
            break;
        }
    }
    Err(Refused::Call("memfd_create", sys::errno()))
}

fn file_size_most() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a place for the limit.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_parts_are_page_aligned_and_include_their_state_words() {
        let layout = Layout::new(1, 256, 1).unwrap();
        assert_eq!((layout.data, layout.stride, layout.total), (PAGE, 2 * PAGE, 4 * PAGE));
        let layout = Layout::new((4 << 20) + 1, 4096, 3).unwrap();
        assert_eq!(layout.data, (4 << 20) + PAGE);
        // Space for 1,025 words.
        assert_eq!(layout.stride, layout.data + 3 * PAGE);
        assert_eq!(layout.total, 3 * layout.stride + 3 * PAGE + PAGE);
        // A granule that is larger than a page is contiguous, too.
        assert_eq!(Layout::new(1, 2 << 20, 1).unwrap().data, 2 << 20);
    }

    #[test]
    fn a_region_that_exceeds_the_address_space_is_rejected() {
        for size in [usize::MAX, usize::MAX / 2, isize::MAX as usize / 4] {
            assert_eq!(Layout::new(size, 4096, 4), None, "{size}");
        }
    }
}
