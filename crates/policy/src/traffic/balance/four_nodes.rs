//! Four CPU nodes: shared memory is spread, memory used by one node is migrated to it.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

use super::tests::TICK_NS;
use super::{Balance, Config, Observation, Region, Verdict};
use crate::traffic::model::{LINE, Loops};
use crate::traffic::number::{basis_points, count, real};
use crate::traffic::testkit::alike;

/// Sensors that the machine offers.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// All latencies at each step.
    All,
    /// One latency per step, in turn.
    InTurn,
    /// No new latency, and the traffic of memory controllers.
    Counted,
    /// The same, and latencies measured before there was any load.
    CountedSinceIdle,
}

#[test]
fn memory_on_one_of_four_equal_nodes_is_spread_evenly() {
    for told in [Told::All, Told::InTurn, Told::Counted, Told::CountedSinceIdle] {
        let (at, foreseen) = evened_out(told);
        assert!(at.iter().all(|at| (at - 0.25).abs() < 0.06), "{told:?}: {at:?}");
        assert!(
            foreseen > 5_000,
            "{told:?}: one node's memory for all was taken for {foreseen} worse"
        );
    }
}

/// The final placement, and the largest gain predicted.
fn evened_out(told: Told) -> ([f64; 4], i64) {
    let machine = alike(4);
    let mut balance = Balance::new(Config::default(), machine.clone());
    let loops = Loops { lines: vec![13.0; 4], think: vec![84.0; 4], reads: 1.0 };
    let (mut at, mut foreseen) = ([0.97, 0.01, 0.01, 0.01], 0);
    for look in 0..400 {
        let idle = matches!(told, Told::CountedSinceIdle) && look < 20;
        let loops =
            if idle { Loops { lines: vec![0.02; 4], ..loops.clone() } } else { loops.clone() };
        let counted = matches!(told, Told::Counted | Told::CountedSinceIdle);
        let flow = machine.solve(&loops, &vec![at.to_vec(); 4], &[0.0; 4]);
        let row = |cpu: usize| {
            let ns = |node| {
                let turn = matches!(told, Told::InTurn) && look % 16 == cpu * 4 + node;
                let is_told = matches!(told, Told::All) || turn || idle;
                let ns = || Nanoseconds(count(machine.latency((cpu, node), 1.0, &flow.wait)));
                is_told.then(ns)
            };
            (0..4).map(ns).collect()
        };
        let carries = |node: usize| {
            let lines: f64 = (0..4).map(|cpu| flow.rate[cpu] * at[node]).sum();
            counted.then(|| BytesPerSecond(count(lines * LINE * 1e9)))
        };
        let own = |cpu: usize| {
            at.map(|at| BytesPerSecond(count(flow.rate[cpu] * at * LINE * 1e9))).to_vec()
        };
        let seen = Observation {
            elapsed: Nanoseconds(TICK_NS),
            latency: (0..4).map(row).collect(),
            age: Nanoseconds(if counted { 60_000_000_000 } else { 0 }),
            used: (0..4).map(carries).collect(),
            own: Some((0..4).map(own).collect()),
            reads: BasisPoints(10_000),
            regions: vec![Region {
                by: vec![BasisPoints(10_000); 4],
                at: at.map(basis_points).to_vec(),
                least: vec![BasisPoints(0); 4],
                most: vec![BasisPoints(10_000); 4],
                bytes: Bytes(4 << 30),
            }],
            room: vec![Bytes(16 << 30); 4],
        };
        let decision = balance.step(&seen);
        if let Verdict::Moving { gain } = decision.verdict {
            foreseen = foreseen.max(gain.0.into());
        }
        for shift in decision.shifts {
            let by = real(shift.bytes.0) / real(4 << 30);
            (at[shift.from], at[shift.to]) = (at[shift.from] - by, at[shift.to] + by);
        }
    }
    (at, foreseen)
}

#[test]
fn a_node_that_limits_the_others_is_balanced_despite_a_small_mean_gain() {
    let machine = alike(4);
    let mut balance = Balance::new(Config::default(), machine.clone());
    let loops = Loops { lines: vec![4.0; 4], think: vec![60.0; 4], reads: 1.0 };
    // Each node's CPUs use memory of their own; some memory of the first node's is on another.
    let own = |node: usize| [0, 1, 2, 3].map(|at| if at == node { 1.0 } else { 0.0 });
    let mut at = [[0.72, 0.28, 0.0, 0.0], own(1), own(2), own(3)];
    for _ in 0..200 {
        let shares: Vec<Vec<f64>> = at.iter().map(|at| at.to_vec()).collect();
        let flow = machine.solve(&loops, &shares, &[0.0; 4]);
        let ns =
            |cpu, node| Some(Nanoseconds(count(machine.latency((cpu, node), 1.0, &flow.wait))));
        let region = |cpu: usize| Region {
            by: own(cpu).map(basis_points).to_vec(),
            at: at[cpu].map(basis_points).to_vec(),
            least: vec![BasisPoints(0); 4],
            most: vec![BasisPoints(10_000); 4],
            bytes: Bytes(8 << 20),
        };
        let traffic = |cpu: usize| {
            at[cpu].map(|at| BytesPerSecond(count(flow.rate[cpu] * at * LINE * 1e9))).to_vec()
        };
        let seen = Observation {
            elapsed: Nanoseconds(TICK_NS),
            latency: (0..4).map(|cpu| (0..4).map(|node| ns(cpu, node)).collect()).collect(),
            used: vec![None; 4],
            own: Some((0..4).map(traffic).collect()),
            reads: BasisPoints(10_000),
            regions: (0..4).map(region).collect(),
            room: vec![Bytes(1 << 30); 4],
            ..Observation::default()
        };
        for shift in balance.step(&seen).shifts {
            let by = real(shift.bytes.0) / real(8 << 20);
            at[shift.region][shift.from] -= by;
            at[shift.region][shift.to] += by;
        }
    }
    assert!(at[0][0] > 0.95, "{at:?}");
}
