//! Results of DAMON as numbers: the counters of a scheme, and the regions it applies to.

use nearfar_topology::Bytes;

use super::spec::AddrRange;
use super::{DamonError, numbered};
use crate::fs::Fs;

/// Counters of a scheme since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemeStats {
    /// Regions it was tried on.
    pub nr_tried: u64,
    /// Their size in bytes.
    pub sz_tried: Bytes,
    /// Regions it was applied to, at least in part.
    pub nr_applied: u64,
    /// Bytes it was applied to: pages migrated, for a migration scheme.
    pub sz_applied: Bytes,
    /// Bytes that passed its filters (Linux 6.14); `None` on older kernels.
    pub sz_ops_filter_passed: Option<Bytes>,
    /// Number of times it stopped because a quota was used up.
    pub qt_exceeds: u64,
    /// Number of rounds it has seen (Linux 7.0); `None` on older kernels.
    pub nr_snapshots: Option<u64>,
}

/// Memory of about the same access frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its addresses.
    pub range: AddrRange,
    /// Samples of one aggregation interval that found it accessed.
    pub nr_accesses: u64,
    /// Aggregation intervals for which the access frequency has stayed about the same.
    pub age: u64,
    /// Bytes of it that passed the scheme's filters (Linux 6.14); `None` on older kernels.
    pub sz_filter_passed: Option<Bytes>,
}

/// The counters in `scheme`'s directory.
pub(super) fn stats(fs: &dyn Fs, scheme: &str) -> Result<SchemeStats, DamonError> {
    let file = |name: &str| number(fs, &format!("{scheme}/stats/{name}"));
    Ok(SchemeStats {
        nr_tried: file("nr_tried")?.unwrap_or(0),
        sz_tried: Bytes(file("sz_tried")?.unwrap_or(0)),
        nr_applied: file("nr_applied")?.unwrap_or(0),
        sz_applied: Bytes(file("sz_applied")?.unwrap_or(0)),
        sz_ops_filter_passed: file("sz_ops_filter_passed")?.map(Bytes),
        qt_exceeds: file("qt_exceeds")?.unwrap_or(0),
        nr_snapshots: file("nr_snapshots")?,
    })
}

/// The regions in `scheme`'s directory, in order of address.
pub(super) fn regions(fs: &dyn Fs, scheme: &str) -> Result<Vec<Region>, DamonError> {
    let base = format!("{scheme}/tried_regions");
    let mut regions = Vec::new();
    for index in numbered(fs, &base)? {
        let file = |name: &str| number(fs, &format!("{base}/{index}/{name}"));
        // A region removed while we read is skipped.
        let (Some(start), Some(end)) = (file("start")?, file("end")?) else { continue };
        let (Some(nr_accesses), Some(age)) = (file("nr_accesses")?, file("age")?) else { continue };
        let sz_filter_passed = file("sz_filter_passed")?.map(Bytes);
        let range = AddrRange { start, end };
        regions.push(Region { range, nr_accesses, age, sz_filter_passed });
    }
    regions.sort_by_key(|region| region.range);
    Ok(regions)
}

/// The number in a file; `None` without such a file.
pub(super) fn number(fs: &dyn Fs, path: &str) -> Result<Option<u64>, DamonError> {
    let Some(text) = fs.read(path)? else { return Ok(None) };
    let malformed = |_| DamonError::Malformed { path: path.into(), found: text.trim().into() };
    text.trim().parse().map(Some).map_err(malformed)
}
