//! The balance controller: shifts are within bounds, rate and free memory, and a balanced machine stays as it is.

use nearfar_policy::traffic::balance::{
    Balance, Config, Decision, Law, Observation, Region, Verdict,
};
use nearfar_policy::traffic::model::{Carries, Machine, Path, Queue, Waits};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;
const PERIOD: u64 = 500_000_000;

/// Nodes with CPUs and memory, 104 ns to their own and 130 ns to others'.
fn alike(nodes: usize) -> Machine {
    let queue = Queue {
        capacity: BytesPerSecond(20 * GB),
        waits: Waits::Formula { ps: 11_600, power_percent: 100 },
        carries: Carries::All,
    };
    let path = |cpu, node| Path {
        idle: Nanoseconds(if cpu == node { 104 } else { 130 }),
        through: vec![node],
    };
    let row = |cpu| (0..nodes).map(|node| path(cpu, node)).collect();
    Machine::new(&vec![queue; nodes], &(0..nodes).map(row).collect::<Vec<_>>()).unwrap()
}

/// A region with the same use from all nodes, spread like this.
fn region(at: &[u32]) -> Region {
    let nodes = at.len();
    Region {
        by: vec![BasisPoints(10_000); nodes],
        at: at.iter().copied().map(BasisPoints).collect(),
        least: vec![BasisPoints(0); nodes],
        most: vec![BasisPoints(10_000); nodes],
        bytes: Bytes(8 << 30),
    }
}

/// The observation of equal nodes: memory serves in proportion to `at`, and the traffic of each is `gbps` in all.
fn seen(at: &[u32], gbps: u64, waits: &[u64]) -> Observation {
    let nodes = at.len();
    let latency = |cpu: usize, node: usize| {
        let idle = if cpu == node { 104 } else { 130 };
        Some(Nanoseconds(idle + waits[node]))
    };
    let own = |node: usize| BytesPerSecond(gbps * GB / 10_000 * u64::from(at[node]));
    Observation {
        elapsed: Nanoseconds(PERIOD),
        latency: (0..nodes)
            .map(|cpu| (0..nodes).map(|node| latency(cpu, node)).collect())
            .collect(),
        age: Nanoseconds(0),
        used: vec![None; nodes],
        own: Some((0..nodes).map(|_| (0..nodes).map(own).collect()).collect()),
        reads: BasisPoints(10_000),
        regions: vec![region(at)],
        room: vec![Bytes(1 << 40); nodes],
    }
}

/// Shares of three nodes that add up to the whole.
fn shares() -> impl Strategy<Value = [u32; 3]> {
    (0u32..=10_000, 0u32..=10_000)
        .prop_map(|(a, b)| [a.min(b), a.max(b) - a.min(b), 10_000 - a.max(b)])
}

fn run(config: Config, seen: &Observation, steps: usize) -> Vec<Decision> {
    let mut balance = Balance::new(config, alike(seen.room.len()));
    (0..steps).map(|_| balance.step(seen)).collect()
}

fn any_config() -> impl Strategy<Value = Config> {
    (any::<bool>(), 1u64..8, 1u32..2_000).prop_map(|(average, rate, trust)| Config {
        law: if average { Law::Average } else { Law::Marginal },
        rate: BytesPerSecond(rate * GB),
        trust: BasisPoints(trust),
        ..Config::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn shifts_join_two_nodes_and_stay_within_the_share_at_the_source(config in any_config(), at in shares(), waits in prop::array::uniform3(0u64..600), gbps in 2u64..16) {
        let seen = seen(&at, gbps, &waits);
        for decision in run(config, &seen, 6) {
            let mut left = at;
            for shift in &decision.shifts {
                prop_assert!(shift.region == 0 && shift.from < 3 && shift.to < 3 && shift.from != shift.to);
                let after = left[shift.from].checked_sub(shift.share.0);
                // Shares are rounded to basis points.
                prop_assert!(after.is_some() || shift.share.0 <= left[shift.from] + 1, "{decision:?}");
                left[shift.from] = after.unwrap_or(0);
            }
        }
    }

    #[test]
    fn a_decision_moves_at_most_the_bytes_allowed_by_rate_and_trust(config in any_config(), at in shares(), waits in prop::array::uniform3(0u64..600), gbps in 2u64..16) {
        for decision in run(config, &seen(&at, gbps, &waits), 6) {
            let bytes: u64 = decision.shifts.iter().map(|shift| shift.bytes.0).sum();
            prop_assert!(bytes <= config.rate.0 / 2, "half a second has half of the rate");
            let share: u32 = decision.shifts.iter().map(|shift| shift.share.0).sum();
            // Four times the usual at most, where much is to gain.
            prop_assert!(share <= 4 * config.trust.0 + 3, "{decision:?}");
        }
    }

    #[test]
    fn shifts_respect_the_minimum_and_maximum_share_of_each_node(at in shares(), waits in prop::array::uniform3(0u64..600), pinned in 0usize..3) {
        let mut seen = seen(&at, 10, &waits);
        (seen.regions[0].least[pinned], seen.regions[0].most[pinned]) = (BasisPoints(at[pinned]), BasisPoints(at[pinned]));
        for decision in run(Config::default(), &seen, 6) {
            let touched = |shift: &nearfar_policy::traffic::balance::Shift| {
                (shift.from == pinned || shift.to == pinned) && shift.share.0 > 1
            };
            prop_assert!(!decision.shifts.iter().any(touched), "{decision:?}");
        }
    }

    #[test]
    fn nothing_moves_without_free_memory_on_any_node(config in any_config(), at in shares(), waits in prop::array::uniform3(0u64..600)) {
        let seen = Observation { room: vec![Bytes(0); 3], ..seen(&at, 10, &waits) };
        for decision in run(config, &seen, 6) {
            prop_assert!(decision.shifts.is_empty());
        }
    }

    #[test]
    fn an_evenly_used_machine_gets_no_shifts(nodes in 2usize..5, gbps in 2u64..12, wait in 0u64..60) {
        let share = 10_000 / u32::try_from(nodes).unwrap();
        let mut at = vec![share; nodes];
        at[0] += 10_000 - share * u32::try_from(nodes).unwrap();
        for decision in run(Config::default(), &seen(&at, gbps, &vec![wait; nodes]), 30) {
            prop_assert!(decision.shifts.is_empty(), "{decision:?}");
        }
    }

    #[test]
    fn the_equal_latency_law_moves_nothing_at_equal_latencies(at in shares(), latency in 50u64..2_000) {
        let mut seen = seen(&at, 10, &[0; 3]);
        seen.latency = vec![vec![Some(Nanoseconds(latency)); 3]; 3];
        for decision in run(Config { law: Law::Average, ..Config::default() }, &seen, 10) {
            prop_assert!(decision.shifts.is_empty());
        }
    }

    #[test]
    fn the_equal_latency_law_moves_memory_to_nodes_with_lower_latency(at in shares(), waits in prop::array::uniform3(0u64..600)) {
        let seen = seen(&at, 10, &waits);
        for decision in run(Config { law: Law::Average, ..Config::default() }, &seen, 3) {
            for shift in &decision.shifts {
                prop_assert!(waits[shift.to] < waits[shift.from], "{decision:?}");
            }
        }
    }

    #[test]
    fn weights_add_up_to_64_for_each_region_and_confidence_is_at_most_one(config in any_config(), at in shares(), waits in prop::array::uniform3(0u64..600), regions in 1usize..4) {
        let mut seen = seen(&at, 10, &waits);
        seen.regions = vec![seen.regions[0].clone(); regions];
        seen.regions.iter_mut().for_each(|one| one.by = vec![BasisPoints(10_000 / u32::try_from(regions).unwrap()); 3]);
        for decision in run(config, &seen, 4) {
            prop_assert!(decision.weights.is_empty() || decision.weights.len() == regions);
            for weights in &decision.weights {
                prop_assert_eq!(weights.iter().map(|parts| u32::from(*parts)).sum::<u32>(), 64);
            }
            prop_assert!(decision.confidence.0 <= 10_000);
        }
    }

    #[test]
    fn an_observation_of_another_shape_is_rejected_and_changes_no_state(at in shares(), wrong in 0usize..6) {
        let good = seen(&at, 10, &[0, 100, 200]);
        let mut bad = good.clone();
        match wrong {
            0 => drop(bad.room.pop()),
            1 => drop(bad.latency.pop()),
            2 => drop(bad.latency[1].pop()),
            3 => drop(bad.regions[0].by.pop()),
            4 => bad.regions[0].most.push(BasisPoints(0)),
            _ => bad.own = Some(vec![Vec::new(); 3]),
        }
        let mut balance = Balance::new(Config::default(), alike(3));
        let refused = balance.step(&bad);
        prop_assert_eq!((refused.verdict, refused.shifts.len()), (Verdict::Mismatch, 0));
        prop_assert_eq!(balance.step(&good), Balance::new(Config::default(), alike(3)).step(&good));
    }

    #[test]
    fn stale_readings_cause_no_migration_unless_traffic_is_counted(at in shares(), waits in prop::array::uniform3(0u64..600), late in 1u64..1 << 40) {
        let config = Config::default();
        let old = Observation { age: Nanoseconds(config.age_most.0 + late), ..seen(&at, 10, &waits) };
        let decision = &run(config, &old, 1)[0];
        prop_assert_eq!((decision.verdict, decision.shifts.len()), (Verdict::Stale, 0));
        let counted = Observation { used: vec![Some(BytesPerSecond(GB)); 3], ..old };
        prop_assert_ne!(run(config, &counted, 1)[0].verdict, Verdict::Stale);
    }

    #[test]
    fn decisions_are_a_period_apart(at in shares(), steps in prop::collection::vec(1u64..PERIOD, 1..20)) {
        let mut balance = Balance::new(Config::default(), alike(3));
        let mut since = 0;
        for elapsed in steps {
            let due = balance.is_due(Nanoseconds(elapsed));
            let decision = balance.step(&Observation { elapsed: Nanoseconds(elapsed), ..seen(&at, 10, &[0, 50, 100]) });
            since += elapsed;
            prop_assert_eq!(decision.verdict == Verdict::Sensing, !due);
            prop_assert!(!due || since >= PERIOD);
            since = if due { 0 } else { since };
        }
    }
}

#[test]
fn shared_memory_on_one_congested_node_of_three_is_spread() {
    for law in [Law::Marginal, Law::Average] {
        let busy = seen(&[9_000, 500, 500], 6, &[700, 0, 0]);
        let found = run(Config { law, ..Config::default() }, &busy, 6);
        let shifts: Vec<_> = found.iter().flat_map(|decision| &decision.shifts).collect();
        assert!(!shifts.is_empty(), "{law:?}: {found:?}");
        assert!(shifts.iter().all(|shift| shift.from == 0), "{law:?}: {shifts:?}");
    }
}
