//! Nodes with CPUs and no worker, and several workers on a node: controllers get readings for every node with CPUs, and
//! a controller that can't decide ends the simulation with an error.

use nearfar_sim::compare::compare;
use nearfar_sim::live::{Act, Controller, Failed, Readings, Settings, World};
use nearfar_sim::pages::Pages;
use nearfar_sim::workload::{Worker, Workload};
use nearfar_sim::{Machine, Policy, Unable};

use crate::machines::{alike, region, ring, workload};

/// One worker with 40 lines on one node, whose memory it touched; the other nodes' CPUs are idle.
fn busy(row: usize) -> Workload {
    let mut of = workload(vec![region(8_192, row, 4)], 1);
    (of.workers[0].row, of.workers[0].lines, of.workers[0].think_ns) = (row, 40.0, 0.0);
    of
}

fn speedups(machine: &Machine, workload: &Workload) -> (f64, f64) {
    let found = compare(machine, workload, &[Policy::Balanced, Policy::Oracle], 1).unwrap();
    (found[0].speedup, found[1].speedup)
}

#[test]
fn one_busy_node_of_four_is_balanced_as_well_as_by_the_oracle() {
    for row in [0, 2] {
        let (balanced, oracle) = speedups(&ring(4, &[8.0]), &busy(row));
        assert!(oracle > 1.8, "{oracle}");
        assert!((balanced / oracle - 1.0).abs() < 0.01, "node {row}: {balanced} {oracle}");
    }
}

#[test]
fn two_programs_on_one_node_are_balanced_as_one() {
    let mut two = busy(0);
    let half = Worker { lines: 20.0, ..two.workers[0].clone() };
    two.workers = vec![half.clone(), half];
    let (balanced, oracle) = speedups(&ring(4, &[8.0]), &two);
    assert!((balanced / oracle - 1.0).abs() < 0.01, "{balanced} {oracle}");
}

/// Keeps the dimensions of its readings and the latencies of a row.
#[derive(Default)]
struct Rows(usize, usize, Vec<Vec<Option<f64>>>);

impl Controller for Rows {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        (self.0, self.1) = (readings.loaded_ns.len(), readings.own_per_us.len());
        self.2.clone_from(&readings.loaded_ns);
        Vec::new()
    }
}

#[test]
fn readings_have_a_row_for_each_node_with_cpus() {
    let machine = ring(4, &[8.0]);
    let mut two = busy(1);
    two.workers.push(two.workers[0].clone());
    for workload in [busy(1), two] {
        let mut pages = Pages::of(&workload, 1);
        pages.first_touch(&workload, &machine);
        let mut settings = Settings { tick_epochs: 1, ..Settings::default() };
        (settings.sensors.noise, settings.sensors.delay_ticks) = (0.0, 0);
        let mut rows = Rows::default();
        World::new(&machine, &workload, pages, settings).step(&mut rows).unwrap();
        assert_eq!((rows.0, rows.1), (4, 4));
        let ns = |row: usize, node: usize| rows.2[row][node].unwrap();
        // Rows without workers see idle nodes as idle (104 ns and 58 for concurrent operation) and the busy one as busy.
        assert!((ns(0, 0) - 162.26).abs() < 3.0 && (ns(3, 3) - 162.26).abs() < 3.0, "{:?}", rows.2);
        assert!(ns(0, 1) > 300.0 && ns(1, 1) > 300.0, "{:?}", rows.2);
    }
}

/// Can't decide.
struct Lost;

impl Controller for Lost {
    fn tick(&mut self, _: &Readings<'_>) -> Vec<Act> {
        Vec::new()
    }

    fn failed(&self) -> Option<Failed> {
        Some(Failed::Mismatch { policy: "lost" })
    }
}

#[test]
fn a_controller_that_cannot_decide_ends_the_simulation_with_its_reason() {
    let (machine, workload) = (alike(2, 1 << 16), workload(vec![region(100, 0, 2)], 2));
    let settings = || Settings { tick_epochs: 1, ..Settings::default() };
    let mut world = World::new(&machine, &workload, Pages::of(&workload, 1), settings());
    // The first reading arrives a tick later.
    let refused = (0..3).find_map(|_| world.step(&mut Lost).err()).unwrap().to_string();
    assert!(refused.contains("policy lost") && refused.contains("mismatch"), "{refused}");
}

#[test]
fn a_machine_that_the_policy_cannot_model_is_an_error() {
    let mut close = (*alike(2, 1 << 16)).clone();
    // The policy's latencies are whole nanoseconds.
    close.latency_ns[0][0] = 0.2;
    let (machine, workload) = (close.build().unwrap(), workload(vec![region(100, 0, 2)], 2));
    for policy in [Policy::Balanced, Policy::Carrefour] {
        let refused = compare(&machine, &workload, &[policy], 1).unwrap_err();
        assert!(matches!(refused, Unable::Controller(Failed::Unmodelled { .. })), "{refused}");
        assert!(refused.to_string().contains(policy.name()), "{refused}");
    }
}
