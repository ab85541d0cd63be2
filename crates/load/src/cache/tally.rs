//! One worker's counts: requests and hits by kind, latencies, errors.

use crate::requests::Op;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies are kept with three digits.
const DIGITS: u8 = 3;

/// Kind of request: an operation of the workload, or a store after a read that missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Read a key.
    Get,
    /// Read a key that was never stored.
    LoneGet,
    /// Store a key.
    Set,
    /// Store a key that is not requested again.
    LoneSet,
    /// Read and store again.
    Update,
    /// Remove.
    Delete,
    /// Store a key that a read did not find.
    Fill,
}

impl Kind {
    /// In the order of output.
    pub(crate) const ALL: [Self; 7] = [
        Self::Get,
        Self::LoneGet,
        Self::Set,
        Self::LoneSet,
        Self::Update,
        Self::Delete,
        Self::Fill,
    ];

    /// Name for output.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::LoneGet => "lone get",
            Self::Set => "set",
            Self::LoneSet => "lone set",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Fill => "fill",
        }
    }

    /// Whether it begins with a read.
    pub(crate) const fn reads(self) -> bool {
        matches!(self, Self::Get | Self::LoneGet | Self::Update)
    }
}

impl From<Op> for Kind {
    fn from(op: Op) -> Self {
        match op {
            Op::Get => Self::Get,
            Op::LoneGet => Self::LoneGet,
            Op::Set => Self::Set,
            Op::LoneSet => Self::LoneSet,
            Op::Update => Self::Update,
            Op::Delete => Self::Delete,
        }
    }
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The key was present (for reads and deletes), or is now (for stores).
    pub(crate) found: bool,
    /// The target did not store it: it is too large, or there is no room.
    pub(crate) refused: bool,
    /// Bytes of values read.
    pub(crate) read: u64,
    /// Bytes of values stored.
    pub(crate) written: u64,
}

/// Counts of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Of {
    /// Number of requests.
    pub(crate) operations: u64,
    /// Number that found their key, or stored it.
    pub(crate) found: u64,
    /// Number that were refused.
    pub(crate) refused: u64,
    /// Bytes of values read.
    pub(crate) read: u64,
    /// Bytes of values stored.
    pub(crate) written: u64,
    /// Latencies in nanoseconds, of timed requests.
    pub(crate) latency: Histogram<u64>,
}

impl Default for Of {
    fn default() -> Self {
        let latency = Histogram::new(DIGITS).expect("3 digits are from 0 to 5");
        Self { operations: 0, found: 0, refused: 0, read: 0, written: 0, latency }
    }
}

impl Of {
    /// Adds a latency.
    pub(crate) fn took(&mut self, ns: u64) {
        // An auto-resizing histogram accepts every number.
        let _ = self.latency.record(ns.max(1));
    }
}

/// A number of errors, and the first one's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Trouble {
    /// Number of errors.
    pub(crate) count: u64,
    /// Description of the first.
    pub(crate) first: Option<String>,
}

impl Trouble {
    /// Adds errors.
    pub(crate) fn add(&mut self, count: u64, what: impl FnOnce() -> String) {
        if count > 0 {
            self.count += count;
            self.first.get_or_insert_with(what);
        }
    }

    fn join(&mut self, other: Self) {
        self.count += other.count;
        self.first = self.first.take().or(other.first);
    }
}

/// The counts of a worker, or of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    of: [Option<Box<Of>>; Kind::ALL.len()],
    /// Requests without a valid answer.
    pub(crate) errors: Trouble,
    /// Wrong values.
    pub(crate) wrong: Trouble,
    /// Requests that were refused.
    pub(crate) refused: Trouble,
    /// Requests that were due and could not start before the end.
    pub(crate) overdue: u64,
    /// Time from the first counted request to the last answer, in nanoseconds of the run.
    pub(crate) span: Option<(u64, u64)>,
}

impl Tally {
    /// Counts a request.
    pub(crate) fn count(&mut self, kind: Kind, outcome: Outcome) -> &mut Of {
        let of = self.of[kind as usize].get_or_insert_default();
        of.operations += 1;
        of.found += u64::from(outcome.found);
        of.refused += u64::from(outcome.refused);
        of.read += outcome.read;
        of.written += outcome.written;
        of
    }

    /// Extends the time span by a counted request.
    pub(crate) fn stretch(&mut self, from: u64, to: u64) {
        let (first, last) = self.span.unwrap_or((from, to));
        self.span = Some((first.min(from), last.max(to)));
    }

    /// Adds another worker's counts.
    pub(crate) fn join(&mut self, other: Self) {
        for (mine, theirs) in self.of.iter_mut().zip(other.of) {
            let Some(theirs) = theirs else { continue };
            let Some(mine) = mine else {
                *mine = Some(theirs);
                continue;
            };
            mine.operations += theirs.operations;
            mine.found += theirs.found;
            mine.refused += theirs.refused;
            mine.read += theirs.read;
            mine.written += theirs.written;
            mine.latency.add(&theirs.latency).expect("both grow by themselves");
        }
        self.errors.join(other.errors);
        self.wrong.join(other.wrong);
        self.refused.join(other.refused);
        self.overdue += other.overdue;
        if let Some((from, to)) = other.span {
            self.stretch(from, to);
        }
    }

    /// Each kind with requests.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (Kind, &Of)> {
        Kind::ALL.into_iter().zip(&self.of).filter_map(|(kind, of)| Some((kind, of.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_of_workers_add_up() {
        let found = Outcome { found: true, read: 10, ..Outcome::default() };
        let (mut one, mut two) = (Tally::default(), Tally::default());
        one.count(Kind::Get, found).took(100);
        one.stretch(50, 70);
        two.count(Kind::Get, Outcome::default()).took(1 << 50);
        two.count(Kind::Delete, found);
        two.stretch(10, 60);
        two.wrong.add(2, || "first".into());
        two.wrong.add(1, || "second".into());
        one.join(two);
        let kinds: Vec<_> =
            one.kinds().map(|(kind, of)| (kind, of.operations, of.found, of.read)).collect();
        assert_eq!(kinds, [(Kind::Get, 2, 1, 10), (Kind::Delete, 1, 1, 10)]);
        assert_eq!(one.span, Some((10, 70)));
        assert_eq!(one.wrong, Trouble { count: 3, first: Some("first".into()) });
        assert!(one.kinds().next().unwrap().1.latency.max() >= 1 << 50);
    }
}
