//! A memory region on one node, in huge pages where the kernel provides them.
//!
//! Rules: `Region` owns its mapping from `mmap` to `munmap`; it lends lines only through `&mut self`. Fresh anonymous
//! memory reads as zero, so every line is initialised from the start. A page fault that the node can't serve would kill
//! the process (the policy is strict), so the caller requests no more than the node has free.
#![expect(unsafe_code, reason = "maps memory and lends it as a slice")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

use nearfar_kernel::mempolicy::{self, Existing, Policy, PolicyError};
use nearfar_topology::{Bytes, NodeId};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{LINE, Line, numa};

/// The size and alignment of a huge page; on machines with larger ones this alignment does no harm.
const HUGE: usize = 2 << 20;
/// The smallest page size.
const PAGE: usize = 4096;
/// `MADV_COLLAPSE` of Linux 6.1: make huge pages now, regardless of the system-wide setting.
const MADV_COLLAPSE: i32 = 25;

/// Reasons why a region can't be made.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The kernel provides no address space.
    #[error("mapping {bytes} bytes: {source}")]
    Map {
        /// The size.
        bytes: usize,
        /// The errno.
        source: io::Error,
    },
    /// The kernel rejects the policy.
    #[error("{source}{}", hint(errno(.source)))]
    Bind {
        /// The error.
        source: PolicyError,
    },
    /// The kernel does not report the location of pages.
    #[error("asking on which node pages are: {source}{}", hint(source.raw_os_error()))]
    Locate {
        /// The errno.
        source: io::Error,
    },
    /// Pages are on other nodes.
    #[error("{elsewhere} of {looked_at} pages bound to node {node} are not there")]
    Elsewhere {
        /// The requested node.
        node: NodeId,
        /// Pages on other nodes or not present.
        elsewhere: usize,
        /// Pages checked.
        looked_at: usize,
    },
}

fn errno(error: &PolicyError) -> Option<i32> {
    match error {
        PolicyError::Nodes { source, .. } | PolicyError::Call { source, .. } => {
            source.raw_os_error()
        }
        _ => None,
    }
}

fn hint(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EPERM) => " (a container's seccomp profile may forbid it; allow CAP_SYS_NICE)",
        Some(libc::ENOSYS) => " (the kernel is built without NUMA)",
        _ => "",
    }
}

/// A mapping with every page present and on one node.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: NonNull<c_void>,
    mapped: usize,
    start: NonNull<Line>,
    lines: usize,
}

impl Region {
    /// Maps at least `bytes` on `node` and touches every page. With `only_node` the machine has no other node with
    /// memory, so failures to bind and to locate pages are ignored.
    pub(crate) fn on_node(
        bytes: usize,
        node: NodeId,
        only_node: bool,
    ) -> Result<Self, RegionError> {
        let mut region = Self::map(bytes.max(HUGE).next_multiple_of(HUGE))?;
        let unable =
            |errno: Option<i32>| only_node && matches!(errno, Some(libc::ENOSYS | libc::EPERM));
        let policy = Policy::Bind([node].into_iter().collect());
        let (address, bytes) = (region.start.as_ptr().addr(), region.bytes());
        match mempolicy::bind(address, bytes, &policy, Existing::Stay) {
            Err(source) if !unable(errno(&source)) => return Err(RegionError::Bind { source }),
            _ => {}
        }
        // Both may fail: then the pages are small, and `huge_bytes` reports that.
        region.advise(Advice::LinuxHugepage as i32);
        region.touch();
        if region.huge_bytes() < region.bytes() {
            region.advise(MADV_COLLAPSE);
        }
        match region.elsewhere(node) {
            Ok((0, _)) => Ok(region),
            Ok((elsewhere, looked_at)) => {
                Err(RegionError::Elsewhere { node, elsewhere, looked_at })
            }
            Err(source) if unable(source.raw_os_error()) => Ok(region),
            Err(source) => Err(RegionError::Locate { source }),
        }
    }

    /// Maps at least `bytes` in small pages, touched under the process's own memory policy.
    pub(crate) fn inherited(bytes: usize) -> Result<Self, RegionError> {
        let mut region = Self::map(bytes.max(HUGE).next_multiple_of(HUGE))?;
        // Fails on a kernel without huge pages, which uses small ones anyhow.
        region.advise(Advice::LinuxNoHugepage as i32);
        region.touch();
        Ok(region)
    }

    /// Makes every page present.
    fn touch(&mut self) {
        for page in self.lines().chunks_mut(PAGE / LINE) {
            page[0] = Line::default();
            std::hint::black_box(&page[0]);
        }
    }

    /// Maps `bytes`, a multiple of [`HUGE`], aligned to it; no page is touched yet.
    fn map(bytes: usize) -> Result<Self, RegionError> {
        let mapped = bytes + HUGE;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no existing mapping is replaced.
        let mapping = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, rights, flags) };
        let failed = |source| RegionError::Map { bytes, source };
        let mapping = mapping.map_err(|errno| failed(errno.into()))?;
        let skip = mapping.addr().wrapping_neg() % HUGE;
        // SAFETY: `skip` < HUGE and the mapping is HUGE longer than `bytes`, so `bytes` from here on are inside it.
        let start = unsafe { mapping.byte_add(skip) };
        match (NonNull::new(mapping), NonNull::new(start.cast())) {
            (Some(mapping), Some(start)) => {
                Ok(Self { mapping, mapped, start, lines: bytes / LINE })
            }
            _ => Err(failed(io::ErrorKind::OutOfMemory.into())),
        }
    }

    /// The whole region.
    pub(crate) fn lines(&mut self) -> &mut [Line] {
        // SAFETY: `start` is aligned to HUGE, hence to a line; `lines` lines from there are inside a mapping that lives
        // as long as `self`; they are zeroed or written as words; `&mut self` makes the borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.lines) }
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.lines * LINE
    }

    /// Bytes in huge pages, from `/proc/self/smaps`; zero where that can't be read.
    pub(crate) fn huge_bytes(&self) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        huge_bytes_at(&smaps, self.start.as_ptr().addr()).unwrap_or(0).min(self.bytes())
    }

    fn advise(&self, advice: i32) {
        // SAFETY: the range is inside our own mapping. Advice about huge pages changes which pages hold the contents,
        // never the contents.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes(), advice) };
    }

    /// Number of sampled pages that are not on `node`, and number of sampled pages.
    fn elsewhere(&self, node: NodeId) -> io::Result<(usize, usize)> {
        let (mut elsewhere, mut looked_at) = (0, 0);
        self.each_page(|at| {
            looked_at += 1;
            elsewhere += usize::from(at != i32::from(node.0));
        })?;
        Ok((elsewhere, looked_at))
    }

    /// Bytes on each node.
    pub(crate) fn residency(&self) -> Result<BTreeMap<NodeId, Bytes>, RegionError> {
        let mut nodes: BTreeMap<NodeId, Bytes> = BTreeMap::new();
        let count = |at: i32| {
            if let Ok(node) = u16::try_from(at) {
                nodes.entry(NodeId(node)).or_default().0 += PAGE as u64;
            }
        };
        self.each_page(count).map_err(|source| RegionError::Locate { source })?;
        Ok(nodes)
    }

    /// The node of each page, or a negative errno.
    fn each_page(&self, mut seen: impl FnMut(i32)) -> io::Result<()> {
        const BATCH: usize = 4096;
        let start = self.start.as_ptr().addr();
        let addresses: Vec<usize> = (start..start + self.bytes()).step_by(PAGE).collect();
        for batch in addresses.chunks(BATCH) {
            numa::nodes_of(batch)?.iter().for_each(|at| seen(*at));
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping `map` made, whole; `self` is dropped, and with it the last pointer to it. It
        // fails only for invalid arguments (not aligned, or zero), which can't occur, and then the memory is merely
        // kept.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.mapped) };
    }
}

/// `AnonHugePages` of the mapping that contains `address`, in bytes.
fn huge_bytes_at(smaps: &str, address: usize) -> Option<usize> {
    let holds = |line: &str| -> Option<bool> {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let hex = |text| usize::from_str_radix(text, 16).ok();
        Some((hex(start)?..hex(end)?).contains(&address))
    };
    let mut lines = smaps.lines().skip_while(|line| holds(line) != Some(true)).skip(1);
    let kib = lines.find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    kib.trim().trim_end_matches("kB").trim().parse::<usize>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_zeroed_aligned_and_at_least_as_large_as_asked() {
        let mut region = Region::on_node((3 << 20) + 5, NodeId(0), true).unwrap();
        assert_eq!(region.bytes(), 4 << 20);
        assert_eq!(region.start.as_ptr().addr() % HUGE, 0);
        assert!(region.lines().iter().all(|line| line.0 == [0; 8]));
        assert!(region.huge_bytes() <= region.bytes());
    }

    #[test]
    fn a_missing_node_is_rejected_by_number() {
        let error = Region::on_node(1, NodeId(1023), false).unwrap_err().to_string();
        assert!(error.contains("node 1023"), "{error}");
    }

    #[test]
    fn huge_pages_are_those_of_the_mapping_that_holds_the_address() {
        let smaps = "1000-2000 rw-p 0 00:00 0\nAnonHugePages:  7 kB\n2000-9000 rw-p 0 00:00 0 \nSize: 28 kB\n\
                     AnonHugePages:      2048 kB\n";
        assert_eq!(huge_bytes_at(smaps, 0x2000), Some(2 << 20));
        assert_eq!(huge_bytes_at(smaps, 0x1fff), Some(7 << 10));
        assert_eq!(huge_bytes_at(smaps, 0x9000), None);
        assert_eq!(huge_bytes_at("", 1), None);
    }
}
