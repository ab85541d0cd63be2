//! The live system as the control loop accesses it: owners of pages, free memory of nodes, migration, splitting of huge
//! pages.

use std::collections::BTreeMap;

use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::moving::{Done, Mover, Outcome, Owner, Rate, Request, Shared};
use nearfar_kernel::{huge, meminfo, zones};
use nearfar_policy::ports::{Move, PageMover, Placed, Targets};
use nearfar_policy::traffic::{Memory, Page, Process};
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeId};

use super::other_movers;
use super::scope::Scope;

/// Access to the live system.
#[derive(Debug)]
pub(super) struct Live<'a> {
    fs: &'a RootFs,
    scope: &'a Scope,
    nodes: Vec<NodeId>,
    pub(super) mover: Mover,
    /// Whether huge pages can be split here, or the reason why not.
    pub(super) splits: Result<(), String>,
    /// Huge pages split, and those for which that failed.
    pub(super) split: (u64, u64),
    owner: Option<(Process, Owner)>,
    /// The hierarchy of pods, if pods are excluded; each process is checked once a second.
    pods: Option<Hierarchy>,
    alone: std::cell::RefCell<BTreeMap<Process, bool>>,
}

impl<'a> Live<'a> {
    pub(super) fn new(
        fs: &'a RootFs,
        scope: &'a Scope,
        nodes: Vec<NodeId>,
        (rate, now): (BytesPerSecond, Nanoseconds),
    ) -> Self {
        let splits = match huge::offers() {
            Ok(found) if found.split => Ok(()),
            Ok(_) => Err("this kernel does not split huge pages when asked to".into()),
            Err(error) => Err(error.to_string()),
        };
        let pods = other_movers::kubelet(fs).and_then(|_| Hierarchy::find(fs).ok());
        Self {
            fs,
            scope,
            nodes,
            mover: Mover::new(Rate::new(rate, now), Shared::Move),
            splits,
            split: (0, 0),
            owner: None,
            pods,
            alone: std::cell::RefCell::default(),
        }
    }

    fn split_now(&mut self, page: Page) -> std::io::Result<()> {
        if self.owner.as_ref().is_none_or(|(process, _)| *process != page.process) {
            let owner = Owner::open(page.process.0).map_err(std::io::Error::other)?;
            self.owner = Some((page.process, owner));
        }
        match &self.owner {
            Some((_, owner)) if owner.is_same() => huge::split(owner, page),
            _ => {
                self.owner = None;
                Err(std::io::ErrorKind::NotFound.into())
            }
        }
    }

    fn is_left_alone(&self, process: Process) -> bool {
        let Some(pods) = &self.pods else { return false };
        let of = pods.of_process(self.fs, process.0);
        of.is_ok_and(|path| other_movers::is_pod(&path))
    }
}

impl PageMover for Live<'_> {
    type Error = anyhow::Error;

    fn targets(&mut self) -> anyhow::Result<Targets> {
        self.alone.borrow_mut().clear();
        self.scope.now(self.fs)
    }

    fn memory(&mut self) -> anyhow::Result<Vec<Memory>> {
        let free = zones::usable_free(self.fs)?;
        let memory = |node: &NodeId| {
            let known = meminfo::of_node(self.fs, *node);
            let total = known.as_ref().map_or(Bytes(0), |known| known.total);
            Memory { node: *node, total, free: free.get(node).copied().unwrap_or(Bytes(0)) }
        };
        Ok(self.nodes.iter().map(memory).collect())
    }

    fn ask(&mut self, moves: Vec<Move>) {
        let request = |Move { page, huge, from, to }| Request { page, huge, from, to };
        self.mover.ask(moves.into_iter().map(request));
    }

    fn split(&mut self, page: Page) -> bool {
        let done = self.splits.is_ok() && self.split_now(page).is_ok();
        *(if done { &mut self.split.0 } else { &mut self.split.1 }) += 1;
        done
    }

    fn work(&mut self, now: Nanoseconds) -> Vec<Placed> {
        self.mover.step(now).into_iter().map(placed).collect()
    }

    fn next(&self) -> Option<Nanoseconds> {
        self.mover.next()
    }

    fn waiting(&self) -> usize {
        self.mover.waiting()
    }

    fn forget(&mut self) {
        self.mover.forget();
    }

    fn leaves_alone(&self, process: Process) -> bool {
        let own = process.0 == std::process::id();
        let mut alone = self.alone.borrow_mut();
        own || *alone.entry(process).or_insert_with(|| self.is_left_alone(process))
    }
}

fn placed(done: Done) -> Placed {
    let Request { page, huge, from, to } = done.request;
    let on = match done.outcome {
        Outcome::Moved | Outcome::There => Some(to),
        Outcome::Absent | Outcome::Gone => None,
        _ => done.from,
    };
    Placed { asked: Move { page, huge, from, to }, on, moved: done.outcome == Outcome::Moved }
}
