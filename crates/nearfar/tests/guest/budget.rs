//! Budgets of near memory on real kernels: cgroups under load stay within their limits, also while they grow, and other
//! cgroups are left alone.

use nearfar_kernel::fs::RootFs;
use rustix::fs::XattrFlags;

use crate::damon::{Holder, wait, wait_with_room};
use crate::inside::{done, error, nearfar};
use crate::notified::notifies;
use crate::tier::{START, status, system};

const MIB: u64 = 1 << 20;

/// Near memory of a holder's cgroup.
fn near(holder: &Holder) -> u64 {
    let fs = RootFs::live().unwrap();
    let hierarchy = nearfar_kernel::cgroup::Hierarchy::find(&fs).unwrap();
    let nodes = hierarchy.numa_stat(&fs, &holder.group).unwrap();
    nodes.get(&nearfar_topology::NodeId(0)).map_or(0, |memory| memory.total().0)
}

fn await_below(holder: &Holder, limit: u64) {
    for _ in 0..200 {
        if near(holder) <= limit {
            return;
        }
        wait();
    }
    let now = near(holder);
    assert!(now <= limit, "{} MiB near, {}", now / MIB, done(&["tier", "status"]));
}

pub(crate) fn two_cgroups_under_load_stay_within_two_per_cent_of_their_budgets() {
    let before = system();
    let small = Holder::start_at("small", "grow", 0);
    let large = Holder::start_at("large", "grow", 0);
    let other = Holder::start_at("other", "touch", 0);
    let limits = [112 * MIB, 144 * MIB];
    let untouched = near(&other);
    done(
        &[&START[..], &["--cgroup", "small", "--near-max", "112m", "--near-max", "/large=144m"]]
            .concat(),
    );
    for (holder, limit) in [&small, &large].into_iter().zip(limits) {
        await_below(holder, limit);
    }
    let mut peaks = [0, 0];
    for _ in 0..60 {
        for (at, holder) in [&small, &large].into_iter().enumerate() {
            peaks[at] = near(holder).max(peaks[at]);
        }
        wait();
    }
    let ends = [near(&small), near(&large)];
    let shown = status();
    println!("peaks {peaks:?}, at the end {ends:?} of {limits:?}: {shown}");
    for at in [0, 1] {
        let (limit, peak, end) = (limits[at], peaks[at], ends[at]);
        assert!(peak <= limit + limit / 50, "{peak} of {limit}: {shown}");
        assert!(end >= limit - limit / 25, "{end} of {limit}: {shown}");
    }
    assert!(near(&other) >= untouched - MIB, "others are left alone");
    assert_eq!(shown["schema"], "nearfar.tier-budgets/1");
    assert_eq!(shown["groups"][0]["cgroup"], "/large");
    assert!(shown["groups"][0]["demoted_bytes"].as_u64().unwrap() >= 8 * MIB, "{shown}");
    assert!(done(&["tier", "status"]).contains("/small: "));
    let again = nearfar(&START).output().unwrap();
    assert!(!again.status.success() && error(&again).contains("already running"), "{again:?}");
    // A service that is restarted has a new cgroup of the same path.
    small.end();
    let is_absent = || status()["groups"].to_string().contains("does not exist at present");
    for _ in 0..60 {
        if is_absent() {
            break;
        }
        wait();
    }
    assert!(is_absent(), "{}", status());
    let small = Holder::start_at("small", "grow", 0);
    await_below(&small, limits[0]);
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    [small, large, other].into_iter().for_each(Holder::end);
}

pub(crate) fn budgets_of_cgroup_attributes_are_set_and_removed_with_them() {
    let before = system();
    let holder = Holder::start_at("marked", "touch", 0);
    done(&[&START[..], &["--near-attributes"]].concat());
    let shown: serde_json::Value =
        serde_json::from_str(&done(&["ps", "--cgroups", "--json"])).unwrap();
    let cgroups = shown["cgroups"].as_array().unwrap();
    let marked = cgroups.iter().find(|one| one["cgroup"] == "/marked").unwrap();
    assert!(marked["near_bytes"].as_u64().unwrap() >= 60 * MIB, "{shown}");
    assert!(done(&["ps", "--cgroups"]).contains("  /marked\n"));
    let directory = "/sys/fs/cgroup/marked";
    let set = |value: &str| {
        let name = "user.nearfar.near_max";
        rustix::fs::setxattr(directory, name, value.as_bytes(), XattrFlags::empty()).unwrap();
    };
    set("25165824");
    await_below(&holder, 24 * MIB);
    set("fat");
    for _ in 0..40 {
        wait();
    }
    let shown = status();
    assert!(shown["problems"][0].as_str().unwrap().contains("cgroup /marked: `fat`"), "{shown}");
    set("50331648");
    for _ in 0..100 {
        if near(&holder) >= 40 * MIB {
            break;
        }
        wait_with_room();
    }
    assert!(near(&holder) >= 40 * MIB, "what is free of the budget is filled: {}", status());
    holder.end();
    for _ in 0..60 {
        if status()["groups"].as_array().unwrap().is_empty() {
            break;
        }
        wait();
    }
    assert_eq!(status()["groups"], serde_json::json!([]));
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
}

pub(crate) fn the_budget_service_notifies_systemd_when_ready_alive_and_stopping() {
    let before = system();
    let service = [&START[..], &["--foreground", "--near-attributes"]].concat();
    notifies(&mut nearfar(&service), "STATUS=keeping budgets of near memory");
    assert_eq!(system(), before);
}

pub(crate) fn impossible_budgets_are_refused_before_anything_is_set() {
    let before = system();
    let holder = Holder::start_at("a", "input", 0);
    for (arguments, says) in [
        (&["--near-max", "1g"][..], "names no cgroup; write --near-max PATH=SIZE"),
        (&["--near-max", "/none=1g"], "no cgroup /none"),
        (&["--cgroup", "a", "--near-max", "900g"], "more than all near memory of this machine"),
        (
            &["--cgroup", "a", "--near-max", "1g", "--near-min", "2g"],
            "near-min 2 GiB is above near-max 1 GiB",
        ),
        (&["--cgroup", "a", "--near-max", "1g", "--near-max", "/a=2g"], "cgroup /a has two"),
        (&["--cgroup", "a", "--near-max", "much"], "`much`"),
        (&["--near-max", "/a=1g", "--pid", "1"], "--pid"),
        (&["--near-max", "/a=1g", "--kind", "1=dram", "--near", "0-1"], "--near"),
    ] {
        let output = nearfar(&[&START[..], arguments].concat()).output().unwrap();
        let said = error(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
        assert_eq!(system(), before);
    }
    holder.end();
}
