//! Pages of other processes, moved to other nodes: in batches, at a limited rate, with what became of each page understood.
//!
//! move_pages(2) says little of its own when something fails. Without an error it has written the node of each page, or an
//! errno. If pages of a group (those next to each other with one node to go to) could not be migrated, or a node is full, it stops
//! there: nothing is said of that group, of which some pages may have moved all the same, nor of the pages behind it
//! (mm/migrate.c, do_pages_move). So places are asked for before and after, and what was not attempted is attempted
//! again. A page of several processes moves only with [`Shared::Move`].
//!
//! What is not allowed stays: nodes outside the process's cpuset, and those that it is not bound to, are never asked for.
//! What was busy, or had no room, is tried again later, a quarter of a batch at most. A process that ends meanwhile, or becomes
//! another program, is left alone ([`Owner`]). Moving takes this caller's time: a batch is what one call of [`Mover::step`]
//! moves.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use libc::c_int;
use nearfar_policy::traffic::{PAGE, PIECES, Page, Process};
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeId, NodeSet};

use crate::sys::remote as sys;

mod batch;
mod owner;
mod rate;
#[cfg(test)]
mod tests;

pub use owner::{Owner, OwnerError};
pub use rate::Rate;

/// Pages of a batch at most.
pub const BATCH: usize = 1024;
/// Of a batch, so many at most are tried again,
const AGAIN: usize = BATCH / 4;
/// and so many times.
const TRIES: u8 = 2;

/// A page that is to be on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The page; of a huge one any piece.
    pub page: Page,
    /// Whether it is a huge one.
    pub huge: bool,
    /// It is moved if it is there; `None`: wherever it is.
    pub from: Option<NodeId>,
    /// The node.
    pub to: NodeId,
}

impl Request {
    /// What is moved.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes(if self.huge { PAGE * PIECES } else { PAGE })
    }

    /// Where it begins; nothing for a number that no address has.
    fn address(&self) -> Option<usize> {
        let page = if self.huge { self.page.whole() } else { self.page };
        usize::try_from(page.number.checked_mul(PAGE)?).ok()
    }
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It is where it should be, and was not before.
    Moved,
    /// It was there already.
    There,
    /// It is neither where it should be nor where it was to be moved from.
    Elsewhere,
    /// There is no page: not touched yet, swapped out, unmapped, or one that is never moved (a page of zeros, a device's).
    Absent,
    /// Other processes map it too, and it was not asked to move those.
    Shared,
    /// It is locked, pinned or being moved by someone else.
    Busy,
    /// It was to be moved and could not be: still in use by the kernel or a device.
    Unmoved,
    /// Its node has no room.
    Full,
    /// Its process's cpuset does not have the node, or it is bound to others.
    NotAllowed,
    /// Its process has ended, or has become another program.
    Gone,
    /// We may not move pages of its process.
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

    /// A word for it.
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

    /// Whether it may be otherwise soon.
    const fn passes(self) -> bool {
        matches!(self, Self::Busy | Self::Unmoved | Self::Full)
    }
}

/// A page of which it is known what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What was asked for.
    pub request: Request,
    /// Where it was, if that was seen.
    pub from: Option<NodeId>,
    /// What became of it.
    pub outcome: Outcome,
}

/// What has been done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages by what became of them; a huge page is one.
    pub pages: BTreeMap<Outcome, u64>,
    /// Moved from node to node.
    pub moved: BTreeMap<(NodeId, NodeId), Bytes>,
    /// Pages that were tried again.
    pub retried: u64,
    /// Calls of move_pages(2) that were to move something.
    pub calls: u64,
}

impl Tally {
    /// Pages of which this became.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.pages.get(&outcome).copied().unwrap_or(0)
    }

    /// All that was moved.
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

/// What is done with pages that several processes map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// They stay.
    Stay,
    /// They move for all of them; takes CAP_SYS_NICE.
    Move,
}

/// The kernel's side, as far as moving needs it: a trait, so that it can be tried on a machine with one node.
pub trait Calls {
    /// The nodes that the process may have memory of, if that is known.
    fn allowed(&mut self, owner: &Owner) -> Option<NodeSet>;
    /// The node of each page, or an errno below zero.
    ///
    /// # Errors
    /// The errno of the whole call.
    fn places(&mut self, owner: &Owner, pages: &[usize], status: &mut [c_int]) -> io::Result<()>;
    /// Moves; gives how many were not.
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

/// Moves pages as the rate allows.
#[derive(Debug)]
pub struct Mover<C = Shared> {
    calls: C,
    rate: Rate,
    owners: BTreeMap<Process, Owner>,
    waiting: VecDeque<(Request, u8)>,
    tally: Tally,
}

impl Mover {
    /// One that has nothing to do.
    #[must_use]
    pub fn new(rate: Rate, shared: Shared) -> Self {
        Self::with(shared, rate)
    }

    /// Moves a batch, if there is one and the rate allows it: pages of one process. What became of each page of which that is
    /// known now.
    pub fn step(&mut self, now: Nanoseconds) -> Vec<Done> {
        self.batch(now)
    }
}

impl<C> Mover<C> {
    fn with(calls: C, rate: Rate) -> Self {
        let (owners, waiting) = (BTreeMap::new(), VecDeque::new());
        Self { calls, rate, owners, waiting, tally: Tally::default() }
    }

    /// Has these moved, after those that wait.
    pub fn ask(&mut self, requests: impl IntoIterator<Item = Request>) {
        self.waiting.extend(requests.into_iter().map(|request| (request, 0)));
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Forgets those that wait; how many those were.
    pub fn forget(&mut self) -> usize {
        self.owners.clear();
        std::mem::take(&mut self.waiting).len()
    }

    /// When the next batch can be moved; `None` if nothing waits.
    #[must_use]
    pub fn next(&self) -> Option<Nanoseconds> {
        let first = self.waiting.front()?;
        let all = self.waiting.iter().take(BATCH).map(|(request, _)| request.bytes().0);
        let wanted = if self.waiting.len() >= BATCH { all.sum() } else { first.0.bytes().0 };
        Some(self.rate.next(Bytes(wanted)))
    }

    /// What has been done so far.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Goes on at another rate.
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

    /// The process, kept open as long as it has pages that wait.
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

    /// Pages that wait and are of a process that is left alone from now on.
    fn leave(&mut self, process: Process, outcome: Outcome) {
        let (gone, stay): (VecDeque<_>, VecDeque<_>) =
            self.waiting.drain(..).partition(|(request, _)| request.page.process == process);
        self.waiting = stay;
        for (request, _) in gone {
            self.tally.add(&Done { request, from: None, outcome });
        }
    }

    /// Takes out those that are tried again, and has them wait.
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
