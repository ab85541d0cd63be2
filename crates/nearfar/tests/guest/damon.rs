//! DAMON on real kernels: the assumptions of the unit tests' fake kernel hold, nodes are monitored, pages migrate, and
//! all settings are restored.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nearfar_kernel::balancing::{Migrations, NumaBalancing, numa_balancing, set_numa_balancing};
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::damon::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Intervals, Kdamond,
    Quotas, Scheme,
};
use nearfar_kernel::damon::{DamonError, DamonStat, KDAMONDS, Session, holders, offers, recover};
use nearfar_kernel::fake::{Damon, FakeFs};
use nearfar_kernel::features::Asked;
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::{Journal, OnConflict};
use nearfar_kernel::{ranges, residency};
use nearfar_topology::NodeId;

use crate::NEARFAR;
use crate::inside::{HOLD, STATE, await_up};

const STAT: &str = "sys/module/damon_stat/parameters/enabled";
pub(crate) const MIB: u64 = 1 << 20;
/// With this environment variable, this program starts DAMON and is killed. See [`killed`].
pub(crate) const KILLED: &str = "NEARFAR_TEST_DAMON_KILLED";

pub(crate) fn live() -> RootFs {
    RootFs::live().unwrap()
}

pub(crate) fn journal(fs: &RootFs) -> Journal<'_> {
    Journal::new(format!("{STATE}/journal"), fs, "/")
}

/// The contents of all of DAMON's files, except threads and their ids.
pub(crate) fn snapshot(fs: &RootFs) -> BTreeMap<String, String> {
    fn walk(fs: &RootFs, path: &str, found: &mut BTreeMap<String, String>) {
        for entry in fs.list(path).unwrap().unwrap_or_default() {
            let below = format!("{path}/{}", entry.name);
            if let Ok(Some(text)) = fs.read(&below) {
                found.insert(below, text);
            } else {
                walk(fs, &below, found);
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(fs, "sys/kernel/mm/damon", &mut found);
    for module in ["damon_stat", "damon_reclaim", "damon_lru_sort"] {
        let path = format!("sys/module/{module}/parameters/enabled");
        found.extend(fs.read(&path).unwrap().map(|text| (path, text)));
    }
    assert!(!found.is_empty());
    found
}

/// Each node's memory, looked at often, and counted.
fn watching(fs: &RootFs) -> Vec<Kdamond> {
    let nodes = ranges::of_nodes(fs).unwrap();
    let kdamond = |ranges: &Vec<AddrRange>| {
        let mut kdamond = Kdamond::physical(ranges);
        kdamond.context.intervals =
            Intervals { sample_us: 10_000, aggr_us: 200_000, update_us: 1_000_000 };
        kdamond.context.schemes = vec![Scheme::new(Action::Stat)];
        kdamond
    };
    nodes.values().map(kdamond).collect()
}

/// Sleeps as a program, for this one has no clock.
pub(crate) fn wait() {
    assert!(Command::new("sleep").arg("0.3").status().unwrap().success());
}

/// Waits with free near memory: programs that were read from disk fill it, and tiering of a cgroup leaves the memory of others
/// in place.
pub(crate) fn wait_with_room() {
    std::fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    wait();
}

pub(crate) fn each_nodes_memory_is_monitored_in_regions_and_settings_are_restored() {
    let fs = live();
    let (before, journal) = (snapshot(&fs), journal(&fs));
    let specs = watching(&fs);
    assert_eq!(specs.len(), 2);
    let session = Session::start(&fs, &journal, &specs, DamonStat::Pause).unwrap();
    for (index, spec) in specs.iter().enumerate() {
        assert!(session.thread(index).unwrap().is_some());
        let regions = session.regions(index, 0).unwrap();
        let whole = &spec.context.targets[0].regions;
        let size =
            |ranges: &mut dyn Iterator<Item = AddrRange>| ranges.map(AddrRange::len).sum::<u64>();
        let (seen, all) =
            (size(&mut regions.iter().map(|r| r.range)), size(&mut whole.iter().copied()));
        // The kernel rounds to its own unit at the edges.
        assert!(seen.abs_diff(all) < MIB, "{} MiB of {} MiB", seen >> 20, all >> 20);
        // 6.12 begins with a region a range and splits from there; later kernels split at once.
        assert!(!regions.is_empty() && regions.len() <= 1000, "{}", regions.len());
        assert!(regions.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
        let inside =
            |range: AddrRange| whole.iter().any(|w| w.start < range.end && range.start < w.end);
        let most = spec.context.intervals.nr_accesses_max();
        for region in regions {
            assert!(inside(region.range) && region.nr_accesses <= most, "{region:?}");
        }
        let stats = session.stats(index).unwrap()[0];
        assert!(stats.nr_tried > 0 && stats.sz_tried.0 >= all / 2, "{stats:?}");
    }
    session.stop().unwrap();
    assert_eq!(snapshot(&fs), before);
}

/// A program with 64 MiB in a cgroup of its own, on node 0; it uses them over and over, or holds them idle.
pub(crate) struct Holder {
    pub(crate) child: Child,
    pub(crate) group: String,
    directory: String,
}

impl Holder {
    /// With its memory on this node.
    pub(crate) fn start_at(name: &str, how: &str, node: u16) -> Self {
        Self::start_as(&live(), name, how, &format!("{NEARFAR} run -p {node} -- "))
    }

    /// With its memory on this node and no other.
    pub(crate) fn start_bound_to(name: &str, how: &str, node: u16) -> Self {
        Self::start_as(&live(), name, how, &format!("{NEARFAR} run -m {node} -- "))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn start(fs: &RootFs, name: &str, how: &str) -> Self {
        Self::start_as(fs, name, how, "")
    }

    fn start_as(fs: &RootFs, name: &str, how: &str, by: &str) -> Self {
        let hierarchy = Hierarchy::find(fs).unwrap();
        let mount = hierarchy.mount();
        std::fs::write(format!("{mount}/cgroup.subtree_control"), "+memory").unwrap();
        let directory = format!("{mount}/{name}");
        std::fs::create_dir_all(&directory).unwrap();
        let script = format!("echo $$ > \"$1\"/cgroup.procs; exec {by}\"$2\"");
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", &directory]).arg(&program).env(HOLD, how);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        await_up(&mut child);
        let group = hierarchy.named(fs, name).unwrap();
        assert_eq!(hierarchy.of_process(fs, child.id()).unwrap(), group);
        assert_eq!(hierarchy.members(fs, &group).unwrap(), [child.id()]);
        Self { child, group, directory }
    }

    /// MiB on each node: as the process has them, and as its cgroup counts them.
    pub(crate) fn mib(&self, fs: &RootFs) -> [[u64; 2]; 2] {
        let process = residency::of_process(fs, self.child.id());
        let group = Hierarchy::find(fs).unwrap().numa_stat(fs, &self.group).unwrap();
        [0, 1].map(|node| {
            let node = NodeId(node);
            let bytes = process.nodes.get(&node).map_or(0, |bytes| bytes.0);
            [bytes >> 20, group.get(&node).map_or(0, |memory| memory.anon.0) >> 20]
        })
    }

    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        self.remove();
    }

    /// Removes the cgroup of one that has ended.
    pub(crate) fn remove(self) {
        std::fs::remove_dir(&self.directory).unwrap();
    }
}

/// Migrates the holder's memory between the nodes until enough has moved, and checks the counters.
fn moved(fs: &RootFs, holder: &Holder, action: Action, [from, to]: [u16; 2]) {
    let journal = journal(fs);
    let nodes = ranges::of_nodes(fs).unwrap();
    let mut kdamond = Kdamond::physical(&nodes[&NodeId(from)]);
    kdamond.context.intervals =
        Intervals { sample_us: 10_000, aggr_us: 200_000, update_us: 1_000_000 };
    kdamond.context.nr_regions = Bounds { min: 100, max: 1000 };
    let hot = action == Action::MigrateHot;
    let nr_accesses = if hot { Bounds::from(1) } else { Bounds::just(0) };
    let ours = FilterType::Memcg(holder.group.clone());
    kdamond.context.schemes = vec![Scheme {
        destination: Destination::Node(NodeId(to)),
        access_pattern: AccessPattern { nr_accesses, ..AccessPattern::default() },
        quotas: Quotas { bytes: 1 << 30, reset_interval_ms: 1000, ..Quotas::default() },
        filters: vec![Filter { what: ours, matching: false, allow: false }],
        ..Scheme::new(action)
    }];
    let before = Migrations::read(fs).unwrap();
    let session = Session::start(fs, &journal, &[kdamond], DamonStat::Pause).unwrap();
    let mut mib = holder.mib(fs);
    for _ in 0..100 {
        if mib[usize::from(to)][0] >= 56 {
            break;
        }
        wait();
        mib = holder.mib(fs);
    }
    let stats = session.stats(0).unwrap()[0];
    session.stop().unwrap();
    let since = Migrations::read(fs).unwrap().since(&before);
    println!("{action:?} {from} to {to}: MiB by node (process, cgroup) {mib:?}, {stats:?}");
    let [process, group] = mib[usize::from(to)];
    assert!(process >= 56 && process.abs_diff(group) <= 8, "{mib:?} {stats:?}");
    assert!(stats.sz_applied.0 >= 50 * MIB, "{stats:?}");
    assert!(since.pgmigrate_success >= 50 * MIB / 4096 && since.demoted() == 0, "{since:?}");
}

pub(crate) fn cold_memory_of_a_cgroup_is_demoted_and_hot_memory_promoted() {
    let fs = live();
    let (before, journal) = (snapshot(&fs), journal(&fs));
    // Else the kernel would bring used pages near by itself.
    set_numa_balancing(&journal, "test", NumaBalancing::OFF).unwrap();
    let holder = Holder::start(&fs, "cold", "input");
    assert!(holder.mib(&fs)[0][0] >= 60, "{:?}", holder.mib(&fs));
    moved(&fs, &holder, Action::MigrateCold, [0, 1]);
    holder.end();
    let holder = Holder::start(&fs, "hot", "touch");
    moved(&fs, &holder, Action::MigrateHot, [0, 1]);
    moved(&fs, &holder, Action::MigrateHot, [1, 0]);
    holder.end();
    journal.restore("test", OnConflict::Refuse).unwrap();
    assert_ne!(numa_balancing(&fs).unwrap(), Some(NumaBalancing::OFF), "it was on");
    assert_eq!(snapshot(&fs), before);
}

pub(crate) fn damon_stat_is_named_paused_and_resumed() {
    let fs = live();
    let (before, journal) = (snapshot(&fs), journal(&fs));
    assert_eq!(fs.read(STAT).unwrap().as_deref(), Some("Y\n"));
    let found = holders(&fs).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let error = Session::start(&fs, &journal, &watching(&fs), DamonStat::Keep).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DamonError::Held(_)) && text.contains("damon_stat"), "{text}");
    assert_eq!(snapshot(&fs), before);
    let session = Session::start(&fs, &journal, &watching(&fs), DamonStat::Pause).unwrap();
    assert_eq!(fs.read(STAT).unwrap().as_deref(), Some("N\n"));
    session.stop().unwrap();
    assert_eq!(snapshot(&fs), before);
    assert_eq!(holders(&fs).unwrap().len(), 1, "it runs again");
}

pub(crate) fn another_programs_kdamond_is_named_and_left_alone() {
    let fs = live();
    let (journal, nr) = (journal(&fs), format!("{KDAMONDS}/nr_kdamonds"));
    fs.write(&nr, "1").unwrap();
    let before = snapshot(&fs);
    let error = Session::start(&fs, &journal, &watching(&fs), DamonStat::Pause).unwrap_err();
    assert!(error.to_string().contains("off, configured"), "{error}");
    assert_eq!(snapshot(&fs), before);
    fs.write(&nr, "0").unwrap();
}

pub(crate) fn btf_types_show_the_same_features_of_damon_as_a_trial() {
    let fs = live();
    let before = snapshot(&fs);
    let tried = offers::trial(&fs, &journal(&fs)).unwrap();
    assert_eq!(offers::detect(&fs, Asked::Live), tried);
    assert_eq!(snapshot(&fs), before);
}

pub(crate) fn changes_take_effect_while_damon_runs() {
    let fs = live();
    let (before, journal) = (snapshot(&fs), journal(&fs));
    let mut specs = watching(&fs);
    specs.truncate(1);
    let quotas = Quotas { bytes: 4 << 20, reset_interval_ms: 1000, ..Quotas::default() };
    let cold = Scheme { quotas, ..Scheme::new(Action::Stat) };
    specs[0].context.schemes.push(cold);
    let mut session = Session::start(&fs, &journal, &specs, DamonStat::Pause).unwrap();
    let quota =
        |session: &Session<'_>| session.effective_quotas(0).unwrap()[1].map(|bytes| bytes.0);
    let until = |session: &Session<'_>, wanted| {
        for _ in 0..40 {
            if quota(session) == Some(wanted) {
                break;
            }
            wait();
        }
        assert_eq!(quota(session), Some(wanted));
    };
    until(&session, 4 << 20);
    // There are no files while the kernel rewrites them.
    let oldest = |session: &Session<'_>| loop {
        if let Some(age) = session.regions(0, 0).unwrap().iter().map(|region| region.age).max() {
            break age;
        }
    };
    while oldest(&session) < 6 {}
    let age = oldest(&session);
    assert!(session.adjust(0, |k| k.context.schemes[1].quotas.bytes = 2 << 20).unwrap());
    assert!(oldest(&session) >= age, "a commit forgets nothing");
    until(&session, 2 << 20);
    session.stop().unwrap();
    assert_eq!(snapshot(&fs), before);
}

/// The part of [`settings_of_a_killed_session_are_restored_by_the_next`] that runs in the killed process.
pub(crate) fn killed() {
    let fs = live();
    let journal = journal(&fs);
    let _session = Session::start(&fs, &journal, &watching(&fs), DamonStat::Pause).unwrap();
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
}

pub(crate) fn settings_of_a_killed_session_are_restored_by_the_next() {
    let fs = live();
    let (before, journal) = (snapshot(&fs), journal(&fs));
    let die = || {
        let status = Command::new(std::env::current_exe().unwrap()).env(KILLED, "1").status();
        assert_eq!(status.unwrap().code(), None);
        assert_ne!(snapshot(&fs), before, "it left something");
    };
    die();
    let put_back = recover(&journal, OnConflict::Refuse).unwrap().put_back;
    assert!(put_back.len() >= 3, "{put_back:?}");
    assert_eq!(snapshot(&fs), before);
    die();
    Session::start(&fs, &journal, &watching(&fs), DamonStat::Pause).unwrap().stop().unwrap();
    assert_eq!(snapshot(&fs), before);
}

/// Writes to both kernels, in order: a file below the kdamonds and a word. `S` is the first scheme's directory;
/// `damon_stat` is written in its own place.
const STEPS: &str = "\
nr_kdamonds x|nr_kdamonds 1|0/state on|0/state off|0/state commit|0/state nonsense|0/contexts/nr_contexts 2|\
0/contexts/nr_contexts 1|0/contexts/0/operations maddr|0/contexts/0/operations paddr|0/contexts/0/targets/nr_targets 1|\
0/contexts/0/targets/0/regions/nr_regions 1|0/contexts/0/targets/0/regions/0/start 4294967296|\
0/contexts/0/targets/0/regions/0/end 8589934592|0/contexts/0/targets/0/regions/0/end far|\
0/contexts/0/schemes/nr_schemes 1|S/action fly|S/action migrate_hot|S/action collapse|S/action stat|S/target_nid 1|\
S/dests/nr_dests 1|S/quotas/bytes 18446744073709551615|S/quotas/bytes many|S/quotas/goal_tuner temporal|\
S/quotas/goals/nr_goals 1|S/quotas/goals/0/target_metric node_mem_used_bp|\
S/quotas/goals/0/target_metric node_eligible_mem_bp|S/quotas/goals/0/target_metric nonsense|\
S/quotas/goals/0/target_metric user_input|S/filters/nr_filters 1|S/filters/0/type young|S/filters/0/type tall|\
S/filters/0/matching 1|S/filters/0/matching maybe|S/filters/0/allow Y|S/filters/nr_filters 0|\
S/ops_filters/nr_filters 1|S/ops_filters/0/type addr|S/ops_filters/0/type anon|S/core_filters/nr_filters 1|\
S/core_filters/0/type anon|S/core_filters/0/type addr|S/core_filters/nr_filters 0|S/watermarks/metric free_mem_rate|\
S/watermarks/metric none|0/contexts/0/monitoring_attrs/nr_regions/min 2|0/state on|damon_stat N|0/state on|\
0/contexts/0/monitoring_attrs/nr_regions/min 10|0/state on|0/state on|0/state commit|0/state update_schemes_stats|\
0/state nonsense|nr_kdamonds 0|damon_stat Y|0/state off|nr_kdamonds 0|damon_stat Y";

pub(crate) fn the_fake_kernel_answers_like_the_real_one() {
    let fs = live();
    let (before, new) = (snapshot(&fs), Path::new("/sys/module/damon_stat").exists());
    let fake = FakeFs::damon(if new { Damon::Linux7_2 } else { Damon::Linux6_12 });
    let mut different = Vec::new();
    for step in STEPS.split('|') {
        let (file, text) = step.split_once(' ').unwrap();
        let path = match file.strip_prefix("S/") {
            Some(file) => format!("{KDAMONDS}/0/contexts/0/schemes/0/{file}"),
            None if file != "damon_stat" => format!("{KDAMONDS}/{file}"),
            None if new => STAT.to_string(),
            None => continue,
        };
        let answer = |fs: &dyn Fs| {
            let errno = fs.write(&path, text).err().and_then(|error| error.errno());
            (errno, fs.read(&path).unwrap().map(|text| text.trim().to_string()))
        };
        let (real, told) = (answer(&fs), answer(&fake));
        if real != told {
            different.push(format!("{step}: {real:?}, of the fake {told:?}"));
        }
    }
    assert!(different.is_empty(), "{different:#?}");
    assert_eq!(snapshot(&fs), before);
}
