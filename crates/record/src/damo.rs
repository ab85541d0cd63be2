//! Import of damo's records: the JSON that its `record`, `convert_record_format` and `report access --json` write,
//! plain or compressed (its `damon.data` is JSON under zlib).
//!
//! A file is a list of records, one for each monitored target, or an object that holds such a list under `record_list`
//! (in `damon_records`). A record has `intervals` and `snapshots`, a snapshot `start_time`, `end_time` and `regions`, a
//! region `start`, `end`, `nr_accesses` and `age`. Nearly every number may also be a formatted text ([`text`]); the
//! machine and the type of the addresses are not recorded. Traces for `perf script` are not supported.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;

use crate::model::{
    Access, Header, Intervals, Operations, Range, Record, Region, Snapshot, Target,
};

pub mod text;

use text::{Count, Nanos, Percent, Size};

/// The most bytes of uncompressed JSON that are read.
pub const BYTES_MAX: u64 = 256 << 20;
/// damo's defaults.
const DEFAULT: Intervals = Intervals { sample_us: 5_000, aggregation_us: 100_000 };
/// A time above this (2001, in ns) counts from 1970; damo's traces count from the start of the machine.
const UNIX_NS_MIN: u64 = 1_000_000_000 * 1_000_000_000;

/// Reasons why a file is not a record of damo.
#[derive(Debug, thiserror::Error)]
pub enum NotDamo {
    /// It could not be read or unpacked.
    #[error("it can't be read: {0}")]
    Io(#[from] std::io::Error),
    /// It is too large.
    #[error("its JSON is above {} MiB", BYTES_MAX >> 20)]
    TooLong,
    /// It is not JSON, or not damo's.
    #[error("it is no JSON of damo's: {0}")]
    Json(#[from] serde_json::Error),
    /// It is empty.
    #[error("it holds no snapshot with regions")]
    Empty,
}

/// Whether a file that begins with these bytes may be damo's: JSON, or zlib.
#[must_use]
pub fn may_be(start: &[u8]) -> bool {
    let first = start.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'[' | b'{')) || zlib(start)
}

/// Whether these are the two bytes of a zlib header: deflate, and a checksum over both.
fn zlib(start: &[u8]) -> bool {
    matches!(start, [method, flags, ..] if method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31))
}

/// Imports damo's JSON, compressed or not. Also returns a note for each part that was left out.
///
/// # Errors
/// The input is not damo's, or is empty.
pub fn import(bytes: &[u8]) -> Result<(Record, Vec<String>), NotDamo> {
    let unpacked;
    let json = if zlib(bytes) {
        let mut into = Vec::new();
        flate2::read::ZlibDecoder::new(bytes).take(BYTES_MAX + 1).read_to_end(&mut into)?;
        unpacked = into;
        &unpacked
    } else {
        bytes
    };
    if u64::try_from(json.len()).unwrap_or(u64::MAX) > BYTES_MAX {
        return Err(NotDamo::TooLong);
    }
    let start = json.iter().find(|byte| !byte.is_ascii_whitespace());
    let records = if start == Some(&b'{') {
        let holder: Holder = serde_json::from_slice(json)?;
        holder.records()
    } else {
        serde_json::from_slice(json)?
    };
    let mut found = Found::default();
    for (target, record) in (0..).zip(&records) {
        found.record(target, record);
    }
    found.finish()
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "it has neither damon_records, a record_list nor intervals and snapshots"
)]
enum Holder {
    Outer { damon_records: Box<Holder> },
    Inner { record_list: Vec<DamonRecord> },
    One(DamonRecord),
}

impl Holder {
    fn records(self) -> Vec<DamonRecord> {
        match self {
            Self::Outer { damon_records } => damon_records.records(),
            Self::Inner { record_list } => record_list,
            Self::One(record) => vec![record],
        }
    }
}

#[derive(Debug, Deserialize)]
struct DamonRecord {
    #[serde(default)]
    intervals: Option<DamonIntervals>,
    snapshots: Vec<DamonSnapshot>,
}

#[derive(Debug, Deserialize)]
struct DamonIntervals {
    sample_us: text::Micros,
    aggr_us: text::Micros,
}

#[derive(Debug, Deserialize)]
struct DamonSnapshot {
    start_time: Nanos,
    end_time: Nanos,
    regions: Vec<DamonRegion>,
}

#[derive(Debug, Deserialize)]
struct DamonRegion {
    start: Size,
    end: Size,
    #[serde(default)]
    nr_accesses: Option<NrAccesses>,
    #[serde(default)]
    age: Option<Age>,
}

#[derive(Debug, Deserialize)]
struct NrAccesses {
    #[serde(default)]
    samples: Option<Count>,
    #[serde(default)]
    percent: Option<Percent>,
}

#[derive(Debug, Deserialize)]
struct Age {
    #[serde(default)]
    usec: Option<text::Micros>,
    #[serde(default)]
    aggr_intervals: Option<Count>,
}

/// Snapshots by time, notes on the parts left out, and the start time.
#[derive(Debug, Default)]
struct Found {
    accesses: BTreeMap<u64, (Intervals, Vec<Snapshot>)>,
    start: Option<u64>,
    first: Option<Intervals>,
    assumed: bool,
    dropped: u64,
}

impl Found {
    fn record(&mut self, target: u32, record: &DamonRecord) {
        let said = record
            .intervals
            .as_ref()
            .map(|of| Intervals { sample_us: of.sample_us.0, aggregation_us: of.aggr_us.0 });
        let can_be = |of: &Intervals| of.sample_us > 0 && of.aggregation_us >= of.sample_us;
        self.assumed |= !said.as_ref().is_some_and(can_be);
        let intervals = said.filter(can_be).unwrap_or(DEFAULT);
        self.first.get_or_insert(intervals);
        for snapshot in &record.snapshots {
            let mut regions: Vec<Region> =
                snapshot.regions.iter().filter_map(|of| region(of, intervals)).collect();
            regions.sort_unstable_by_key(|of| of.range);
            let mut end = 0;
            regions.retain(|of| {
                let fits = of.range.start >= end;
                end = if fits { of.range.end } else { end };
                fits
            });
            let lost = snapshot.regions.len() - regions.len();
            self.dropped += u64::try_from(lost).unwrap_or(u64::MAX);
            if regions.is_empty() {
                continue;
            }
            let began = snapshot.start_time.0.min(snapshot.end_time.0);
            self.start = Some(self.start.map_or(began, |start| start.min(began)));
            let (_, targets) =
                self.accesses.entry(snapshot.end_time.0).or_insert_with(|| (intervals, Vec::new()));
            if targets.iter().any(|of| of.target == target) {
                self.dropped += u64::try_from(regions.len()).unwrap_or(u64::MAX);
            } else {
                targets.push(Snapshot { target, regions });
            }
        }
    }

    fn finish(self) -> Result<(Record, Vec<String>), NotDamo> {
        let start = self.start.ok_or(NotDamo::Empty)?;
        let mut findings = Vec::new();
        if self.assumed {
            findings.push(format!(
                "no intervals are given; sampling every {} ms over {} ms is assumed",
                DEFAULT.sample_us / 1000,
                DEFAULT.aggregation_us / 1000
            ));
        }
        if self.dropped > 0 {
            findings.push(format!(
                "{} regions were left out: empty, without accesses, or over another one",
                self.dropped
            ));
        }
        let mut record = Record::new(Header {
            writer: "damo".into(),
            machine: String::new(),
            fingerprint: String::new(),
            kernel: String::new(),
            emulated: false,
            started_unix_ns: if start >= UNIX_NS_MIN { start } else { 0 },
            target: Target::Unknown,
            operations: Operations::Unknown,
            intervals: self.first.unwrap_or(DEFAULT),
            nodes: Vec::new(),
        });
        record.accesses = self
            .accesses
            .into_iter()
            .map(|(at, (intervals, targets))| Access { at_ns: at - start, intervals, targets })
            .collect();
        Ok((record, findings))
    }
}

fn region(of: &DamonRegion, intervals: Intervals) -> Option<Region> {
    let range = Range { start: of.start.0, end: of.end.0 };
    let seen = of.nr_accesses.as_ref()?;
    let of_percent = |percent: &Percent| {
        u64::try_from(u128::from(percent.0) * u128::from(intervals.samples_max()) / 100_000_000)
    };
    let samples = match (&seen.samples, &seen.percent) {
        (Some(samples), _) => samples.0,
        (None, Some(percent)) => of_percent(percent).unwrap_or(u64::MAX),
        (None, None) => return None,
    };
    let aggregations = of.age.as_ref().and_then(|age| match (&age.aggr_intervals, &age.usec) {
        (Some(count), _) => Some(count.0),
        (None, Some(micros)) => Some(micros.0 / intervals.aggregation_us),
        (None, None) => None,
    });
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let region = Region { range, accesses: small(samples), age: small(aggregations.unwrap_or(0)) };
    (range.start < range.end).then_some(region)
}

#[cfg(test)]
mod tests;
