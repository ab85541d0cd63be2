//! Machines for tests: two tiers calibrated on published figures, and identical nodes; and an observation without noise.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

use super::balance::{Observation, Region};
use super::model::{Carries, LINE, Loops, Machine, Path, Queue, Waits};
use super::number::{basis_points, count};

const fn queue(mbps: u64) -> Queue {
    Queue {
        capacity: BytesPerSecond(mbps * 1_000_000),
        waits: Waits::Formula { ps: 2660, power_percent: 245 },
        carries: Carries::All,
    }
}

/// Near memory: 145 GB/s.
pub(super) const fn near_tier() -> Queue {
    queue(145_000)
}

/// Far memory: 70 GB/s.
pub(super) const fn far_tier() -> Queue {
    queue(70_000)
}

/// Near memory at 70 ns, far memory at `far_ns`.
pub(super) fn two_tiers(far_ns: u64) -> Machine {
    let tiers = [(Nanoseconds(70), near_tier()), (Nanoseconds(far_ns), far_tier())];
    Machine::tiers(&tiers).unwrap()
}

/// `nodes` identical nodes with CPUs and memory, 104 ns to their own and 130 ns to others', 5.5 GB/s each; links are
/// wide.
pub(super) fn alike(nodes: usize) -> Machine {
    let controller =
        Queue { waits: Waits::Formula { ps: 11_600, power_percent: 100 }, ..queue(5_500) };
    let path = |cpu, node| Path {
        idle: Nanoseconds(if cpu == node { 104 } else { 130 }),
        through: vec![node],
    };
    let paths: Vec<Vec<Path>> =
        (0..nodes).map(|cpu| (0..nodes).map(|node| path(cpu, node)).collect()).collect();
    Machine::new(&vec![controller; nodes], &paths).unwrap()
}

/// A tenth of a second of a program with `lines` outstanding lines on two tiers, beside `foreign` lines of others: its
/// region of 4 GB has this near share of accesses and may be anywhere.
pub(super) fn observed(machine: &Machine, lines: f64, near: f64, foreign: [f64; 2]) -> Observation {
    let at = [near, 1.0 - near];
    let loops = Loops { lines: vec![lines], think: vec![0.0], reads: 1.0 };
    let flow = machine.solve(&loops, &[at.to_vec()], &foreign);
    let ns = |node| Some(Nanoseconds(count(machine.latency((0, node), 1.0, &flow.wait))));
    let own = at.map(|at| BytesPerSecond(count(flow.rate[0] * at * LINE * 1e9)));
    Observation {
        elapsed: Nanoseconds(100_000_000),
        latency: vec![vec![ns(0), ns(1)]],
        used: vec![None; 2],
        own: Some(vec![own.to_vec()]),
        reads: BasisPoints(10_000),
        regions: vec![Region {
            by: vec![BasisPoints(10_000)],
            at: at.map(basis_points).to_vec(),
            least: vec![BasisPoints(0); 2],
            most: vec![BasisPoints(10_000); 2],
            bytes: Bytes(4_000_000_000),
        }],
        room: vec![Bytes(1 << 40); 2],
        ..Observation::default()
    }
}
