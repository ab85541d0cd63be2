//! One descriptor at a time: what the software queue makes of it, and how it goes wrong on purpose.
//!
//! A script is asked about each descriptor, members of batches too, what is to happen: [`Act`]. What does not keep to the format
//! is refused with the status that the format has for it, whatever the script says. Records go out as flags ask for them.
//!
//! Rules: a [`Work`] is made of a descriptor that was submitted, and is over when its record is written or it is lost; it is
//! then gone.
#![expect(unsafe_code, reason = "descriptors are carried out")]

use std::collections::VecDeque;
use std::fmt;

use super::memory::{self, RECORD_ALIGN};
use crate::copy::dsa::format::{Descriptor, Flags, Opcode, Record, Status};

/// What is to happen to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is carried out.
    Run,
    /// A move stops at a page fault after so many bytes, unless its flags say to wait; a batch's list can't be read after so
    /// many descriptors.
    Fault {
        /// Bytes, or descriptors.
        after: u32,
    },
    /// A move stops on its way from the end to the beginning after so many bytes.
    FaultBackwards {
        /// Bytes.
        after: u32,
    },
    /// Nothing is done, and this is the status.
    Refuse(u8),
    /// It is carried out, and its record lost.
    Forget,
    /// It is neither carried out nor answered; a drain does not wait for it.
    Lose,
    /// It is kept until [`SoftwareDevice::release`](super::SoftwareDevice::release), and carried out then; drains wait for it.
    Hang,
}

/// Says what is to happen: it is given how many descriptors came before, and the descriptor.
pub type Script = Box<dyn FnMut(u64, &Descriptor) -> Act + Send>;

/// A script by which the same happens to all moves, and all else runs.
#[must_use]
pub fn always(act: Act) -> Script {
    Box::new(move |_, one| if one.opcode() == Opcode::Move as u8 { act } else { Act::Run })
}

/// In which order descriptors between drains, or between fences of a batch, are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they came.
    InTurn,
    /// The last first.
    Reversed,
    /// In some other order, by this seed.
    Shuffled(u64),
}

/// What the software queue is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareConfig {
    /// Descriptors it holds.
    pub depth: usize,
    /// Descriptors a batch may have; fewer than two and batches are refused.
    pub batch_max: u32,
    /// Bytes a descriptor may move.
    pub transfer_max: u32,
    /// The order.
    pub order: Order,
}

impl Default for SoftwareConfig {
    fn default() -> Self {
        Self { depth: 128, batch_max: 1024, transfer_max: 1 << 31, order: Order::InTurn }
    }
}

/// A descriptor under way.
#[derive(Debug)]
pub(super) struct Work {
    descriptor: Descriptor,
    /// Of a batch: what is left of it, once its list was read.
    rest: Option<VecDeque<Descriptor>>,
    /// Of a batch: descriptors done, whether one failed, and how many of the list can be read.
    done: u32,
    is_failed: bool,
    readable: u32,
    /// Of a batch: its own record is lost.
    is_forgotten: bool,
}

/// How far a piece of work got.
#[derive(Debug)]
pub(super) enum Step {
    /// It is gone.
    Over,
    /// It goes on at the next release.
    Hung(Work),
}

/// What carries work out.
pub(super) struct Engine {
    pub(super) config: SoftwareConfig,
    pub(super) script: Script,
    /// Descriptors that the script was asked about.
    pub(super) seen: u64,
    random: u64,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).field("seen", &self.seen).finish()
    }
}

impl Work {
    pub(super) fn new(descriptor: Descriptor) -> Self {
        Self {
            descriptor,
            rest: None,
            done: 0,
            is_failed: false,
            readable: u32::MAX,
            is_forgotten: false,
        }
    }

    pub(super) fn is_drain(&self) -> bool {
        self.descriptor.opcode() == Opcode::Drain as u8
    }
}

impl Engine {
    pub(super) fn new(config: SoftwareConfig, script: Script) -> Self {
        let random = if let Order::Shuffled(seed) = config.order { seed | 1 } else { 1 };
        Self { config, script, seen: 0, random }
    }

    /// Which of so many is next.
    pub(super) fn pick(&mut self, of: usize) -> usize {
        match self.config.order {
            Order::InTurn => 0,
            Order::Reversed => of.saturating_sub(1),
            Order::Shuffled(_) => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                usize::try_from(self.random % of.max(1) as u64).unwrap_or_default()
            }
        }
    }

    fn ask(&mut self, descriptor: &Descriptor) -> Act {
        let nth = self.seen;
        self.seen += 1;
        (self.script)(nth, descriptor)
    }

    /// Carries work out that was submitted, as the script says.
    pub(super) fn run(&mut self, work: Work) -> Step {
        let act = self.ask(&work.descriptor);
        self.act(work, act)
    }

    /// Goes on with work that hung.
    pub(super) fn release(&mut self, work: Work) -> Step {
        if work.rest.is_some() { self.members(work) } else { self.act(work, Act::Run) }
    }

    fn act(&mut self, mut work: Work, act: Act) -> Step {
        let descriptor = work.descriptor;
        let refusal = self.refusal(&descriptor);
        match (act, refusal, Opcode::of(descriptor.opcode())) {
            (Act::Hang, ..) => return Step::Hung(work),
            (Act::Lose, ..) => {}
            (_, Some(status), _) => answer(&descriptor, &Record::failed(status)),
            (Act::Refuse(status), ..) => answer(&descriptor, &Record::failed(Status(status))),
            (_, _, Some(Opcode::Batch)) => {
                if let Act::Fault { after } = act {
                    work.readable = after;
                }
                work.is_forgotten = act == Act::Forget;
                // SAFETY: the batch was submitted and is under way, and `refusal` looked at its list's address.
                work.rest = Some(unsafe { memory::read_list(&descriptor) }.into());
                return self.members(work);
            }
            (_, _, opcode) => {
                self.plain(&descriptor, act, opcode);
            }
        }
        Step::Over
    }

    /// Carries out a move or something that touches nothing; whether it was done.
    fn plain(&mut self, descriptor: &Descriptor, act: Act, opcode: Option<Opcode>) -> bool {
        let size = if opcode == Some(Opcode::Move) { descriptor.size() } else { 0 };
        let waits = descriptor.flags().has(Flags::BLOCK_ON_FAULT);
        let (moved, record) = match act {
            Act::Fault { after } if !waits => (after.min(size), fault(descriptor, after, 0)),
            Act::FaultBackwards { after } if !waits => (0, fault(descriptor, after, 1)),
            _ => (size, Record::DONE),
        };
        if size > 0 {
            // SAFETY: the descriptor was submitted, is a move that keeps to the format, and its record is not written yet.
            unsafe { memory::move_bytes(descriptor, moved) };
        }
        if act != Act::Forget {
            answer(descriptor, &record);
        }
        record == Record::DONE
    }

    /// Carries out what is left of a batch.
    fn members(&mut self, mut work: Work) -> Step {
        let mut rest = work.rest.take().unwrap_or_default();
        while !rest.is_empty() && work.done < work.readable {
            let fence = rest.iter().skip(1).position(|one| one.flags().has(Flags::FENCE));
            let at = self.pick(fence.map_or(rest.len(), |fence| fence + 1));
            let Some(member) = rest.remove(at) else { break };
            let opcode = Opcode::of(member.opcode());
            let is_nested = matches!(opcode, Some(Opcode::Batch | Opcode::Drain));
            let refusal = if is_nested { Some(Status::BAD_OPCODE) } else { self.refusal(&member) };
            let act = self.ask(&member);
            let is_done = match (act, refusal) {
                (Act::Hang, _) => {
                    rest.push_front(member);
                    work.rest = Some(rest);
                    return Step::Hung(work);
                }
                (Act::Lose, _) => false,
                (_, Some(status)) => {
                    answer(&member, &Record::failed(status));
                    false
                }
                (Act::Refuse(status), None) => {
                    answer(&member, &Record::failed(Status(status)));
                    false
                }
                _ => self.plain(&member, act, opcode),
            };
            work.done += 1;
            work.is_failed |= !is_done;
        }
        let status = match (rest.is_empty(), work.is_failed) {
            (false, _) => Status::BATCH_PAGE_FAULT,
            (true, true) => Status::BATCH_FAILED,
            (true, false) => Status::SUCCESS,
        };
        if !work.is_forgotten {
            answer(&work.descriptor, &Record { completed: work.done, ..Record::failed(status) });
        }
        Step::Over
    }

    /// What is wrong with a descriptor, if anything is.
    fn refusal(&self, descriptor: &Descriptor) -> Option<Status> {
        const KNOWN: u32 = 0x1 | 0x2 | 0x4 | 0x8 | 0x100;
        let Some(opcode) = Opcode::of(descriptor.opcode()) else { return Some(Status::BAD_OPCODE) };
        let size = descriptor.size();
        if descriptor.flags().0 & !KNOWN != 0 {
            return Some(Status::BAD_FLAGS);
        }
        if !descriptor.is_reserved_zero() {
            return Some(Status::BAD_RESERVED);
        }
        match opcode {
            Opcode::Noop | Opcode::Drain => None,
            Opcode::Move if size == 0 || size > self.config.transfer_max => Some(Status::BAD_SIZE),
            Opcode::Move => None,
            Opcode::Batch if size < 2 || size > self.config.batch_max => Some(Status::BAD_COUNT),
            Opcode::Batch => (!descriptor.source().is_multiple_of(64)).then_some(Status::BAD_LIST),
        }
    }
}

fn fault(descriptor: &Descriptor, after: u32, result: u8) -> Record {
    let completed = after.min(descriptor.size());
    let fault = descriptor.source().wrapping_add(u64::from(completed));
    Record { status: Status::PAGE_FAULT, result, completed, fault }
}

/// Writes a record, if the descriptor wants one; where it can't go, nobody learns of it, as with the device.
fn answer(descriptor: &Descriptor, record: &Record) {
    let (flags, address) = (descriptor.flags(), descriptor.record_address());
    let is_wanted = flags.has(Flags::RECORD_WANTED) || record.status != Status::SUCCESS;
    if flags.has(Flags::RECORD_VALID) && is_wanted && address.is_multiple_of(RECORD_ALIGN) {
        // SAFETY: the descriptor was submitted, this is its one record, and its address was just looked at.
        unsafe { memory::write_record(descriptor, record) };
    }
}
