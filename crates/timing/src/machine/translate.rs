//! Address translation of an access: the TLB's miss costs a page walk.
//!
//! Entries above the last level come from the CPU's paging-structure caches, at no cost, so a walk reads one line: that
//! of the page's last entry. It is in the first-level cache, in the node's last-level cache, or it is read from the
//! memory of the node that the table is on, with that node's latency and capacity. A walk delays the request of the
//! line that needs it, hence walks overlap as far as loads do, at most [`WALKERS`] at once.
//!
//! Limits: an access that hits the first-level cache counts as a hit in the TLB too; walks set no accessed or dirty
//! bits in the model (the emulator sets them), and a walk without a result costs nothing.

use super::{Access, Machine, Vcpu, Way};
use crate::cache::{LINE_SHIFT, Lookup};
use crate::tlb::Tlb;
use crate::walk::{AddressSpace, GuestMemory};
use crate::window::Window;

/// Page walks at once on one vCPU: Golden Cove's.
const WALKERS: u32 = 4;
/// Tags of page-table lines in the first-level cache, which has virtual tags: an address that is not canonical.
const TABLES: u64 = 1 << 56;

/// The memory management unit of a vCPU.
#[derive(Debug)]
pub(crate) struct Mmu {
    tlb: Tlb,
    /// `None` before the guest has loaded CR3.
    space: Option<AddressSpace>,
    walkers: Window,
}

impl Mmu {
    /// With an empty TLB; `None` for one without entries.
    pub(crate) fn new(entries: u32) -> Option<Self> {
        let mmu = || Self { tlb: Tlb::new(entries), space: None, walkers: Window::new(WALKERS) };
        (entries > 0).then(mmu)
    }
}

impl Vcpu {
    /// Whether it has a TLB.
    #[must_use]
    pub fn has_tlb(&self) -> bool {
        self.mmu.is_some()
    }

    /// The guest loads CR3: drops all pages from the TLB but the global ones.
    pub fn load_cr3(&mut self, cr3: u64, five_levels: bool) {
        if let Some(mmu) = &mut self.mmu {
            mmu.space = Some(AddressSpace::new(cr3, five_levels));
            mmu.tlb.flush(false);
        }
    }

    /// The guest drops the page of an address (INVLPG), or all pages: `None` (a change of CR4).
    pub fn flush_tlb(&mut self, page: Option<u64>) {
        match (&mut self.mmu, page) {
            (Some(mmu), Some(address)) => mmu.tlb.flush_page(address),
            (Some(mmu), None) => mmu.tlb.flush(true),
            (None, _) => {}
        }
    }
}

impl Machine {
    /// The same machine with access to the guest's page tables, without which there are no page walks.
    #[must_use]
    pub fn with_guest_memory(mut self, memory: Box<dyn GuestMemory>) -> Self {
        self.guest_memory = Some(memory);
        self
    }

    /// The time from which on the physical address of an access is known, if its virtual address is at `ready_ps`.
    #[inline]
    pub(crate) fn translated(&self, vcpu: &mut Vcpu, ready_ps: u64, access: Access) -> u64 {
        match vcpu.mmu.as_mut().map(|mmu| mmu.tlb.holds(access.virtual_address)) {
            Some(false) => self.walk(vcpu, ready_ps, access).unwrap_or(ready_ps),
            Some(true) | None => ready_ps,
        }
    }

    /// Walks the page tables; returns the time at which the walk ends.
    #[cold]
    fn walk(&self, vcpu: &mut Vcpu, ready_ps: u64, access: Access) -> Option<u64> {
        let mmu = vcpu.mmu.as_mut()?;
        let (space, memory) = (mmu.space?, self.guest_memory.as_deref()?);
        let counts = &self.counts[vcpu.index];
        counts.tlb_misses.add(1);
        let leaf = space
            .walk(memory, access.virtual_address)
            .filter(|leaf| leaf.physical_address == access.physical_address);
        let Some(leaf) = leaf else {
            counts.lost_walks.add(1);
            return None;
        };
        mmu.tlb.insert(access.virtual_address, leaf.size, leaf.global);
        let began_ps = mmu.walkers.free_from().max(ready_ps);
        let ended_ps = self.read_table(vcpu, began_ps, leaf.entry_address);
        if let Some(mmu) = &mut vcpu.mmu {
            mmu.walkers.take(ended_ps);
        }
        counts.walk_ps.add(ended_ps - ready_ps);
        Some(ended_ps)
    }

    /// Reads the line of a page-table entry; returns the time at which it arrives.
    fn read_table(&self, vcpu: &mut Vcpu, asked_ps: u64, entry_address: u64) -> u64 {
        if vcpu.first_level.can_load(TABLES | entry_address) {
            return asked_ps;
        }
        vcpu.first_level.fill(TABLES | entry_address, false);
        let line = entry_address >> LINE_SHIFT;
        match self.caches[vcpu.cpu_node].touch(line, false) {
            Lookup::Hit => asked_ps + self.last_level_ps,
            Lookup::Miss { write_back } => {
                let node = self.node_of(line);
                let arrives_ps = self.travel(vcpu, node, Way::Read, asked_ps);
                let counts = &self.counts[vcpu.index].nodes[node];
                counts.reads.add(1);
                counts.table_reads.add(1);
                counts.latency_ps.add(arrives_ps - asked_ps);
                if let Some(line) = write_back {
                    self.write_back(vcpu, asked_ps, line);
                }
                arrives_ps
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Kind;
    use crate::testkit::two_tiers;
    use crate::tlb::PageSize;
    use crate::walk::tests::Tables;

    const GIB: u64 = 1 << 30;
    const AREA: u64 = 0x7f00_0000_0000;

    fn load(at: u64, physical_address: u64) -> Access {
        Access { kind: Kind::Load, virtual_address: AREA + at, physical_address }
    }

    /// A machine with a TLB and these page tables, and its first vCPU.
    fn machine(tables: Tables, llc_kib: u64) -> (Machine, Vcpu) {
        let mut config = two_tiers();
        config.processor.tlb_entries = 2048;
        config.processor.llc_kib = llc_kib;
        let root = tables.root;
        let machine = Machine::new(config).unwrap().with_guest_memory(Box::new(tables));
        let mut vcpu = machine.vcpu(0).unwrap();
        vcpu.load_cr3(root, false);
        (machine, vcpu)
    }

    #[test]
    fn a_walk_reads_the_memory_of_the_table_s_node_once() {
        for (tables, walk_ps) in [(0x10_0000, 100_000), (GIB, 250_000)] {
            let map = Tables::new(tables);
            map.map(AREA, 0x4000, PageSize::Small, None);
            map.map(AREA + 0x1000, 0x5000, PageSize::Small, None);
            let (machine, mut vcpu) = machine(map, 4096);
            let mut cost = |at, physical| machine.access(&mut vcpu, 0, load(at, physical), None);
            assert_eq!(cost(0, 0x4000), 100_000 + walk_ps);
            assert_eq!(cost(0x400, 0x4400), 100_000);
            // The next entry is in the same line.
            assert_eq!(cost(0x1000, 0x5000), 100_000);
            let stats = machine.stats("virtual", 1.0);
            let reads: Vec<u64> = stats.nodes.iter().filter_map(|node| node.table_reads).collect();
            assert_eq!(reads, if tables == GIB { [0, 1] } else { [1, 0] });
            let walks = stats.cpus[0].walks.clone().unwrap();
            assert_eq!((walks.tlb_misses, walks.walk_ns, walks.lost), (2, walk_ps / 1000, 0));
        }
    }

    #[test]
    fn a_flush_leads_to_another_walk() {
        let map = Tables::new(0x10_0000);
        map.map(AREA, 0x4000, PageSize::Small, None);
        let root = map.root;
        let (machine, mut vcpu) = machine(map, 4096);
        let flushes: [&dyn Fn(&mut Vcpu); 3] = [
            &|vcpu| vcpu.load_cr3(root, false),
            &|vcpu| vcpu.flush_tlb(Some(AREA + 0x123)),
            &|vcpu| vcpu.flush_tlb(None),
        ];
        for (number, flush) in (1u64..).zip(flushes) {
            for line in 0..2 {
                let at = number << 8 | line << 7;
                machine.access(&mut vcpu, 0, load(at, 0x4000 + at), None);
            }
            let walks = machine.stats("virtual", 1.0).cpus[0].walks.clone().unwrap();
            assert_eq!(walks.tlb_misses, number);
            flush(&mut vcpu);
        }
    }

    #[test]
    fn a_table_that_disagrees_with_the_access_is_not_charged() {
        let map = Tables::new(0x10_0000);
        map.map(AREA, 0x4000, PageSize::Small, None);
        let (machine, mut vcpu) = machine(map, 4096);
        assert_eq!(machine.access(&mut vcpu, 0, load(0, 0x9000), None), 100_000);
        assert_eq!(machine.access(&mut vcpu, 0, load(0x10_0000, 0xa000), None), 100_000);
        let walks = machine.stats("virtual", 1.0).cpus[0].walks.clone().unwrap();
        assert_eq!((walks.lost, walks.walk_ns), (2, 0));
    }

    /// Mean time of dependent loads from 65,536 pages of 4 KiB, one line of each, in random order, in nanoseconds.
    fn scattered(size: PageSize) -> f64 {
        let map = Tables::new(0x10_0000);
        let pages = (256 << 20) >> size.shift();
        for page in 0..pages {
            let at = page << size.shift();
            map.map(AREA + at, 0x2000_0000 + at, size, None);
        }
        let (machine, mut vcpu) = machine(map, 16384);
        let (mut now_ps, mut began_ps) = (0, 0);
        for step in 0..3 << 16 {
            if step == 2 << 16 {
                began_ps = now_ps;
            }
            // A full period of a linear congruence; the line of each page is another.
            let page = (step * 40_503 + 12_345) & 0xffff;
            let at = page << 12 | ((page * 37) & 63) << 6;
            now_ps += machine.access(&mut vcpu, now_ps, load(at, 0x2000_0000 + at), None);
        }
        (now_ps - began_ps) as f64 / 65_536_000.0
    }

    #[test]
    fn small_pages_cost_10_to_40_ns_more_than_large_ones() {
        let more_ns = scattered(PageSize::Small) - scattered(PageSize::Large);
        assert!((10.0..40.0).contains(&more_ns), "{more_ns}");
    }
}
