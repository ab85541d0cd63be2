//! Moving the memory of running processes: checks before a page moves, the work with its progress, and the reasons why
//! pages stayed.

use std::collections::BTreeMap;
use std::time::Duration;

use nearfar_kernel::clock::{self, Stopwatch};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::moving::{Migration, Next, Outcome, Owner, Tally};
use nearfar_topology::{Bytes, Nanoseconds, NodeId, NodeSet, Topology};

pub mod processes;

use crate::interrupt;
use crate::progress::StatusLine;

/// The free memory of nodes.
#[must_use]
pub fn free(machine: &Topology, nodes: &NodeSet) -> BTreeMap<NodeId, Bytes> {
    let of = |node| machine.nodes.get(&node).map_or(Bytes(0), |node| node.free);
    nodes.iter().map(|node| (node, of(node))).collect()
}

/// Refuses a migration of `bytes` that the targets have no room for.
///
/// # Errors
/// Their free memory is less.
pub fn has_room(machine: &Topology, targets: &NodeSet, bytes: Bytes) -> anyhow::Result<()> {
    let free = free(machine, targets);
    let sum = Bytes(free.values().fold(0, |sum, free| sum.saturating_add(free.0)));
    let list: Vec<String> =
        free.iter().map(|(node, free)| format!("{free} on node {node}")).collect();
    anyhow::ensure!(
        bytes <= sum,
        "{bytes} are to be moved, and {sum} are free: {}",
        list.join(", ")
    );
    Ok(())
}

/// Refuses targets that the process may not use.
///
/// # Errors
/// Its cpuset or its binding excludes some, or it can't be opened.
pub fn may_use(pid: u32, targets: &NodeSet) -> anyhow::Result<()> {
    let owner = Owner::open(pid)?;
    let Some(allowed) = owner.nodes_allowed() else { return Ok(()) };
    let denied: NodeSet = targets.without(&allowed);
    anyhow::ensure!(
        denied.is_empty(),
        "process {pid} may use memory of nodes {allowed} only, by its cpuset or its own binding; node {denied} is not among \
         them"
    );
    Ok(())
}

/// Migrates; returns whether it was not interrupted.
///
/// # Errors
/// Signals can't be listened for.
pub fn carry_out(migration: &mut Migration, fs: &dyn Fs, watch: Stopwatch) -> anyhow::Result<bool> {
    let line = StatusLine::new();
    interrupt::listen()?;
    let now = || Nanoseconds(u64::try_from(watch.elapsed().as_nanos()).unwrap_or(u64::MAX));
    loop {
        if interrupt::check().is_err() {
            return Ok(false);
        }
        let at = now();
        match migration.step(fs, at) {
            Next::Done => return Ok(true),
            Next::Now => {}
            Next::At(next) => {
                clock::sleep(Duration::from_nanos(next.0.saturating_sub(at.0).min(200_000_000)));
            }
        }
        let (done, all) = migration.progress();
        let moved = migration.tally().bytes();
        line.show(format_args!("{done} of {all} visited, {moved} moved"));
    }
}

/// Pages that stayed, by reason.
#[must_use]
pub fn stayed(tally: &Tally) -> BTreeMap<&'static str, u64> {
    Outcome::ALL
        .iter()
        .filter(|outcome| !matches!(outcome, Outcome::Moved | Outcome::There | Outcome::Absent))
        .map(|outcome| (outcome.word(), tally.count(*outcome)))
        .filter(|(_, count)| *count > 0)
        .collect()
}
