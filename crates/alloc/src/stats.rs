//! Statistics of kinds (bytes in use, cached, set aside, and resident on each node) and of replicated regions: as
//! numbers, text and JSON.

use core::fmt::Write as _;
use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

use nearfar_kernel::residency;
use serde::Serialize;

use crate::classes::{CLASSES, size_of_class};
use crate::kind::{self, Kind};
use crate::region::{Region, ReplicatedStats};
use crate::space::{self, Role, SEGMENT};
use crate::{adapt, record, regions, sys};

/// `nearfar.alloc/1`: statistics of kinds.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    kinds: Vec<About>,
    /// All replicated regions, if the report is about all kinds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    regions: Vec<AboutRegion>,
    /// The load source of an adaptive heap: `page`, `files` or `probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    follows: Option<&'static str>,
}

/// A kind's figures, in bytes and counts.
#[derive(Debug, Serialize)]
struct About {
    kind: u32,
    /// The text it was made from.
    place: String,
    allocated: usize,
    kept: usize,
    set_aside: usize,
    limit: Option<usize>,
    /// Resident bytes by node.
    resident: BTreeMap<u16, u64>,
    /// The share of resident bytes that is not allocated, in per cent.
    fragmentation_percent: u64,
    binds: u64,
    spilled: u64,
    failed: u64,
}

/// A replicated region's figures, in bytes and counts.
#[derive(Debug, Serialize)]
struct AboutRegion {
    /// The text it was made from.
    region: String,
    size: usize,
    granule: usize,
    /// The node of each copy, home first.
    nodes: Vec<u16>,
    writes: u64,
    collapses: u64,
    copies: u64,
    settled: u64,
    /// Resident bytes by node, of pages that this process has touched, including the words beside the data.
    resident: BTreeMap<u16, u64>,
}

/// Statistics of a kind at one time. Other threads run meanwhile, so they need not agree to the byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in objects in use, rounded up to their size classes.
    pub allocated: usize,
    /// Bytes in free objects cached by threads, depots and the kind.
    pub kept: usize,
    /// Bytes of address space set aside.
    pub set_aside: usize,
    /// The most that may be set aside.
    pub limit: Option<usize>,
    /// Calls of mbind.
    pub binds: u64,
    /// Allocations that went to the spill.
    pub spilled: u64,
    /// Allocations that failed.
    pub failed: u64,
}

pub(crate) fn of(kind: &Kind) -> Stats {
    let kept = |class: usize| {
        (record::kept(kind.index(), class) + kind.depots[class].count()) * size_of_class(class)
    };
    let kept: usize = (1..CLASSES).map(kept).sum();
    let out = kind.counts.out.load(Ordering::Relaxed);
    Stats {
        allocated: out.saturating_sub(kept) + kind.counts.objects.load(Ordering::Relaxed),
        kept: kept + kind.kept.bytes(),
        set_aside: kind.set_aside(),
        limit: kind.limit(),
        binds: kind.counts.binds.load(Ordering::Relaxed),
        spilled: kind.counts.spilled.load(Ordering::Relaxed),
        failed: kind.counts.failed.load(Ordering::Relaxed),
    }
}

/// Resident bytes of a kind's whole address space, by node. Returns the errno if the kernel refuses.
pub(crate) fn residency(kind: &Kind) -> Result<BTreeMap<u16, u64>, i32> {
    let mut sum = BTreeMap::new();
    for (offset, role) in space::of_kind(kind.index()) {
        let length = match role {
            Role::Arena => SEGMENT,
            Role::Object(bytes) => bytes,
            Role::Free | Role::Rest => continue,
        };
        add_residency(&mut sum, space::address_of(offset), length)?;
    }
    Ok(sum)
}

fn add_residency(sum: &mut BTreeMap<u16, u64>, at: usize, length: usize) -> Result<(), i32> {
    let found = residency::of_range(None, at, length, sys::PAGE);
    for (node, bytes) in found.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))? {
        *sum.entry(node.0).or_default() += bytes.0;
    }
    Ok(())
}

fn about_region(region: &Region) -> Result<AboutRegion, i32> {
    let ReplicatedStats { writes, collapses, copies, settled } = region.stats();
    let mut resident = BTreeMap::new();
    for copy in 0..region.nodes.len() {
        let (at, length) = region.memory.part(copy);
        add_residency(&mut resident, at, length)?;
    }
    Ok(AboutRegion {
        region: region.text.clone(),
        size: region.size,
        granule: 1 << region.granule_bits,
        nodes: region.nodes.iter().map(|node| node.0).collect(),
        writes,
        collapses,
        copies,
        settled,
        resident,
    })
}

fn about(kind: &Kind) -> Result<About, i32> {
    let resident = residency(kind)?;
    let all: u64 = resident.values().sum();
    let Stats { allocated, kept, set_aside, limit, binds, spilled, failed } = of(kind);
    let unused = all.saturating_sub(allocated as u64);
    Ok(About {
        kind: kind.handle(),
        place: kind.text().into(),
        allocated,
        kept,
        set_aside,
        limit,
        resident,
        fragmentation_percent: (unused * 100).checked_div(all).unwrap_or(0),
        binds,
        spilled,
        failed,
    })
}

/// Statistics of one kind, or of all, as JSON. Returns the errno if residency is not available.
pub(crate) fn json(only: Option<&Kind>) -> Result<String, i32> {
    let report = Report {
        schema: "nearfar.alloc/1",
        kinds: kinds(only)?,
        regions: all_regions(only)?,
        follows: adapt::source(),
    };
    serde_json::to_string(&report).map_err(|_| libc::EIO)
}

/// As [`json`], as text with one line per kind.
pub(crate) fn text(only: Option<&Kind>) -> Result<String, i32> {
    let mut text = String::new();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let resident = |bytes: &BTreeMap<u16, u64>| {
        let node = |(node, bytes): (&u16, &u64)| std::format!("node {node}: {} MiB", mib(*bytes));
        let nodes: Vec<_> = bytes.iter().map(node).collect();
        if nodes.is_empty() { String::from("nothing") } else { nodes.join(", ") }
    };
    for kind in kinds(only)? {
        let resident = resident(&kind.resident);
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{}: allocated {} MiB, kept {} MiB, set aside {} MiB; resident {resident}; {} % of that not allocated; {} spilled, {} failed",
            kind.place,
            mib(kind.allocated as u64),
            mib(kind.kept as u64),
            mib(kind.set_aside as u64),
            kind.fragmentation_percent,
            kind.spilled,
            kind.failed,
        );
    }
    for region in all_regions(only)? {
        let words = if region.region.is_empty() { "nodes with CPUs" } else { &region.region };
        let _ = writeln!(
            text,
            "replicated, {words}: {} MiB, {} copies; resident {}; granules of {} bytes: {} written, {} collapsed, {} copied, \
             {} at home for good",
            mib(region.size as u64),
            region.nodes.len(),
            resident(&region.resident),
            region.granule,
            region.writes,
            region.collapses,
            region.copies,
            region.settled,
        );
    }
    if let Some(source) = adapt::source() {
        let _ = writeln!(text, "new memory follows how busy nodes are, by {source}");
    }
    Ok(text)
}

fn kinds(only: Option<&Kind>) -> Result<Vec<About>, i32> {
    only.map_or_else(
        || kind::all().map(|kind| about(&kind)).collect(),
        |kind| Ok(std::vec![about(kind)?]),
    )
}

/// All regions, if the request is not for a single kind.
fn all_regions(only: Option<&Kind>) -> Result<Vec<AboutRegion>, i32> {
    if only.is_some() {
        return Ok(Vec::new());
    }
    regions::all().iter().map(|region| about_region(region)).collect()
}
