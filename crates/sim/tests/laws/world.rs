//! The world: pages move as requested, within the rate and the free memory, and none is lost.

use std::collections::VecDeque;

use nearfar_sim::live::{Act, Controller, Epoch, Readings, Settings, Still, World};
use nearfar_sim::machine::Machine;
use nearfar_sim::pages::{PIECES, Pages};
use nearfar_sim::workload::Workload;
use proptest::prelude::*;

use crate::machines::{alike, close, region, two_tiers, with_antagonist, workload};

const PAGES: u32 = 2_000;

/// Returns prepared acts, tick by tick, and records readings.
#[derive(Debug, Default)]
struct Script {
    ticks: VecDeque<Vec<Act>>,
    /// Time and free bytes at each tick.
    seen: Vec<(u64, Vec<u64>)>,
}

impl Script {
    fn of(acts: impl IntoIterator<Item = Act>) -> Self {
        Self { ticks: VecDeque::from([acts.into_iter().collect()]), seen: Vec::new() }
    }
}

impl Controller for Script {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        self.seen.push((readings.now_ms, readings.free.clone()));
        self.ticks.pop_front().unwrap_or_default()
    }
}

/// Two thousand small pages on node 0, read by all.
fn small(nodes: usize) -> Workload {
    workload(vec![region(PAGES, 0, nodes)], nodes)
}

fn settings() -> Settings {
    Settings { tick_epochs: 1, rate_gbps: 1_000.0, ..Settings::default() }
}

fn world<'a>(machine: &'a Machine, workload: &Workload, settings: Settings) -> World<'a> {
    let mut pages = Pages::of(workload, 1);
    pages.first_touch(workload, machine);
    World::new(machine, workload, pages, settings)
}

fn run(world: &mut World<'_>, script: &mut dyn Controller, epochs: usize) -> Vec<Epoch> {
    (0..epochs).map(|_| world.step(script).unwrap()).collect()
}

fn moved(epochs: &[Epoch]) -> u64 {
    epochs.iter().map(|epoch| epoch.moved_bytes).sum()
}

fn refused(epochs: &[Epoch]) -> u32 {
    epochs.iter().map(|epoch| epoch.refused).sum()
}

fn moves(to: u16) -> impl Iterator<Item = Act> {
    (0..PAGES).map(move |page| Act::Move { page, to })
}

fn any_act() -> impl Strategy<Value = Act> {
    (0u8..4, 0..PAGES + 100, 0u16..5).prop_map(|(kind, page, to)| match kind {
        0 => Act::Move { page, to },
        1 => Act::Copy { page, to },
        2 => Act::Split { page },
        _ => Act::Join { page },
    })
}

fn any_script() -> impl Strategy<Value = Vec<Vec<Act>>> {
    prop::collection::vec(prop::collection::vec(any_act(), 0..60), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_actions_lose_no_page_and_overfill_no_node(ticks in any_script(), room in 1_100u64..4_000, huge in any::<bool>(), rate in 0.01f64..10.0) {
        let machine = alike(3, room);
        let workload = Workload { huge, ..small(3) };
        let mut world = world(&machine, &workload, Settings { rate_gbps: rate, ..settings() });
        prop_assume!(world.pages().bytes(3).iter().all(|bytes| *bytes <= room * 4_096));
        let mut script = Script { ticks: ticks.into(), seen: Vec::new() };
        for _ in 0..40 {
            world.step(&mut script).unwrap();
            let pages = world.pages();
            prop_assert_eq!(pages.count(), PAGES as usize);
            prop_assert!(pages.node.iter().all(|node| *node < 3));
            prop_assert!(pages.bytes(3).iter().all(|bytes| *bytes <= room * 4_096), "{:?}", pages.bytes(3));
            prop_assert!((0..pages.count()).all(|page| pages.whole(page).all(|piece| pages.node[piece] == pages.node[page])));
        }
    }

    #[test]
    fn no_more_is_moved_than_the_rate_allows(rate in 0.001f64..1.0, epochs in 1usize..60, epoch_ms in 1u32..50) {
        let machine = alike(2, 1 << 16);
        let settings = Settings { rate_gbps: rate, epoch_ms, ..settings() };
        let found = run(&mut world(&machine, &small(2), settings), &mut Script::of(moves(1)), epochs);
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let (moved, allowed) = (moved(&found) as f64, rate * 1e6 * f64::from(epoch_ms) * epochs as f64);
        prop_assert!(moved <= allowed + 4_096.0, "{moved} of {allowed}");
        // The controller has its first reading at the end of the second epoch.
        let least = (allowed - 2.0 * rate * 1e6 * f64::from(epoch_ms)).min(f64::from(PAGES) * 4_096.0) - 4_096.0;
        prop_assert!(moved >= least, "{moved} of {least}");
    }

    #[test]
    fn moves_beyond_free_memory_fail_and_are_counted(room in 0u64..3_000) {
        let machine = two_tiers(1 << 14, room);
        let mut world = world(&machine, &small(1), settings());
        let found = run(&mut world, &mut Script::of(moves(1)), 20);
        let fits = room.min(u64::from(PAGES));
        prop_assert_eq!(moved(&found), fits * 4_096);
        prop_assert_eq!(u64::from(refused(&found)), u64::from(PAGES) - fits);
        prop_assert_eq!(world.pages().bytes(2)[1], fits * 4_096);
    }

    #[test]
    fn moves_fail_at_random_with_the_configured_probability(share in 0.0f64..=1.0, seed in any::<u64>()) {
        let machine = alike(2, 1 << 16);
        let settings = Settings { refused: share, seed, ..settings() };
        let found = run(&mut world(&machine, &small(2), settings), &mut Script::of(moves(1)), 20);
        let part = f64::from(refused(&found)) / f64::from(PAGES);
        prop_assert!((part - share).abs() < 0.06, "{part} for {share}");
        prop_assert_eq!(moved(&found), u64::from(PAGES - refused(&found)) * 4_096, "moved or refused");
    }

    #[test]
    fn the_same_seed_gives_the_same_epochs(ticks in any_script(), seed in any::<u64>(), refused in 0.0f64..0.5) {
        let machine = alike(3, 4_000);
        let all = || {
            let mut world = world(&machine, &small(3), Settings { seed, refused, ..settings() });
            let mut script = Script { ticks: ticks.clone().into(), seen: Vec::new() };
            let epochs = run(&mut world, &mut script, 20);
            (epochs, world.pages().clone(), script.seen)
        };
        prop_assert_eq!(all(), all());
    }

    #[test]
    fn moves_do_not_change_the_total_memory_used(ticks in any_script()) {
        let machine = alike(3, 1 << 14);
        let only_moves: VecDeque<Vec<Act>> =
            ticks.into_iter().map(|acts| acts.into_iter().filter(|act| matches!(act, Act::Move { .. })).collect()).collect();
        let mut world = world(&machine, &small(3), settings());
        run(&mut world, &mut Script { ticks: only_moves, seen: Vec::new() }, 20);
        prop_assert_eq!(world.pages().bytes(3).iter().sum::<u64>(), u64::from(PAGES) * 4_096);
    }

    #[test]
    fn free_memory_is_the_node_size_less_its_pages(ticks in any_script()) {
        let machine = alike(3, 5_000);
        let mut world = world(&machine, &small(3), settings());
        let mut script = Script { ticks: ticks.into(), seen: Vec::new() };
        for _ in 0..20 {
            world.step(&mut script).unwrap();
            let free: Vec<u64> = world.pages().bytes(3).iter().map(|bytes| 5_000 * 4_096 - bytes).collect();
            if let Some((_, seen)) = script.seen.last() {
                prop_assert_eq!(seen, &free);
            }
        }
    }

    #[test]
    fn actions_on_missing_pages_or_nodes_have_no_effect(page in PAGES.., to in 2u16..) {
        let machine = alike(2, 1 << 14);
        let mut world = world(&machine, &small(2), settings());
        let acts = [
            Act::Move { page, to: 1 },
            Act::Copy { page, to: 1 },
            Act::Split { page },
            Act::Join { page },
            Act::Move { page: 0, to },
            Act::Copy { page: 0, to },
        ];
        let before = world.pages().clone();
        let found = run(&mut world, &mut Script::of(acts), 5);
        prop_assert_eq!((moved(&found), refused(&found)), (0, 0));
        prop_assert_eq!(world.pages(), &before);
    }

    #[test]
    fn ticks_occur_at_the_configured_interval(tick_epochs in 1u32..20, epoch_ms in 1u32..50) {
        let machine = alike(2, 1 << 14);
        let mut script = Script::default();
        let settings = Settings { tick_epochs, epoch_ms, ..settings() };
        run(&mut world(&machine, &small(2), settings), &mut script, 60);
        let times: Vec<u64> = script.seen.iter().map(|(now, _)| *now).collect();
        let tick = u64::from(tick_epochs * epoch_ms);
        prop_assert!(times.iter().all(|time| time % tick == 0), "{times:?}");
        prop_assert!(times.windows(2).all(|pair| pair[1] - pair[0] == tick), "{times:?}");
        // The first readings are still on their way.
        prop_assert!(times.len() + 2 > (60 / tick_epochs) as usize);
    }
}

#[test]
fn a_world_without_migration_never_changes() {
    let machine = alike(3, 1 << 14);
    let mut world = world(&machine, &small(3), settings());
    let before = world.pages().clone();
    let found = run(&mut world, &mut Still, 30);
    assert_eq!((moved(&found), refused(&found)), (0, 0));
    assert_eq!(world.pages(), &before);
    assert!(found.windows(2).all(|pair| pair[0].figures == pair[1].figures));
}

#[test]
fn moving_a_page_to_its_present_node_has_no_effect() {
    let machine = alike(2, 1 << 14);
    let found = run(&mut world(&machine, &small(2), settings()), &mut Script::of(moves(0)), 5);
    assert_eq!((moved(&found), refused(&found)), (0, 0));
}

#[test]
fn spreading_shared_pages_raises_throughput_after_the_migration() {
    let machine = alike(2, 1 << 14);
    let busy = Workload {
        workers: small(2)
            .workers
            .into_iter()
            .map(|of| nearfar_sim::workload::Worker { lines: 60.0, ..of })
            .collect(),
        ..small(2)
    };
    let every_other = moves(1).filter(|act| act.page() % 2 == 0);
    let found = run(&mut world(&machine, &busy, settings()), &mut Script::of(every_other), 10);
    assert!(found[9].figures.gbps > found[0].figures.gbps * 1.2, "{found:?}");
    assert!(found[9].figures.controller_imbalance < 0.01);
}

#[test]
fn a_replica_takes_memory_once_and_is_freed_when_its_page_moves() {
    let machine = alike(2, 1 << 14);
    let mut world = world(&machine, &small(2), settings());
    let copy = Act::Copy { page: 5, to: 1 };
    run(&mut world, &mut Script::of([copy, copy, Act::Copy { page: 5, to: 0 }]), 3);
    assert_eq!(world.pages().bytes(2), [u64::from(PAGES) * 4_096, 4_096]);
    run(&mut world, &mut Script::of([Act::Move { page: 5, to: 1 }]), 3);
    assert_eq!(world.pages().bytes(2), [u64::from(PAGES - 1) * 4_096, 4_096]);
    assert_eq!(world.pages().copies[5], 0);
}

#[test]
fn replicas_of_written_pages_are_dropped_and_read_only_ones_kept() {
    let machine = alike(2, 1 << 14);
    for (reads, left) in [(1.0, PAGES as usize), (0.5, 0)] {
        let mut workload = small(2);
        workload.regions[0].reads = reads;
        let mut world = world(&machine, &workload, settings());
        let copies = (0..PAGES).map(|page| Act::Copy { page, to: 1 });
        run(&mut world, &mut Script::of(copies), 60);
        let found = world.pages().copies.iter().filter(|copies| **copies != 0).count();
        assert_eq!(found, left, "{reads} of lines are read");
    }
}

#[test]
fn a_huge_page_moves_whole_until_split_and_joins_on_the_given_node() {
    let machine = alike(2, 1 << 14);
    let mut world = world(&machine, &Workload { huge: true, ..small(2) }, settings());
    let found = run(&mut world, &mut Script::of([Act::Move { page: 700, to: 1 }]), 3);
    assert_eq!(moved(&found), PIECES as u64 * 4_096);
    let split = [Act::Split { page: 600 }, Act::Move { page: 700, to: 0 }];
    let found = run(&mut world, &mut Script::of(split), 3);
    assert_eq!(moved(&found), 4_096, "splitting moves nothing");
    assert_eq!(world.pages().node[700], 0);
    run(&mut world, &mut Script::of([Act::Join { page: 700 }]), 3);
    assert!(
        world.pages().is_huge(600) && world.pages().node[512..1024].iter().all(|node| *node == 0)
    );
}

#[test]
fn contention_costs_throughput_while_it_lasts() {
    let machine = two_tiers(1 << 14, 1 << 14);
    let mut world = world(&machine, &with_antagonist(small(1), 0), settings());
    let gbps = |world: &mut World<'_>| world.step(&mut Still).unwrap().figures.gbps;
    let quiet = gbps(&mut world);
    world.contend(400.0);
    let loud = gbps(&mut world);
    world.contend(800.0);
    let louder = gbps(&mut world);
    world.contend(0.0);
    assert!(louder < loud && loud < quiet, "{louder} {loud} {quiet}");
    assert!(close(gbps(&mut world), quiet, 1e-9));
}

#[test]
fn more_outstanding_lines_raise_throughput_until_saturation() {
    let machine = two_tiers(1 << 14, 1 << 14);
    let mut world = world(&machine, &small(1), settings());
    let mut gbps = |lines: f64| {
        world.work(lines);
        world.step(&mut Still).unwrap().figures.gbps
    };
    let found: Vec<f64> = [1.0, 8.0, 64.0, 512.0].map(&mut gbps).to_vec();
    assert!(found.is_sorted() && found[3] <= 100.0, "{found:?}");
    assert!(found[1] > 7.0 * found[0] && found[3] < 3.0 * found[2], "{found:?}");
}

#[test]
fn rotating_the_hot_set_changes_the_local_access_ratio() {
    let machine = two_tiers(1 << 14, 1 << 14);
    let mut workload = workload(vec![region(1_000, 0, 1), region(1_000, 0, 1)], 1);
    workload.workers[0].uses = vec![0.95, 0.05];
    let mut pages = Pages::of(&workload, 1);
    (1_000..2_000).for_each(|page| pages.put(page, 1));
    let mut world = World::new(&machine, &workload, pages, settings());
    let local = |world: &mut World<'_>| world.step(&mut Still).unwrap().figures.local_access_ratio;
    assert!(close(local(&mut world), 0.95, 1e-9));
    world.rotate(1_000);
    assert!(close(local(&mut world), 0.05, 1e-9));
    world.rotate(1_000);
    assert!(close(local(&mut world), 0.95, 1e-9));
}

#[test]
fn without_a_rate_nothing_ever_moves() {
    let machine = alike(2, 1 << 14);
    let mut world = world(&machine, &small(2), Settings { rate_gbps: 0.0, ..settings() });
    let found = run(&mut world, &mut Script::of(moves(1)), 50);
    assert_eq!((moved(&found), refused(&found)), (0, 0));
}

#[test]
fn a_page_above_the_limit_of_an_epoch_moves_after_several_epochs() {
    let machine = alike(2, 1 << 14);
    // A huge page is 2 MiB, an epoch's part 100 kB.
    let settings = Settings { rate_gbps: 0.01, epoch_ms: 10, ..settings() };
    let mut world = world(&machine, &Workload { huge: true, ..small(2) }, settings);
    let found = run(&mut world, &mut Script::of([Act::Move { page: 0, to: 1 }]), 60);
    assert_eq!(moved(&found), 2 << 20);
    let when = found.iter().position(|epoch| epoch.moved_bytes > 0).unwrap();
    assert!((20..=24).contains(&when), "{when}");
}

#[test]
fn acts_are_carried_out_in_the_order_given() {
    let machine = alike(3, 1 << 14);
    let mut world = world(&machine, &small(3), settings());
    let there_and_back = [1, 2, 0, 2].map(|to| Act::Move { page: 9, to });
    let found = run(&mut world, &mut Script::of(there_and_back), 4);
    assert_eq!((world.pages().node[9], moved(&found)), (2, 4 * 4_096));
}

#[test]
fn the_migration_rate_does_not_depend_on_the_epoch_length() {
    let machine = alike(2, 1 << 14);
    let after_a_second = |epoch_ms: u32| {
        let settings = Settings { rate_gbps: 0.004, epoch_ms, ..settings() };
        let mut world = world(&machine, &small(2), settings);
        moved(&run(&mut world, &mut Script::of(moves(1)), (1_000 / epoch_ms) as usize))
    };
    let [short, middle, long] = [2, 10, 50].map(after_a_second);
    for (epoch_ms, found) in [(2, short), (10, middle), (50, long)] {
        // Two epochs pass before the first move.
        let most = 4_000_000;
        assert!(
            found <= most + 4_096 && found + 3 * 4_000 * epoch_ms + 8_192 >= most,
            "{epoch_ms}: {found}"
        );
    }
}

#[test]
fn migration_slows_the_program_by_its_tlb_flushes() {
    let machine = alike(2, 1 << 14);
    let gbps_while_moving = |flush_ns: f64| {
        let settings = Settings { flush_ns, rate_gbps: 0.2, ..settings() };
        let mut world = world(&machine, &small(2), settings);
        run(&mut world, &mut Script::of(moves(1)), 3)[2].figures.gbps
    };
    let [free, dear] = [0.0, 1_000_000.0].map(gbps_while_moving);
    assert!(dear < free * 0.95, "{dear} {free}");
}

#[test]
fn actions_of_two_combined_controllers_are_both_executed() {
    let machine = alike(3, 1 << 14);
    let mut world = world(&machine, &small(3), settings());
    let [one, other] = [(0, 1), (1, 2)].map(|(page, to)| Script::of([Act::Move { page, to }]));
    run(&mut world, &mut nearfar_sim::live::Both(one, other), 4);
    assert_eq!(world.pages().node[..3], [1, 2, 0]);
}

#[test]
fn a_world_without_migration_is_in_the_steady_state() {
    for (machine, workload) in
        [(alike(3, 1 << 14), small(3)), (two_tiers(1_500, 1 << 14), small(1))]
    {
        let mut pages = Pages::of(&workload, 1);
        pages.first_touch(&workload, &machine);
        let expected = nearfar_sim::compare::steady(&machine, &workload, &pages);
        let mut world = World::new(&machine, &workload, pages, settings());
        assert!(run(&mut world, &mut Still, 3).iter().all(|epoch| epoch.figures == expected));
    }
}
