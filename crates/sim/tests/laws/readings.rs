//! Readings: they match the machine and its present pages, and contain no more than sensors can see.

use nearfar_sim::live::{Act, Controller, Readings, Settings, World};
use nearfar_sim::pages::{PIECES, Pages};
use nearfar_sim::workload::Workload;
use proptest::prelude::*;

use crate::machines::{alike, any_machine, any_workload, region, workload};

/// Calls a closure at each tick, which returns the acts.
struct Each<F>(F);

impl<F: FnMut(&Readings<'_>) -> Vec<Act>> Controller for Each<F> {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        (self.0)(readings)
    }
}

fn settings() -> Settings {
    Settings { tick_epochs: 1, rate_gbps: 1_000.0, ..Settings::default() }
}

fn run(world: &mut World<'_>, controller: &mut dyn Controller, epochs: u32) {
    for _ in 0..epochs {
        world.step(controller).unwrap();
    }
}

fn pages(workload: &Workload, machine: &nearfar_sim::Machine) -> Pages {
    let mut pages = Pages::of(workload, 1);
    pages.first_touch(workload, machine);
    pages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tables_of_readings_match_the_shape_of_the_machine(machine in any_machine()) {
        let nodes = machine.nodes.len();
        let drawn = workload(vec![region(100, 0, nodes)], nodes);
        let mut ticks = 0;
        let mut world = World::new(&machine, &drawn, pages(&drawn, &machine), settings());
        let mut check = Each(|seen: &Readings<'_>| {
            ticks += 1;
            assert_eq!(seen.loaded_ns.len(), machine.cpu_nodes.len());
            assert!(seen.loaded_ns.iter().all(|row| row.len() == nodes));
            assert!(seen.loaded_ns.iter().flatten().flatten().all(|ns| ns.is_finite() && *ns > 0.0));
            assert_eq!((seen.controllers_per_us.len(), seen.own_per_us.len()), (nodes, nodes));
            assert_eq!((seen.free.len(), seen.on().len()), (nodes, 100));
            assert_eq!(seen.machine, &machine);
            Vec::new()
        });
        run(&mut world, &mut check, 6);
        prop_assert!(ticks >= 4);
    }

    #[test]
    fn samples_refer_to_existing_pages_and_rows(drawn in any_workload(3), seed in any::<u64>()) {
        let machine = alike(3, 1 << 16);
        let mut all = Vec::new();
        let settings = Settings { seed, ..settings() };
        let mut world = World::new(&machine, &drawn, pages(&drawn, &machine), settings);
        let mut note = Each(|seen: &Readings<'_>| {
            all.extend(seen.samples.iter().copied());
            Vec::new()
        });
        run(&mut world, &mut note, 5);
        let (pages, most) = (world.pages(), settings_samples() * 5);
        prop_assert!(!all.is_empty() && all.len() <= most);
        for sample in &all {
            prop_assert!((sample.page as usize) < pages.count() && sample.row < 3);
            let region = &drawn.regions[usize::from(pages.region[sample.page as usize])];
            prop_assert!(!sample.write || region.reads < 1.0, "what is only read is not written");
            prop_assert!(pages.heat[sample.page as usize] > 0.0, "what is not used is not seen");
        }
    }

    #[test]
    fn waiting_counts_the_requested_actions_not_yet_executed(count in 10u32..500, rate in 0.001f64..0.02) {
        let machine = alike(2, 1 << 14);
        let drawn = workload(vec![region(1_000, 0, 2)], 2);
        let mut waits = Vec::new();
        let mut world = World::new(&machine, &drawn, pages(&drawn, &machine), Settings { rate_gbps: rate, ..settings() });
        let mut asked = false;
        let mut ask = Each(|seen: &Readings<'_>| {
            let moved = seen.on().iter().filter(|node| **node == 1).count();
            waits.push((seen.waiting, moved));
            let acts = (0..count).map(|page| Act::Move { page, to: 1 });
            if std::mem::replace(&mut asked, true) { Vec::new() } else { acts.collect() }
        });
        run(&mut world, &mut ask, 20);
        prop_assert_eq!(waits[0], (0, 0));
        prop_assert!(waits[1..].iter().all(|(waiting, moved)| waiting + moved == count as usize), "{waits:?}");
    }

    #[test]
    fn readings_show_huge_pages_and_replicas(split in any::<bool>(), copied in 512u32..600) {
        let machine = alike(2, 1 << 14);
        let drawn = Workload { huge: true, ..workload(vec![region(1_000, 0, 2)], 2) };
        let mut world = World::new(&machine, &drawn, pages(&drawn, &machine), settings());
        let mut tick = 0;
        let mut look = Each(|seen: &Readings<'_>| {
            tick += 1;
            let is_huge = tick == 1 || !split;
            assert_eq!(seen.is_huge(5), is_huge, "tick {tick}");
            assert_eq!(seen.whole(5), if is_huge { 0..PIECES } else { 5..6 });
            // Pages beyond the last whole huge page are small.
            assert!(!seen.is_huge(copied as usize));
            assert_eq!(seen.copies(copied as usize), if tick == 1 { 0 } else { 0b10 });
            let mut acts = vec![Act::Copy { page: copied, to: 1 }];
            acts.extend(split.then_some(Act::Split { page: 7 }));
            acts
        });
        run(&mut world, &mut look, 5);
    }
}

/// The most that is sampled in a tick.
fn settings_samples() -> usize {
    settings().sensors.samples as usize
}
