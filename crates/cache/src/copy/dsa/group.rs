//! Pieces of jobs that go to the device together, and the lines of memory that belong to them.
//!
//! A group of several goes as one batch descriptor where the queue takes such, else as plain descriptors side by side. Each
//! piece has a completion record of its own; a batch has one besides. Line 0 is the batch's record, then one for each piece,
//! then the list of descriptors.

use super::format::{Descriptor, Flags, Record, Status};
use super::judge::{Verdict, judge};
use super::line::{self, Line, lines};
use crate::copy::job::Job;

/// A part of a job that one descriptor can move.
#[derive(Debug)]
pub(super) struct Piece {
    /// Which job of the batch it is of.
    pub(super) of: usize,
    pub(super) job: Job,
}

/// In which form descriptors go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One descriptor for all.
    Batch,
    /// One for each piece.
    Plain,
}

/// Some pieces, from when they are put together to when the device is done with all.
#[derive(Debug)]
pub(super) struct Group {
    lines: Box<[Line]>,
    room: usize,
    /// Gone once settled.
    pieces: Vec<Option<Piece>>,
    /// What is to be handed over, and how many of it were.
    descriptors: Vec<Descriptor>,
    handed: usize,
    form: Form,
}

impl Group {
    /// One with room for so many pieces.
    pub(super) fn new(room: usize) -> Self {
        let (pieces, descriptors) = (Vec::with_capacity(room), Vec::with_capacity(room));
        Self { lines: lines(1 + 2 * room), room, pieces, descriptors, handed: 0, form: Form::Plain }
    }

    /// Puts pieces in, as many as there is room for; it was empty.
    pub(super) fn fill(&mut self, pieces: impl Iterator<Item = Piece>, form: Form, flags: Flags) {
        self.pieces.clear();
        self.pieces.extend(pieces.take(self.room).map(Some));
        self.descriptors.clear();
        self.handed = 0;
        self.form = if self.pieces.len() > 1 { form } else { Form::Plain };
        self.lines[..=self.pieces.len()].iter().for_each(Line::clear);
        for (at, piece) in self.pieces.iter().enumerate() {
            let Some(Piece { job, .. }) = piece else { continue };
            let source = job.source().expose_provenance() as u64;
            let destination = job.destination().expose_provenance() as u64;
            // Pieces are no longer than a queue's largest transfer, which fits.
            let length = u32::try_from(job.length()).unwrap_or(u32::MAX);
            let record = self.line_address(1 + at);
            let copy =
                Descriptor::copy(source, destination, length).recorded_at(record).with(flags);
            self.lines[1 + self.room + at].put(&copy);
            self.descriptors.push(copy);
        }
        if self.form == Form::Batch {
            let count = u32::try_from(self.pieces.len()).unwrap_or(u32::MAX);
            let batch = Descriptor::batch(self.line_address(1 + self.room), count);
            self.descriptors.clear();
            self.descriptors.push(batch.recorded_at(self.line_address(0)));
        }
    }

    fn line_address(&self, at: usize) -> u64 {
        line::address(&self.lines) + (at * size_of::<Line>()) as u64
    }

    /// What is still to be handed over.
    pub(super) fn unhanded(&self) -> &[Descriptor] {
        &self.descriptors[self.handed..]
    }

    /// The queue took so many more.
    pub(super) fn hand(&mut self, taken: usize) {
        self.handed = (self.handed + taken).min(self.descriptors.len());
    }

    /// Entries of the queue that it takes, or will.
    pub(super) fn entries(&self) -> usize {
        self.descriptors.len()
    }

    /// Takes back the pieces that were not handed over.
    pub(super) fn withdraw(&mut self) -> impl Iterator<Item = Piece> {
        let kept = match self.form {
            Form::Batch if self.handed > 0 => self.pieces.len(),
            Form::Batch => 0,
            Form::Plain => self.handed,
        };
        self.descriptors.truncate(self.handed);
        self.pieces.drain(kept..).flatten()
    }

    /// Whether it has no pieces that are not settled.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.iter().all(Option::is_none)
    }

    /// Whether the device is done with all of it.
    pub(super) fn is_over(&self) -> bool {
        match self.form {
            Form::Batch => self.lines[0].record().is_some(),
            Form::Plain => {
                self.unhanded().is_empty()
                    && (1..=self.pieces.len()).all(|at| self.lines[at].record().is_some())
            }
        }
    }

    /// Takes the next piece that is not settled and has a record, with what is left of it to do.
    pub(super) fn next_over(&mut self) -> Option<(Piece, Verdict)> {
        let over = |(at, piece): (usize, &mut Option<Piece>)| {
            let record = self.lines[1 + at].record()?;
            let piece = piece.take()?;
            let verdict = judge(Some(record), piece.job.length());
            Some((piece, verdict))
        };
        self.pieces.iter_mut().enumerate().find_map(over)
    }

    /// Takes the pieces that have no record.
    pub(super) fn take_rest(&mut self) -> impl Iterator<Item = Piece> {
        self.pieces.drain(..).flatten()
    }

    /// The pieces that are not settled.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().flatten()
    }

    /// Whether the device may yet write records here though it is done: what it has done and that has no record may get it late.
    pub(super) fn may_be_written(&self) -> bool {
        let pieces = self.pieces.len();
        let records = (1..=pieces).filter(|at| self.lines[*at].record().is_some()).count();
        if self.form == Form::Plain {
            return records < pieces;
        }
        let Some(Record { status, completed, .. }) = self.lines[0].record() else { return true };
        let done = match status {
            // It did as much of its list as it could read, or none of it.
            Status::BATCH_PAGE_FAULT => {
                usize::try_from(completed).unwrap_or(usize::MAX).min(pieces)
            }
            refusal if refusal.is_refusal() => 0,
            _ => pieces,
        };
        records < done
    }

    /// Leaves the lines to the device for ever.
    pub(super) fn leak(self) {
        Box::leak(self.lines);
    }
}
