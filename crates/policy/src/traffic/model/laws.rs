//! Laws of the queueing model on random machines: conservation of outstanding lines, one solution, monotony.
//!
//! The model solves for throughputs by iteration (`model.rs`), so its results are compared with what any solution satisfies, not
//! with figures. Machines have one to three memory nodes, a link for each path, and loads from idle to far beyond saturation. The
//! tolerance is that of the iteration.

use proptest::prelude::*;

use super::*;

/// A machine with a controller for each node and a link for each path, its loops, shares and the lines of others.
#[derive(Clone, Debug)]
struct Scene {
    queues: Vec<Queue>,
    paths: Vec<Vec<Path>>,
    loops: Loops,
    shares: Vec<Vec<f64>>,
    foreign: Vec<f64>,
}

impl Scene {
    fn machine(&self) -> Machine {
        Machine::new(&self.queues, &self.paths).unwrap()
    }

    fn solved(&self) -> (Machine, Flow) {
        let machine = self.machine();
        let flow = machine.solve(&self.loops, &self.shares, &self.foreign);
        (machine, flow)
    }

    /// Lines per nanosecond of all CPU nodes.
    fn throughput(&self) -> f64 {
        self.solved().1.rate.iter().sum()
    }
}

fn queue() -> impl Strategy<Value = Queue> {
    (5u64..400, 2_000u32..8_000, 100u32..400, 0..3u8).prop_map(|(gbps, ps, power_percent, kind)| {
        Queue {
            capacity: BytesPerSecond(gbps * 1_000_000_000),
            waits: Waits::Formula { ps, power_percent },
            carries: match kind {
                0 => Carries::All,
                1 => Carries::Reads,
                _ => Carries::Writes,
            },
        }
    })
}

/// Shares that add up to 1.
fn shares(nodes: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(1u32..100, nodes).prop_map(|parts| {
        let all = f64::from(parts.iter().sum::<u32>());
        parts.into_iter().map(|part| f64::from(part) / all).collect()
    })
}

fn scenes(cpus: core::ops::RangeInclusive<usize>) -> impl Strategy<Value = Scene> {
    (1usize..4, cpus).prop_flat_map(|(nodes, cpus)| {
        let links = prop::collection::vec(queue(), nodes + cpus * nodes);
        let idle = prop::collection::vec(40u64..600, cpus * nodes);
        let lines = prop::collection::vec(1u32..400, cpus);
        let think = prop::collection::vec(0u32..500, cpus);
        let of = prop::collection::vec(shares(nodes), cpus);
        let foreign = prop::collection::vec(0u32..200, nodes + cpus * nodes);
        (links, idle, lines, think, of, foreign, 0u32..=100).prop_map(
            move |(mut queues, idle, lines, think, shares, foreign, reads)| {
                // A controller carries all lines.
                queues[..nodes].iter_mut().for_each(|queue| queue.carries = Carries::All);
                let path = |cpu: usize, node: usize| Path {
                    idle: Nanoseconds(idle[cpu * nodes + node]),
                    through: vec![nodes + cpu * nodes + node, node],
                };
                let row = |cpu| (0..nodes).map(|node| path(cpu, node)).collect();
                let real = |all: Vec<u32>| all.into_iter().map(f64::from).collect();
                Scene {
                    queues,
                    paths: (0..cpus).map(row).collect(),
                    loops: Loops {
                        lines: real(lines),
                        think: real(think),
                        reads: f64::from(reads) / 100.0,
                    },
                    shares,
                    foreign: real(foreign),
                }
            },
        )
    })
}

fn near(a: f64, b: f64, part: f64) -> bool {
    (a - b).abs() <= part * a.abs().max(b.abs()).max(1e-9)
}

proptest! {
    #[test]
    fn each_loop_has_all_its_lines_outstanding(scene in scenes(1..=3)) {
        let (machine, flow) = scene.solved();
        for cpu in 0..machine.cpus() {
            let latency = |node| {
                scene.shares[cpu][node] * machine.latency((cpu, node), scene.loops.reads, &flow.wait)
            };
            let round: f64 = scene.loops.think[cpu] + (0..machine.nodes()).map(latency).sum::<f64>();
            let outstanding = flow.rate[cpu] * round;
            prop_assert!(near(outstanding, scene.loops.lines[cpu], 1e-3), "{outstanding}");
        }
    }

    #[test]
    fn each_queues_utilisation_matches_the_traffic_that_it_carries(scene in scenes(1..=3)) {
        let (machine, flow) = scene.solved();
        for queue in 0..machine.queues() {
            let carried = flow.used[queue] * machine.capacity(queue);
            let others = scene.foreign[queue] / machine.foreign_latency(queue, flow.wait[queue]);
            prop_assert!(near(flow.own[queue] + others, carried, 2e-2) || carried < 1e-3, "{queue}: {flow:?}");
        }
    }

    #[test]
    fn the_solution_does_not_depend_on_the_starting_point(scene in scenes(1..=3), from in 0u32..100) {
        let (machine, flow) = scene.solved();
        let begun = vec![f64::from(from) / 100.0; machine.queues()];
        let again = machine.solve_from(&scene.loops, &scene.shares, &scene.foreign, &begun);
        for (a, b) in flow.rate.iter().zip(&again.rate) {
            prop_assert!(near(*a, *b, 1e-3), "{a} {b}");
        }
    }

    #[test]
    fn a_program_alone_is_never_quicker_for_traffic_of_others(scene in scenes(1..=1), at in any::<prop::sample::Index>(), more in 1u32..500) {
        let mut busier = scene.clone();
        busier.foreign[at.index(scene.foreign.len())] += f64::from(more);
        prop_assert!(busier.throughput() <= scene.throughput() * 1.001);
    }

    #[test]
    fn a_program_alone_is_never_slower_for_more_lines(scene in scenes(1..=1), more in 1u32..500) {
        let mut wider = scene.clone();
        wider.loops.lines[0] += f64::from(more);
        prop_assert!(wider.throughput() >= scene.throughput() * 0.999);
    }

    #[test]
    fn a_program_alone_is_never_slower_for_a_faster_queue(scene in scenes(1..=1), at in any::<prop::sample::Index>(), more in 1u64..100) {
        let mut faster = scene.clone();
        let queue = at.index(scene.queues.len());
        faster.queues[queue].capacity.0 += more * 1_000_000_000;
        prop_assert!(faster.throughput() >= scene.throughput() * 0.999);
    }

    #[test]
    fn think_time_never_makes_a_program_alone_quicker(scene in scenes(1..=1), more in 1u32..500) {
        let mut slower = scene.clone();
        slower.loops.think[0] += f64::from(more);
        prop_assert!(slower.throughput() <= scene.throughput() * 1.001);
    }

    #[test]
    fn scaling_the_unit_of_time_scales_throughput_alone(scene in scenes(1..=3), by in 2u64..5) {
        let mut slow = scene.clone();
        for queue in &mut slow.queues {
            queue.capacity.0 = queue.capacity.0.div_euclid(by);
            if let Waits::Formula { ps, .. } = &mut queue.waits {
                *ps *= u32::try_from(by).unwrap();
            }
        }
        slow.paths.iter_mut().flatten().for_each(|path| path.idle.0 *= by);
        let by = f64::from(u32::try_from(by).unwrap());
        slow.loops.think.iter_mut().for_each(|think| *think *= by);
        prop_assert!(near(slow.throughput() * by, scene.throughput(), 2e-3));
    }

    #[test]
    fn the_marginal_cost_of_a_line_is_at_least_its_queueing_delay(scene in scenes(1..=3)) {
        let (machine, flow) = scene.solved();
        for (price, wait) in machine.prices(&flow, &scene.foreign).into_iter().zip(&flow.wait) {
            prop_assert!(price >= *wait && price.is_finite(), "{price} {wait}");
        }
    }

    #[test]
    fn queueing_delay_grows_with_utilisation_and_is_invertible(queue in queue(), used in 5u32..98, more in 1u32..20) {
        let path = Path { idle: Nanoseconds(100), through: vec![0] };
        let machine = Machine::new(&[queue], &[vec![path]]).unwrap();
        let (low, high) = (f64::from(used) / 100.0, f64::from(used + more).min(99.0) / 100.0);
        prop_assert!(machine.wait(0, low) <= machine.wait(0, high));
        prop_assert!(near(machine.in_use(0, machine.wait(0, low)), low, 1e-3));
    }
}

/// Own lines per nanosecond through one queue of 64 GB/s (a line per nanosecond) beside `foreign` outstanding lines of
/// others, and the waiting that they cause: load and waiting agree, found by bisection.
fn waiting(machine: &Machine, own: f64, foreign: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let used = f64::midpoint(low, high);
        let others = foreign / machine.foreign_latency(0, machine.wait(0, used));
        if used < own + others { low = used } else { high = used }
    }
    machine.wait(0, low)
}

proptest! {
    #[test]
    fn the_marginal_cost_of_a_line_is_the_derivative_of_own_queueing_delay(own in 5_u32..60, foreign in 0_u32..80, power in 100_u32..300) {
        let waits = Waits::Formula { ps: 5_000, power_percent: power };
        let queue = Queue { capacity: BytesPerSecond(64_000_000_000), waits, carries: Carries::All };
        let machine = Machine::tiers(&[(Nanoseconds(100), queue)]).unwrap();
        let (own, foreign) = (f64::from(own) / 100.0, f64::from(foreign));
        let total = |own: f64| own * waiting(&machine, own, foreign);
        let growth = (total(own + 1e-5) - total(own - 1e-5)) / 2e-5;
        // The same state as a solution: a loop with as many lines as are outstanding.
        let lines = own * (100.0 + waiting(&machine, own, foreign));
        let loops = Loops { lines: vec![lines], think: vec![0.0], reads: 1.0 };
        let flow = machine.solve(&loops, &[vec![1.0]], &[foreign]);
        prop_assert!(near(flow.own[0], own, 1e-4), "{} {own}", flow.own[0]);
        let price = machine.prices(&flow, &[foreign])[0];
        prop_assert!(near(price, growth, 1e-2), "{price}, not {growth}");
    }
}

#[test]
fn the_marginal_cost_falls_with_the_share_of_foreign_traffic() {
    let queue = Queue {
        capacity: BytesPerSecond(64_000_000_000),
        waits: Waits::Formula { ps: 10_000, power_percent: 100 },
        carries: Carries::All,
    };
    let machine = Machine::tiers(&[(Nanoseconds(100), queue)]).unwrap();
    let price = |own: f64, foreign: f64| {
        let flow = Flow { rate: vec![own], used: vec![0.5], wait: vec![10.0], own: vec![own] };
        machine.prices(&flow, &[foreign])[0]
    };
    // At half use W = 10 ns and dW/du = 40 ns: 0.5 own lines wait 20 ns more for a line more per nanosecond.
    assert!((price(0.5, 0.0) - 30.0).abs() < 1e-6, "{}", price(0.5, 0.0));
    // 11 outstanding lines of others are 0.1 per ns and yield 11 / 110^2 x 40 = 0.036 of it.
    let right = 10.0 + 0.4 * 40.0 / (1.0 + 11.0 * 40.0 / (110.0 * 110.0));
    assert!((price(0.4, 11.0) - right).abs() < 1e-6, "{}", price(0.4, 11.0));
}
