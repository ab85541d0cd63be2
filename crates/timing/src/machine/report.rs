//! A machine's statistics.

use super::Machine;
use crate::cache::LINE_SHIFT;
use crate::stats::{
    CpuStats, LinkStats, NodeCounts, NodeSample, NodeStats, Sample, Stats, WalkStats, ratio,
};

impl Machine {
    /// The run's statistics so far. `clock` and `slow_motion` are the caller's choice.
    #[must_use]
    pub fn stats(&self, clock: &'static str, slow_motion: f64) -> Stats {
        Stats {
            schema: "nearfar.labstats/1",
            complete: false,
            clock,
            clock_reason: None,
            walk_reason: None,
            slow_motion,
            host: None,
            nodes: (0..self.config.nodes.len()).map(|node| self.node_stats(node)).collect(),
            cpus: (0..self.counts.len()).map(|cpu| self.cpu_stats(cpu)).collect(),
            links: (0..self.config.links.len()).map(|link| self.link_stats(link)).collect(),
            series: Vec::new(),
        }
    }

    /// The counts so far, at the guest's time `at_ns`.
    #[must_use]
    pub fn sample(&self, at_ns: u64) -> Sample {
        let nodes = self.config.nodes.iter().enumerate().map(|(node, of)| {
            let by_cpu = |count: fn(&NodeCounts) -> u64| {
                self.counts.iter().map(|counts| count(&counts.nodes[node])).collect()
            };
            NodeSample {
                id: of.id,
                reads: by_cpu(|counts| counts.reads.get()),
                writes: by_cpu(|counts| counts.writes.get()),
                stall_ns: by_cpu(|counts| counts.stall_ps.get() / 1000),
            }
        });
        Sample { at_ns, nodes: nodes.collect() }
    }

    fn node_stats(&self, node: usize) -> NodeStats {
        let sum = |of: fn(&NodeCounts) -> u64| {
            self.counts.iter().map(|counts| of(&counts.nodes[node])).sum::<u64>()
        };
        let (reads, writes) = (sum(|counts| counts.reads.get()), sum(|counts| counts.writes.get()));
        NodeStats {
            id: self.config.nodes[node].id,
            reads,
            writes,
            bytes: (reads + writes) << LINE_SHIFT,
            stall_ns: sum(|counts| counts.stall_ps.get()) / 1000,
            table_reads: self.has_tlb().then(|| sum(|counts| counts.table_reads.get())),
            mean_loaded_latency_ns: ratio(sum(|counts| counts.latency_ps.get()), reads)
                .map(|ps| (ps / 100.0).round() / 10.0),
        }
    }

    fn cpu_stats(&self, cpu: usize) -> CpuStats {
        let counts = &self.counts[cpu];
        let executing_ps = counts.busy_ps.get().saturating_sub(counts.stall_ps.get());
        CpuStats {
            cpu,
            virtual_time_ns: counts.time_ps.get() / 1000,
            instructions: executing_ps.checked_div(self.config.processor.instruction_ps),
            first_level_misses: counts.first_level_misses.get(),
            last_level_misses: counts.last_level_misses.get(),
            stream_share: ratio(counts.in_streams.get(), counts.first_level_misses.get()),
            stall_ns: counts.stall_ps.get() / 1000,
            walks: self.has_tlb().then(|| WalkStats {
                tlb_misses: counts.tlb_misses.get(),
                walk_ns: counts.walk_ps.get() / 1000,
                lost: counts.lost_walks.get(),
            }),
            transfers: self.config.processor.coherence.then(|| counts.transfers.get()),
        }
    }

    fn has_tlb(&self) -> bool {
        self.config.processor.tlb_entries > 0
    }

    fn link_stats(&self, link: usize) -> LinkStats {
        let crossings = |links: &[u16]| {
            links.iter().filter(|crossed| usize::from(**crossed) == link).count() as u64
        };
        let lines: u64 = self
            .config
            .cpu_nodes
            .iter()
            .zip(&self.counts)
            .flat_map(|(from, counts)| {
                self.config.nodes.iter().zip(&counts.nodes).filter_map(move |(node, counts)| {
                    let path = self.config.path(*from, node.id)?;
                    Some(
                        counts.reads.get() * crossings(&path.read_links)
                            + counts.writes.get() * crossings(&path.write_links),
                    )
                })
            })
            .sum();
        LinkStats { name: self.config.links[link].name.clone(), bytes: lines << LINE_SHIFT }
    }
}
