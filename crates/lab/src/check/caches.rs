//! Expected and measured cost of page walks and of writing a line that another CPU writes.
//!
//! Both expectations come from the machine file alone. That of page walks holds for loads at random from an array of
//! small pages larger than the TLB; it takes into account that the first-level cache keeps some lines of page tables.
//! That of two writers holds for an increment with nothing else between: a look-up of the node's cache, and the way to
//! the other writer.

use serde::Serialize;

use super::{Latency, array_mib};
use crate::machine::Machine;

/// Largest accepted error of either.
pub const CACHES_PERCENT_MAX: f64 = 15.0;

/// A cost between two nodes: the latency with pages of 4 KiB less that with pages of 2 MiB, from one node's CPU to one
/// node's memory; or the time of an increment, where a CPU of each node increments one line, or two CPUs of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The CPU's node.
    pub from: u16,
    /// The node of the memory, or of the other CPU.
    pub to: u16,
    /// From the machine file.
    pub configured_ns: f64,
    /// Measured in the guest.
    pub emulated_ns: f64,
    /// Error in per cent.
    pub off_percent: f64,
    /// Whether the error is accepted.
    pub ok: bool,
}

impl Cost {
    fn new((from, to): (u16, u16), configured_ns: f64, emulated_ns: f64) -> Self {
        let off_percent = (emulated_ns / configured_ns - 1.0) * 100.0;
        let ok = off_percent.abs() <= CACHES_PERCENT_MAX;
        Self { from, to, configured_ns, emulated_ns, off_percent, ok }
    }
}

/// The time of the page walks of a load from anywhere in an array of 4 KiB pages: the share of pages that are not in the
/// TLB, each with a line of the page tables from the last-level cache, unless the first-level cache has kept it since
/// its last use.
pub(super) fn walks_ns(machine: &Machine) -> f64 {
    let processor = &machine.processor;
    let pages = array_mib(machine) as f64 * 256.0;
    let walks = 1.0 - f64::from(processor.tlb_entries) / pages;
    if processor.tlb_entries == 0 || walks <= 0.0 {
        return 0.0;
    }
    // Eight entries share a line, so each table line is used once in `pages / 8` walks on average, at random. Between
    // two uses, each load fills a line, and each walk that misses. A line in one of n places survives f fills with
    // (1 - 1/n)^f, and with an exponentially distributed f of mean m, 1 / (1 + m/n) do: missed = x / (1 + x), where
    // x = ratio * (1 / walks + missed).
    let ratio = pages / 8.0 / (processor.l1_kib as f64 * 16.0);
    let linear = 1.0 + ratio / walks - ratio;
    let missed = ((linear * linear + 4.0 * ratio * ratio / walks).sqrt() - linear) / (2.0 * ratio);
    walks * missed * processor.llc_latency_ns
}

/// Compares the latencies of a path, of which the first two are of one chain in small and in large pages.
pub(super) fn walk<'a>(
    machine: &Machine,
    chases: impl Iterator<Item = &'a Latency>,
) -> Option<Cost> {
    let configured_ns = walks_ns(machine);
    let mut single = chases.filter(|row| row.chains == 1);
    let (small, large) = (single.next()?, single.next()?);
    let emulated_ns = small.emulated_ns - large.emulated_ns;
    (configured_ns > 0.0).then(|| Cost::new((small.from, small.to), configured_ns, emulated_ns))
}

/// Pairs of CPUs to measure: the first CPU and each other one that is the first of its node, or its node's second.
pub(super) fn writing(machine: &Machine) -> impl Iterator<Item = (usize, usize)> {
    let nodes = machine.node_of_cpu();
    let pairs = (1..nodes.len()).filter(|cpu| {
        let before = nodes[..*cpu].iter().filter(|node| **node == nodes[*cpu]).count();
        before == usize::from(nodes[*cpu] == nodes[0])
    });
    let pairs: Vec<usize> = pairs.filter(|_| machine.processor.coherence).collect();
    pairs.into_iter().map(|cpu| (0, cpu))
}

/// Compares the time of an increment on two CPUs.
pub(super) fn writers(
    machine: &Machine,
    (one, other): (usize, usize),
    emulated_ns: f64,
) -> Option<Cost> {
    let nodes = machine.node_of_cpu();
    let (from, to) = (*nodes.get(one)?, *nodes.get(other)?);
    let own_ns = machine.processor.llc_latency_ns;
    let configured_ns = own_ns + if from == to { own_ns } else { machine.latency(from, to)? };
    Some(Cost::new((from, to), configured_ns, emulated_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::{built_in, with_cpus};

    #[test]
    fn a_tlb_that_holds_the_array_needs_no_walks() {
        let mut machine = built_in("cxl-2tier").unwrap();
        assert!((12.0..13.0).contains(&walks_ns(&machine)), "{}", walks_ns(&machine));
        machine.processor.tlb_entries = 8192;
        assert!(walks_ns(&machine) <= 0.0);
        machine.processor.tlb_entries = 0;
        assert!(walks_ns(&machine) <= 0.0);
    }

    #[test]
    fn one_pair_of_writers_is_within_a_node_and_one_to_each_other_node() {
        let pairs = |name, cpus| {
            let mut machine = with_cpus(built_in(name).unwrap(), cpus).unwrap();
            assert_eq!(writing(&machine).count(), 0, "without coherence");
            machine.processor.coherence = true;
            writing(&machine).collect::<Vec<_>>()
        };
        assert_eq!(pairs("cxl-2tier", 1), []);
        assert_eq!(pairs("cxl-2tier", 6), [(0, 1)]);
        assert_eq!(pairs("numa-4node", 4), [(0, 1), (0, 2), (0, 3)]);
        assert_eq!(pairs("numa-4node", 8), [(0, 1), (0, 2), (0, 4), (0, 6)]);
    }

    #[test]
    fn an_increment_costs_the_transfer_from_the_other_writer() {
        let ring = built_in("numa-4node").unwrap();
        let far = writers(&ring, (0, 3), 170.0).unwrap();
        assert!((far.configured_ns - 177.0).abs() < 1e-9 && far.ok, "{far:?}");
        assert!(!writers(&ring, (0, 3), 0.6).unwrap().ok);
        let near = writers(&built_in("cxl-2tier").unwrap(), (0, 1), 50.0).unwrap();
        assert!((near.configured_ns - 50.0).abs() < 1e-9, "{near:?}");
    }
}
