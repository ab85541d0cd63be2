//! The bandwidth program: streams over memory without a policy of its own, so that the placement of its start applies.
//!
//! JSON `nearfar.stream/1`. Bandwidths count reads and write-backs together and are, in the lab, those of the modelled
//! machine.

use anyhow::Context as _;
use nearfar_kernel::fs::RootFs;
use nearfar_probe::inherited::{self, Request};
use nearfar_topology::{Bytes, Mix};
use serde::{Deserialize, Serialize};

use nearfar_report::model::Resident;
use nearfar_report::words;

/// The `schema` of an [`Outcome`].
const SCHEMA: &str = "nearfar.stream/1";

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcome {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// `measured`, or `emulated` in the lab.
    pub(crate) source: String,
    /// Ratio of reads to writes.
    pub(crate) mix: Mix,
    /// Threads that streamed.
    pub(crate) threads: u32,
    /// Bytes streamed over by all threads together.
    pub(crate) buffer_bytes: u64,
    /// Counted windows.
    pub(crate) repeats: u32,
    /// Median of the windows.
    pub(crate) median_bytes_per_second: u64,
    /// The minimum.
    pub(crate) min_bytes_per_second: u64,
    /// The maximum.
    pub(crate) max_bytes_per_second: u64,
    /// Maximum less minimum, in hundredths of a per cent of the median.
    pub(crate) spread_bp: u32,
    /// Residency of the buffer.
    pub(crate) residency: Vec<Resident>,
}

/// Runs the streams.
pub(crate) fn run(request: Request) -> anyhow::Result<Outcome> {
    let root = RootFs::live()?;
    let found = inherited::measure(&root, request).context("streaming")?;
    let residency = found.residency.iter();
    let residency = residency.map(|(node, bytes)| Resident { node: node.0, bytes: bytes.0 });
    let of = found.bandwidth;
    Ok(Outcome {
        schema: SCHEMA.into(),
        source: if found.lab.is_some() { "emulated" } else { "measured" }.into(),
        mix: of.mix,
        threads: u32::try_from(found.threads).unwrap_or(u32::MAX),
        buffer_bytes: found.size.0,
        repeats: found.repeats,
        median_bytes_per_second: of.median_bytes_per_second.0,
        min_bytes_per_second: of.min_bytes_per_second.0,
        max_bytes_per_second: of.max_bytes_per_second.0,
        spread_bp: of.spread_bp.0,
        residency: residency.collect(),
    })
}

/// The result as one line of text.
pub(crate) fn text(found: &Outcome) -> String {
    let Outcome { source, mix, threads, buffer_bytes, .. } = found;
    format!(
        "{} at {mix} ({source}), {threads} threads over {}; memory: {}\n",
        words::bandwidth(found.median_bytes_per_second),
        Bytes(*buffer_bytes),
        words::residency(&found.residency),
    )
}
