//! Bandwidths in a file written by hand. Format `nearfar.bandwidth/1`, one JSON object:
//! ```json
//! {"schema": "nearfar.bandwidth/1", "nodes": [
//!   {"id": 0, "read_bytes_per_second": 40000000000, "write_bytes_per_second": 30000000000},
//!   {"id": 1, "mixes": [{"mix": "1:0", "bytes_per_second": 27000000000},
//!                       {"mix": "1:1", "bytes_per_second": 40000000000}]}]}
//! ```
//! A node has either figures for pure reads and (if known) pure writes, which assume one bus shared by both, or figures
//! at several read:write mixes, between which values are interpolated. Unknown keys, duplicate nodes and implausible
//! figures are refused. A report of `nearfar probe` is accepted in place of such a file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use nearfar_policy::BandwidthByMix;
use nearfar_topology::{BytesPerSecond, Mix, NodeId};
use serde::Deserialize;

const SCHEMA: &str = "nearfar.bandwidth/1";
/// Larger files are neither of the two formats.
const SIZE_MAX: u64 = 16 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bandwidths {
    #[serde(rename = "schema")]
    _schema: String,
    nodes: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: NodeId,
    read_bytes_per_second: Option<BytesPerSecond>,
    write_bytes_per_second: Option<BytesPerSecond>,
    #[serde(default)]
    mixes: Vec<AtMix>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AtMix {
    mix: Mix,
    bytes_per_second: BytesPerSecond,
}

/// Reads the text of a file.
///
/// # Errors
/// It can't be read, or is larger than the limit.
pub fn read(path: &Path) -> anyhow::Result<String> {
    Ok(nearfar_kernel::fs::read_input(path, SIZE_MAX)?)
}

/// The schema of the text, if it is JSON with one.
#[must_use]
pub fn schema(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    value.get("schema")?.as_str().map(str::to_string)
}

/// Parses the format above.
///
/// # Errors
/// The first error with its position.
pub fn parse(text: &str) -> anyhow::Result<BTreeMap<NodeId, BandwidthByMix>> {
    let wanted = format!(
        "write {SCHEMA} (see `nearfar weights --help`) or give a report of `nearfar probe`"
    );
    let json: Result<serde_json::Value, _> = serde_json::from_str(text);
    json.with_context(|| format!("not JSON; {wanted}"))?;
    match schema(text).as_deref() {
        Some(SCHEMA) => {}
        Some("nearfar.weights/2") => anyhow::bail!(
            "weights, not bandwidths from which weights follow; keep these: nearfar probe --save FILE"
        ),
        Some(found) => anyhow::bail!("the schema `{}`; {wanted}", found.escape_debug()),
        None => anyhow::bail!("no schema; {wanted}"),
    }
    let file: Bandwidths = serde_json::from_str(text).with_context(|| format!("not {SCHEMA}"))?;
    let mut nodes = BTreeMap::new();
    for entry in file.nodes {
        let id = entry.id;
        let known = entry.understand().with_context(|| format!("node {id}"))?;
        anyhow::ensure!(id <= NodeId::MAX, "node {id}: nodes are 0 to {}", NodeId::MAX);
        anyhow::ensure!(nodes.insert(id, known).is_none(), "node {id}: duplicate");
    }
    anyhow::ensure!(!nodes.is_empty(), "it contains no nodes");
    Ok(nodes)
}

impl Entry {
    fn understand(self) -> anyhow::Result<BandwidthByMix> {
        Ok(match (self.read_bytes_per_second, self.mixes.as_slice()) {
            (Some(read), []) => BandwidthByMix::from_read_write(read, self.write_bytes_per_second)?,
            (None, [_, ..]) if self.write_bytes_per_second.is_none() => {
                BandwidthByMix::from_points(
                    self.mixes.iter().map(|at| (at.mix, at.bytes_per_second)),
                )?
            }
            _ => anyhow::bail!(
                "give either read_bytes_per_second (and write_bytes_per_second) or mixes"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", parse(text).unwrap_err())
    }

    #[test]
    fn the_documented_example_parses() {
        let head = include_str!("file.rs");
        let (_, rest) = head.split_once("```json\n").unwrap();
        let (example, _) = rest.split_once("//! ```").unwrap();
        let nodes = parse(&example.replace("//! ", "")).unwrap();
        assert_eq!(nodes[&NodeId(0)].points().len(), 2);
        assert_eq!(nodes[&NodeId(1)].at(Mix::ONE_TO_ONE), Ok(BytesPerSecond(40_000_000_000)));
    }

    #[test]
    fn absurd_files_are_refused_with_the_reason() {
        let with = |nodes: &str| format!(r#"{{"schema":"nearfar.bandwidth/1","nodes":{nodes}}}"#);
        for (text, reason) in [
            (String::new(), "not JSON"),
            ("[1]".into(), "no schema"),
            (r#"{"schema":"nearfar.bandwidth/2"}"#.into(), "nearfar.bandwidth/2"),
            (r#"{"schema":"nearfar.weights/2"}"#.into(), "nearfar probe --save"),
            (with("[]"), "no nodes"),
            (with(r#"[{"id":0}]"#), "either"),
            (with(r#"[{"id":0,"read_bytes_per_second":0}]"#), "can't be right"),
            (with(r#"[{"id":0,"read_bytes_per_second":-5}]"#), "-5"),
            (with(r#"[{"id":0,"read_bytes_per_second":1e30}]"#), "1e+30"),
            (with(r#"[{"id":0,"read_gbps":5}]"#), "read_gbps"),
            (with(r#"[{"id":2000,"read_bytes_per_second":5}]"#), "0 to 1023"),
            (
                with(r#"[{"id":0,"read_bytes_per_second":5},{"id":0,"read_bytes_per_second":5}]"#),
                "duplicate",
            ),
            (with(r#"[{"id":0,"write_bytes_per_second":5}]"#), "either"),
            (with(r#"[{"id":0,"mixes":[{"mix":"0:0","bytes_per_second":5}]}]"#), "0:0"),
        ] {
            let error = refused(&text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
