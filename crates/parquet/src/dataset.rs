//! Converts the frames of a record to rows.
//!
//! A region of physical memory gives one row for each node that it is on, so that each row has one node; addresses
//! outside all nodes give rows without one. The node of virtual addresses is unknown: the table `residency` has the
//! sizes by node. The process of a target is known from the record's process frames, which precede its accesses.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use nearfar_record::{
    Access, Header, Intervals, Node, Operations, Process, Range, Record, Region, Residency, Target,
};
use parquet::data_type::ByteArray;

use crate::Error;
use crate::columns::{ACCESSES, AccessRow, Place, RESIDENCY, ResidencyRow, Source};
use crate::labels::Labels;
use crate::table::Table;

/// Parts, rows and bytes of a dataset that one record added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// New parts.
    pub parts: u64,
    /// Parts that existed with the same contents.
    pub kept: u64,
    /// Rows of the new parts.
    pub rows: u64,
    /// Bytes of the new parts.
    pub bytes: u64,
}

/// A dataset to which one record is written.
#[derive(Debug)]
pub struct Dataset {
    accesses: Table<AccessRow>,
    residency: Table<ResidencyRow>,
    started_unix_ns: u64,
    /// Facts of a target without a process frame.
    unnamed: Source,
    /// Sources of rows, by target.
    sources: BTreeMap<u32, Arc<Source>>,
    /// The nodes in the record's header.
    places: BTreeMap<i32, Arc<Place>>,
    /// Physical addresses of the nodes, by start; empty for other addresses.
    ranges: Vec<(Range, Arc<Place>)>,
}

impl Dataset {
    /// Starts to write a record with this header below `dir`, which is created if needed and has to be writable. Parts
    /// are created with their first row.
    ///
    /// # Errors
    /// `dir` can't be created or written; the header has no start time.
    pub fn create(dir: &Path, labels: &Labels, header: &Header) -> Result<Self, Error> {
        check(dir)?;
        if header.started_unix_ns == 0 {
            return Err(Error::NoStart);
        }
        let start = (labels, micros(header.started_unix_ns, 0));
        let facts = [
            ("writer", header.writer.as_str()),
            ("machine", &header.machine),
            ("fingerprint", &header.fingerprint),
            ("kernel", &header.kernel),
        ];
        let encoded = |source| Error::Encode { path: dir.to_path_buf(), source };
        let places: BTreeMap<i32, _> = header.nodes.iter().map(place).collect();
        let mut ranges = Vec::new();
        for node in header.nodes.iter().filter(|_| header.operations == Operations::Physical) {
            let of_node = places.get(&i32::from(node.id.0));
            ranges.extend(
                node.ranges.iter().flat_map(|range| of_node.map(|at| (*range, Arc::clone(at)))),
            );
        }
        ranges.sort_by_key(|(range, _)| *range);
        Ok(Self {
            accesses: Table::new(dir, "accesses", ACCESSES, start, &facts).map_err(encoded)?,
            residency: Table::new(dir, "residency", RESIDENCY, start, &facts).map_err(encoded)?,
            started_unix_ns: header.started_unix_ns,
            unnamed: unnamed(header),
            sources: BTreeMap::new(),
            places,
            ranges,
        })
    }

    /// Sets the process of a target from here on.
    pub fn process(&mut self, process: &Process) {
        let source = Source {
            target: process.target.into(),
            pid: Some(process.pid.into()),
            command: text(&process.command),
            ..self.unnamed.clone()
        };
        self.sources.insert(process.target, Arc::new(source));
    }

    /// Appends accesses, not before the last ones.
    ///
    /// # Errors
    /// A part can't be written, or exists with other contents.
    pub fn access(&mut self, access: &Access) -> Result<(), Error> {
        let ts_us = micros(self.started_unix_ns, access.at_ns);
        let mut rows = Vec::new();
        for snapshot in &access.targets {
            let source = Arc::clone(self.sources.entry(snapshot.target).or_insert_with(|| {
                Arc::new(Source { target: snapshot.target.into(), ..self.unnamed.clone() })
            }));
            for region in &snapshot.regions {
                for (range, place) in pieces(region.range, &self.ranges) {
                    let place = place.map(Arc::clone);
                    rows.push(row(ts_us, &source, (region, access.intervals), (range, place)));
                }
            }
        }
        self.accesses.append(ts_us, rows)
    }

    /// Appends a residency, not before the last one.
    ///
    /// # Errors
    /// A part can't be written, or exists with other contents.
    pub fn residency(&mut self, residency: &Residency) -> Result<(), Error> {
        let ts_us = micros(self.started_unix_ns, residency.at_ns);
        let source = Arc::new(self.unnamed.clone());
        let places = &self.places;
        let rows = residency.nodes.iter().map(|resident| {
            let node = i32::from(resident.node.0);
            let bare = || Arc::new(Place { node, kind: None, tier: None });
            let place = places.get(&node).map_or_else(bare, Arc::clone);
            ResidencyRow { ts_us, source: Arc::clone(&source), place, bytes: wide(resident.bytes) }
        });
        self.residency.append(ts_us, rows)
    }

    /// Appends all accesses and the residency of `record`.
    ///
    /// # Errors
    /// A part can't be written, or exists with other contents.
    pub fn all(&mut self, record: &Record) -> Result<(), Error> {
        record.processes.iter().for_each(|process| self.process(process));
        record.accesses.iter().try_for_each(|access| self.access(access))?;
        record.residency.iter().try_for_each(|residency| self.residency(residency))
    }

    /// Completes the last part of each table.
    ///
    /// # Errors
    /// A part can't be written, or exists with other contents.
    pub fn end(self) -> Result<Summary, Error> {
        let [one, other] = [self.accesses.end()?, self.residency.end()?];
        Ok(Summary {
            parts: one.parts + other.parts,
            kept: one.kept + other.kept,
            rows: one.rows + other.rows,
            bytes: one.bytes + other.bytes,
        })
    }
}

/// Creates `dir` if needed, and checks that files can be created in it.
///
/// # Errors
/// They can't.
pub fn check(dir: &Path) -> Result<(), Error> {
    let tried = fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir));
    tried.map(drop).map_err(|source| Error::Write { path: dir.to_path_buf(), source })
}

/// The parts of `range` on each node, and those on none, in the order of addresses.
fn pieces(range: Range, nodes: &[(Range, Arc<Place>)]) -> Vec<(Range, Option<&Arc<Place>>)> {
    let mut pieces = Vec::new();
    let mut start = range.start;
    for (node, place) in nodes {
        let shared = Range { start: node.start.max(start), end: node.end.min(range.end) };
        if shared.bytes() == 0 {
            continue;
        }
        if shared.start > start {
            pieces.push((Range { start, end: shared.start }, None));
        }
        pieces.push((shared, Some(place)));
        start = shared.end;
    }
    if start < range.end {
        pieces.push((Range { start, end: range.end }, None));
    }
    pieces
}

fn row(
    ts_us: i64,
    source: &Arc<Source>,
    (region, intervals): (&Region, Intervals),
    (range, place): (Range, Option<Arc<Place>>),
) -> AccessRow {
    AccessRow {
        ts_us,
        source: Arc::clone(source),
        start: wide(range.start),
        end: wide(range.end),
        bytes: wide(range.bytes()),
        accesses: region.accesses.into(),
        rate_permille: i32::try_from(intervals.rate_permille(region.accesses)).unwrap_or(i32::MAX),
        age_us: wide(intervals.age_ns(region.age) / 1000),
        place,
    }
}

/// Facts of the record's target itself.
fn unnamed(header: &Header) -> Source {
    let (pid, command, cgroup) = match &header.target {
        Target::Machine | Target::Unknown => (None, None, None),
        Target::Cgroup(path) => (None, None, text(path)),
        Target::Process { pid, command } => (Some(i64::from(*pid)), text(command), None),
    };
    let addresses = match header.operations {
        Operations::Physical => "physical",
        Operations::Virtual => "virtual",
        Operations::FixedVirtual => "fixed-virtual",
        Operations::Unknown => "unknown",
    };
    Source {
        target: 0,
        pid,
        command,
        cgroup,
        addresses: ByteArray::from(addresses),
        emulated: header.emulated,
    }
}

fn place(node: &Node) -> (i32, Arc<Place>) {
    let id = i32::from(node.id.0);
    let tier = if node.near { "near" } else { "far" };
    (id, Arc::new(Place { node: id, kind: text(&node.kind), tier: text(tier) }))
}

fn text(text: &str) -> Option<ByteArray> {
    (!text.is_empty()).then(|| ByteArray::from(text))
}

/// Microseconds since 1970.
fn micros(started_unix_ns: u64, at_ns: u64) -> i64 {
    let ns = u128::from(started_unix_ns) + u128::from(at_ns);
    i64::try_from(ns / 1000).unwrap_or(i64::MAX)
}

fn wide(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
