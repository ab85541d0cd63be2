//! DAMON on a fake kernel: sessions that start, change, stop and are refused. Kill tests: `kill.rs`; laws: `laws.rs`.

mod kill;
mod laws;

use super::spec::*;
use super::*;
use crate::fake::{Damon, FakeFs};
use crate::features::{Asked, Feature};
use crate::journal::{Journal, OnConflict, Restored};
use nearfar_topology::{Bytes, NodeId};
use rustix::io::Errno;
use tempfile::TempDir;

const KERNELS: [Damon; 3] = [Damon::Linux6_12, Damon::Linux7_2, Damon::WithoutFilters];
const STAT: &str = "sys/module/damon_stat/parameters/enabled";

fn journal<'a>(dir: &TempDir, fs: &'a FakeFs) -> Journal<'a> {
    Journal::new(dir.path().join("journal"), fs, "/")
}

/// Memory of two nodes, whose hot pages are promoted and whose cold pages are demoted between them.
fn specs() -> Vec<Kdamond> {
    let node = |start: u64, other: u16, action: Action| {
        let mut kdamond = Kdamond::physical(&[AddrRange { start, end: start + (1 << 30) }]);
        let filter = Filter { what: FilterType::Young, matching: true, allow: false };
        kdamond.context.schemes = vec![
            Scheme {
                destination: Destination::Node(NodeId(other)),
                filters: vec![filter],
                quotas: Quotas {
                    bytes: 1 << 20,
                    reset_interval_ms: 1000,
                    goals: vec![Goal {
                        metric: Metric::UserInput,
                        target_value: 10_000,
                        current_value: 1,
                    }],
                    ..Quotas::default()
                },
                ..Scheme::new(action)
            },
            Scheme::new(Action::Stat),
        ];
        kdamond
    };
    vec![node(0, 1, Action::MigrateCold), node(4 << 30, 0, Action::MigrateHot)]
}

fn at(path: &str) -> String {
    format!("{KDAMONDS}/{path}")
}

#[test]
fn a_session_writes_its_whole_specification_and_restores_every_file() {
    for kernel in KERNELS {
        let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(kernel));
        let (before, journal) = (fs.tree(), journal(&dir, &fs));
        let session = Session::start(&fs, &journal, &specs(), DamonStat::Pause).unwrap();
        for (path, text) in [
            ("nr_kdamonds", "2"),
            ("0/state", "on"),
            ("1/state", "on"),
            ("0/contexts/0/operations", "paddr"),
            ("1/contexts/0/targets/0/regions/0/start", "4294967296"),
            ("0/contexts/0/schemes/0/action", "migrate_cold"),
            ("1/contexts/0/schemes/0/target_nid", "0"),
            ("0/contexts/0/schemes/0/quotas/bytes", "1048576"),
            ("0/contexts/0/schemes/0/quotas/goals/0/target_value", "10000"),
            ("0/contexts/0/schemes/1/action", "stat"),
            ("0/contexts/0/schemes/1/access_pattern/sz/max", "18446744073709551615"),
        ] {
            assert_eq!(fs.value(&at(path)).as_deref(), Some(text), "{path} on {kernel:?}");
        }
        let filters = if kernel == Damon::Linux6_12 { "filters" } else { "ops_filters" };
        let filter = at(&format!("0/contexts/0/schemes/0/{filters}/0/type"));
        assert_eq!(fs.value(&filter).as_deref(), Some("young"));
        assert_ne!(fs.value(STAT).as_deref(), Some("Y"));
        session.stop().unwrap();
        assert_eq!(fs.tree(), before, "{kernel:?}");
    }
}

#[test]
fn a_dropped_session_is_stopped() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let (before, journal) = (fs.tree(), journal(&dir, &fs));
    drop(Session::start(&fs, &journal, &specs(), DamonStat::Keep).unwrap());
    assert_eq!(fs.tree(), before);
}

#[test]
fn a_damon_conflict_reports_the_holder_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |fs: &FakeFs, damon_stat| {
        let before = fs.tree();
        let error = Session::start(fs, &journal(&dir, fs), &specs(), damon_stat).unwrap_err();
        assert!(matches!(error, DamonError::Held(_)), "{error}");
        let planned = room::planned(&journal(&dir, fs), fs, 2, damon_stat).unwrap_err();
        assert_eq!(planned.to_string(), error.to_string());
        assert_eq!((fs.tree(), fs.writes().len()), (before, 0));
        error.to_string()
    };
    let fs = FakeFs::damon(Damon::Linux7_2);
    let text = refused(&fs, DamonStat::Keep);
    assert!(text.contains("damon_stat") && text.contains("echo N > /sys/module"), "{text}");
    let fs = FakeFs::damon(Damon::Linux6_12);
    fs.plant(&[(at("nr_kdamonds"), "1"), (at("0/state"), "off"), (at("0/pid"), "-1")]);
    let text = refused(&fs, DamonStat::Pause);
    assert!(text.contains("off, configured") && text.contains("echo 0 > /"), "{text}");
    fs.plant(&[("sys/module/damon_reclaim/parameters/enabled".into(), "Y")]);
    assert!(refused(&fs, DamonStat::Pause).contains("damon_reclaim"));
}

#[test]
fn unsupported_features_are_rejected_with_the_required_kernel_version() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let (before, journal) = (fs.tree(), journal(&dir, &fs));
    let mut several = vec![Kdamond::process(1)];
    several[0].context.schemes = specs()[1].context.schemes.clone();
    several[0].context.schemes[0].destination = Destination::Weighted(vec![(NodeId(0), 1)]);
    let mut allowing = specs();
    allowing[0].context.schemes[0].filters[0].allow = true;
    let mut tuned = specs();
    let goal =
        IntervalsGoal { access_bp: 400, aggrs: 3, min_sample_us: 5_000, max_sample_us: 10_000_000 };
    tuned[0].context.intervals_goal = Some(goal);
    let mut paused = specs();
    paused[0].context.pause = true;
    for (specs, names, since) in [
        (several, "dests", "6.17"),
        (allowing, "allow", "6.14"),
        (tuned, "intervals_goal", "6.15"),
        (paused, "pause", "7.2"),
    ] {
        let error = Session::start(&fs, &journal, &specs, DamonStat::Keep).unwrap_err();
        assert!(matches!(error, DamonError::Unsupported { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(names) && text.contains(since), "{text}");
        assert_eq!(fs.tree(), before, "{names}");
    }
    let mut aiming = specs();
    aiming[0].context.schemes[0].quotas.goals[0].metric = Metric::NodeMemFreeBp(NodeId(0));
    let error = Session::start(&fs, &journal, &aiming, DamonStat::Keep).unwrap_err().to_string();
    assert!(error.contains("node_mem_free_bp"), "{error}");
    assert_eq!(fs.tree(), before);
}

#[test]
fn a_refusal_at_any_write_leaves_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let fs = FakeFs::damon(Damon::Linux7_2);
    drop(Session::start(&fs, &journal(&dir, &fs), &specs(), DamonStat::Pause).unwrap());
    let mut paths: Vec<String> = fs.writes().into_iter().map(|(path, _)| path).collect();
    paths.sort();
    paths.dedup();
    assert!(paths.len() > 100, "{}", paths.len());
    for path in paths {
        let fs = FakeFs::damon(Damon::Linux7_2);
        let before = fs.tree();
        fs.refuse(&path, Errno::INVAL);
        let journal = journal(&dir, &fs);
        let error = Session::start(&fs, &journal, &specs(), DamonStat::Pause).unwrap_err();
        assert!(error.to_string().contains(&path), "{error}");
        assert_eq!(fs.tree(), before, "{path}");
    }
}

#[test]
fn a_commit_writes_only_changed_values() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux7_2));
    let journal = journal(&dir, &fs);
    let mut session = Session::start(&fs, &journal, &specs(), DamonStat::Pause).unwrap();
    let sofar = fs.writes().len();
    assert!(!session.commit(0, &specs()[0]).unwrap(), "nothing is new");
    assert_eq!(fs.writes().len(), sofar);
    assert!(session.adjust(0, |k| k.context.schemes[0].quotas.bytes = 7).unwrap());
    let quota = at("0/contexts/0/schemes/0/quotas/bytes");
    assert_eq!(fs.writes()[sofar..], [(quota, "7".into()), (at("0/state"), "commit".into())]);
    assert_eq!(session.spec(0).unwrap().context.schemes[0].quotas.bytes, 7);
    // Created or removed directories clear others: all settings are written again.
    session.adjust(0, |kdamond| drop(kdamond.context.schemes.remove(0))).unwrap();
    let action = fs.value(&at("0/contexts/0/schemes/0/action"));
    assert_eq!(action.as_deref(), Some("stat"));
    assert_eq!(
        fs.value(&at("0/contexts/0/targets/0/regions/0/end")).as_deref(),
        Some("1073741824")
    );
}

#[test]
fn a_refused_commit_leaves_files_and_session_as_they_were() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let journal = journal(&dir, &fs);
    let mut session = Session::start(&fs, &journal, &specs(), DamonStat::Keep).unwrap();
    let before = fs.tree();
    let aiming = |kdamond: &mut Kdamond| {
        kdamond.context.schemes[0].quotas.bytes = 9;
        kdamond.context.schemes[0].quotas.goals[0].metric = Metric::ActiveMemBp;
    };
    let error = session.adjust(1, aiming).unwrap_err();
    assert!(matches!(error, DamonError::Refused(_)), "{error}");
    assert_eq!((fs.tree(), session.spec(1)), (before, Some(&specs()[1])));
}

#[test]
fn counters_regions_and_quotas_are_read_as_numbers() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux7_2));
    let journal = journal(&dir, &fs);
    let mut session = Session::start(&fs, &journal, &specs(), DamonStat::Pause).unwrap();
    let scheme = |path: &str| at(&format!("0/contexts/0/schemes/{path}"));
    let region = |n: usize, file: &str| scheme(&format!("1/tried_regions/{n}/{file}"));
    fs.plant(&[
        (scheme("0/stats/sz_applied"), "8192"),
        (scheme("0/stats/nr_snapshots"), "3"),
        (scheme("0/quotas/effective_bytes"), "4096"),
        (region(10, "start"), "8192"),
        (region(10, "end"), "12288"),
        (region(10, "nr_accesses"), "0"),
        (region(10, "age"), "7"),
        (region(9, "start"), "4096"),
        (region(9, "end"), "8192"),
        (region(9, "nr_accesses"), "20"),
        (region(9, "age"), "1"),
    ]);
    let stats = session.stats(0).unwrap();
    assert_eq!(
        (stats.len(), stats[0].sz_applied, stats[0].nr_snapshots),
        (2, Bytes(8192), Some(3))
    );
    assert_eq!(session.effective_quotas(0).unwrap(), [Some(Bytes(4096)), None]);
    // To a tuner that stops at its goal, 0 means no quota.
    fs.plant(&[(scheme("0/quotas/effective_bytes"), "0")]);
    assert_eq!(session.effective_quotas(0).unwrap()[0], None);
    let stopping = |kdamond: &mut Kdamond| {
        kdamond.context.schemes[0].quotas.goal_tuner = GoalTuner::Temporal;
    };
    session.adjust(0, stopping).unwrap();
    assert_eq!(session.effective_quotas(0).unwrap()[0], Some(Bytes(0)));
    let regions = session.regions(0, 1).unwrap();
    let seen: Vec<_> = regions.iter().map(|r| (r.range.start, r.nr_accesses, r.age)).collect();
    assert_eq!(seen, [(4096, 20, 1), (8192, 0, 7)]);
    assert!(matches!(session.regions(0, 2), Err(DamonError::NoSuch { what: "scheme", index: 2 })));
    fs.plant(&[(scheme("0/stats/nr_tried"), "many")]);
    assert!(session.stats(0).unwrap_err().to_string().contains("`many`"));
}

#[test]
fn a_goal_value_is_updated_without_a_full_commit() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let journal = journal(&dir, &fs);
    let mut session = Session::start(&fs, &journal, &specs(), DamonStat::Keep).unwrap();
    let sofar = fs.writes().len();
    session.tell_goal(1, [0, 0], 55).unwrap();
    let value = at("1/contexts/0/schemes/0/quotas/goals/0/current_value");
    let told = (at("1/state"), "commit_schemes_quota_goals".into());
    assert_eq!(fs.writes()[sofar..], [(value, "55".into()), told]);
    assert!(session.tell_goal(1, [0, 1], 55).is_err());
}

#[test]
fn a_kdamond_that_ended_is_gone_and_the_session_still_stops() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let (before, journal) = (fs.tree(), journal(&dir, &fs));
    let mut session = Session::start(&fs, &journal, &specs(), DamonStat::Keep).unwrap();
    assert_eq!(session.thread(0).unwrap(), Some(4711));
    fs.plant(&[(at("0/state"), "off"), (at("0/pid"), "-1")]);
    assert_eq!(session.thread(0).unwrap(), None);
    assert!(matches!(session.stats(0), Err(DamonError::Gone { index: 0 })));
    let adjusted = session.adjust(0, |kdamond| kdamond.context.nr_regions.max = 50);
    assert!(matches!(adjusted, Err(DamonError::Gone { index: 0 })), "{adjusted:?}");
    assert!(session.stats(1).is_ok());
    session.stop().unwrap();
    assert_eq!(fs.tree(), before);
}

#[test]
fn an_added_kdamond_reuses_an_ended_or_a_reserved_slot() {
    for kernel in KERNELS {
        let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(kernel));
        let (before, journal) = (fs.tree(), journal(&dir, &fs));
        let process = [Kdamond::process(1)];
        let mut session =
            Session::start_with_room(&fs, &journal, &process, 2, DamonStat::Pause).unwrap();
        assert_eq!(session.len(), 1);
        let refused = fs.value(&at("1/state"));
        fs.refuse(&at("1/state"), Errno::INVAL);
        let error = session.add(&Kdamond::process(2)).unwrap_err();
        assert!(matches!(error, DamonError::NotStarted(_)), "{error}");
        assert_eq!((session.len(), fs.value(&at("1/state"))), (1, refused));
        fs.relent(&at("1/state"));
        assert_eq!(session.add(&Kdamond::process(2)).unwrap(), Some(1));
        assert_eq!(fs.value(&at("1/contexts/0/targets/0/pid_target")).as_deref(), Some("2"));
        assert_eq!(session.add(&Kdamond::process(3)).unwrap(), None, "there is no room");
        fs.meddle(&at("0/state"), "off");
        assert!(session.add(&physical_of_nothing()).is_err(), "it makes no sense");
        assert_eq!(session.add(&Kdamond::process(3)).unwrap(), Some(0));
        assert_eq!(session.spec(0), Some(&Kdamond::process(3)));
        assert!(session.thread(0).unwrap().is_some());
        session.stop().unwrap();
        assert_eq!(fs.tree(), before);
    }
}

fn physical_of_nothing() -> Kdamond {
    Kdamond::physical(&[])
}

#[test]
fn a_running_session_excludes_others_and_is_not_recovered() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let journal = journal(&dir, &fs);
    let session = Session::start(&fs, &journal, &specs(), DamonStat::Keep).unwrap();
    let again = Session::start(&fs, &journal, &specs(), DamonStat::Keep);
    assert!(matches!(again, Err(DamonError::InUse { .. })), "{again:?}");
    let planned = room::planned(&journal, &fs, 2, DamonStat::Keep);
    let own = std::process::id();
    assert!(
        matches!(planned, Err(DamonError::InUse { pid: Some(pid) }) if pid == own),
        "{planned:?}"
    );
    assert_eq!(recover(&journal, OnConflict::Overwrite).unwrap(), Restored::default());
    session.stop().unwrap();
    assert_eq!(recover(&journal, OnConflict::Refuse).unwrap().put_back, []);
}

#[test]
fn recovery_fails_while_the_damon_lock_is_held() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let journal = journal(&dir, &fs);
    let session = Session::start(&fs, &journal, &specs(), DamonStat::Keep).unwrap();
    let killed = std::fs::read_dir(journal.dir()).unwrap().map(|file| file.unwrap().path());
    let killed: Vec<_> =
        killed.filter(|path| path.extension().is_some_and(|is| is == "json")).collect();
    let (own, none) = (format!("\"pid\":{}", std::process::id()), "\"pid\":4194304");
    for path in &killed {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&own), "{text}");
        std::fs::write(path, text.replace(&own, none)).unwrap();
    }
    let held = recover(&journal, OnConflict::Refuse);
    assert!(matches!(held, Err(DamonError::InUse { pid: Some(_) })), "{held:?}");
    drop(session);
}

#[test]
fn kdamonds_of_another_tool_that_look_like_ours_are_left_alone() {
    for kernel in KERNELS {
        let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(kernel));
        let ours = journal(&dir, &fs);
        let session = Session::start(&fs, &ours, &specs(), DamonStat::Pause).unwrap();
        // The contents of the disk after the process was killed, when another tool has taken DAMON.
        let killed = tempfile::tempdir().unwrap();
        let left = killed.path().join("journal");
        std::fs::create_dir(&left).unwrap();
        for file in std::fs::read_dir(ours.dir()).unwrap() {
            let file = file.unwrap().path();
            std::fs::copy(&file, left.join(file.file_name().unwrap())).unwrap();
        }
        fs.plant(&[(at("0/pid"), "9001"), (at("1/pid"), "9002")]);
        let (theirs, journal) = (fs.tree(), Journal::new(&left, &fs, "/"));
        let report = recover(&journal, OnConflict::Refuse).unwrap();
        assert!(report.put_back.is_empty() && !report.conflicts.is_empty(), "{report:?}");
        assert_eq!(fs.tree(), theirs);
        drop(session);
    }
}

#[test]
fn a_kernel_without_damon_reports_the_required_option() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::default());
    let error = Session::start(&fs, &journal(&dir, &fs), &specs(), DamonStat::Keep).unwrap_err();
    assert!(error.to_string().contains("CONFIG_DAMON_SYSFS"), "{error}");
}

#[test]
fn an_invalid_specification_writes_nothing() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux6_12));
    let mut specs = specs();
    specs[1].context.nr_regions.min = 2;
    let error = Session::start(&fs, &journal(&dir, &fs), &specs, DamonStat::Keep).unwrap_err();
    assert!(matches!(error, DamonError::Spec { index: 1, .. }), "{error}");
    assert_eq!((fs.writes().len(), dir.path().join("journal").exists()), (0, false));
}

#[test]
fn a_feature_trial_detects_features_and_restores_every_file() {
    for kernel in KERNELS {
        let has = kernel != Damon::Linux6_12;
        let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(kernel));
        let before = fs.tree();
        let found = offers::trial(&fs, &journal(&dir, &fs)).unwrap();
        assert!(found.has(Feature::Damon) && found.has(Feature::DamonMigrate));
        for feature in &offers::FEATURES[3..] {
            assert_eq!(found.has(*feature), has, "{feature:?} on {kernel:?}");
        }
        assert_eq!(fs.tree(), before);
    }
}

#[test]
fn process_sessions_are_rejected_on_a_kernel_without_vaddr_support() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::WithoutVaddr));
    let (before, journal) = (fs.tree(), journal(&dir, &fs));
    let specs = [Kdamond::process(std::process::id())];
    let error = Session::start(&fs, &journal, &specs, DamonStat::Pause).unwrap_err();
    assert!(matches!(error, DamonError::Unwatched { .. }), "{error}");
    assert_eq!(fs.tree(), before);
    assert!(!offers::trial(&fs, &journal).unwrap().has(Feature::DamonVaddr));
    let full = FakeFs::damon(Damon::Linux7_2);
    assert!(offers::trial(&full, &self::journal(&dir, &full)).unwrap().has(Feature::DamonVaddr));
    drop(
        Session::start(
            &fs,
            &journal,
            &[Kdamond::physical(&[AddrRange { start: 0, end: 1 << 30 }])],
            DamonStat::Pause,
        )
        .unwrap(),
    );
}

#[test]
fn a_feature_trial_does_not_disturb_existing_kdamonds() {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(Damon::Linux7_2));
    fs.plant(&[(at("nr_kdamonds"), "1"), (at("0/state"), "off")]);
    let error = offers::trial(&fs, &journal(&dir, &fs)).unwrap_err();
    assert!(matches!(error, DamonError::Held(_)), "{error}");
    assert_eq!(fs.writes(), []);
    assert!(!offers::detect(&fs, Asked::Recorded).has(Feature::DamonDests), "unknown, not claimed");
}
