//! Migrates pages of other processes to given nodes: in batches, at a limited rate, with the outcome of each page.
//!
//! move_pages(2) reports little when something fails. On success it has written the node of each page, or an errno. If
//! pages of a group (adjacent ones with the same target node) could not be migrated, or a node is full, it stops there:
//! it reports nothing about that group, of which some pages may have been migrated nevertheless, nor about later pages
//! (mm/migrate.c, do_pages_move). So nodes are queried before and after, and pages that were not attempted are retried.
//! A page of several processes migrates only with [`Shared::Move`].
//!
//! Constraints are respected: nodes outside the process's cpuset or outside its own binding are never requested. Pages
//! that were busy, or had no room, are retried later, at most a quarter of a batch. A process that has ended, or become
//! another program, is skipped ([`Owner`]). Migration runs in the calling thread: one call of [`Mover::step`] migrates
//! one batch.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use libc::c_int;
use nearfar_policy::traffic::{PAGE, PIECES, Page, Process};
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeId, NodeSet};

use crate::sys::remote as sys;

mod batch;
mod migration;
mod owner;
mod rate;
mod spread;
#[cfg(test)]
mod tests;

pub use migration::{Migration, Next, Run};
pub use owner::{Owner, OwnerError};
pub use rate::Rate;
pub use spread::Spread;

/// Maximum pages of a batch.
pub const BATCH: usize = 1024;
/// Maximum retried pages of a batch,
const AGAIN: usize = BATCH / 4;
/// and maximum number of retries.
const TRIES: u8 = 2;

/// A page and its target node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The page; for a huge one any piece.
    pub page: Page,
    /// Whether it is a huge one.
    pub huge: bool,
    /// Migrate it only if it is on this node; `None`: from any node.
    pub from: Option<NodeId>,
    /// The target node.
    pub to: NodeId,
}

impl Request {
    /// The bytes to migrate.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes(if self.huge { PAGE * PIECES } else { PAGE })
    }

    /// Its address; `None` for a page number beyond the address space.
    fn address(&self) -> Option<usize> {
        let page = if self.huge { self.page.whole() } else { self.page };
        usize::try_from(page.number.checked_mul(PAGE)?).ok()
    }
}

/// The outcome for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It was migrated to its target.
    Moved,
    /// It was on its target already.
    There,
    /// It is neither on its target nor on the expected source node.
    Elsewhere,
    /// There is no page: not touched yet, swapped out, unmapped, or one that never migrates (the zero page, a
    /// device's).
    Absent,
    /// Other processes map it too, and migrating those was not requested.
    Shared,
    /// It is locked, pinned or being migrated by another thread.
    Busy,
    /// Its migration failed: it is still in use by the kernel or a device.
    Unmoved,
    /// The target node has no room.
    Full,
    /// Its process's cpuset does not have the node, or it is bound to others.
    NotAllowed,
    /// Its process has ended, or has become another program.
    Gone,
    /// No permission to migrate pages of its process.
    Denied,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Moved,
        Self::There,
        Self::Elsewhere,
        Self::Absent,
        Self::Shared,
        Self::Busy,
        Self::Unmoved,
        Self::Full,
        Self::NotAllowed,
        Self::Gone,
        Self::Denied,
    ];

    /// A keyword for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::There => "there_already",
            Self::Elsewhere => "elsewhere",
            Self::Absent => "absent",
            Self::Shared => "shared",
            Self::Busy => "busy",
            Self::Unmoved => "not_migrated",
            Self::Full => "target_full",
            Self::NotAllowed => "not_allowed",
            Self::Gone => "process_gone",
            Self::Denied => "denied",
        }
    }

    /// Whether a retry may succeed soon.
    const fn passes(self) -> bool {
        matches!(self, Self::Busy | Self::Unmoved | Self::Full)
    }
}

/// A page with a known outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The request.
    pub request: Request,
    /// Its previous node, if known.
    pub from: Option<NodeId>,
    /// The outcome.
    pub outcome: Outcome,
}

/// Totals so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages by outcome; a huge page counts as one.
    pub pages: BTreeMap<Outcome, u64>,
    /// Bytes migrated between each pair of nodes.
    pub moved: BTreeMap<(NodeId, NodeId), Bytes>,
    /// Retried pages.
    pub retried: u64,
    /// Calls of move_pages(2) that requested a migration.
    pub calls: u64,
}

impl Tally {
    /// Number of pages with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.pages.get(&outcome).copied().unwrap_or(0)
    }

    /// Total bytes migrated.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.moved.values().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }

    fn add(&mut self, done: &Done) {
        *self.pages.entry(done.outcome).or_default() += 1;
        if let (Outcome::Moved, Some(from)) = (done.outcome, done.from) {
            let sum = self.moved.entry((from, done.request.to)).or_default();
            sum.0 = sum.0.saturating_add(done.request.bytes().0);
        }
    }
}

/// The treatment of pages mapped by several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// They stay.
    Stay,
    /// They migrate for all of them; needs CAP_SYS_NICE.
    Move,
}

/// The kernel calls used for migration, as a trait, so that tests can run on a machine with one node.
pub trait Calls {
    /// The nodes whose memory the process may use, if known.
    fn allowed(&mut self, owner: &Owner) -> Option<NodeSet>;
    /// The node of each page, or an errno below zero.
    ///
    /// # Errors
    /// The errno of the whole call.
    fn places(&mut self, owner: &Owner, pages: &[usize], status: &mut [c_int]) -> io::Result<()>;
    /// Migrates pages; returns the number that was not migrated.
    ///
    /// # Errors
    /// The errno of the whole call.
    fn go(
        &mut self,
        owner: &Owner,
        pages: &[usize],
        nodes: &[c_int],
        status: &mut [c_int],
    ) -> io::Result<u64>;
}

impl Calls for Shared {
    fn allowed(&mut self, owner: &Owner) -> Option<NodeSet> {
        owner.nodes_allowed()
    }

    fn places(&mut self, owner: &Owner, pages: &[usize], status: &mut [c_int]) -> io::Result<()> {
        sys::where_pages_are(owner.raw(), pages, status)
    }

    fn go(
        &mut self,
        owner: &Owner,
        pages: &[usize],
        nodes: &[c_int],
        status: &mut [c_int],
    ) -> io::Result<u64> {
        let shared = match self {
            Self::Stay => sys::Shared::Stay,
            Self::Move => sys::Shared::Move,
        };
        sys::move_pages(owner.raw(), pages, nodes, status, shared)
    }
}

/// Migrates pages within a rate limit.
#[derive(Debug)]
pub struct Mover<C = Shared> {
    calls: C,
    rate: Rate,
    owners: BTreeMap<Process, Owner>,
    waiting: VecDeque<(Request, u8)>,
    tally: Tally,
}

impl Mover {
    /// A mover without requests.
    #[must_use]
    pub fn new(rate: Rate, shared: Shared) -> Self {
        Self::with(shared, rate)
    }

    /// Migrates a batch of one process's pages, if there is one and the rate permits it. Returns the pages whose
    /// outcome is known now.
    pub fn step(&mut self, now: Nanoseconds) -> Vec<Done> {
        self.batch(now)
    }
}

impl<C> Mover<C> {
    fn with(calls: C, rate: Rate) -> Self {
        let (owners, waiting) = (BTreeMap::new(), VecDeque::new());
        Self { calls, rate, owners, waiting, tally: Tally::default() }
    }

    /// Queues requests.
    pub fn ask(&mut self, requests: impl IntoIterator<Item = Request>) {
        self.waiting.extend(requests.into_iter().map(|request| (request, 0)));
    }

    /// Number of queued requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Drops queued requests; returns their number.
    pub fn forget(&mut self) -> usize {
        self.owners.clear();
        std::mem::take(&mut self.waiting).len()
    }

    /// The time of the next batch; `None` if nothing is queued.
    #[must_use]
    pub fn next(&self) -> Option<Nanoseconds> {
        let first = self.waiting.front()?;
        let all = self.waiting.iter().take(BATCH).map(|(request, _)| request.bytes().0);
        let wanted = if self.waiting.len() >= BATCH { all.sum() } else { first.0.bytes().0 };
        Some(self.rate.next(Bytes(wanted)))
    }

    /// Totals so far.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Changes the rate.
    pub const fn set_rate(&mut self, a_second: BytesPerSecond) {
        self.rate.set(a_second);
    }
}

impl<C: Calls> Mover<C> {
    fn batch(&mut self, now: Nanoseconds) -> Vec<Done> {
        let mut left = self.rate.available(now).0;
        let Some(process) = self.waiting.front().map(|(request, _)| request.page.process) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        while let Some((request, tries)) = self.waiting.front().copied() {
            let ours = request.page.process == process && taken.len() < BATCH && left > 0;
            if !ours {
                break;
            }
            self.waiting.pop_front();
            left = left.saturating_sub(request.bytes().0);
            taken.push((request, tries));
        }
        if taken.is_empty() {
            return Vec::new();
        }
        let requests: Vec<Request> = taken.iter().map(|(request, _)| *request).collect();
        let mut done = match self.owner(process) {
            Ok(owner) => {
                let (done, calls) = batch::carry_out(&mut self.calls, &owner, &requests);
                self.tally.calls += calls;
                if done.iter().any(|one| matches!(one.outcome, Outcome::Gone | Outcome::Denied)) {
                    self.leave(process, Outcome::Gone);
                } else {
                    self.owners.insert(process, owner);
                }
                done
            }
            Err(why) => {
                let all = |request: Request| Done { request, from: None, outcome: why };
                requests.into_iter().map(all).collect()
            }
        };
        let moved = done.iter().filter(|one| one.outcome == Outcome::Moved);
        self.rate.spend(Bytes(moved.map(|one| one.request.bytes().0).sum()));
        self.again(&taken, &mut done);
        done.iter().for_each(|one| self.tally.add(one));
        done
    }

    /// The process, kept open as long as requests of it are queued.
    fn owner(&mut self, process: Process) -> Result<Owner, Outcome> {
        let others = |known: &Process, _: &mut Owner| *known == process;
        self.owners.retain(others);
        if let Some(known) = self.owners.remove(&process) {
            return Ok(known);
        }
        Owner::open(process.0).map_err(|error| match error {
            OwnerError::Gone { .. } => Outcome::Gone,
            OwnerError::Denied { .. } => Outcome::Denied,
        })
    }

    /// Completes queued requests of a process that is skipped from now on.
    fn leave(&mut self, process: Process, outcome: Outcome) {
        let (gone, stay): (VecDeque<_>, VecDeque<_>) =
            self.waiting.drain(..).partition(|(request, _)| request.page.process == process);
        self.waiting = stay;
        for (request, _) in gone {
            self.tally.add(&Done { request, from: None, outcome });
        }
    }

    /// Removes the pages that should be retried from `done`, and queues them again.
    fn again(&mut self, taken: &[(Request, u8)], done: &mut Vec<Done>) {
        let (mut kept, mut again) = (Vec::new(), 0);
        // In the order in which they were taken.
        for (one, (_, tries)) in done.drain(..).zip(taken) {
            if one.outcome.passes() && *tries < TRIES && again < AGAIN {
                again += 1;
                self.waiting.push_back((one.request, tries + 1));
            } else {
                kept.push(one);
            }
        }
        self.tally.retried += again as u64;
        *done = kept;
    }
}
