//! How much of a kind is in use, kept, set aside, and resident on each node, and what replicated regions have been through; in
//! figures, as text and as JSON.

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
use crate::{adapt, regions, sys, thread};

/// `nearfar.alloc/1`: figures of some kinds.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    kinds: Vec<About>,
    /// All replicated regions, beside all kinds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    regions: Vec<AboutRegion>,
    /// What a heap goes by that follows how busy memory is: `page`, `files` or `probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    follows: Option<&'static str>,
}

/// A kind's figures, in bytes and counts.
#[derive(Debug, Serialize)]
struct About {
    kind: u32,
    /// What it was made of.
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
    /// What it was made of.
    region: String,
    size: usize,
    granule: usize,
    /// Whose the copies are, home first.
    nodes: Vec<u16>,
    writes: u64,
    collapses: u64,
    copies: u64,
    settled: u64,
    /// Bytes by node, those that this process has touched, with what is noted beside them.
    resident: BTreeMap<u16, u64>,
}

/// Figures of a kind at a time. Other threads run meanwhile, so they need not fit each other to the byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in objects that are in use, as large as their classes.
    pub allocated: usize,
    /// Bytes in free objects that threads and depots keep.
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
        (thread::kept(kind.index(), class) + kind.depots[class].count()) * size_of_class(class)
    };
    let kept: usize = (1..CLASSES).map(kept).sum();
    let out = kind.counts.out.load(Ordering::Relaxed);
    Stats {
        allocated: out.saturating_sub(kept) + kind.counts.objects.load(Ordering::Relaxed),
        kept,
        set_aside: kind.set_aside(),
        limit: kind.limit(),
        binds: kind.counts.binds.load(Ordering::Relaxed),
        spilled: kind.counts.spilled.load(Ordering::Relaxed),
        failed: kind.counts.failed.load(Ordering::Relaxed),
    }
}

/// Resident bytes of all that a kind has set aside, by node. The errno if it can't be asked.
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
    let found = residency::of_range(at, length, sys::PAGE);
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

/// Figures of one kind, or of all, as JSON. The errno if residency can't be asked.
pub(crate) fn json(only: Option<&Kind>) -> Result<String, i32> {
    let report = Report {
        schema: "nearfar.alloc/1",
        kinds: kinds(only)?,
        regions: all_regions(only)?,
        follows: adapt::source(),
    };
    serde_json::to_string(&report).map_err(|_| libc::EIO)
}

/// As [`json`], a line for each kind.
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
    only.map_or_else(|| kind::all().map(about).collect(), |kind| Ok(std::vec![about(kind)?]))
}

/// All regions, if it is not one kind that is asked for.
fn all_regions(only: Option<&Kind>) -> Result<Vec<AboutRegion>, i32> {
    if only.is_some() {
        return Ok(Vec::new());
    }
    regions::all().iter().map(|region| about_region(region)).collect()
}
