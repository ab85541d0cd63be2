//! A work queue in software: the same descriptors and completion records as the device's, and failures on request.
//!
//! A script selects the fate of each descriptor, members of batches included: [`Act`]. Invalid descriptors are refused
//! with the status defined by the format. Work is done by the thread that waits for the queue, or by a call of
//! [`Device::work`]; its duration does not represent a device.
//!
//! Rules: the submitter of a descriptor guarantees ([`Submit`]) that its addresses are mapped and exposed until the
//! operation is complete. So they are used before its record is written and never after.

use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard};

use super::super::format::{Descriptor, Flags, Opcode, Record, Status};
use super::super::line::Line;
use super::super::submit::{Submit, SubmitError};

/// The fate of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Run,
    /// A move stops at a page fault after this many bytes; reading a batch's list fails after this many descriptors.
    Fault(u32),
    /// A move that runs from the end to the beginning stops after this many bytes.
    FaultBackwards(u32),
    /// Nothing is done, and the status is this.
    Refuse(u8),
    /// It is carried out, but its record is not written.
    Forget,
    /// It is neither carried out nor answered, and a drain does not wait for it.
    Lose,
    /// It is kept until [`Device::release`], and then carried out; drains wait for it.
    Hang,
}

/// Called with the number of earlier descriptors, and the descriptor.
pub(super) type Script = Box<dyn FnMut(u64, &Descriptor) -> Act + Send>;

/// The act for all moves; everything else runs.
pub(super) fn always(act: Act) -> Script {
    Box::new(move |_, one| if one.opcode() == Opcode::Move as u8 { act } else { Act::Run })
}

/// An outstanding descriptor, and the remaining members of a batch after its list was read.
struct Work(Descriptor, Option<VecDeque<Descriptor>>);

struct State {
    script: Script,
    seen: u64,
    queue: VecDeque<Descriptor>,
    hung: Vec<Work>,
    /// Number of submissions for which the queue is still full.
    refusals: u32,
    is_gone: bool,
}

/// The device.
#[derive(Clone)]
pub(super) struct Device(Arc<Mutex<State>>);

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Device")
    }
}

/// A submission method for it, with or without batches.
#[derive(Debug)]
pub(super) struct Door(pub(super) Device, pub(super) bool);

impl Device {
    pub(super) fn new(script: Script) -> Self {
        let (queue, hung) = (VecDeque::new(), Vec::new());
        Self(Arc::new(Mutex::new(State {
            script,
            seen: 0,
            queue,
            hung,
            refusals: 0,
            is_gone: false,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The queue is full for this many submissions.
    pub(super) fn refuse(&self, times: u32) {
        self.state().refusals = times;
    }

    /// It accepts nothing any more, like a removed device.
    pub(super) fn vanish(&self) {
        self.state().is_gone = true;
    }

    /// Number of descriptors processed, members of batches included.
    pub(super) fn seen(&self) -> u64 {
        self.state().seen
    }

    /// Carries out one descriptor; false if there is none.
    pub(super) fn work(&self) -> bool {
        let mut state = self.state();
        let is_drain = state.queue.front().is_some_and(|one| one.opcode() == Opcode::Drain as u8);
        if is_drain && !state.hung.is_empty() {
            return false;
        }
        let Some(next) = state.queue.pop_front() else { return false };
        state.run(next);
        true
    }

    /// Carries out hung descriptors, and all that wait for them.
    pub(super) fn release(&self) {
        let hung = std::mem::take(&mut self.state().hung);
        for Work(descriptor, members) in hung {
            let mut state = self.state();
            match members {
                Some(members) => state.members(descriptor, members, u32::MAX, true),
                None => state.plain(&descriptor, Act::Run),
            };
        }
        while self.work() {}
    }

    /// Accepts descriptors.
    pub(super) fn take(&self, descriptors: &[Descriptor]) -> Result<usize, SubmitError> {
        let mut state = self.state();
        if state.is_gone {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(SubmitError::Refused { source });
        }
        if state.refusals > 0 {
            state.refusals -= 1;
            return Ok(0);
        }
        state.queue.extend(descriptors);
        Ok(descriptors.len())
    }
}

#[expect(unsafe_code, reason = "descriptors are taken")]
impl Submit for Door {
    // SAFETY: (of the callers) as the trait requires.
    unsafe fn submit(&mut self, descriptors: &[Descriptor]) -> Result<usize, SubmitError> {
        self.0.take(descriptors)
    }

    fn takes_batches(&self) -> bool {
        self.1
    }

    fn idle(&mut self) {
        self.0.work();
    }
}

impl State {
    fn ask(&mut self, descriptor: &Descriptor) -> Act {
        self.seen += 1;
        (self.script)(self.seen - 1, descriptor)
    }

    fn run(&mut self, descriptor: Descriptor) {
        let is_batch = descriptor.opcode() == Opcode::Batch as u8;
        match (self.ask(&descriptor), refusal(&descriptor)) {
            (Act::Hang, _) => self.hung.push(Work(descriptor, None)),
            (Act::Lose, _) => {}
            (_, Some(status)) => answer(&descriptor, &Record::failed(status)),
            (Act::Refuse(status), _) => answer(&descriptor, &Record::failed(Status(status))),
            (act, None) if is_batch => {
                let readable = if let Act::Fault(after) = act { after } else { u32::MAX };
                self.members(descriptor, list(&descriptor), readable, act != Act::Forget);
            }
            (act, None) => {
                self.plain(&descriptor, act);
            }
        }
    }

    /// Carries out members of a batch, until one hangs.
    fn members(
        &mut self,
        batch: Descriptor,
        mut rest: VecDeque<Descriptor>,
        readable: u32,
        is_answered: bool,
    ) -> bool {
        let (mut done, mut is_failed) = (0, false);
        while done < readable {
            let Some(member) = rest.pop_front() else { break };
            let is_done = match (self.ask(&member), refusal(&member)) {
                (Act::Hang, _) => {
                    rest.push_front(member);
                    self.hung.push(Work(batch, Some(rest)));
                    return false;
                }
                (Act::Lose, _) => false,
                (Act::Refuse(status), _) => {
                    answer(&member, &Record::failed(Status(status)));
                    false
                }
                (_, Some(status)) => {
                    answer(&member, &Record::failed(status));
                    false
                }
                (act, None) => self.plain(&member, act),
            };
            done += 1;
            is_failed |= !is_done;
        }
        let status = match (rest.is_empty(), is_failed) {
            (false, _) => Status::BATCH_PAGE_FAULT,
            (true, true) => Status::BATCH_FAILED,
            (true, false) => Status::SUCCESS,
        };
        if is_answered {
            answer(&batch, &Record { completed: done, ..Record::failed(status) });
        }
        true
    }

    /// Carries out a move or a no-op; false if it stopped.
    fn plain(&mut self, descriptor: &Descriptor, act: Act) -> bool {
        let is_move = descriptor.opcode() == Opcode::Move as u8;
        let size = if is_move { descriptor.size() } else { 0 };
        let fault = |after: u32, result| Record {
            completed: after.min(size),
            result,
            ..Record::failed(Status::PAGE_FAULT)
        };
        let (moved, record) = match act {
            Act::Fault(after) => (after.min(size), fault(after, 0)),
            Act::FaultBackwards(after) => (0, fault(after, 1)),
            _ => (size, Record::DONE),
        };
        move_words(descriptor, moved);
        if act != Act::Forget {
            answer(descriptor, &record);
        }
        record == Record::DONE
    }
}

/// The status of an invalid descriptor; `None` if it is valid.
fn refusal(descriptor: &Descriptor) -> Option<Status> {
    let Some(opcode) = Opcode::of(descriptor.opcode()) else { return Some(Status::BAD_OPCODE) };
    let known = Flags::RECORD_VALID.and(Flags::RECORD_WANTED);
    let size = descriptor.size();
    match opcode {
        _ if !known.has(descriptor.flags()) => Some(Status::BAD_FLAGS),
        _ if !descriptor.is_reserved_zero() => Some(Status::BAD_RESERVED),
        Opcode::Move if size == 0 => Some(Status::BAD_SIZE),
        Opcode::Batch if !(2..=1024).contains(&size) => Some(Status::BAD_COUNT),
        Opcode::Batch if !descriptor.source().is_multiple_of(64) => Some(Status::BAD_LIST),
        _ => None,
    }
}

fn at(address: u64) -> usize {
    usize::try_from(address).unwrap()
}

/// Copies whole words of the first `length` bytes, as another thread would.
#[expect(unsafe_code, reason = "descriptors say which memory to move")]
fn move_words(descriptor: &Descriptor, length: u32) {
    let source: *const AtomicU64 = ptr::with_exposed_provenance(at(descriptor.source()));
    let target: *const AtomicU64 = ptr::with_exposed_provenance(at(descriptor.destination()));
    for word in 0..length as usize / 8 {
        // SAFETY: the submitter guarantees the source for its whole size; it consists of atomic words.
        let value = unsafe { (*source.wrapping_add(word)).load(Relaxed) };
        // SAFETY: as for the source.
        unsafe { (*target.wrapping_add(word)).store(value, Relaxed) };
    }
}

/// Reads the descriptors of a batch.
#[expect(unsafe_code, reason = "descriptors say where their list is")]
fn list(batch: &Descriptor) -> VecDeque<Descriptor> {
    let list: *const Line = ptr::with_exposed_provenance(at(batch.source()));
    // SAFETY: the submitter guarantees a list of that many descriptors; it consists of lines.
    let read = |index: usize| unsafe { (*list.wrapping_add(index)).descriptor() };
    (0..batch.size() as usize).map(read).collect()
}

/// Writes a record, if the descriptor requests one; the operation is complete after that.
#[expect(unsafe_code, reason = "descriptors say where their record goes")]
fn answer(descriptor: &Descriptor, record: &Record) {
    let flags = descriptor.flags();
    let is_wanted = flags.has(Flags::RECORD_WANTED) || record.status != Status::SUCCESS;
    let address = descriptor.record_address();
    if flags.has(Flags::RECORD_VALID) && is_wanted && address.is_multiple_of(32) {
        let cell: *const [AtomicU64; 4] = ptr::with_exposed_provenance(at(address));
        // SAFETY: the submitter guarantees 32 bytes for a record there, which are only used as atomic words.
        let cell = unsafe { &*cell };
        let [first, second] = record.to_words();
        cell[1].store(second.to_le(), Relaxed);
        // The first word is stored last.
        cell[0].store(first.to_le(), Release);
    }
}
