//! The emulated machine: the cost of one access for the vCPU that makes it.
//!
//! An access that misses the first-level cache is looked up in its node's last-level cache. A miss there takes the path
//! to memory: a place in the vCPU's window, capacity at every station on the path, then the latency, raised by the
//! station whose response to its load is the strongest. The stall depends on the access: a load outside of streams
//! waits until its line arrives; a line of a stream, or a store, only until it could be requested. Write-backs are
//! posted: they take capacity, and stall the vCPU only when the writes queue too far back.

use crate::cache::{FirstLevel, LINE_SHIFT, LastLevel, Lookup};
use crate::config::{Config, Range};
use crate::directory::Held;
use crate::flight::{Flight, NO_NODE};
use crate::pmu::{Answer, Request, Sampled, Step, Tap};
use crate::stats::VcpuCounts;
use crate::stream::Streams;
use crate::walk::GuestMemory;
use crate::window::Window;

mod coherence;
mod overlap;
mod report;
mod roads;
mod translate;

use coherence::Coherence;
pub use overlap::Origin;
use roads::{Roads, Way};
use translate::Mmu;

/// The most that posted writes may queue before the writer stalls: 2 us.
const POSTED_PS: u64 = 2_000_000;
/// Lines of a vCPU from one that counts for the share of reads to the next; odd and prime, since programs repeat themselves
/// in small numbers of lines.
const COUNTED_EVERY: u32 = 7;
/// Write-combining buffers: lines of non-temporal stores combined at the same time.
const GATHERED: usize = 8;

/// The state shared by all vCPUs. Any number of threads may use it concurrently.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    caches: Vec<LastLevel>,
    roads: Roads,
    ranges: Vec<Range>,
    cpu_nodes: Vec<u16>,
    last_level_ps: u64,
    pub(crate) counts: Vec<VcpuCounts>,
    tap: Tap,
    /// `None` while it is switched off.
    coherence: Option<Coherence>,
    /// For page walks.
    guest_memory: Option<Box<dyn GuestMemory>>,
}

/// The private state of one vCPU; used by its thread alone.
#[derive(Debug)]
pub struct Vcpu {
    pub(crate) index: usize,
    cpu_node: usize,
    /// Its first-level cache: to be looked up first.
    pub first_level: FirstLevel,
    /// Its loads in flight.
    pub(crate) flight: Flight,
    streams: Streams,
    /// Lines requested by streams and stores, and by all other loads, which are fewer.
    window: Window,
    loads: Window,
    /// Virtual lines in the write-combining buffers.
    gathered: [u64; GATHERED],
    gather_next: usize,
    step: Step,
    /// Lines to memory since the last one whose direction was counted.
    turn: u32,
    /// `None` without address translation.
    mmu: Option<Mmu>,
}

impl Vcpu {
    /// Whether a non-temporal store to `address` joins a line being combined.
    #[inline]
    #[must_use]
    pub fn gathers(&self, address: u64) -> bool {
        self.gathered.contains(&(address >> LINE_SHIFT))
    }

    /// Whether the direction of this line to memory is counted: one in [`COUNTED_EVERY`] is.
    #[inline]
    fn is_counted(&mut self) -> bool {
        self.turn += 1;
        if self.turn < COUNTED_EVERY {
            return false;
        }
        self.turn = 0;
        true
    }
}

/// An access that missed the first-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The kind of access.
    pub kind: Kind,
    /// Guest-virtual address.
    pub virtual_address: u64,
    /// Guest-physical address.
    pub physical_address: u64,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Load,
    /// Writes through the caches: the line is read first.
    Store,
    /// Writes past the caches: the line is not read.
    NonTemporalStore,
}

impl Machine {
    /// The machine described by `config`.
    ///
    /// # Errors
    /// The error in `config`, in one line.
    pub fn new(config: Config) -> Result<Self, String> {
        config.check()?;
        let mut cpu_nodes = config.cpu_nodes.clone();
        cpu_nodes.sort_unstable();
        cpu_nodes.dedup();
        let counts = || VcpuCounts {
            nodes: config.nodes.iter().map(|_| Default::default()).collect(),
            ..Default::default()
        };
        Ok(Self {
            caches: cpu_nodes.iter().map(|_| LastLevel::new(config.processor.llc_kib)).collect(),
            roads: Roads::lay(&config, &cpu_nodes),
            coherence: Coherence::new(&config, &cpu_nodes),
            ranges: config.ranges.clone(),
            last_level_ps: picoseconds(config.processor.llc_latency_ns),
            counts: config.cpu_nodes.iter().map(|_| counts()).collect(),
            cpu_nodes,
            config,
            tap: Tap::default(),
            guest_memory: None,
        })
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// vCPU `index`, idle and with empty caches; `None` where the settings have no such vCPU.
    #[must_use]
    pub fn vcpu(&self, index: usize) -> Option<Vcpu> {
        let (node, processor) = (self.config.cpu_nodes.get(index)?, &self.config.processor);
        Some(Vcpu {
            index,
            cpu_node: self.cpu_nodes.iter().position(|cpu_node| cpu_node == node)?,
            first_level: match self.coherence.as_ref().and_then(|all| all.tags(index)) {
                Some(tags) => FirstLevel::with(tags),
                None => FirstLevel::new(processor.l1_kib),
            },
            flight: Flight::new(processor.instruction_ps * u64::from(processor.reorder_buffer)),
            streams: Streams::new(),
            window: Window::new(processor.lines_in_flight),
            loads: Window::new(processor.loads_in_flight),
            gathered: [u64::MAX; GATHERED],
            gather_next: 0,
            step: Step::of(index),
            turn: 0,
            mmu: Mmu::new(processor.tlb_entries),
        })
    }

    /// The stall of `vcpu`, in picoseconds, for `access` at its time `now_ps`. Without an origin, a load outside of
    /// streams waits for its line.
    pub fn access(
        &self,
        vcpu: &mut Vcpu,
        now_ps: u64,
        access: Access,
        origin: Option<Origin<'_>>,
    ) -> u64 {
        let line = access.physical_address >> LINE_SHIFT;
        if access.kind == Kind::NonTemporalStore {
            return self.store_past_caches(vcpu, now_ps, access, line);
        }
        let store = access.kind == Kind::Store;
        let cache = &self.caches[vcpu.cpu_node];
        let held = self.holders(vcpu, now_ps, access, line);
        match held {
            Held::Alone => {
                if let Some(stall_ps) = self.present(vcpu, now_ps, access, origin) {
                    return stall_ps;
                }
            }
            Held::Elsewhere { .. } => {}
            Held::Contended { others } => {
                return self.contend(vcpu, now_ps, (access, others), origin);
            }
        }
        let counts = &self.counts[vcpu.index];
        counts.first_level_misses.add(1);
        let stream = vcpu.streams.observe(access.virtual_address >> LINE_SHIFT);
        counts.in_streams.add(u64::from(stream));
        let load = !stream && !store;
        let window = if load { &vcpu.loads } else { &vcpu.window };
        let free_ps = window.free_from().max(now_ps);
        // Prefetching foresees the addresses of streams.
        let ready_ps = if stream { now_ps } else { vcpu.ready(now_ps, store, origin) };
        let asked_ps = self.translated(vcpu, ready_ps, access).max(free_ps);
        let taken = self.take(vcpu, asked_ps, access, held);
        let (node, arrives_ps, write_back) = match cache.touch(line, store) {
            Lookup::Hit => (NO_NODE, asked_ps + self.last_level_ps, None),
            Lookup::Miss { write_back } if taken.far => {
                (NO_NODE, asked_ps + self.last_level_ps, write_back)
            }
            Lookup::Miss { write_back } => {
                counts.last_level_misses.add(1);
                let node = self.node_of(line);
                self.sample_if_due(vcpu, access, node);
                let arrives_ps = self.travel(vcpu, node, Way::Read, asked_ps);
                counts.nodes[node].reads.add(1);
                counts.nodes[node].latency_ps.add(arrives_ps - asked_ps);
                (node, arrives_ps, write_back)
            }
        };
        let arrives_ps = arrives_ps + taken.more_ps;
        let window = if load { &mut vcpu.loads } else { &mut vcpu.window };
        window.take(arrives_ps);
        let mut stall_ps = if load {
            self.load_arrives(vcpu, now_ps, (arrives_ps, node), origin)
        } else {
            self.stall(vcpu, free_ps - now_ps, node)
        };
        if let Held::Elsewhere { contended: true, .. } = held {
            vcpu.first_level.drop_line(access.virtual_address);
        } else if stream {
            vcpu.first_level.fill(access.virtual_address, store);
        } else {
            vcpu.expect_line(access.virtual_address, arrives_ps);
        }
        if let Some(line) = write_back {
            let queued_ps = self.write_back(vcpu, now_ps + stall_ps, line);
            vcpu.flight.stalled(queued_ps);
            counts.stall_ps.add(queued_ps);
            stall_ps += queued_ps;
        }
        stall_ps
    }

    /// Passes an access that missed all caches to the emulated PMU.
    #[inline]
    fn sample_if_due(&self, vcpu: &mut Vcpu, access: Access, node: usize) {
        self.tap.pass(&mut vcpu.step, || Sampled {
            virtual_address: access.virtual_address,
            physical_address: access.physical_address,
            cpu: u32::try_from(vcpu.index).unwrap_or(u32::MAX),
            node: self.config.nodes[node].id,
            write: access.kind != Kind::Load,
        });
    }

    /// The emulated PMU's answer to a request.
    #[must_use]
    pub fn ask_pmu(&self, request: Request) -> Answer {
        self.tap.answer(request, &self.config.cpu_nodes, &self.sample(0))
    }

    /// Adds to a vCPU's accounted time: busy for `busy_ps` more (stalls included), now at `time_ps`.
    pub fn account(&self, vcpu: &Vcpu, busy_ps: u64, time_ps: u64) {
        let counts = &self.counts[vcpu.index];
        counts.busy_ps.add(busy_ps);
        counts.time_ps.add(time_ps.wrapping_sub(counts.time_ps.get()));
    }

    /// Time at which a line requested at `asked_ps` arrives (or is accepted).
    #[inline]
    fn travel(&self, vcpu: &mut Vcpu, node: usize, way: Way, asked_ps: u64) -> u64 {
        let counted = vcpu.is_counted();
        self.roads.travel((vcpu.cpu_node, node), way, asked_ps, counted)
    }

    /// Posts a write; returns the stall if writes queue too far back.
    fn write_back(&self, vcpu: &mut Vcpu, now_ps: u64, line: u64) -> u64 {
        let node = self.node_of(line);
        let counted = vcpu.is_counted();
        let served_ps = self.roads.serve((vcpu.cpu_node, node), Way::Write, now_ps, counted).0;
        let stall_ps = served_ps.saturating_sub(now_ps + POSTED_PS);
        let counts = &self.counts[vcpu.index].nodes[node];
        counts.writes.add(1);
        counts.stall_ps.add(stall_ps);
        stall_ps
    }

    /// A non-temporal store: one write per line, for any number of stores to it.
    fn store_past_caches(&self, vcpu: &mut Vcpu, now_ps: u64, access: Access, line: u64) -> u64 {
        if vcpu.gathers(access.virtual_address) {
            return 0;
        }
        vcpu.gathered[vcpu.gather_next] = access.virtual_address >> LINE_SHIFT;
        vcpu.gather_next = (vcpu.gather_next + 1) % GATHERED;
        vcpu.first_level.drop_line(access.virtual_address);
        self.caches[vcpu.cpu_node].forget(line);
        if let Some(coherence) = &self.coherence {
            coherence.forget(line);
        }
        let node = self.node_of(line);
        self.sample_if_due(vcpu, access, node);
        let free_ps = now_ps.max(vcpu.window.free_from());
        let asked_ps = self.translated(vcpu, now_ps, access).max(free_ps);
        let taken_ps = self.travel(vcpu, node, Way::Write, asked_ps);
        vcpu.window.take(taken_ps);
        self.counts[vcpu.index].nodes[node].writes.add(1);
        self.stall(vcpu, free_ps - now_ps, node)
    }

    /// The index of the node that a physical line belongs to.
    #[inline]
    fn node_of(&self, line: u64) -> usize {
        let address = line << LINE_SHIFT;
        let range = self.ranges.iter().find(|range| (range.start..range.end).contains(&address));
        let id = range.map_or(self.config.nodes[0].id, |range| range.node);
        self.config.nodes.iter().position(|node| node.id == id).unwrap_or(0)
    }
}

fn picoseconds(ns: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked: 0 to 1e6 ns"
    )]
    let ps = (ns * 1000.0).round() as u64;
    ps
}
