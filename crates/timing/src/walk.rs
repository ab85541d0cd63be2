//! Page walks: the guest's own page tables, as a vCPU would read them.
//!
//! Problem: whoever accesses memory under an emulator learns the physical address, but neither the page's size nor the
//! place of its page table. Approach: on a TLB miss, the tables are read from the guest's memory, beginning at the
//! vCPU's CR3, with four or five levels. So page sizes, global pages and the node of each table are exact.
//!
//! Limit: a table that another vCPU changes between the access and the walk gives no result.

use std::fmt::Debug;

use crate::tlb::PageSize;

/// The guest's physical memory, as far as page tables are in it.
pub trait GuestMemory: Debug + Send + Sync {
    /// The 8 bytes at a multiple of 8; `None` if there is no readable memory.
    fn read(&self, physical_address: u64) -> Option<u64>;
}

/// The page tables that a vCPU uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressSpace {
    /// Physical address of the topmost table.
    root: u64,
    levels: u32,
}

/// Bits of an entry.
const PRESENT: u64 = 1;
const IS_PAGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
/// Address bits of CR3 and of entries.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// An entry's address has 9 bits of its table's index.
const INDEX_BITS: u32 = 9;

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Physical address of the last entry that was read.
    pub(crate) entry_address: u64,
    pub(crate) size: PageSize,
    /// Whether loads of CR3 keep it in the TLB.
    pub(crate) global: bool,
    /// The physical address that it translates to.
    pub(crate) physical_address: u64,
}

impl AddressSpace {
    /// By the value of CR3, with four or five levels.
    pub(crate) fn new(cr3: u64, five_levels: bool) -> Self {
        Self { root: cr3 & ADDRESS, levels: if five_levels { 5 } else { 4 } }
    }

    /// Translates a virtual address; `None` without a translation.
    pub(crate) fn walk(self, memory: &dyn GuestMemory, address: u64) -> Option<Leaf> {
        let mut table = self.root;
        for level in (0..self.levels).rev() {
            let index = address >> (PageSize::Small.shift() + INDEX_BITS * level) & 0x1ff;
            let entry_address = table + index * 8;
            let entry = memory.read(entry_address)?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || entry & IS_PAGE != 0 {
                let size = *PageSize::ALL.get(level as usize)?;
                let offset = (1 << size.shift()) - 1;
                return Some(Leaf {
                    entry_address,
                    size,
                    global: entry & GLOBAL != 0,
                    physical_address: entry & ADDRESS & !offset | address & offset,
                });
            }
            table = entry & ADDRESS;
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::*;

    /// Page tables in a guest's memory; each new table follows the one before.
    #[derive(Debug)]
    pub(crate) struct Tables {
        words: Mutex<HashMap<u64, u64>>,
        next: Mutex<u64>,
        pub(crate) root: u64,
    }

    impl GuestMemory for Tables {
        fn read(&self, physical_address: u64) -> Option<u64> {
            Some(self.words.lock().unwrap().get(&physical_address).copied().unwrap_or(0))
        }
    }

    impl Tables {
        /// Tables from `root` on, of four levels.
        pub(crate) fn new(root: u64) -> Self {
            Self { words: Mutex::default(), next: Mutex::new(root + 4096), root }
        }

        /// Maps the page of `address`; new tables are allocated from `tables` on, if given.
        pub(crate) fn map(&self, address: u64, physical: u64, size: PageSize, tables: Option<u64>) {
            let mut next = self.next.lock().unwrap();
            *next = tables.unwrap_or(*next);
            let last = size as u32;
            let mut words = self.words.lock().unwrap();
            let mut table = self.root;
            for level in (last..4).rev() {
                let at = table + (address >> (12 + 9 * level) & 0x1ff) * 8;
                if level == last {
                    let page = if level > 0 { IS_PAGE } else { 0 };
                    words.insert(at, physical | PRESENT | page);
                } else {
                    table = *words.entry(at).or_insert_with(|| {
                        *next += 4096;
                        (*next - 4096) | PRESENT
                    }) & ADDRESS;
                }
            }
        }
    }

    #[test]
    fn a_walk_returns_size_address_and_table() {
        let tables = Tables::new(0x10_0000);
        tables.map(0x7f00_0000_1000, 0x1234_5000, PageSize::Small, None);
        tables.map(0x7f00_0020_0000, 0x4000_0000, PageSize::Large, None);
        let space = AddressSpace::new(tables.root | 0x18, false);
        let small = space.walk(&tables, 0x7f00_0000_1abc).unwrap();
        assert_eq!((small.size, small.physical_address), (PageSize::Small, 0x1234_5abc));
        // The fourth table, the second entry of it.
        assert_eq!(small.entry_address, 0x10_3008);
        let large = space.walk(&tables, 0x7f00_0021_2345).unwrap();
        assert_eq!((large.size, large.physical_address), (PageSize::Large, 0x4001_2345));
        assert_eq!(large.entry_address, 0x10_2008);
        assert_eq!(space.walk(&tables, 0x7f00_0000_2000), None);
    }

    #[test]
    fn a_fifth_level_is_read_where_the_guest_has_one() {
        let tables = Tables::new(0x10_0000);
        tables.map(0x1000, 0x5000, PageSize::Small, None);
        // A fifth table above that of `tables`.
        let top = 0x20_0000;
        tables.words.lock().unwrap().insert(top, tables.root | PRESENT);
        let five = AddressSpace::new(top, true).walk(&tables, 0x1234).unwrap();
        let four = AddressSpace::new(tables.root, false).walk(&tables, 0x1234).unwrap();
        assert_eq!(five, four);
        assert_eq!(AddressSpace::new(top, false).walk(&tables, 0x1234), None);
    }
}
