//! Pages of another process are migrated, huge ones split and collapsed, on real kernels; the results are read from
//! each page's state.

use std::os::unix::process::ExitStatusExt as _;

use nearfar_kernel::huge;
use nearfar_kernel::moving::{Mover, Outcome, Owner, Rate, Request, Shared};
use nearfar_policy::traffic::{PIECES, Page, Process};
use nearfar_topology::{BytesPerSecond, Nanoseconds, NodeId};

use crate::damon::{Holder, live};
use crate::inside::{done, error, nearfar};
use crate::tier::mib_on;

const PAGES: u64 = (64 << 20) / 4096;

/// The first page of the 64 MiB that a program holds.
fn held(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        (end - start >= 64 << 20).then_some(start / 4096)
    };
    maps.lines().find_map(range).unwrap()
}

fn mover() -> Mover {
    Mover::new(Rate::new(BytesPerSecond(1 << 34), Nanoseconds(0)), Shared::Move)
}

/// Asks for all of a program's pages on `to`, and moves until nothing waits, or `until` says so.
fn move_all(mover: &mut Mover, pid: u32, to: u16, mut until: impl FnMut(&Mover) -> bool) {
    let first = held(pid);
    let page = |number| Page { process: Process(pid), number };
    mover.ask((first..first + PAGES).map(|number| Request {
        page: page(number),
        huge: false,
        from: None,
        to: NodeId(to),
    }));
    let mut now = 0;
    while mover.waiting() > 0 && !until(mover) {
        now += 100_000_000;
        mover.step(Nanoseconds(now));
    }
}

pub(crate) fn pages_of_another_process_reach_their_nodes_and_are_counted() {
    let holder = Holder::start_at("held", "input", 1);
    let mut mover = mover();
    assert!(mib_on(holder.pid(), 1) >= 60);
    move_all(&mut mover, holder.pid(), 0, |_| false);
    let tally = mover.tally().clone();
    assert!(mib_on(holder.pid(), 0) >= 60, "{tally:?}");
    assert!(tally.count(Outcome::Moved) >= PAGES - 64, "{tally:?}");
    assert_eq!(tally.pages.values().sum::<u64>(), PAGES, "each once: {tally:?}");
    // Again: they are there; and a node that is not there takes none.
    move_all(&mut mover, holder.pid(), 0, |_| false);
    assert!(mover.tally().count(Outcome::There) >= PAGES - 64, "{:?}", mover.tally());
    move_all(&mut mover, holder.pid(), 7, |_| false);
    assert_eq!(mover.tally().count(Outcome::NotAllowed), PAGES);
    assert_eq!(mover.tally().bytes(), tally.bytes());
    holder.end();
}

pub(crate) fn the_move_command_moves_a_programs_memory_and_reverts_it() {
    let holder = Holder::start_at("held", "input", 0);
    let (pid, saved) = (holder.pid().to_string(), "/tmp/moved.json");
    let _ = std::fs::remove_file(saved);
    // Half of it is elsewhere, so that the way back is not to one node.
    let mut mover = mover();
    let half = held(holder.pid())..held(holder.pid()) + PAGES / 2;
    let process = Process(holder.pid());
    let request = |number| {
        let page = Page { process, number };
        Request { page, huge: false, from: None, to: NodeId(1) }
    };
    mover.ask(half.map(request));
    let mut now = 0;
    while mover.waiting() > 0 {
        now += 100_000_000;
        mover.step(Nanoseconds(now));
    }
    let before = [mib_on(holder.pid(), 0), mib_on(holder.pid(), 1)];
    assert!(before.iter().all(|mib| *mib >= 28), "{before:?}");
    let planned = done(&["move", &pid, "far", "--dry-run"]);
    assert!(planned.contains(&format!("of process {pid}; now: ")), "{planned}");
    assert_eq!([mib_on(holder.pid(), 0), mib_on(holder.pid(), 1)], before, "{planned}");
    let said = done(&["move", &pid, "far", "--save", saved]);
    assert!(said.contains("nearfar move --undo /tmp/moved.json"), "{said}");
    assert!(mib_on(holder.pid(), 1) >= 60, "{said}");
    let shown = done(&["move", "--undo", saved, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let after = [mib_on(holder.pid(), 0), mib_on(holder.pid(), 1)];
    assert!(
        before[0].abs_diff(after[0]) <= 1 && before[1].abs_diff(after[1]) <= 1,
        "{before:?} {after:?} {shown}"
    );
    assert!(shown["processes"][0]["moved_bytes"].as_u64().unwrap() >= 28 << 20, "{shown}");
    holder.end();
    let ended = nearfar(&["move", "--undo", saved]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = error(&ended);
    assert!(said.contains("has ended") && said.contains("nothing is left to move back"), "{said}");
}

pub(crate) fn a_move_to_a_full_node_stops_and_loses_nothing() {
    let holders: Vec<Holder> =
        (0..4).map(|number| Holder::start_at(&format!("held{number}"), "input", 1)).collect();
    let mut mover = mover();
    for holder in &holders {
        move_all(&mut mover, holder.pid(), 0, |_| false);
    }
    let tally = mover.tally();
    assert!(tally.count(Outcome::Full) > 0, "256 MiB did take 256 MiB: {tally:?}");
    assert!(tally.count(Outcome::Moved) > 0 && tally.retried > 0, "{tally:?}");
    let near: u64 = holders.iter().map(|holder| mib_on(holder.pid(), 0)).sum();
    let told = tally.bytes().0 >> 20;
    assert!(near.abs_diff(told) <= 8, "{near} MiB are near, {told} are told as moved: {tally:?}");
    for holder in &holders {
        let all = mib_on(holder.pid(), 0) + mib_on(holder.pid(), 1);
        assert!((60..=80).contains(&all), "{all} MiB, of which 64 are held");
    }
    holders.into_iter().for_each(Holder::end);
}

pub(crate) fn a_move_stops_if_the_process_ends_or_its_pid_is_reused() {
    let mut holder = Holder::start_at("held", "input", 1);
    let pid = holder.pid();
    let mut mover = mover();
    let mut batches = 0;
    move_all(&mut mover, pid, 0, |_| {
        batches += 1;
        if batches == 3 {
            holder.child.kill().unwrap();
            assert_eq!(holder.child.wait().unwrap().signal(), Some(9));
        }
        false
    });
    let tally = mover.tally();
    assert!(tally.count(Outcome::Moved) > 0 && tally.count(Outcome::Gone) > 0, "{tally:?}");
    assert_eq!(tally.pages.values().sum::<u64>(), PAGES, "{tally:?}");
    assert!(Owner::open(pid).is_err());
    holder.remove();
}

/// KiB of a program's memory in huge pages.
fn huge_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

pub(crate) fn a_huge_page_of_another_process_is_split_joined_and_moved_whole() {
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let before = std::fs::read_to_string(ENABLED).unwrap();
    let chosen = before.split(['[', ']']).nth(1).unwrap();
    std::fs::write(ENABLED, "always").unwrap();
    let holder = Holder::start_at("held", "input", 1);
    std::fs::write(ENABLED, chosen).unwrap();
    let found = huge::offers().unwrap();
    assert_eq!(found, huge::Offers { split: true, join: true });
    let (pid, whole) = (holder.pid(), huge_kib(holder.pid()));
    assert!(whole >= 40 << 10, "{whole} KiB in huge pages");
    let owner = Owner::open(pid).unwrap();
    // In the middle, as the ends may be small.
    let page = Page { process: Process(pid), number: held(pid) + PAGES / 2 }.whole();
    huge::split(&owner, page).unwrap();
    assert_eq!(huge_kib(pid), whole - 2048);
    huge::join(&owner, page).unwrap();
    assert_eq!(huge_kib(pid), whole);
    // Any piece of a huge page selects all of it.
    let mut mover = mover();
    let piece = Page { number: page.number + PIECES - 1, ..page };
    let near = mib_on(pid, 0);
    mover.ask([Request { page: piece, huge: true, from: None, to: NodeId(0) }]);
    mover.step(Nanoseconds(1_000_000_000));
    assert_eq!(mover.tally().bytes().0, 2 << 20, "{:?}", mover.tally());
    assert_eq!((mib_on(pid, 0), huge_kib(pid)), (near + 2, whole));
    holder.end();
}

pub(crate) fn bound_memory_stays_on_its_nodes() {
    let holder = Holder::start_bound_to("held", "input", 1);
    let mut mover = mover();
    move_all(&mut mover, holder.pid(), 0, |_| false);
    assert_eq!(mover.tally().count(Outcome::NotAllowed), PAGES, "{:?}", mover.tally());
    assert!(mib_on(holder.pid(), 1) >= 60);
    holder.end();
}

pub(crate) fn a_move_respects_the_cpuset() {
    let holder = Holder::start_at("held", "input", 1);
    let mount = nearfar_kernel::cgroup::Hierarchy::find(&live()).unwrap().mount();
    std::fs::write(format!("{mount}/cgroup.subtree_control"), "+cpuset").unwrap();
    std::fs::write(format!("{mount}/held/cpuset.mems"), "1").unwrap();
    let mut mover = mover();
    move_all(&mut mover, holder.pid(), 0, |_| false);
    assert_eq!(mover.tally().count(Outcome::NotAllowed), PAGES, "{:?}", mover.tally());
    assert!(mib_on(holder.pid(), 1) >= 60);
    holder.end();
    std::fs::write(format!("{mount}/cgroup.subtree_control"), "-cpuset").unwrap();
}
