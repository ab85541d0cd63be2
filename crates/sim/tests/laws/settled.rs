//! A world that has carried out its acts is in the steady state of its present placement.

use nearfar_sim::compare::steady;
use nearfar_sim::live::{Act, Controller, Readings, Settings, World};
use nearfar_sim::machine::Machine;
use nearfar_sim::pages::Pages;
use nearfar_sim::workload::{Worker, Workload};
use proptest::prelude::*;

use crate::machines::{alike, any_workload, close, region, two_tiers, with_antagonist, workload};

/// Says everything at its first tick.
#[derive(Debug)]
struct Once(Vec<Act>);

impl Controller for Once {
    fn tick(&mut self, _: &Readings<'_>) -> Vec<Act> {
        std::mem::take(&mut self.0)
    }
}

fn settings() -> Settings {
    Settings { tick_epochs: 1, rate_gbps: 1_000.0, ..Settings::default() }
}

/// The world after these acts, and the results of the last epoch.
fn after<'a>(
    machine: &'a Machine,
    workload: &Workload,
    pages: Pages,
    acts: Vec<Act>,
) -> (World<'a>, f64) {
    let mut world = World::new(machine, workload, pages, settings());
    let mut once = Once(acts);
    let last = (0..8).map(|_| world.step(&mut once).unwrap().figures.gbps).last();
    (world, last.unwrap())
}

fn touched(workload: &Workload, machine: &Machine) -> Pages {
    let mut pages = Pages::of(workload, 1);
    pages.first_touch(workload, machine);
    pages
}

fn busy(workload: Workload, lines: f64) -> Workload {
    let workers = workload.workers.iter().map(|of| Worker { lines, ..of.clone() }).collect();
    Workload { workers, ..workload }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn moves_end_in_the_steady_state_of_the_new_places(drawn in any_workload(3), moves in prop::collection::vec((any::<prop::sample::Index>(), 0u16..3), 0..300)) {
        let machine = alike(3, 1 << 16);
        let pages = touched(&drawn, &machine);
        let act = |(page, to): (prop::sample::Index, u16)| Act::Move { page: u32::try_from(page.index(pages.count())).unwrap(), to };
        let acts: Vec<Act> = moves.into_iter().map(act).collect();
        let mut expected = pages.clone();
        for act in &acts {
            if let Act::Move { page, to } = *act {
                expected.whole(page as usize).for_each(|piece| expected.put(piece, usize::from(to)));
            }
        }
        let (world, gbps) = after(&machine, &drawn, pages, acts);
        prop_assert_eq!(world.pages(), &expected);
        prop_assert!(close(gbps, steady(&machine, &drawn, &expected).gbps, 1e-9));
    }

    #[test]
    fn moving_there_and_back_ends_where_it_began(drawn in any_workload(2), count in 1u32..50) {
        let machine = alike(2, 1 << 16);
        let pages = touched(&drawn, &machine);
        let last = u32::try_from(pages.count()).unwrap();
        let there = (0..count.min(last)).map(|page| Act::Move { page, to: 1 - pages.node[page as usize] });
        let back = (0..count.min(last)).map(|page| Act::Move { page, to: pages.node[page as usize] });
        let (world, _) = after(&machine, &drawn, pages.clone(), there.chain(back).collect());
        prop_assert_eq!(world.pages(), &pages);
    }

    #[test]
    fn replicas_of_read_only_pages_never_lower_throughput(count in 0u32..1_000, lines in 1.0f64..40.0) {
        let machine = alike(2, 1 << 14);
        let drawn = busy(workload(vec![region(1_000, 0, 2)], 2), lines);
        let pages = touched(&drawn, &machine);
        let before = steady(&machine, &drawn, &pages).gbps;
        let copies = (0..count).map(|page| Act::Copy { page, to: 1 }).collect();
        let (_, gbps) = after(&machine, &drawn, pages, copies);
        prop_assert!(gbps >= before * (1.0 - 1e-9), "{gbps} {before}");
    }
}

#[test]
fn world_1_promoting_hot_far_pages_raises_throughput() {
    let machine = two_tiers(1_000, 1 << 14);
    let mut drawn = workload(vec![region(500, 0, 1), region(4_000, 0, 1)], 1);
    drawn.workers[0].uses = vec![0.9, 0.1];
    let mut pages = Pages::of(&drawn, 1);
    (0..pages.count()).for_each(|page| pages.put(page, 1));
    let before = steady(&machine, &drawn, &pages);
    let (_, gbps) =
        after(&machine, &drawn, pages, (0..500).map(|page| Act::Move { page, to: 0 }).collect());
    assert!(gbps > before.gbps * 1.8, "{gbps} {before:?}");
}

#[test]
fn world_2_under_contention_demoting_some_hot_pages_raises_throughput() {
    let machine = two_tiers(1 << 14, 1 << 14);
    let drawn =
        busy(with_antagonist(workload(vec![region(1_000, 0, 1)], 1), 0).contended(400.0), 128.0);
    let pages = Pages::of(&drawn, 1);
    let with_far = |far: u32| {
        let acts = (0..far).map(|page| Act::Move { page, to: 1 }).collect();
        after(&machine, &drawn, pages.clone(), acts).1
    };
    let found = [0, 300, 600, 900].map(with_far);
    assert!(found[1] > found[0] * 1.1 && found.iter().all(|gbps| *gbps >= found[0]), "{found:?}");
}

#[test]
fn world_3_shared_pages_are_best_spread_over_equal_nodes() {
    let machine = alike(4, 1 << 14);
    let drawn = busy(workload(vec![region(1_000, 0, 4)], 4), 40.0);
    let pages = touched(&drawn, &machine);
    let over = |nodes: u16| {
        let acts = (0..1_000).zip((0..nodes).cycle()).map(|(page, to)| Act::Move { page, to });
        after(&machine, &drawn, pages.clone(), acts.collect()).1
    };
    let found = [1, 2, 3, 4].map(over);
    assert!(found.is_sorted() && found[3] > 2.0 * found[0], "{found:?}");
}

#[test]
fn world_4_pages_used_by_one_node_are_best_placed_on_it() {
    let machine = alike(2, 1 << 14);
    let mut drawn = workload(vec![region(500, 0, 2), region(500, 0, 2)], 2);
    (drawn.workers[0].uses, drawn.workers[1].uses) = (vec![1.0, 0.0], vec![0.0, 1.0]);
    let pages = touched(&drawn, &machine);
    let home = (500..1_000).map(|page| Act::Move { page, to: 1 }).collect();
    let (world, gbps) = after(&machine, &drawn, pages.clone(), home);
    assert!(gbps > steady(&machine, &drawn, &pages).gbps);
    let found = steady(&machine, &drawn, world.pages());
    assert!(
        close(found.local_access_ratio, 1.0, 1e-9)
            && close(found.controller_imbalance + 1.0, 1.0, 1e-6)
    );
}
