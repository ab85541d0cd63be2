//! Machines for tests: two tiers calibrated on published figures, and identical nodes.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BytesPerSecond, Nanoseconds};

use super::model::{Carries, Machine, Path, Queue, Waits};

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
