//! Writes sealed regions to the device: first their objects, in pieces, then list and footer.
//!
//! Failed pieces are retried; a region whose writes fail too often is passed to the next tick, which informs the index
//! that its objects are lost. Several regions are in flight at once, and the device may complete their pieces in any
//! order.

use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use super::buffer::{Aligned, BLOCK};
use super::device::{Done, Job, Queue, Wait};
use super::footer;
use super::locks::read;
use super::region::Fill;
use super::stats::{Counters, add, one};
use super::words::{size, wide};

/// Bytes written at once.
const PIECE: usize = 1 << 20;
/// Consecutive failures to report completions after which the writer is considered stuck.
const REFUSED_MAX: u32 = 100;

/// A region being written.
#[derive(Debug)]
struct Way {
    fill: Arc<Fill>,
    buffer: Arc<Aligned>,
    at: u64,
    /// Pieces in flight or waiting.
    left: usize,
    /// List and footer, until their write has started.
    tail: Option<Range<usize>>,
    errors: u32,
    failed: bool,
}

/// Regions being written.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Box<dyn Queue>,
    ways: Vec<Option<Way>>,
    waiting: VecDeque<(usize, Range<usize>)>,
    failed: Vec<Arc<Fill>>,
    done: Vec<Done>,
    refused: u32,
}

impl Writer {
    pub(super) fn new(queue: Box<dyn Queue>) -> Self {
        Self {
            queue,
            ways: Vec::new(),
            waiting: VecDeque::new(),
            failed: Vec::new(),
            done: Vec::new(),
            refused: 0,
        }
    }

    /// Starts writing a sealed region to this address.
    pub(super) fn begin(&mut self, fill: Arc<Fill>, at: u64) {
        let (buffer, used, tail) = {
            let body = read(&fill.body);
            let tail = body.buffer.len() - footer::tail(body.records.len());
            (Arc::clone(&body.buffer), body.used.next_multiple_of(BLOCK), tail..body.buffer.len())
        };
        let way = Way { fill, buffer, at, left: 0, tail: Some(tail), errors: 0, failed: false };
        let index = self.ways.iter().position(Option::is_none).unwrap_or_else(|| {
            self.ways.push(None);
            self.ways.len() - 1
        });
        self.ways[index] = Some(way);
        self.add(index, 0..used);
        if used == 0 {
            self.go_on(index);
        }
        self.push();
    }

    fn add(&mut self, index: usize, part: Range<usize>) {
        let end = part.end;
        for from in part.step_by(PIECE) {
            self.waiting.push_back((index, from..end.min(from + PIECE)));
            if let Some(way) = &mut self.ways[index] {
                way.left += 1;
            }
        }
    }

    /// Pushes waiting pieces while the queue accepts them.
    fn push(&mut self) {
        while let Some((index, part)) = self.waiting.pop_front() {
            let Some(way) = &self.ways[index] else { continue };
            let job = Job::Write {
                from: Arc::clone(&way.buffer),
                part: part.clone(),
                at: way.at + wide(part.start),
            };
            if self.queue.push(wide(index), job).is_err() {
                self.waiting.push_front((index, part));
                break;
            }
        }
        // Jobs that could not start now start with the next call.
        let _ = self.queue.submit();
    }

    /// Takes completions. Returns the regions that are completely written.
    pub(super) fn reap(&mut self, counters: &Counters, most: u32) -> Vec<Arc<Fill>> {
        let mut done = core::mem::take(&mut self.done);
        // If the system refuses, the next call retries.
        self.refused = match self.queue.reap(Wait::No, &mut done) {
            Ok(()) => 0,
            Err(_) => self.refused + 1,
        };
        for Done { token, job, result } in done.drain(..) {
            if let Job::Write { part, .. } = job {
                self.piece(size(token), part, result.ok(), (counters, most));
            }
        }
        self.done = done;
        let mut written = Vec::new();
        for index in 0..self.ways.len() {
            if self.ways[index].as_ref().is_some_and(|way| way.left == 0) {
                written.extend(self.go_on(index));
            }
        }
        self.push();
        written
    }

    /// Processes the completion of a piece.
    fn piece(
        &mut self,
        index: usize,
        part: Range<usize>,
        wrote: Option<usize>,
        (counters, most): (&Counters, u32),
    ) {
        let Some(way) = self.ways.get_mut(index).and_then(Option::as_mut) else { return };
        way.left -= 1;
        let wrote = wrote.unwrap_or(0) / BLOCK * BLOCK;
        add(&counters.large_bytes_device, wrote);
        if wrote >= part.len() {
            return;
        }
        one(&counters.write_errors);
        way.errors += 1;
        if way.errors < most && !way.failed {
            way.left += 1;
            self.waiting.push_back((index, part.start + wrote..part.end));
        } else {
            way.failed = true;
        }
    }

    /// Continues with a region without pending pieces: returns it, if it is completely written.
    fn go_on(&mut self, index: usize) -> Option<Arc<Fill>> {
        let way = self.ways[index].as_mut()?;
        if !way.failed
            && let Some(tail) = way.tail.take()
        {
            self.add(index, tail);
            return None;
        }
        let Way { fill, failed, .. } = self.ways[index].take()?;
        if failed {
            self.failed.push(fill);
            return None;
        }
        Some(fill)
    }

    /// Whether writes are in flight, and the system reports completions.
    pub(super) fn is_busy(&self) -> bool {
        self.ways.iter().any(Option::is_some) && !self.is_stuck()
    }

    /// Whether the system has failed too often to report completions.
    pub(super) fn is_stuck(&self) -> bool {
        self.refused >= REFUSED_MAX
    }

    /// Takes the regions that could not be written.
    pub(super) fn take_failed(&mut self) -> Vec<Arc<Fill>> {
        core::mem::take(&mut self.failed)
    }

    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }
}
