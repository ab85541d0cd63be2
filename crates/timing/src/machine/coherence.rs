//! Coherence: an access to a line that other vCPUs' caches hold ([`crate::directory`]).
//!
//! Within a node, a transfer costs the latency of the last-level cache once more, if the other vCPU's first-level cache
//! still has the line. Between nodes it costs the latency to the other node's memory, and the capacity of the links but
//! not of the memory, if its last-level cache still has it; a line that is read becomes clean there and is written back.
//! A line that is transferred for the first time arrives as any other does; so only loads that need it wait. An access
//! to a contended line waits until the line arrives, and the vCPU with it if it is a store: as for a locked instruction,
//! the most frequent cause of contention.
//!
//! Limits: first-level caches have virtual tags, so a line that another vCPU has under another virtual address stays in
//! its first-level cache; a line that another vCPU has in flight is not taken from it.

use super::{Access, Kind, Machine, Origin, Vcpu};
use crate::cache::{LINE_SHIFT, Tags};
use crate::config::Config;
use crate::directory::{Directory, Held, Vcpus, Visit, members};
use crate::flight::NO_NODE;

/// The state that coherence needs.
#[derive(Debug)]
pub(crate) struct Coherence {
    directory: Directory,
    /// By vCPU.
    first_levels: Vec<Tags>,
    /// The index of each vCPU's CPU node.
    nodes: Vec<usize>,
    /// The index of each CPU node among the memory nodes.
    memory: Vec<Option<usize>>,
}

impl Coherence {
    /// `None` if it is switched off.
    pub(crate) fn new(config: &Config, cpu_nodes: &[u16]) -> Option<Self> {
        let node = |id| cpu_nodes.iter().position(|node| *node == id).unwrap_or(0);
        let memory = |id| config.nodes.iter().position(|node| node.id == id);
        config.processor.coherence.then(|| Self {
            directory: Directory::new(),
            first_levels: config
                .cpu_nodes
                .iter()
                .map(|_| Tags::new(config.processor.l1_kib))
                .collect(),
            nodes: config.cpu_nodes.iter().map(|id| node(*id)).collect(),
            memory: cpu_nodes.iter().map(|id| memory(*id)).collect(),
        })
    }

    /// The tags of a vCPU's first-level cache.
    pub(crate) fn tags(&self, vcpu: usize) -> Option<Tags> {
        self.first_levels.get(vcpu).cloned()
    }

    /// A line leaves all caches.
    pub(crate) fn forget(&self, line: u64) {
        self.directory.forget(line);
    }
}

impl Machine {
    /// Visits the directory for an access beyond the first-level cache.
    #[inline]
    pub(crate) fn holders(&self, vcpu: &mut Vcpu, now_ps: u64, access: Access, line: u64) -> Held {
        let Some(coherence) = &self.coherence else { return Held::Alone };
        let store = access.kind != Kind::Load;
        let held = coherence.directory.visit(Visit { vcpu: vcpu.index, line, store, now_ps });
        if held != Held::Alone {
            // A copy of its own that had arrived has been lost since.
            vcpu.flight.drop_line(access.virtual_address >> LINE_SHIFT);
        }
        held
    }

    /// Others give up a line that is requested at `asked_ps`, as far as their caches still have it.
    #[inline]
    pub(crate) fn take(&self, vcpu: &mut Vcpu, asked_ps: u64, access: Access, held: Held) -> Taken {
        match (&self.coherence, held) {
            (Some(coherence), Held::Elsewhere { others, contended }) => {
                self.take_from(coherence, vcpu, asked_ps, (access, others, contended))
            }
            _ => Taken::default(),
        }
    }

    #[cold]
    fn take_from(
        &self,
        coherence: &Coherence,
        vcpu: &mut Vcpu,
        asked_ps: u64,
        (access, others, contended): (Access, Vcpus, bool),
    ) -> Taken {
        let line = access.physical_address >> LINE_SHIFT;
        let store = access.kind != Kind::Load;
        let mut taken = Taken::default();
        for other in members(others) {
            let kept = !store && !contended;
            let near = coherence.first_levels[other].give_up(access.virtual_address, kept);
            let node = coherence.nodes[other];
            if node == vcpu.cpu_node {
                taken.more_ps = taken.more_ps.max(if near { self.last_level_ps } else { 0 });
                continue;
            }
            let cache = &self.caches[node];
            let supplied = if store { cache.forget(line) } else { cache.clean(line) };
            if supplied {
                taken.far = true;
                taken.more_ps = taken.more_ps.max(self.cross(coherence, vcpu, node, asked_ps));
                if !store {
                    self.write_back(vcpu, asked_ps, line);
                }
            }
        }
        self.counts[vcpu.index].transfers.add(u64::from(taken.more_ps > 0));
        taken
    }

    /// How long a line of another node's cache takes.
    fn cross(&self, coherence: &Coherence, vcpu: &Vcpu, node: usize, asked_ps: u64) -> u64 {
        let Some(memory) = coherence.memory[node] else { return self.last_level_ps };
        self.roads.to_cache((vcpu.cpu_node, memory), asked_ps)
    }

    /// An access to a contended line; returns the stall.
    #[cold]
    pub(crate) fn contend(
        &self,
        vcpu: &mut Vcpu,
        now_ps: u64,
        (access, others): (Access, Vcpus),
        origin: Option<Origin<'_>>,
    ) -> u64 {
        let line = access.physical_address >> LINE_SHIFT;
        let store = access.kind != Kind::Load;
        self.caches[vcpu.cpu_node].touch(line, store);
        let Some(coherence) = self.coherence.as_ref().filter(|_| others != 0) else { return 0 };
        let mut wait_ps = self.last_level_ps;
        for other in members(others) {
            let node = coherence.nodes[other];
            if node == vcpu.cpu_node {
                wait_ps += self.last_level_ps;
            } else {
                wait_ps += self.cross(coherence, vcpu, node, now_ps);
                self.caches[node].forget(line);
            }
        }
        let counts = &self.counts[vcpu.index];
        counts.first_level_misses.add(1);
        counts.transfers.add(1);
        if store {
            return self.stall(vcpu, wait_ps, NO_NODE);
        }
        let arrives_ps = vcpu.ready(now_ps, false, origin) + wait_ps;
        self.load_arrives(vcpu, now_ps, (arrives_ps, NO_NODE), origin)
    }
}

/// The part of a line's way that is in other caches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// The time that it adds.
    pub(crate) more_ps: u64,
    /// Whether another node's cache supplies the line, instead of memory.
    pub(crate) far: bool,
}
