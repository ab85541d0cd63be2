//! Many reads at once, for an event loop or a mover: submit, wait for a descriptor, poll completions.
//!
//! A reader belongs to one thread and has its own queue, so readers do not wait for each other. Reads that memory can
//! answer complete at once and are reported with the next poll. Values are lent to the callback from the buffer they
//! were read into.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::meta::Meta;

use super::buffer::{Aligned, BLOCK};
use super::device::{Done, Job, Queue, Wait};
use super::outcome::{Item, Outcome, Where};
use super::read::{Asked, Next, Start, Want, longer};
use super::sets::{Known, Sets};
use super::shared::Core;
use super::words::{size, wide};

/// The maximum number of reads is in flight; poll first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{depth} reads are under way, as many as there can be; poll first")]
pub struct Full {
    /// Maximum number of reads in flight.
    pub depth: usize,
}

/// A result from memory.
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
    Small { set: u32, sum: u32, hash: u64, reads: u8 },
}

#[derive(Debug)]
struct Pending {
    token: u64,
    key: Vec<u8>,
    step: Step,
}

/// Reads in flight.
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

/// Callback for results.
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

    /// Starts a read; `token` is returned with the result. The system is called with the next poll, or by
    /// [`Reader::kick`].
    ///
    /// # Errors
    /// The maximum number of reads is in flight.
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
                    Some((set, Known::Ask(sum))) => {
                        let at = core.sets.as_ref().map_or(0, |sets| sets.at(set));
                        Ok((Step::Small { set, sum, hash, reads: 1 }, at, BLOCK))
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

    /// Passes submitted reads to the system.
    ///
    /// # Errors
    /// The system's; nothing is lost.
    pub fn kick(&mut self) -> io::Result<()> {
        self.queue.submit()
    }

    /// Calls `each` for every completed read with its token and result. Returns their number.
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

    /// Readable when a completion can be polled; also poll once after submitting.
    #[must_use]
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.queue.ready()
    }

    /// Number of reads submitted and not reported yet.
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

    /// Requests bytes `from..to` of the buffer, from address `at`; without memory it is a miss.
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

    /// Evaluates a completed read. Returns 1 if it was reported.
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
            Step::Small { set, sum, hash, reads } => {
                let Some(sets) = &core.sets else { return 0 };
                match whole.then(|| sets.next(*set, &into[..BLOCK], &pending.key)) {
                    Some(Asked::Hit(meta, value)) => Next::Hit(meta, value),
                    Some(Asked::Miss) => Next::Miss,
                    Some(Asked::Corrupt) if sets.reads_again((*set, *sum), *reads) => {
                        let at = (*set, *hash, *reads);
                        return self.again(sets, slot, (at, pending), into);
                    }
                    failed => {
                        sets.failed((*set, *sum), failed.is_some());
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

    /// A set that was written during the read: it is in memory by now, or it is read again.
    fn again(
        &mut self,
        sets: &Sets,
        slot: usize,
        ((set, hash, reads), pending): ((u32, u64, u8), Pending),
        into: Aligned,
    ) -> usize {
        match sets.known(hash, &pending.key).1 {
            Known::Ask(sum) => {
                let step = Step::Small { set, sum, hash, reads: reads + 1 };
                self.pending[slot] = Some(Pending { step, ..pending });
                self.ask(slot, Some(into), (0, BLOCK, sets.at(set)));
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
