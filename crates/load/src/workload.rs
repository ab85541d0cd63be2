//! Workloads of a store: YCSB's workloads A to F, and their sequences of operations.
//!
//! | | reads | updates | inserts | scans | read-modify-writes | popularity |
//! |---|---|---|---|---|---|---|
//! | A update heavy | 50 | 50 | | | | scrambled |
//! | B read mostly | 95 | 5 | | | | scrambled |
//! | C read only | 100 | | | | | scrambled |
//! | D read latest | 95 | | 5 | | | latest |
//! | E short ranges | | | 5 | 95 | | scrambled |
//! | F read-modify-write | 50 | | | | 50 | scrambled |
//!
//! Updates write one field, reads read all, scans start at a record and take from 1 to 100.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::popularity::{Chooser, Popularity};
use crate::random::Random;

/// Most records a scan takes.
pub const SCAN_MAX: u64 = 100;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Reads a record.
    Read,
    /// Writes one field of a record.
    Update,
    /// Adds a record.
    Insert,
    /// Reads records from one on.
    Scan,
    /// Reads a record, then writes one field of it.
    ReadModifyWrite,
}

/// All kinds, in the order of [`Mix::percent`].
pub const KINDS: [Kind; 5] =
    [Kind::Read, Kind::Update, Kind::Insert, Kind::Scan, Kind::ReadModifyWrite];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "read-modify-write",
        })
    }
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// YCSB's letter.
    pub letter: char,
    /// Per cent of each of [`KINDS`].
    pub percent: [u8; 5],
    /// Default distribution.
    pub popularity: Popularity,
}

/// YCSB's core workloads.
pub const WORKLOADS: [Mix; 6] = [
    Mix { letter: 'a', percent: [50, 50, 0, 0, 0], popularity: Popularity::Scrambled },
    Mix { letter: 'b', percent: [95, 5, 0, 0, 0], popularity: Popularity::Scrambled },
    Mix { letter: 'c', percent: [100, 0, 0, 0, 0], popularity: Popularity::Scrambled },
    Mix { letter: 'd', percent: [95, 0, 5, 0, 0], popularity: Popularity::Latest },
    Mix { letter: 'e', percent: [0, 0, 5, 95, 0], popularity: Popularity::Scrambled },
    Mix { letter: 'f', percent: [50, 0, 0, 0, 50], popularity: Popularity::Scrambled },
];

/// A text that is no workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: no workload of YCSB's; there are a, b, c, d, e, f")]
pub struct UnknownWorkload(String);

impl FromStr for Mix {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.to_ascii_lowercase();
        let found = WORKLOADS.iter().find(|mix| lower == mix.letter.to_string());
        found.copied().ok_or_else(|| UnknownWorkload(text.into()))
    }
}

impl Mix {
    /// Whether it has operations of this kind.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        KINDS.iter().zip(self.percent).any(|(of, percent)| *of == kind && percent > 0)
    }

    fn draw(&self, random: &mut Random) -> Kind {
        let mut left = random.below(100);
        for (kind, percent) in KINDS.into_iter().zip(self.percent.map(u64::from)) {
            if left < percent {
                return kind;
            }
            left -= percent;
        }
        Kind::Read
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Kind of operation.
    pub kind: Kind,
    /// Index of the record.
    pub record: u64,
    /// Number of records; 1 for all kinds but scans.
    pub length: u64,
}

/// The sequence of operations of a workload.
#[derive(Clone, Debug)]
pub struct Operations {
    mix: Mix,
    chooser: Chooser,
    random: Random,
    records: u64,
    moves: u64,
}

impl Operations {
    /// A workload over this many records (at least one), with up to `operations` operations.
    #[must_use]
    pub fn new(mix: Mix, popularity: Popularity, records: u64, operations: u64, seed: u64) -> Self {
        // Twice the expected inserts, as in YCSB.
        let percent = u64::from(mix.percent[2]);
        let inserts = operations.saturating_mul(percent).saturating_mul(2) / 100;
        let chooser = Chooser::new(popularity, records, inserts);
        Self { mix, chooser, random: Random::new(seed), records, moves: 0 }
    }

    /// The next one.
    pub fn draw(&mut self) -> Operation {
        let kind = self.mix.draw(&mut self.random);
        if kind == Kind::Insert {
            self.records += 1;
            return Operation { kind, record: self.records - 1, length: 1 };
        }
        let chosen = self.chooser.choose(&mut self.random, self.records);
        let length = if kind == Kind::Scan { 1 + self.random.below(SCAN_MAX) } else { 1 };
        Operation { kind, record: self.moved(chosen), length }
    }

    /// Makes other records popular: each record's popularity moves on by 0.382 of all records (the golden section, so
    /// that it takes many moves to come round).
    pub fn move_hot_set(&mut self) {
        self.moves += 1;
    }

    /// Number of moves so far.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    fn moved(&self, record: u64) -> u64 {
        let step = u128::from((self.records * 382 / 1000).max(1));
        let moved = (u128::from(record) + step * u128::from(self.moves)) % u128::from(self.records);
        u64::try_from(moved).unwrap_or(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn operations(letter: &str, count: usize) -> Vec<Operation> {
        let mix: Mix = letter.parse().unwrap();
        let mut operations = Operations::new(mix, mix.popularity, 1000, 10_000, 3);
        (0..count).map(|_| operations.draw()).collect()
    }

    #[test]
    fn the_operation_mix_of_each_workload_is_ycsbs() {
        for mix in WORKLOADS {
            assert_eq!(mix.percent.iter().sum::<u8>(), 100);
            let mut counts = BTreeMap::new();
            for operation in operations(&mix.letter.to_string(), 10_000) {
                *counts.entry(operation.kind).or_insert(0i32) += 1;
            }
            for (kind, percent) in KINDS.iter().zip(mix.percent) {
                let count = counts.get(kind).copied().unwrap_or(0);
                // Five standard deviations of a share of one half.
                assert!((count - i32::from(percent) * 100).abs() <= 250, "{mix:?} {kind} {count}");
                assert_eq!(count > 0, mix.has(*kind));
            }
        }
    }

    #[test]
    fn inserts_add_records_one_by_one_and_reads_include_them() {
        let operations = operations("d", 10_000);
        let inserted: Vec<_> =
            operations.iter().filter(|of| of.kind == Kind::Insert).map(|of| of.record).collect();
        assert!(inserted.iter().copied().eq(1000..1000 + inserted.len() as u64));
        assert!(operations.iter().any(|of| of.kind == Kind::Read && of.record >= 1000));
    }

    #[test]
    fn scans_read_one_to_a_hundred_records() {
        let lengths: Vec<_> = operations("e", 5000)
            .into_iter()
            .filter(|of| of.kind == Kind::Scan)
            .map(|of| of.length)
            .collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&1), Some(&100)));
    }

    #[test]
    fn moving_the_hot_set_changes_the_popular_records_and_keeps_their_number() {
        let mix: Mix = "c".parse().unwrap();
        let most = |moves: u32| {
            let mut operations = Operations::new(mix, Popularity::Zipfian, 1000, 0, 5);
            (0..moves).for_each(|_| operations.move_hot_set());
            let mut counts = BTreeMap::new();
            for _ in 0..5000 {
                *counts.entry(operations.draw().record).or_insert(0u32) += 1;
            }
            assert!(counts.keys().all(|record| *record < 1000));
            counts.into_iter().max_by_key(|(_, count)| *count).unwrap().0
        };
        assert_eq!([0, 1, 2, 3].map(most), [0, 382, 764, 146]);
    }

    #[test]
    fn the_same_seed_gives_the_same_requests() {
        assert_eq!(operations("a", 500), operations("A", 500));
    }

    #[test]
    fn a_letter_beyond_f_is_refused() {
        assert!("g".parse::<Mix>().unwrap_err().to_string().contains("a, b, c, d, e, f"));
    }
}
