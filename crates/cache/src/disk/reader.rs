//! Many reads at once, for an event loop or a mover: submit, be woken by a descriptor, poll what is done.
//!
//! A reader belongs to one thread and has a queue of its own, so readers do not wait for each other. What memory knows is done
//! at once and comes with the next poll. Values are lent to the callback from the buffer they were read into.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::store::Meta;

use super::buffer::{Aligned, BLOCK};
use super::device::{Done, Job, Queue, Wait};
use super::place::Place;
use super::read::{Asked, Next, Start, Want, longer};
use super::sets::{Known, Sets};
use super::tier::Core;
use super::words::{size, wide};

/// Where an object is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// At a place among the large objects.
    Large(Place),
    /// Among the small objects, by the hash of its key.
    Small(u64),
}

/// An object that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// What is kept besides the value.
    pub meta: Meta,
    /// The value.
    pub value: &'a [u8],
}

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The object is there.
    Found(Item<'a>),
    /// The object of another key is there.
    Other,
    /// Nothing is there that holds together, or it could not be read.
    Nothing,
}

impl<'a> Outcome<'a> {
    /// What was found.
    #[must_use]
    pub const fn item(self) -> Option<Item<'a>> {
        if let Self::Found(item) = self { Some(item) } else { None }
    }

    /// Appends the value to `out`, if it was found; gives what is kept besides.
    pub fn append_to(self, out: &mut Vec<u8>) -> Option<Meta> {
        let Item { meta, value } = self.item()?;
        out.extend_from_slice(value);
        Some(meta)
    }
}

/// As many reads are under way as the reader can hold; poll first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{depth} reads are under way, as many as there can be; poll first")]
pub struct Full {
    /// Reads that can be under way.
    pub depth: usize,
}

/// What is known without the device.
#[derive(Debug)]
enum Answer {
    Found(Meta, Vec<u8>),
    Other,
    Nothing,
}

impl Answer {
    fn outcome(&self) -> Outcome<'_> {
        match self {
            Self::Found(meta, value) => Outcome::Found(Item { meta: *meta, value }),
            Self::Other => Outcome::Other,
            Self::Nothing => Outcome::Nothing,
        }
    }
}

#[derive(Debug)]
enum Step {
    Large(Want),
    Small { set: u32, hash: u64, again: bool },
}

#[derive(Debug)]
struct Pending {
    token: u64,
    key: Vec<u8>,
    step: Step,
}

/// Reads under way.
#[derive(Debug)]
pub struct Reader {
    core: Arc<Core>,
    queue: Box<dyn Queue>,
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    known: VecDeque<(u64, Answer)>,
    spare: Vec<Aligned>,
    done: Vec<Done>,
}

/// Who is told what was found.
type Each<'a> = &'a mut dyn FnMut(u64, Outcome<'_>);

impl Reader {
    pub(super) fn new(core: Arc<Core>, depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096);
        let queue = core.log.device.queue(u32::try_from(depth).unwrap_or(1))?;
        Ok(Self {
            core,
            queue,
            pending: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            known: VecDeque::new(),
            spare: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Begins a read; `token` comes back with what is found. The system is told with the next poll, or [`Reader::kick`].
    ///
    /// # Errors
    /// If as many are under way as there can be.
    pub fn submit(&mut self, token: u64, at: Where, key: &[u8]) -> Result<(), Full> {
        let Some(slot) = self.free.pop() else { return Err(Full { depth: self.pending.len() }) };
        let core = Arc::clone(&self.core);
        let begun = match at {
            Where::Large(place) => match core.log.start(place, key) {
                Start::Hit(meta, value) => Err(Answer::Found(meta, value)),
                Start::Other => Err(Answer::Other),
                Start::Miss => Err(Answer::Nothing),
                Start::Ask(want, len) => Ok((Step::Large(want), want.at, len)),
            },
            Where::Small(hash) => {
                let known = core.sets.as_ref().map(|sets| sets.start(hash, key));
                match known {
                    Some((set, Known::Ask)) => {
                        Ok((Step::Small { set, hash, again: false }, Sets::at(set), BLOCK))
                    }
                    Some((_, Known::Hit(meta, value))) => Err(Answer::Found(meta, value)),
                    _ => Err(Answer::Nothing),
                }
            }
        };
        match begun {
            Ok((step, at, len)) => {
                self.pending[slot] = Some(Pending { token, key: key.to_vec(), step });
                let buffer = self.buffer(len);
                self.ask(slot, buffer, (0, len, at));
            }
            Err(known) => {
                self.free.push(slot);
                self.known.push_back((token, known));
            }
        }
        Ok(())
    }

    /// Tells the system of what was submitted.
    ///
    /// # Errors
    /// The system's; nothing is lost.
    pub fn kick(&mut self) -> io::Result<()> {
        self.queue.submit()
    }

    /// Calls `each` for every read that is done: its token, and what was found. Gives how many those were.
    ///
    /// # Errors
    /// The system's; nothing is lost.
    pub fn poll(&mut self, wait: Wait, each: Each<'_>) -> io::Result<usize> {
        let mut count = 0;
        loop {
            while let Some((token, found)) = self.known.pop_front() {
                count += 1;
                each(token, found.outcome());
            }
            if self.queue.under_way() == 0 {
                return Ok(count);
            }
            let wait = if count > 0 { Wait::No } else { wait };
            let mut done = core::mem::take(&mut self.done);
            let reaped = self.queue.reap(wait, &mut done);
            for one in done.drain(..) {
                count += self.finish(one, each);
            }
            self.done = done;
            reaped?;
            self.queue.submit()?;
            if (count > 0 || wait == Wait::No) && self.known.is_empty() {
                return Ok(count);
            }
        }
    }

    /// Readable when something is done that polling will give; besides, poll once after submitting.
    #[must_use]
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.queue.ready()
    }

    /// Reads that were submitted and not given yet.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.pending.len() - self.free.len() + self.known.len()
    }

    fn buffer(&mut self, len: usize) -> Option<Aligned> {
        let fits = |one: &Aligned| one.len() >= len && one.len() <= 4 * len.max(BLOCK);
        match self.spare.iter().position(fits) {
            Some(at) => Some(self.spare.swap_remove(at)),
            None => Aligned::new(len),
        }
    }

    /// Has bytes `from..to` of the buffer read from `at`; without memory it is a miss.
    fn ask(&mut self, slot: usize, buffer: Option<Aligned>, (from, to, at): (usize, usize, u64)) {
        let pushed = buffer.is_some_and(|into| {
            self.queue.push(wide(slot), Job::Read { into, part: from..to, at }).is_ok()
        });
        if !pushed {
            self.miss(slot);
        }
    }

    fn miss(&mut self, slot: usize) {
        if let Some(Pending { token, .. }) = self.pending[slot].take() {
            self.free.push(slot);
            self.known.push_back((token, Answer::Nothing));
        }
    }

    /// Looks at a read that is done. Gives 1 if that was the end of it, and it was told.
    fn finish(&mut self, done: Done, each: Each<'_>) -> usize {
        let Done { token, job, result } = done;
        let (slot, core) = (size(token), Arc::clone(&self.core));
        let Job::Read { into, part, .. } = job else { return 0 };
        let whole = result.is_ok_and(|read| read == part.len());
        let Some(pending) = self.pending[slot].take() else { return 0 };
        let next = match &pending.step {
            Step::Large(want) if !whole => {
                core.log.failed(want);
                Next::Miss
            }
            Step::Large(want) => core.log.next(want, &into[..part.end], &pending.key),
            Step::Small { set, hash, again } => {
                let Some(sets) = &core.sets else { return 0 };
                match whole.then(|| sets.next(*set, &into[..BLOCK], &pending.key)) {
                    Some(Asked::Hit(meta, value)) => Next::Hit(meta, value),
                    Some(Asked::Miss) => Next::Miss,
                    Some(Asked::Corrupt) if !again => {
                        let step = Step::Small { set: *set, hash: *hash, again: true };
                        return self.again(sets, slot, Pending { step, ..pending }, into);
                    }
                    failed => {
                        sets.failed(*set, failed.is_some());
                        Next::Miss
                    }
                }
            }
        };
        match next {
            Next::More(need) => {
                let at = if let Step::Large(want) = &pending.step { want.at } else { 0 };
                self.pending[slot] = Some(pending);
                let buffer = longer(&into[..part.end], need);
                self.keep(into);
                self.ask(slot, buffer, (part.end, need, at + wide(part.end)));
                return 0;
            }
            Next::Hit(meta, value) => {
                each(pending.token, Outcome::Found(Item { meta, value: &into[value] }));
            }
            Next::Other => each(pending.token, Outcome::Other),
            Next::Miss => each(pending.token, Outcome::Nothing),
        }
        self.free.push(slot);
        self.keep(into);
        1
    }

    /// A set that was being written while it was read: memory knows by now, or it is read again.
    fn again(&mut self, sets: &Sets, slot: usize, pending: Pending, into: Aligned) -> usize {
        let Step::Small { set, hash, .. } = pending.step else { return 0 };
        match sets.known(hash, &pending.key).1 {
            Known::Ask => {
                self.pending[slot] = Some(pending);
                self.ask(slot, Some(into), (0, BLOCK, Sets::at(set)));
            }
            known => {
                let found = match known {
                    Known::Hit(meta, value) => Answer::Found(meta, value),
                    _ => Answer::Nothing,
                };
                self.free.push(slot);
                self.known.push_back((pending.token, found));
            }
        }
        0
    }

    fn keep(&mut self, buffer: Aligned) {
        if self.spare.len() < self.pending.len() {
            self.spare.push(buffer);
        }
    }
}
