//! DAMON's quotas, their goals, and several destinations on real kernels: which are supported, and how the kernel tunes
//! them.
//!
//! The figures are the kernel's arithmetic, not speeds: quotas and the final placement of memory.

use nearfar_kernel::balancing::{NumaBalancing, set_numa_balancing};
use nearfar_kernel::damon::spec::{
    AccessPattern, Action, Bounds, Destination, Filter, FilterType, Goal, GoalTuner, Intervals,
    Kdamond, Metric, Quotas, Scheme,
};
use nearfar_kernel::damon::{DamonStat, Session, offers};
use nearfar_kernel::features::{Asked, Feature};
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::{Journal, OnConflict};
use nearfar_kernel::ranges;
use nearfar_topology::{Bytes, NodeId};

use crate::damon::{Holder, MIB, journal, live, snapshot, wait};

const NEAR: NodeId = NodeId(0);

/// The memory of these nodes, looked at often, and one scheme.
fn watching(fs: &RootFs, nodes: &[u16], scheme: Scheme) -> Kdamond {
    let all = ranges::of_nodes(fs).unwrap();
    let ranges: Vec<_> = nodes.iter().flat_map(|node| all[&NodeId(*node)].clone()).collect();
    with(Kdamond::physical(&ranges), scheme)
}

fn with(mut kdamond: Kdamond, scheme: Scheme) -> Kdamond {
    kdamond.context.intervals =
        Intervals { sample_us: 10_000, aggr_us: 100_000, update_us: 1_000_000 };
    kdamond.context.nr_regions = Bounds { min: 100, max: 1000 };
    kdamond.context.schemes = vec![scheme];
    kdamond
}

/// Moves memory of `holder` to a node, however it is used.
fn moving(holder: &Holder, to: u16, quotas: Quotas) -> Scheme {
    let ours = FilterType::Memcg(holder.group.clone());
    Scheme {
        destination: Destination::Node(NodeId(to)),
        quotas,
        filters: vec![Filter { what: ours, matching: false, allow: false }],
        ..Scheme::new(Action::MigrateCold)
    }
}

/// `bytes` in each tenth of a second, towards a goal.
fn towards(metric: Metric, target_value: u64, [mib, ms]: [u64; 2]) -> Quotas {
    let goals = vec![Goal { metric, target_value, current_value: 0 }];
    Quotas { bytes: mib * MIB, reset_interval_ms: ms, goals, ..Quotas::default() }
}

/// Runs `kdamond` until `done` or for 30 s; gives the effective quotas seen.
fn run(
    fs: &RootFs,
    journal: &Journal<'_>,
    kdamond: Kdamond,
    done: impl Fn(Option<Bytes>) -> bool,
) -> Vec<Option<Bytes>> {
    let session = Session::start(fs, journal, &[kdamond], DamonStat::Pause).unwrap();
    let mut quotas = Vec::new();
    for _ in 0..100 {
        wait();
        quotas.push(session.effective_quotas(0).unwrap()[0]);
        if done(quotas[quotas.len() - 1]) {
            break;
        }
    }
    session.stop().unwrap();
    quotas
}

/// The total memory of node 0 and the kernel's figure of its free memory, in KiB.
pub(crate) fn total_and_free(fs: &RootFs) -> [u64; 2] {
    let text = fs.read("sys/devices/system/node/node0/meminfo").unwrap().unwrap();
    ["MemTotal:", "MemFree:"].map(|name| {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        line.split_whitespace().rev().nth(1).unwrap().parse::<u64>().unwrap()
    })
}

/// Hundredths of a per cent of node 0 that are free.
fn free_bp(fs: &RootFs) -> u64 {
    let [total, free] = total_and_free(fs);
    free * 10_000 / total
}

/// Runs a test with 64 MiB on node 0 that only DAMON migrates, and checks that all settings are restored.
fn held(how: &str, test: impl Fn(&RootFs, &Journal<'_>, &Holder)) {
    let fs = live();
    let (before, journal) = (snapshot(&fs), journal(&fs));
    set_numa_balancing(&journal, "test", NumaBalancing::OFF).unwrap();
    let holder = Holder::start(&fs, "goals", how);
    assert!(holder.mib(&fs)[0][0] >= 60, "{:?}", holder.mib(&fs));
    test(&fs, &journal, &holder);
    holder.end();
    journal.restore("test", OnConflict::Refuse).unwrap();
    assert_eq!(snapshot(&fs), before);
}

pub(crate) fn goals_are_accepted_if_the_kernel_has_them_and_else_refused_entirely() {
    held("input", |fs, journal, holder| {
        let features = offers::detect(fs, Asked::Live);
        let path = holder.group.clone();
        let (nodes, groups) = (Feature::DamonNodeGoals, Feature::DamonMemcgGoals);
        let before = snapshot(fs);
        for (metric, feature) in [
            (Metric::UserInput, Feature::Damon),
            (Metric::SomeMemPsiUs, Feature::Damon),
            (Metric::NodeMemUsedBp(NEAR), nodes),
            (Metric::NodeMemFreeBp(NEAR), nodes),
            (Metric::NodeMemcgUsedBp(NEAR, path.clone()), groups),
            (Metric::NodeMemcgFreeBp(NEAR, path), groups),
            (Metric::NodeEligibleMemBp(NEAR), Feature::DamonEligibleGoals),
        ] {
            let scheme = moving(holder, 1, towards(metric.clone(), 1, [1, 100]));
            let kdamond = watching(fs, &[0], scheme);
            match Session::start(fs, journal, &[kdamond], DamonStat::Pause) {
                Ok(session) => {
                    assert!(features.has(feature), "{metric:?} is there");
                    session.stop().unwrap();
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(!features.has(feature), "{text}");
                    assert!(text.contains(metric.word()), "{text}");
                }
            }
            assert_eq!(snapshot(fs), before, "{metric:?}");
        }
    });
}

pub(crate) fn user_input_steers_the_quota_in_steps_from_one_byte() {
    held("input", |fs, journal, holder| {
        // Asleep, so that only the quota is looked at.
        let quotas = towards(Metric::UserInput, 1000, [1, 100]);
        let scheme = Scheme { access_pattern: AccessPattern::NOTHING, ..moving(holder, 1, quotas) };
        let kdamond = watching(fs, &[0], scheme);
        let mut session = Session::start(fs, journal, &[kdamond], DamonStat::Pause).unwrap();
        let quota = |session: &Session<'_>| {
            session.effective_quotas(0).unwrap()[0].map_or(0, |bytes| bytes.0)
        };
        let until = |session: &Session<'_>, wanted: u64| {
            let mut seen = vec![quota(session)];
            while seen.last() != Some(&wanted) && seen.len() < 100 {
                wait();
                seen.push(quota(session));
            }
            assert_eq!(seen.last(), Some(&wanted), "{seen:?}");
            seen
        };
        let seen = until(&session, MIB);
        println!("nothing of the goal yet: {seen:?}");
        assert!(
            seen.is_sorted() && seen.iter().all(|bytes| *bytes == 0 || bytes.is_power_of_two())
        );
        // Twice the goal: all of it away. The goal itself: as it is.
        session.tell_goal(0, [0, 0], 2000).unwrap();
        until(&session, 1);
        session.tell_goal(0, [0, 0], 1000).unwrap();
        wait();
        assert_eq!(quota(&session), 1);
        // Half of it: half as much again.
        session.tell_goal(0, [0, 0], 500).unwrap();
        let seen = until(&session, MIB);
        println!("half of the goal: {seen:?}");
        session.stop().unwrap();
    });
}

pub(crate) fn a_goal_of_free_memory_migrates_up_to_its_quota_and_then_stops() {
    held("input", |fs, journal, holder| {
        // Some 30 of the node's 1900 MiB more.
        let goal = free_bp(fs) + 160;
        let mut quotas = towards(Metric::NodeMemFreeBp(NEAR), goal, [16, 100]);
        quotas.goal_tuner = GoalTuner::Temporal;
        let kdamond = watching(fs, &[0], moving(holder, 1, quotas));
        // The quota is 0 before the first pass, too.
        let reached = |quota| quota == Some(Bytes(0)) && holder.mib(fs)[1][0] >= 2;
        let seen = run(fs, journal, kdamond, reached);
        println!("temporal: {seen:?}, {:?}", holder.mib(fs));
        assert_eq!(seen.last(), Some(&Some(Bytes(0))), "{seen:?}");
        assert!(seen.contains(&Some(Bytes(16 * MIB))), "{seen:?}");
        let moved = holder.mib(fs)[1][0];
        assert!((20..=60).contains(&moved) && free_bp(fs) + 10 >= goal, "{moved} MiB, {goal}");
    });
}

pub(crate) fn the_quota_of_a_cgroup_goal_shrinks_once_it_is_reached() {
    held("input", |fs, journal, holder| {
        let all = Quotas { bytes: 1 << 30, reset_interval_ms: 1000, ..Quotas::default() };
        let away = watching(fs, &[0], moving(holder, 1, all));
        run(fs, journal, away, |_| holder.mib(fs)[1][0] >= 60);
        // Some 47 of the node's 1900 MiB.
        let metric = Metric::NodeMemcgUsedBp(NEAR, holder.group.clone());
        let kdamond = watching(fs, &[1], moving(holder, 0, towards(metric, 250, [4, 100])));
        let faded = |quota: Option<Bytes>| {
            holder.mib(fs)[0][0] >= 47 && quota.is_some_and(|bytes| bytes.0 < 4096)
        };
        let seen = run(fs, journal, kdamond, faded);
        println!("consist: {seen:?}, {:?}", holder.mib(fs));
        assert!(faded(seen[seen.len() - 1]), "{seen:?} {:?}", holder.mib(fs));
        assert!(seen.iter().all(|quota| quota.is_some_and(|bytes| bytes.0 <= 4 * MIB)), "{seen:?}");
    });
}

pub(crate) fn a_goal_of_eligible_memory_is_a_share_of_the_monitored_pages() {
    held("input", |fs, journal, holder| {
        // Everything fits. Of the pages in use on both nodes few are far as yet.
        let goal = |target| {
            let mut quotas = towards(Metric::NodeEligibleMemBp(NodeId(1)), target, [4, 100]);
            quotas.goal_tuner = GoalTuner::Temporal;
            moving(holder, 1, quotas)
        };
        // The quota is 0 before the first pass, too.
        let reached = |quota| quota == Some(Bytes(0)) && holder.mib(fs)[1][0] >= 2;
        let seen = run(fs, journal, watching(fs, &[0, 1], goal(1000)), reached);
        let moved = holder.mib(fs)[1][0];
        println!("eligible: {seen:?}, {moved} MiB");
        assert!(reached(seen[seen.len() - 1]) && moved <= 56, "{moved} MiB {seen:?}");
        // If only the other node is monitored, no migration into it is counted.
        let all = |_| holder.mib(fs)[1][0] >= 60;
        let seen = run(fs, journal, watching(fs, &[0], goal(1)), all);
        let mut since_first = seen.iter().skip_while(|quota| **quota == Some(Bytes(0)));
        assert!(since_first.all(|quota| *quota != Some(Bytes(0))) && all(None), "{seen:?}");
    });
}

pub(crate) fn pages_of_a_process_are_spread_by_weight() {
    held("input", |fs, journal, holder| {
        let weights = vec![(NodeId(0), 1), (NodeId(1), 3)];
        let scheme = Scheme {
            destination: Destination::Weighted(weights),
            ..Scheme::new(Action::MigrateCold)
        };
        let kdamond = with(Kdamond::process(holder.child.id()), scheme);
        run(fs, journal, kdamond, |_| holder.mib(fs)[1][0] >= 40);
        let [near, far] = holder.mib(fs).map(|mib| mib[0]);
        println!("one to three: {near} and {far} MiB");
        assert!((10..=24).contains(&near) && near + far >= 60, "{near} {far}");
    });
}

/// Bytes that a scheme's first passes were tried on.
fn first_tried(session: &Session<'_>) -> u64 {
    loop {
        let tried = session.stats(0).unwrap()[0].sz_tried.0;
        if tried > 0 {
            return tried;
        }
        wait();
    }
}

pub(crate) fn a_quota_holds_from_the_start_for_a_scheme_that_slept_its_first_interval() {
    held("input", |fs, journal, holder| {
        let quotas = Quotas { bytes: MIB, reset_interval_ms: 3000, ..Quotas::default() };
        let scheme = moving(holder, 1, quotas);
        let asleep = Scheme { access_pattern: AccessPattern::NOTHING, ..scheme.clone() };
        let mut freely = asleep.clone();
        freely.quotas.bytes = 0;
        let start = |scheme: &Scheme| {
            let kdamond = watching(fs, &[0], scheme.clone());
            Session::start(fs, journal, &[kdamond], DamonStat::Pause).unwrap()
        };
        let mut session = start(&asleep);
        while session.effective_quotas(0).unwrap()[0].is_none() {
            wait();
        }
        session.adjust(0, |kdamond| kdamond.context.schemes[0] = scheme.clone()).unwrap();
        let tried = first_tried(&session);
        assert!(tried <= 2 * MIB, "{tried} bytes of {MIB} in 3 s");
        session.stop().unwrap();
        // Else 6.12 does everything there is at once, also where the scheme was there before the quota. Were it not so,
        // sleeping would be for nothing.
        let old = !offers::detect(fs, Asked::Live).has(Feature::DamonNodeGoals);
        let session = start(&scheme);
        let tried = first_tried(&session);
        assert_eq!(tried > 100 * MIB, old, "{tried} bytes of {MIB} in 3 s");
        session.stop().unwrap();
        let mut session = start(&freely);
        for _ in 0..12 {
            wait();
        }
        session.adjust(0, |kdamond| kdamond.context.schemes[0] = scheme.clone()).unwrap();
        let tried = first_tried(&session);
        println!("a quota that came later: {} KiB of 1024 in 3 s", tried >> 10);
        assert_eq!(tried > 100 * MIB, old, "{tried} bytes of {MIB} in 3 s");
        session.stop().unwrap();
    });
}
