//! The movable share of some physical memory, by sampling its pages' flags.
//!
//! `/proc/kpageflags` has 64 bits per page, by page frame number; bit 5 marks pages on a reclaim list: pages of
//! programs and of files, but neither free ones nor the kernel's own (Documentation/admin-guide/mm/pagemap.rst). It
//! needs root and `CONFIG_PROC_PAGE_MONITOR`.

use nearfar_topology::BasisPoints;

use crate::damon::spec::AddrRange;
use crate::fs::{Fs, FsError};

const PAGE: u64 = 4096;
const PATH: &str = "proc/kpageflags";
const LRU: u64 = 1 << 5;
const FLAGS_BYTES: u64 = 8;
/// Sampled places per range, each with this many neighbours.
const PLACES: u64 = 32;
const RUN: u64 = 8;

/// The share of pages of each range that are on reclaim lists, by sampling; `None` where this kernel does not report
/// it.
///
/// # Errors
/// [`FsError`], if flags can't be read, for example by users other than root.
pub fn on_reclaim_lists(
    fs: &dyn Fs,
    ranges: &[AddrRange],
) -> Result<Option<Vec<BasisPoints>>, FsError> {
    let mut shares = Vec::with_capacity(ranges.len());
    for range in ranges {
        let (first, pages) = (range.start / PAGE, range.len() / PAGE);
        let places = PLACES.min(pages / RUN);
        let place = |at: u64| (first + pages / RUN * at / places * RUN) * FLAGS_BYTES;
        let at: Vec<u64> = (0..places).map(place).collect();
        let each = RUN * FLAGS_BYTES;
        let Some(bytes) = fs.read_parts(PATH, &at, usize::try_from(each).unwrap_or(0))? else {
            return Ok(None);
        };
        let (flags, _) = bytes.as_chunks();
        let on = flags.iter().filter(|flags| u64::from_ne_bytes(**flags) & LRU != 0).count() as u64;
        let read = flags.len() as u64;
        let share = u32::try_from(on * 10_000 / read.max(1)).unwrap_or(0);
        shares.push(BasisPoints(share));
    }
    Ok(Some(shares))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{RootFs, TreeFs};

    #[test]
    fn the_reclaimable_share_is_sampled_from_the_ranges_own_page_flags() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        // A thousand pages: the first half is the kernel's, of the rest every second one is a program's.
        let flags = (0..1000u64).flat_map(|page| {
            let lru = if page >= 500 && page % 2 == 0 { LRU | 1 << 2 } else { 1 << 10 };
            lru.to_ne_bytes()
        });
        std::fs::write(dir.path().join(PATH), flags.collect::<Vec<u8>>()).unwrap();
        let fs = RootFs::new(dir.path()).unwrap();
        let range = |start: u64, end: u64| AddrRange { start: start * PAGE, end: end * PAGE };
        let ranges =
            [range(0, 500), range(500, 1000), range(0, 1000), range(4, 5), range(2000, 3000)];
        let shares = on_reclaim_lists(&fs, &ranges).unwrap().unwrap();
        let whole: Vec<u32> = shares.iter().map(|share| share.0 / 100).collect();
        assert_eq!((whole[0], whole[1], whole[3], whole[4]), (0, 50, 0, 0));
        assert!((23..=27).contains(&whole[2]), "{whole:?}");
        assert_eq!(on_reclaim_lists(&TreeFs::default(), &ranges).unwrap(), None);
    }
}
