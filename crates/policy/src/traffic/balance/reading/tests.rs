//! Outstanding lines of one reading by hand-computed figures, and averages of several.

use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds};

use super::*;
use crate::traffic::model::{Carries, Path, Queue};
use crate::traffic::testkit::{alike, far_tier, two_tiers};

/// A reading of two tiers: latencies in nanoseconds, own traffic and the counted traffic of each node in lines per
/// microsecond (64 MB/s).
fn reading(latency: [Option<u64>; 2], own: [u64; 2], used: [Option<u64>; 2]) -> Reading {
    Reading::of(&two_tiers(135), &seen(latency, own, used))
}

fn seen(latency: [Option<u64>; 2], own: [u64; 2], used: [Option<u64>; 2]) -> Observation {
    let rate = |lines: u64| BytesPerSecond(lines * 64_000_000);
    Observation {
        latency: vec![latency.map(|ns| ns.map(Nanoseconds)).to_vec()],
        own: Some(vec![own.map(rate).to_vec()]),
        used: used.map(|lines| lines.map(rate)).to_vec(),
        reads: BasisPoints(10_000),
        ..Observation::default()
    }
}

/// Waiting at this utilisation of a tier of [`two_tiers`], in nanoseconds.
fn waiting(used: f64) -> f64 {
    2.66 * used.powf(2.45) / (1.0 - used)
}

/// Utilisation of near memory (145 GB/s) by these lines per microsecond.
fn of_near(lines: f64) -> f64 {
    lines * 64e6 / 145e9
}

#[track_caller]
fn assert_near(found: f64, right: f64) {
    assert!((found - right).abs() <= 1e-6 * right.abs().max(1.0), "{found}, not {right}");
}

#[test]
fn own_lines_are_traffic_times_latency() {
    let machine = two_tiers(135);
    // 0.1 lines per ns for 100 ns, and 0.05 for 200 ns.
    let lines = reading([Some(100), Some(200)], [100, 50], [None; 2]).lines(&machine, 1.0);
    assert_eq!(lines.len(), 3);
    assert_near(lines[2], 20.0);
    let longer = reading([Some(100), Some(200)], [100, 50], [None; 2]).lines(&machine, 1.1);
    assert_near(longer[2], 22.0);
}

#[test]
fn lines_of_others_are_their_counted_traffic_times_their_latency() {
    let machine = two_tiers(135);
    // Others have 0.4 of 0.5 lines per ns, at the idle latency of 70 ns and the waiting of all.
    let right = 0.4 * (70.0 + waiting(of_near(500.0)));
    for near_ns in [80, 500] {
        let lines = reading([Some(near_ns), Some(135)], [100, 0], [Some(500), Some(0)]);
        assert_near(lines.lines(&machine, 1.0)[0], right);
    }
}

#[test]
fn without_counts_utilisation_is_inferred_from_queueing_beyond_noise() {
    let machine = two_tiers(135);
    let lines = reading([Some(170), Some(135)], [100, 0], [None; 2]).lines(&machine, 1.0);
    // Of 100 ns of waiting 1.5 % of 170 ns may be noise: 97.45 ns.
    let used = machine.in_use(0, 97.45);
    assert_near(waiting(used), 97.45);
    assert_near(lines[0], (used * 145.0 / 64.0 - 0.1) * (70.0 + 97.45));
    assert_near(lines[1], 0.0);
}

#[test]
fn a_latency_measured_under_another_load_is_replaced_by_the_model_where_traffic_is_counted() {
    let machine = two_tiers(135);
    let idle = reading([Some(72), Some(135)], [0, 0], [Some(10), Some(0)]);
    let mut busy = reading([None; 2], [100, 0], [Some(2_200), Some(0)]);
    busy.fill(&idle);
    let own = busy.lines(&machine, 1.0)[2];
    assert_near(own, 0.1 * (70.0 + waiting(of_near(2_200.0))));
    // And one of the busy machine on the idle one.
    let loaded = reading([Some(160), Some(135)], [0, 0], [Some(2_200), Some(0)]);
    let mut quiet = reading([None; 2], [100, 0], [Some(500), Some(0)]);
    quiet.fill(&loaded);
    assert_near(quiet.lines(&machine, 1.0)[2], 0.1 * (70.0 + waiting(of_near(500.0))));
    // With little more load than at that time the measurement holds.
    let mut calm = reading([None; 2], [100, 0], [Some(500), Some(0)]);
    calm.fill(&idle);
    assert_near(calm.lines(&machine, 1.0)[2], 0.1 * 72.0);
}

#[test]
fn a_latency_too_low_for_the_counted_traffic_is_replaced_by_the_model() {
    let machine = two_tiers(135);
    let own = |near_ns| {
        let reading = reading([Some(near_ns), Some(135)], [100, 0], [Some(2_200), Some(0)]);
        reading.lines(&machine, 1.0)[2]
    };
    // Capacities are uncertain by 5 %, so any latency from that of 95 % of the counted utilisation on is accepted.
    let used = of_near(2_200.0);
    let least = 70.0 + waiting(0.95 * used);
    assert!(waiting(used) > 80.0 && (98.0..99.0).contains(&least), "{least}");
    assert_near(own(98), 0.1 * (70.0 + waiting(used)));
    assert_near(own(99), 0.1 * 99.0);
}

#[test]
fn a_read_lane_carries_the_read_share_of_the_traffic() {
    let lane = |carries| Queue { carries, ..far_tier() };
    let queues = [lane(Carries::Reads), lane(Carries::Writes)];
    let path = Path { idle: Nanoseconds(200), through: vec![0, 1] };
    let machine = Machine::new(&queues, &[vec![path]]).unwrap();
    let rate = |lines: u64| BytesPerSecond(lines * 64_000_000);
    let seen = Observation {
        latency: vec![vec![None]],
        own: Some(vec![vec![rate(400)]]),
        used: vec![Some(rate(310)), Some(rate(100))],
        reads: BasisPoints(7_500),
        ..Observation::default()
    };
    let lines = Reading::of(&machine, &seen).lines(&machine, 1.0);
    // 300 of 310 lines read and all 100 written are ours.
    let waits = waiting(310.0 * 64e6 / 70e9);
    assert_near(lines[0], 0.01 * (200.0 + waits));
    assert_near(lines[1], 0.0);
}

#[test]
fn a_rarely_measured_latency_has_a_larger_weight_of_at_most_one_half() {
    let blended = |nodes: usize| {
        let machine = alike(nodes);
        let seen = |measured: &dyn Fn(usize) -> bool, ns| Observation {
            latency: (0..nodes)
                .map(|cpu| (0..nodes).map(|_| measured(cpu).then_some(Nanoseconds(ns))).collect())
                .collect(),
            ..Observation::default()
        };
        let mut mean = Reading::of(&machine, &seen(&|_| true, 100));
        let mut now = seen(&|_| false, 0);
        now.latency[0][0] = Some(Nanoseconds(200));
        mean.blend(&Reading::of(&machine, &now), 0.07);
        (mean.latency(0, 0).unwrap(), mean.latency(0, 1).unwrap())
    };
    // One of four latencies: four times the weight of 7 %.
    let (measured, other) = blended(2);
    assert_near(measured, 128.0);
    assert_near(other, 100.0);
    assert_near(blended(4).0, 150.0);
}

#[test]
fn an_average_moves_by_its_weight_and_adopts_a_newly_known_value() {
    let mut mean = reading([Some(100), None], [100, 300], [Some(1_000), None]);
    mean.blend(&reading([Some(200), Some(150)], [200, 100], [None, Some(400)]), 0.25);
    assert_near(mean.latency(0, 0).unwrap(), 125.0);
    assert_near(mean.latency(0, 1).unwrap(), 150.0);
    assert_near(mean.rate(), 0.125 + 0.25);
    assert_near(mean.used[0].unwrap(), 1.0);
    assert_near(mean.used[1].unwrap(), 0.4);
}

#[test]
fn a_reading_is_blind_without_latency_unless_the_traffic_of_every_node_is_counted() {
    let machine = two_tiers(135);
    let says = |latency, used| {
        let reading = reading(latency, [1, 1], used);
        (reading.is_blind(&machine), reading.is_counted(&machine))
    };
    assert_eq!(says([None; 2], [None; 2]), (true, false));
    assert_eq!(says([None; 2], [Some(5), None]), (true, false));
    assert_eq!(says([None; 2], [Some(5), Some(0)]), (false, true));
    assert_eq!(says([None, Some(135)], [None; 2]), (false, false));
    let unknown = Observation { own: None, ..seen([Some(90), None], [0; 2], [None; 2]) };
    assert_eq!(Reading::of(&machine, &unknown).lines(&machine, 1.0), Vec::<f64>::new());
}
