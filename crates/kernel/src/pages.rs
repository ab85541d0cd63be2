//! The node of single pages of a process, whether they are part of a huge page, and their frames.
//!
//! The node comes from move_pages(2) without target nodes, which needs the right to trace the process. Huge pages are
//! found by frames: `/proc/PID/pagemap` has the frame of a page, and `/proc/kpageflags` marks a frame as the head (bit
//! 15) or a tail (bit 16) of a compound page. A huge page is a compound page with its head at a frame divisible by 512
//! and a tail in its middle; smaller compound pages end before. Frames are visible to root only; without them, no page
//! counts as huge. (Documentation/admin-guide/mm/pagemap.rst)

use std::collections::BTreeMap;

use nearfar_policy::traffic::{PAGE, PIECES};
use nearfar_topology::NodeId;

use crate::fs::Fs;
use crate::sys::mempolicy as sys;

/// Pages queried at a time.
const BATCH: usize = 512;
const WORD: usize = 8;
/// An entry of pagemap: the page is there, and its frame.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
/// Flags of a frame.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const REFERENCED: u64 = 1 << 2;
const ACTIVE: u64 = 1 << 6;
const IDLE: u64 = 1 << 25;

/// Place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its node,
    pub node: NodeId,
    /// and whether it is part of a huge page.
    pub huge: bool,
}

/// The places of a process's pages, by page numbers; `None` for a page that is not present.
#[must_use]
pub fn places(fs: &dyn Fs, process: u32, pages: &[u64]) -> Vec<Option<Place>> {
    let huge = huge(fs, process, pages);
    let nodes = nodes(process, pages);
    let place = |(page, node): (&u64, Option<NodeId>)| {
        let huge = huge.get(&(page / PIECES)).copied().unwrap_or(false);
        Some(Place { node: node?, huge })
    };
    pages.iter().zip(nodes).map(place).collect()
}

/// The pages that are present, by number with their places; of each huge page only the first of those given, which must
/// be in order.
pub fn once(
    found: impl IntoIterator<Item = (u64, Option<Place>)>,
) -> impl Iterator<Item = (u64, Place)> {
    let mut last_huge = None;
    found.into_iter().filter_map(move |(page, place)| {
        let place = place?;
        let is_seen = place.huge && last_huge.replace(page / PIECES) == Some(page / PIECES);
        (!is_seen).then_some((page, place))
    })
}

/// The node of each page; `None` for one that is not present.
#[must_use]
pub fn nodes(process: u32, pages: &[u64]) -> Vec<Option<NodeId>> {
    let process = i32::try_from(process).unwrap_or(i32::MAX);
    let mut found = Vec::with_capacity(pages.len());
    for batch in pages.chunks(BATCH) {
        let address = |page: &u64| usize::try_from(page.saturating_mul(PAGE)).unwrap_or(usize::MAX);
        let addresses: Vec<usize> = batch.iter().map(address).collect();
        let mut nodes = vec![-1; batch.len()];
        let asked = sys::nodes_of_pages(process, &addresses, &mut nodes).is_ok();
        let node = |node: i32| u16::try_from(node).ok().filter(|_| asked).map(NodeId);
        found.extend(nodes.into_iter().map(node));
    }
    found
}

/// For each huge-page-sized range with one of these pages, whether it is a huge page.
fn huge(fs: &dyn Fs, process: u32, pages: &[u64]) -> BTreeMap<u64, bool> {
    let mut one_each: BTreeMap<u64, u64> = BTreeMap::new();
    for page in pages {
        one_each.entry(page / PIECES).or_insert(*page);
    }
    let pages: Vec<u64> = one_each.values().copied().collect();
    let frames = frames(fs, process, &pages);
    let fits = |(page, frame): (&u64, &Option<u64>)| {
        frame.filter(|frame| *frame != 0 && frame % PIECES == page % PIECES)
    };
    let fitting: Vec<Option<u64>> = pages.iter().zip(&frames).map(fits).collect();
    let begin = |frame: &u64| frame - frame % PIECES;
    let at = |frame: u64| [begin(&frame), begin(&frame) + PIECES / 2].map(|frame| frame * 8);
    let offsets: Vec<u64> = fitting.iter().flatten().flat_map(|frame| at(*frame)).collect();
    let flags = words(fs, "proc/kpageflags", &offsets);
    let (pairs, _) = flags.as_chunks::<2>();
    let mut pairs = pairs.iter();
    let mut is_huge = |frame: &Option<u64>| {
        let pair = frame.and_then(|_| pairs.next());
        pair.is_some_and(|[first, middle]| first & HEAD != 0 && middle & TAIL != 0)
    };
    one_each.keys().copied().zip(fitting.iter().map(&mut is_huge)).collect()
}

/// The frame of each page of a process; `None` for one that is not present, or whose frame is hidden.
#[must_use]
pub fn frames(fs: &dyn Fs, process: u32, pages: &[u64]) -> Vec<Option<u64>> {
    let offsets: Vec<u64> = pages.iter().map(|page| page.saturating_mul(8)).collect();
    let entries = words(fs, &format!("proc/{process}/pagemap"), &offsets);
    if entries.len() != pages.len() {
        return vec![None; pages.len()];
    }
    let frame =
        |entry: &u64| Some(entry & FRAME).filter(|frame| entry & PRESENT != 0 && *frame != 0);
    entries.iter().map(frame).collect()
}

/// Whether each page of a process is idle by the flags of its frame: marked idle, or neither referenced nor on an active
/// list. Kernels whose reclaim keeps generations of pages (MGLRU) may show none of these flags; then all pages look idle.
/// A page without a frame that can be seen counts as in use.
#[must_use]
pub fn idle(fs: &dyn Fs, process: u32, pages: &[u64]) -> Vec<bool> {
    let frames = frames(fs, process, pages);
    let offsets: Vec<u64> = frames.iter().flatten().map(|frame| frame.saturating_mul(8)).collect();
    let flags = words(fs, "proc/kpageflags", &offsets);
    let mut flags = flags.iter();
    let is_idle = |flags: &u64| flags & IDLE != 0 || flags & (REFERENCED | ACTIVE) == 0;
    frames.iter().map(|frame| frame.and_then(|_| flags.next()).is_some_and(is_idle)).collect()
}

/// A word at each offset; empty if they can't be read.
fn words(fs: &dyn Fs, path: &str, offsets: &[u64]) -> Vec<u64> {
    let bytes = fs.read_parts(path, offsets, WORD).ok().flatten().unwrap_or_default();
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RootFs;

    /// A process 7 with pages in these frames, on a machine with frames that have these flags.
    fn system(pages: &[(u64, u64)], flags: &[(u64, u64)]) -> (tempfile::TempDir, RootFs) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        let file = |name: &str, words: &[(u64, u64)]| {
            let mut all = vec![0_u64; 4096];
            words.iter().for_each(|(at, word)| all[usize::try_from(*at).unwrap()] = *word);
            let bytes: Vec<u8> = all.iter().flat_map(|word| word.to_ne_bytes()).collect();
            std::fs::write(dir.path().join(name), bytes).unwrap();
        };
        let present: Vec<_> = pages.iter().map(|(page, frame)| (*page, frame | PRESENT)).collect();
        file("proc/7/pagemap", &present);
        file("proc/kpageflags", flags);
        let fs = RootFs::new(dir.path()).unwrap();
        (dir, fs)
    }

    #[test]
    fn a_huge_page_needs_an_aligned_head_and_a_tail_in_its_middle() {
        // Pages 5, 600 and 1100 at frames that fit, 1600 at one that does not.
        let pages = [(5, 512 + 5), (600, 1024 + 88), (1100, 2048 + 76), (1600, 3000)];
        // The first is one compound page, the second ends before its middle, the third consists of small ones.
        let flags = [(512, HEAD), (512 + 256, TAIL), (1024, HEAD), (1024 + 256, HEAD), (2048, 0)];
        let (_dir, fs) = system(&pages, &flags);
        let found = huge(&fs, 7, &[5, 6, 600, 1100, 1600]);
        assert_eq!(found, BTreeMap::from([(0, true), (1, false), (2, false), (3, false)]));
        assert_eq!(frames(&fs, 7, &[5, 6]), [Some(517), None]);
        assert_eq!(frames(&fs, 8, &[5]), [None]);
    }

    #[test]
    fn a_page_is_idle_by_the_flags_of_its_frame() {
        let flags = [(20, 0), (21, REFERENCED), (22, ACTIVE), (23, ACTIVE | IDLE)];
        let (_dir, fs) = system(&[(0, 20), (1, 21), (2, 22), (3, 23)], &flags);
        assert_eq!(idle(&fs, 7, &[0, 1, 2, 3, 4]), [true, false, false, true, false]);
    }

    #[test]
    fn mapped_pages_have_a_node_and_unmapped_pages_have_none() {
        let memory = vec![1_u8; 64 << 10];
        let first = memory.as_ptr().addr() as u64 / PAGE + 1;
        let fs = RootFs::live().unwrap();
        let pages: Vec<u64> = (first..first + 10).chain([1]).collect();
        let found = places(&fs, std::process::id(), &pages);
        assert!(found[..10].iter().all(Option::is_some), "{found:?}");
        assert_eq!(found[10], None);
        assert!(places(&fs, u32::MAX / 2 - 1, &pages).iter().all(Option::is_none));
        assert_eq!(memory[0], 1);
    }
}
