//! Tests of the loop on a simulated machine: four nodes, some pages, and a sensor that samples their users.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nearfar_policy::ports::{Grain, Move, Nature, Sees, Why};
use nearfar_policy::traffic::balance::{Balance, Config as BalanceConfig, Verdict};
use nearfar_policy::traffic::carrefour::{Busy, Config, Draw, Hold};
use nearfar_policy::traffic::model::{Carries, Machine, Path, Queue, Waits};
use nearfar_policy::traffic::{Page, Process, Reads, Sample, metrics};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, NodeId};

use super::*;

const NODES: usize = 4;
/// Outstanding lines of each CPU node.
const LINES: f64 = 13.0;
const OWN: Process = Process(1);
/// Iterations that find the waiting times, and their step: with a larger one, full queues oscillate.
const ROUNDS: usize = 1000;
const STEP: f64 = 0.02;

/// The user of a page: one node, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    By(usize),
    Shared,
}

#[derive(Debug, Default)]
struct World {
    pages: BTreeMap<Page, (NodeId, Use, bool)>,
    waiting: Vec<Move>,
    targets: Targets,
    over: bool,
    splits: bool,
    moved: Vec<Move>,
    fails: bool,
    /// Whether each page is sampled in one reading of five only.
    rarely: bool,
    readings: u64,
    told: Vec<Targets>,
    sampling: Vec<Sampling>,
}

#[derive(Clone, Debug)]
struct Shared(Rc<RefCell<World>>);

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small, and not below nothing"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

fn page(process: Process, number: u64) -> Page {
    Page { process, number }
}

impl Shared {
    fn new(pages: impl IntoIterator<Item = (Page, u16, Use)>) -> Self {
        let pages = pages.into_iter().map(|(page, node, used)| (page, (NodeId(node), used, false)));
        Self(Rc::new(RefCell::new(World {
            pages: pages.collect(),
            splits: true,
            ..World::default()
        })))
    }

    /// Lines per second by CPU node and memory node, and the latency of one, including the wait for earlier ones.
    fn traffic(&self) -> (Vec<Vec<u64>>, Vec<Vec<f64>>) {
        let world = self.0.borrow();
        let mut shares = vec![vec![0.0_f64; NODES]; NODES];
        for (node, used, _) in world.pages.values() {
            for (cpu, row) in shares.iter_mut().enumerate() {
                let uses = matches!(used, Use::Shared) || *used == Use::By(cpu);
                row[usize::from(node.0)] += if uses { 1.0 } else { 0.0 };
            }
        }
        for row in &mut shares {
            let all: f64 = row.iter().sum();
            row.iter_mut().for_each(|cell| *cell /= all.max(1.0));
        }
        let mut waits = [0.0_f64; NODES];
        let (mut rates, mut takes) = (vec![vec![0.0; NODES]; NODES], vec![vec![0.0; NODES]; NODES]);
        for _ in 0..ROUNDS {
            for cpu in 0..NODES {
                for node in 0..NODES {
                    takes[cpu][node] = if cpu == node { 104.0 } else { 130.0 } + waits[node];
                }
                let mean: f64 = (0..NODES).map(|node| shares[cpu][node] * takes[cpu][node]).sum();
                for node in 0..NODES {
                    rates[cpu][node] = LINES / mean.max(1.0) * shares[cpu][node];
                }
            }
            for (node, wait) in waits.iter_mut().enumerate() {
                let used: f64 = rates.iter().map(|row| row[node]).sum::<f64>() * 64.0 / 5.5;
                let now = if used < 0.99 { 11.6 * used / (1.0 - used) } else { *wait + 50.0 };
                *wait += STEP * (now - *wait);
            }
        }
        let lines = |row: &Vec<f64>| row.iter().map(|rate| whole(rate * 1e9)).collect();
        (rates.iter().map(lines).collect(), takes)
    }

    fn served(&self) -> Vec<u64> {
        let (traffic, _) = self.traffic();
        (0..NODES).map(|node| traffic.iter().map(|row| row[node]).sum()).collect()
    }

    /// Pages of a process on each node.
    fn on(&self, process: Process) -> [usize; NODES] {
        let world = self.0.borrow();
        let mut on = [0; NODES];
        let ours = world.pages.iter().filter(|(page, _)| page.process == process);
        ours.for_each(|(_, (node, ..))| on[usize::from(node.0)] += 1);
        on
    }
}

impl PageMover for Shared {
    type Error = &'static str;

    fn targets(&mut self) -> Result<Targets, Self::Error> {
        let world = self.0.borrow();
        if world.over { Err("it has ended") } else { Ok(world.targets.clone()) }
    }

    fn memory(&mut self) -> Result<Vec<Memory>, Self::Error> {
        let memory =
            |node| Memory { node: NodeId(node), total: Bytes(1 << 30), free: Bytes(1 << 29) };
        Ok((0..4).map(memory).collect())
    }

    fn ask(&mut self, moves: Vec<Move>) {
        self.0.borrow_mut().waiting.extend(moves);
    }

    fn split(&mut self, _: Page) -> bool {
        self.0.borrow().splits
    }

    fn work(&mut self, _: Nanoseconds) -> Vec<Placed> {
        let mut world = self.0.borrow_mut();
        let waiting = std::mem::take(&mut world.waiting);
        world.moved.extend(&waiting);
        let mut go = |asked: Move| {
            let page = world.pages.get_mut(&asked.page);
            let before = page.map(|page| std::mem::replace(&mut page.0, asked.to));
            let moved = before.is_some_and(|before| before != asked.to);
            Placed { asked, on: before.map(|_| asked.to), moved }
        };
        waiting.into_iter().map(&mut go).collect()
    }

    fn next(&self) -> Option<Nanoseconds> {
        (!self.0.borrow().waiting.is_empty()).then_some(Nanoseconds(50_000_000))
    }

    fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    fn forget(&mut self) {
        self.0.borrow_mut().waiting.clear();
    }

    fn leaves_alone(&self, process: Process) -> bool {
        process == OWN
    }
}

/// Samples each page once for each node that uses it; reports lines, and latencies that rise with load.
#[derive(Debug)]
struct Eye {
    world: Shared,
    since: Nanoseconds,
}

impl Sensor for Eye {
    fn name(&self) -> &'static str {
        "eye"
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::Pages,
            writes: true,
            cpu: true,
            traffic: true,
            latency: true,
            scope: Scope::Machine,
            nature: Nature::Emulated,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        Ok(())
    }

    fn start(&mut self, targets: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        let mut world = self.world.0.borrow_mut();
        if world.fails {
            return Err(Unusable::new(Why::Failed, "blind"));
        }
        world.told.push(targets.clone());
        self.since = now;
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        if self.world.0.borrow().fails {
            return Err(Unusable::new(Why::Failed, "blind"));
        }
        let elapsed = Nanoseconds(now.0 - self.since.0);
        self.since = now;
        let lines = |all: u64| all * (elapsed.0 / 1_000_000) / 1000;
        let (traffic, takes) = self.world.traffic();
        let accesses: Vec<Vec<u64>> =
            traffic.iter().map(|row| row.iter().map(|all| lines(*all)).collect()).collect();
        let latency = |cpu: usize, node: usize| Some(Nanoseconds(whole(takes[cpu][node])));
        let row = |cpu| (0..NODES).map(|node| latency(cpu, node)).collect();
        let mut world = self.world.0.borrow_mut();
        world.readings += 1;
        let seen = |number: u64| !world.rarely || (number + world.readings).is_multiple_of(5);
        let mut samples = Vec::new();
        for (page, (node, used, huge)) in world.pages.iter().filter(|(page, _)| seen(page.number)) {
            for cpu in (0..NODES).filter(|cpu| *used == Use::Shared || *used == Use::By(*cpu)) {
                samples.push(Sample { page: *page, node: *node, huge: *huge, cpu, write: true });
            }
        }
        Ok(Reading {
            elapsed,
            coverage: BasisPoints(10_000),
            accesses: Some(accesses),
            reads: Reads::Lines { reads: 2, writes: 1 },
            latency: (0..NODES).map(row).collect(),
            counts: Counts { seen: samples.len() as u64, ..Counts::default() },
            samples,
            ..Reading::default()
        })
    }

    fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Unusable> {
        self.world.0.borrow_mut().sampling.push(sampling);
        Ok(())
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        Ok(())
    }
}

fn layout() -> Layout {
    let all: Vec<usize> = (0..NODES).collect();
    let nodes = (0..4).map(NodeId).collect();
    Layout { nodes, cpus: all.clone(), mems: all.clone(), controllers: all, queues: NODES }
}

fn carrefour() -> Law {
    Law::carrefour(&Config { draw: Draw::Anew { seed: 7 }, ..Config::default() })
}

/// The memory of each node has a queue of 5.5 GB/s.
fn balanced() -> Law {
    let queue = Queue {
        capacity: BytesPerSecond(5_500_000_000),
        waits: Waits::Formula { ps: 11_600, power_percent: 100 },
        carries: Carries::All,
    };
    let path = |cpu, node| Path {
        idle: Nanoseconds(if cpu == node { 104 } else { 130 }),
        through: vec![node],
    };
    let paths: Vec<Vec<Path>> =
        (0..NODES).map(|cpu| (0..NODES).map(|node| path(cpu, node)).collect()).collect();
    let machine = Machine::new(&[queue; NODES], &paths).unwrap();
    Law::balance(Balance::new(BalanceConfig::default(), machine))
}

fn run(world: &Shared, law: Law, seconds: u64) -> Loop<Eye> {
    let eye = Eye { world: world.clone(), since: Nanoseconds(0) };
    let mut one = Loop::new(layout(), law, vec![eye]);
    go_on(&mut one, world, (0, seconds)).unwrap();
    one
}

fn go_on(one: &mut Loop<Eye>, world: &Shared, (from, to): (u64, u64)) -> Result<(), &'static str> {
    let (mut now, mut machine) = (from * 1_000_000_000, world.clone());
    while now < to * 1_000_000_000 {
        now += one.tick(Nanoseconds(now), &mut machine)?.0.max(1_000_000);
    }
    Ok(())
}

/// Pages of process 7, all on node 0.
fn on_node_0(used: impl Fn(u64) -> Use) -> Shared {
    Shared::new((0..400).map(|number| (page(Process(7), number), 0, used(number))))
}

#[test]
fn either_policy_spreads_shared_memory_from_one_node() {
    for law in [carrefour(), balanced()] {
        let world = on_node_0(|_| Use::Shared);
        let one = run(&world, law, 20);
        let uneven = metrics::imbalance(&world.served());
        assert!(uneven < BasisPoints(3_500), "{:?}: {:?}", world.on(Process(7)), one.decided());
        let effect = one.effect();
        assert!(effect.moved >= 200, "{effect:?}");
        assert_eq!(effect.before.unwrap().imbalance, BasisPoints(20_000));
        assert!(effect.after.unwrap().imbalance < BasisPoints(3_500), "{effect:?}");
    }
}

#[test]
fn spread_memory_is_finally_interleaved_page_by_page() {
    let in_blocks =
        |number| (page(Process(7), number), u16::try_from(number / 100).unwrap(), Use::Shared);
    let world = Shared::new((0..400).map(in_blocks));
    let one = run(&world, balanced(), 20);
    let on: Vec<u16> = world.0.borrow().pages.values().map(|(node, ..)| node.0).collect();
    let in_turn = |four: &[u16]| four.iter().collect::<BTreeSet<_>>().len() == NODES;
    let good = on.chunks(NODES).filter(|four| in_turn(four)).count();
    assert!(good >= 90, "{good} of 100: {:?}", one.decided());
    let moved = one.effect().moved;
    assert!(moved <= 400, "{moved} of 400 pages: each once at most");
}

#[test]
fn a_surplus_with_homes_on_other_nodes_still_converges() {
    use super::turns::Home;
    let home = Home::new(&[16; 4], (0, 0));
    // Pages with home 1 are all on node 2; the surplus of node 0 has its home there or on node 2.
    let shuffled = |number: u64| {
        let on = match home.at(number) {
            1 => 2,
            2 if number % 8 < 4 => 0,
            other => other,
        };
        (page(Process(7), number), on, Use::Shared)
    };
    let world = Shared::new((0..400).map(shuffled));
    let one = run(&world, balanced(), 30);
    let on = world.on(Process(7));
    assert!(on.iter().all(|pages| (80..=120).contains(pages)), "{on:?}: {:?}", one.decided());
}

#[test]
fn either_policy_moves_memory_to_its_only_user() {
    for law in [carrefour(), balanced()] {
        let world = on_node_0(|number| Use::By(usize::try_from(number % 4).unwrap()));
        let one = run(&world, law, 20);
        let at_home = |place: &&(NodeId, Use, bool)| Use::By(usize::from(place.0.0)) == place.1;
        let home = world.0.borrow().pages.values().filter(at_home).count();
        assert!(home >= 380, "{home} of 400: {:?}", one.decided());
    }
}

#[test]
fn rarely_sampled_pages_are_attributed_over_several_rounds() {
    let next_to_it = |number: u64| {
        let node = u16::try_from(number % 4).unwrap();
        (page(Process(7), number), (node + 1) % 4, Use::By(usize::from(node)))
    };
    let world = Shared::new((0..400).map(next_to_it));
    world.0.borrow_mut().rarely = true;
    // All controllers are equally busy, so that two samples of a page are required.
    let one = run(&world, carrefour(), 20);
    let far = world
        .0
        .borrow()
        .pages
        .values()
        .filter(|(node, used, _)| *used != Use::By(usize::from(node.0)))
        .count();
    assert!(far <= 20, "{far} of 400: {:?}", one.decided());
}

#[test]
fn well_placed_memory_stays_and_the_decision_gives_the_reason() {
    let at_home = |number: u64| {
        let node = u16::try_from(number % 4).unwrap();
        (page(Process(7), number), node, Use::By(usize::from(node)))
    };
    let world = Shared::new((0..400).map(at_home));
    let one = run(&world, carrefour(), 5);
    assert!(world.0.borrow().moved.is_empty());
    let Some(Decided::Carrefour { decision, .. }) = one.decided() else {
        panic!("{:?}", one.decided())
    };
    assert_eq!(decision.hold, Some(Hold::NothingOn));
    assert_eq!(one.sampling(), Sampling::Sparse);
    assert_eq!(world.0.borrow().sampling, [Sampling::Sparse], "told once");
    let mut one = run(&world, balanced(), 2);
    assert_eq!(one.sampling(), Sampling::Dense);
    go_on(&mut one, &world, (2, 10)).unwrap();
    let Some(Decided::Balance { decision, .. }) = one.decided() else {
        panic!("{:?}", one.decided())
    };
    assert!(matches!(decision.verdict, Verdict::Settled { .. }), "{decision:?}");
    assert!(world.0.borrow().moved.is_empty());
    assert_eq!(one.sampling(), Sampling::Sparse, "there is nothing to learn from more");
}

#[test]
fn only_target_processes_are_migrated_and_never_the_balancer() {
    let of = |process| (0..100).map(move |number| (page(process, number), 0, Use::Shared));
    let world = Shared::new(of(Process(7)).chain(of(Process(8))).chain(of(OWN)));
    world.0.borrow_mut().targets = Targets::Processes([Process(7), OWN].into());
    let mut one = run(&world, carrefour(), 5);
    assert_eq!((world.on(Process(8))[0], world.on(OWN)[0]), (100, 100));
    assert!(world.on(Process(7))[0] < 60, "{:?}", world.on(Process(7)));
    world.0.borrow_mut().targets = Targets::Processes([Process(8)].into());
    go_on(&mut one, &world, (5, 10)).unwrap();
    assert!(world.on(Process(8))[0] < 60, "{:?}", world.on(Process(8)));
    assert_eq!(world.0.borrow().told.len(), 2, "sensors are told once each time");
    world.0.borrow_mut().over = true;
    assert_eq!(go_on(&mut one, &world, (10, 12)), Err("it has ended"));
}

#[test]
fn a_sensor_that_fails_decides_nothing_and_is_started_again() {
    let world = on_node_0(|_| Use::Shared);
    world.0.borrow_mut().fails = true;
    let mut one = run(&world, carrefour(), 5);
    assert!(one.decided().is_none() && world.0.borrow().moved.is_empty());
    let why = one.watches()[0].failed.as_ref().unwrap();
    assert_eq!(why.0.to_string(), "blind");
    world.0.borrow_mut().fails = false;
    go_on(&mut one, &world, (5, 9)).unwrap();
    assert!(one.decided().is_none(), "not before ten seconds have passed");
    go_on(&mut one, &world, (9, 20)).unwrap();
    assert!(one.watches()[0].failed.is_none() && one.decided().is_some());
    assert!(!world.0.borrow().moved.is_empty());
}

#[test]
fn a_huge_page_is_split_before_migration_or_migrates_whole() {
    let huge = |world: &Shared| {
        world.0.borrow_mut().pages.values_mut().for_each(|page| page.2 = true);
    };
    let world = on_node_0(|_| Use::Shared);
    huge(&world);
    run(&world, carrefour(), 2);
    assert!(world.0.borrow().moved.iter().all(|one| !one.huge));
    assert!(world.0.borrow().moved.len() > 100);
    let world = on_node_0(|_| Use::Shared);
    huge(&world);
    world.0.borrow_mut().splits = false;
    let one = run(&world, carrefour(), 2);
    assert!(world.0.borrow().moved.iter().all(|one| one.huge && one.page.number == 0));
    assert!(one.decided().unwrap().wanted().moves <= 1);
}

#[test]
fn carrefour_migrates_when_counted_accesses_exceed_its_threshold() {
    // Samples of unknown weight can't be compared with a threshold in accesses per second.
    let config = Config { busy: Busy::Machine(0), ..Config::default() };
    let world = on_node_0(|_| Use::Shared);
    let one = run(&world, Law::carrefour(&config), 3);
    assert!(one.round().counted);
    assert!(world.on(Process(7))[0] < 300);
}
