//! A vCPU's translation lookaside buffer (TLB): which pages it can translate without a walk of the page tables.
//!
//! One set-associative table with least recently used replacement holds pages of all sizes (4 KiB, 2 MiB, 1 GiB), as
//! the second-level TLB of current cores does; in front of it, a small direct-mapped table answers repeated accesses to
//! a page, without an effect on the order of replacement, as a first-level TLB does. Only that a page is present is
//! recorded; its translation is the emulator's.
//!
//! Flushes are the guest's: a load of CR3 drops all pages but the global ones, INVLPG drops one page. Limits: no address
//! space identifiers (the emulated CPU has none), so a switch between processes empties the table; a hit has no cost,
//! and pages of 1 GiB have no table of their own.

const WAYS: usize = 16;
/// Entries of the small table, a power of two.
const RECENT: usize = 128;
const NOTHING: u64 = u64::MAX;
/// The smallest page, as a shift.
const SMALL_SHIFT: u32 = 12;

/// Size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Giant,
}

impl PageSize {
    pub(crate) const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Giant];

    /// Its bytes, as a shift.
    pub(crate) const fn shift(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Large => 21,
            Self::Giant => 30,
        }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Tlb {
    /// By set, most recently used first: `page number << 3 | global << 2 | size`, or [`NOTHING`].
    sets: Box<[[u64; WAYS]]>,
    /// Numbers of 4 KiB pages, by their low bits.
    recent: [u64; RECENT],
    /// Whether pages of each size have been present.
    seen: [bool; 3],
}

impl Tlb {
    /// An empty TLB of `entries`, a power of two of at least 16.
    pub(crate) fn new(entries: u32) -> Self {
        let sets = (entries as usize / WAYS).max(1);
        Self {
            sets: vec![[NOTHING; WAYS]; sets].into_boxed_slice(),
            recent: [NOTHING; RECENT],
            seen: [false; 3],
        }
    }

    /// Whether the page of `address` is present; it is then the most recently used.
    #[inline]
    pub(crate) fn holds(&mut self, address: u64) -> bool {
        let small = address >> SMALL_SHIFT;
        let recent = recent(small);
        if self.recent[recent] == small {
            return true;
        }
        let found = PageSize::ALL
            .into_iter()
            .any(|size| self.seen[size as usize] && self.use_page(address, size));
        if found {
            self.recent[recent] = small;
        }
        found
    }

    fn use_page(&mut self, address: u64, size: PageSize) -> bool {
        let key = key(address, size);
        let set = self.set(address, size);
        let Some(way) = set.iter().position(|entry| *entry & !GLOBAL == key) else { return false };
        set[..=way].rotate_right(1);
        true
    }

    /// Adds the page of `address`, in place of the least recently used of its set.
    pub(crate) fn insert(&mut self, address: u64, size: PageSize, global: bool) {
        let entry = key(address, size) | if global { GLOBAL } else { 0 };
        let set = self.set(address, size);
        let evicted = std::mem::replace(&mut set[WAYS - 1], entry);
        set.rotate_right(1);
        self.seen[size as usize] = true;
        if evicted != NOTHING {
            self.forget_recent(evicted);
        }
        let small = address >> SMALL_SHIFT;
        self.recent[recent(small)] = small;
    }

    /// Drops all pages, or all but the global ones.
    pub(crate) fn flush(&mut self, globals: bool) {
        self.recent.fill(NOTHING);
        for entry in self.sets.as_flattened_mut() {
            if globals || *entry & GLOBAL == 0 {
                *entry = NOTHING;
            }
        }
    }

    /// Drops the page of `address`, whatever its size.
    pub(crate) fn flush_page(&mut self, address: u64) {
        for size in PageSize::ALL {
            let key = key(address, size);
            let set = self.set(address, size);
            if let Some(entry) = set.iter_mut().find(|entry| **entry & !GLOBAL == key) {
                let dropped = std::mem::replace(entry, NOTHING);
                self.forget_recent(dropped);
            }
        }
    }

    /// Drops the page of `entry` from the small table.
    fn forget_recent(&mut self, entry: u64) {
        let (number, size) = (entry >> NUMBER_SHIFT, entry & SIZE_MASK);
        if size == PageSize::Small as u64 {
            let at = recent(number);
            if self.recent[at] == number {
                self.recent[at] = NOTHING;
            }
            return;
        }
        let shift =
            PageSize::ALL.get(usize::try_from(size).unwrap_or(0)).map_or(0, |size| size.shift());
        for small in &mut self.recent {
            if *small != NOTHING && *small << SMALL_SHIFT >> shift == number {
                *small = NOTHING;
            }
        }
    }

    fn set(&mut self, address: u64, size: PageSize) -> &mut [u64; WAYS] {
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let at = (address >> size.shift()) as usize & (self.sets.len() - 1);
        &mut self.sets[at]
    }
}

const SIZE_MASK: u64 = 3;
const GLOBAL: u64 = 4;
const NUMBER_SHIFT: u32 = 3;

/// An entry of a page that is not global. The number has at most 52 bits, so no entry equals [`NOTHING`].
fn key(address: u64, size: PageSize) -> u64 {
    address >> size.shift() << NUMBER_SHIFT | size as u64
}

#[inline]
fn recent(small: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    let at = small as usize & (RECENT - 1);
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sized() -> impl Strategy<Value = PageSize> {
        prop_oneof![Just(PageSize::Small), Just(PageSize::Large), Just(PageSize::Giant)]
    }

    #[test]
    fn one_page_too_many_evicts_the_least_recently_used() {
        let mut tlb = Tlb::new(16);
        for page in 0..16u64 {
            tlb.insert(page << 12, PageSize::Small, false);
        }
        tlb.recent.fill(NOTHING);
        assert!(tlb.holds(0));
        tlb.insert(16 << 12, PageSize::Small, false);
        assert!(tlb.holds(0) && tlb.holds(2 << 12) && !tlb.holds(1 << 12));
    }

    #[test]
    fn a_flush_keeps_global_pages_unless_it_is_of_all() {
        let mut tlb = Tlb::new(64);
        let kernel = 0xffff_8880_0020_0000;
        tlb.insert(kernel, PageSize::Large, true);
        tlb.insert(0x1000, PageSize::Small, false);
        tlb.flush(false);
        assert!(tlb.holds(kernel + 0x1234) && !tlb.holds(0x1000));
        tlb.flush(true);
        assert!(!tlb.holds(kernel));
    }

    proptest! {
        #[test]
        fn pages_in_a_row_within_its_capacity_stay(
            first in 0u64..1 << 26, count in 1u64..=2048, size in sized(),
        ) {
            let mut tlb = Tlb::new(2048);
            let address = |page| (first + page) << size.shift();
            for page in 0..count {
                tlb.insert(address(page), size, false);
            }
            for page in 0..count {
                prop_assert!(tlb.holds(address(page)), "page {} of {}", page, count);
            }
        }

        #[test]
        fn it_holds_at_most_its_capacity(pages in proptest::collection::btree_set(0u64..1 << 20, 0..600)) {
            let mut tlb = Tlb::new(128);
            for page in &pages {
                tlb.insert(page << 12, PageSize::Small, false);
            }
            let held = pages.iter().filter(|page| tlb.holds(**page << 12)).count();
            prop_assert!(held <= 128.min(pages.len()));
        }

        #[test]
        fn a_flush_empties_it(pages in proptest::collection::vec((0u64..1 << 36, sized()), 0..300)) {
            let mut tlb = Tlb::new(64);
            for (page, size) in &pages {
                tlb.insert(*page, *size, false);
                tlb.holds(*page);
            }
            tlb.flush(false);
            prop_assert!(pages.iter().all(|(page, _)| !tlb.holds(*page)));
        }

        #[test]
        fn a_dropped_page_is_gone_and_all_others_stay(
            size in sized(), offset in 0u64..1 << 30, dropped in 0u64..16,
        ) {
            let mut tlb = Tlb::new(256);
            let address = |page: u64| page << size.shift() | offset & ((1 << size.shift()) - 1);
            for page in 0..16 {
                tlb.insert(address(page), size, page % 2 == 0);
                prop_assert!(tlb.holds(address(page)));
            }
            tlb.flush_page(address(dropped));
            for page in 0..16 {
                prop_assert_eq!(tlb.holds(address(page)), page != dropped);
            }
        }
    }
}
