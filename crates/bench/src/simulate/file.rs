//! Workload files of `nearfar sim compare`: regions of memory, programs on nodes, and traffic of others.
//!
//! # Format
//! TOML; `examples/sim/three-programs.toml` has every key, and docs/sim.md the table of them. A file with an unknown key
//! or with a value out of bounds is refused as a whole; the error names the key, the value and the allowed range. Nodes
//! are those of the machine, so the same file may be refused on another machine.
//!
//! Not here: workloads of published studies ([`nearfar_sim::workload`]); files of real programs ([`crate::workload`]).

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use nearfar_sim::Workload;
use nearfar_sim::machine::Machine;
use nearfar_sim::workload::{self, Region, Worker};
use nearfar_topology::Bytes;
use serde::Deserialize;

use super::antagonist::{Amount, Wanted};

/// Largest file.
const FILE_MAX: u64 = 1 << 20;
/// Pages of a workload: more would need gigabytes and hours.
const PAGES_MAX: u64 = 1 << 22;
/// Shares sum to one as closely as this.
const ONE: f64 = 1e-6;
/// Pieces of 4 KiB in a huge page.
const SMALL_KIB: u64 = 4;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    about: String,
    #[serde(default = "small")]
    page_kib: u64,
    #[serde(default)]
    huge: bool,
    #[serde(default)]
    walk_ns: f64,
    #[serde(default)]
    region: Vec<RegionTable>,
    #[serde(default)]
    program: Vec<ProgramTable>,
    #[serde(default)]
    antagonist: Vec<AntagonistTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionTable {
    name: String,
    size: String,
    #[serde(default)]
    writes: f64,
    hot_size: Option<String>,
    hot_share: Option<f64>,
    touched_by: Option<BTreeMap<String, f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramTable {
    name: String,
    nodes: Vec<usize>,
    lines: f64,
    #[serde(default)]
    think_ns: f64,
    uses: BTreeMap<String, f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AntagonistTable {
    node: usize,
    cpus: Option<usize>,
    gbps: Option<f64>,
    percent: Option<f64>,
}

const fn small() -> u64 {
    SMALL_KIB
}

/// Whether the name of a workload is a path; a file in the current directory needs `./` or the ending `.toml`.
#[must_use]
pub fn is_path(name: &str) -> bool {
    name.contains('/') || std::path::Path::new(name).extension().is_some_and(|of| of == "toml")
}

/// A built-in workload by name, or that of a file, on `machine`.
///
/// # Errors
/// There is none, or it does not fit the machine, or the file is invalid.
pub fn find(name: &str, machine: &Machine) -> anyhow::Result<Workload> {
    if !is_path(name) {
        return Ok(workload::find(name, machine)?);
    }
    let text = nearfar_kernel::fs::read_input(name.as_ref(), FILE_MAX)
        .with_context(|| format!("reading workload file {name}"))?;
    parse(&text, machine).with_context(|| format!("workload file {name}"))
}

/// The workload of a file's text.
///
/// # Errors
/// The first error in it.
pub fn parse(text: &str, machine: &Machine) -> anyhow::Result<Workload> {
    let file: File = toml::from_str(text)?;
    text_of("name", &file.name)?;
    if file.about.chars().count() > 300 || file.about.chars().any(char::is_control) {
        refuse("about", format!("{:.80?}", file.about), "up to 300 printable characters")?;
    }
    if !file.page_kib.is_power_of_two() || !(SMALL_KIB..=1 << 20).contains(&file.page_kib) {
        refuse("page_kib", file.page_kib, "a power of two from 4 to 1048576")?;
    }
    if file.huge && file.page_kib != SMALL_KIB {
        refuse("huge", file.huge, "true only with page_kib = 4")?;
    }
    within("walk_ns", file.walk_ns, (0.0, 1e4))?;
    if file.region.is_empty() || file.region.len() > 64 {
        refuse("region", format!("{} tables", file.region.len()), "1 to 64 tables [[region]]")?;
    }
    if file.program.is_empty() || file.program.len() > 64 {
        refuse("program", format!("{} tables", file.program.len()), "1 to 64 tables [[program]]")?;
    }
    file.names()?;
    let mut workers = Vec::new();
    for program in &file.program {
        workers.extend(program.workers(&file.region, machine)?);
    }
    let regions = file.regions(&workers, machine)?;
    let antagonists = file.antagonist.iter().enumerate().map(|(at, of)| of.on(at, machine));
    Ok(Workload {
        name: file.name,
        about: if file.about.is_empty() { "a workload file".into() } else { file.about },
        page_bytes: file.page_kib << 10,
        regions,
        workers,
        antagonists: antagonists.collect::<anyhow::Result<_>>()?,
        huge: file.huge,
        stripe: 0,
        walk_ns: file.walk_ns,
    })
}

impl File {
    fn names(&self) -> anyhow::Result<()> {
        let mut names = std::collections::BTreeSet::new();
        for of in &self.region {
            text_of("region.name", &of.name)?;
            if !names.insert(&of.name) {
                refuse("region.name", &of.name, "a name that no other region has")?;
            }
        }
        Ok(())
    }

    fn regions(&self, workers: &[Worker], machine: &Machine) -> anyhow::Result<Vec<Region>> {
        let mut regions = Vec::new();
        let mut pages = 0;
        for (at, of) in self.region.iter().enumerate() {
            let region = of.region(self.page_kib << 10, (at, workers), machine)?;
            pages += u64::from(region.pages);
            regions.push(region);
        }
        if pages > PAGES_MAX {
            refuse(
                "page_kib",
                self.page_kib,
                &format!("pages so large that there are at most {PAGES_MAX}, not {pages}"),
            )?;
        }
        let memory: u128 = machine.nodes.iter().map(|node| u128::from(node.size.0)).sum();
        if u128::from(pages) * u128::from(self.page_kib << 10) > memory {
            let all = Bytes(u64::try_from(memory).unwrap_or(u64::MAX));
            let size = Bytes(pages * (self.page_kib << 10));
            refuse(
                "region.size",
                format!("{size} in all"),
                &format!("at most the machine's {all}"),
            )?;
        }
        Ok(regions)
    }
}

impl RegionTable {
    fn region(
        &self,
        page: u64,
        (at, workers): (usize, &[Worker]),
        machine: &Machine,
    ) -> anyhow::Result<Region> {
        let key = |key: &str| format!("region.{}.{key}", self.name);
        let pages = |name: &str, text: &str| -> anyhow::Result<u32> {
            let bytes: Option<Bytes> = text.parse().ok();
            let count = bytes.map_or(0, |bytes| bytes.0.div_ceil(page));
            match u32::try_from(count) {
                Ok(count) if count > 0 => Ok(count),
                _ => refuse(&key(name), text, "a size such as 64 MiB, at least a page"),
            }
        };
        let count = pages("size", &self.size)?;
        within(&key("writes"), self.writes, (0.0, 1.0))?;
        let hot_pages = self.hot_size.as_ref().map_or(Ok(0), |text| pages("hot_size", text))?;
        if hot_pages >= count {
            let size = self.hot_size.clone().unwrap_or_default();
            refuse(&key("hot_size"), size, "less than size")?;
        }
        if self.hot_size.is_some() != self.hot_share.is_some() {
            let shown = self.hot_share.map_or("none".into(), |share| share.to_string());
            refuse(&key("hot_share"), shown, "given together with hot_size")?;
        }
        let hot_share = self.hot_share.unwrap_or(0.0);
        within(&key("hot_share"), hot_share, (0.0, 1.0))?;
        let mut touched_by = vec![0.0; machine.cpu_nodes.len()];
        match &self.touched_by {
            Some(shares) => {
                for (node, share) in shares {
                    let number = node.parse().unwrap_or(usize::MAX);
                    let row = row(&key("touched_by"), (node, number), machine)?;
                    within(&key("touched_by"), *share, (0.0, 1.0))?;
                    touched_by[row] = *share;
                }
                sums_to_one(&key("touched_by"), shares.values())?;
            }
            None => {
                let user = workers.iter().find(|worker| worker.uses[at] > 0.0);
                touched_by[user.map_or(0, |worker| worker.row)] = 1.0;
            }
        }
        let name = self.name.clone();
        Ok(Region {
            name,
            pages: count,
            hot_pages,
            hot_share,
            touched_by,
            reads: 1.0 - self.writes,
        })
    }
}

impl ProgramTable {
    /// A worker for each node.
    fn workers(&self, regions: &[RegionTable], machine: &Machine) -> anyhow::Result<Vec<Worker>> {
        text_of("program.name", &self.name)?;
        let key = |key: &str| format!("program.{}.{key}", self.name);
        within(&key("lines"), self.lines, (0.01, 1e5))?;
        within(&key("think_ns"), self.think_ns, (0.0, 1e9))?;
        let mut uses = vec![0.0; regions.len()];
        for (name, share) in &self.uses {
            let Some(at) = regions.iter().position(|region| region.name == *name) else {
                let names: Vec<&str> = regions.iter().map(|region| region.name.as_str()).collect();
                return refuse(&key("uses"), name, &format!("a region: {}", names.join(", ")));
            };
            within(&key(&format!("uses.{name}")), *share, (0.0, 1.0))?;
            uses[at] = *share;
        }
        sums_to_one(&key("uses"), self.uses.values())?;
        if self.nodes.is_empty() {
            refuse(&key("nodes"), "[]", "at least one node with CPUs")?;
        }
        let worker = |node: &usize| {
            let row = row(&key("nodes"), (&node.to_string(), *node), machine)?;
            Ok(Worker { row, lines: self.lines, think_ns: self.think_ns, uses: uses.clone() })
        };
        self.nodes.iter().map(worker).collect()
    }
}

impl AntagonistTable {
    fn on(&self, at: usize, machine: &Machine) -> anyhow::Result<workload::Antagonist> {
        let amount = match (self.gbps, self.percent) {
            (Some(gbps), None) => Amount::Gbps(gbps),
            (None, Some(percent)) => Amount::Percent(percent),
            (gbps, _) => {
                let shown = if gbps.is_some() { "gbps and percent" } else { "neither" };
                return refuse(&format!("antagonist.{at}"), shown, "either gbps or percent");
            }
        };
        let cpus = self.cpus.map(|node| row("antagonist.cpus", (&node.to_string(), node), machine));
        Wanted { node: self.node, amount }.on(cpus.transpose()?, machine)
    }
}

/// The row of a node with CPUs.
fn row(key: &str, (shown, node): (&str, usize), machine: &Machine) -> anyhow::Result<usize> {
    machine.row(node).map_or_else(
        || {
            let all: Vec<String> = machine.cpu_nodes.iter().map(ToString::to_string).collect();
            refuse(key, shown, &format!("a node with CPUs: {}", all.join(", ")))
        },
        Ok,
    )
}

fn text_of(key: &str, text: &str) -> anyhow::Result<()> {
    let fits = (1..=64).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if fits { Ok(()) } else { refuse(key, format!("{text:.80?}"), "1 to 64 printable characters") }
}

fn within(key: &str, value: f64, (least, most): (f64, f64)) -> anyhow::Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    refuse(key, value, &format!("{least} to {most}"))
}

fn sums_to_one<'a>(key: &str, shares: impl Iterator<Item = &'a f64>) -> anyhow::Result<()> {
    let sum: f64 = shares.sum();
    if (sum - 1.0).abs() <= ONE {
        return Ok(());
    }
    refuse(key, format!("shares with the sum {sum}"), "shares with the sum 1")
}

fn refuse<T>(key: &str, value: impl std::fmt::Display, allowed: &str) -> anyhow::Result<T> {
    bail!("{key} = {value}: allowed is {allowed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../examples/sim/three-programs.toml");

    fn four() -> Machine {
        super::super::machine(super::super::FOUR_NODES).unwrap()
    }

    #[test]
    fn the_example_has_every_key_and_runs() {
        let machine = four();
        let of = parse(EXAMPLE, &machine).unwrap();
        assert_eq!(
            (of.name.as_str(), of.regions.len(), of.page_bytes),
            ("three-programs", 3, 4096)
        );
        // The first program has a worker on each of two nodes, and another shares one of them.
        let rows: Vec<usize> = of.workers.iter().map(|worker| worker.row).collect();
        assert_eq!(rows, [0, 1, 1, 3]);
        assert!((of.regions[1].reads - 0.7).abs() < 1e-12 && of.regions[0].hot_pages == 512);
        assert_eq!(of.antagonists.len(), 1);
        for key in [
            "page_kib",
            "huge",
            "walk_ns",
            "hot_size",
            "touched_by",
            "think_ns",
            "cpus",
            "percent",
            "gbps",
        ] {
            assert!(EXAMPLE.contains(key), "{key}");
        }
        use nearfar_sim::{Policy, compare};
        let policies = [Policy::FirstTouch, Policy::Interleave, Policy::Oracle];
        let found = compare(&machine, &of, &policies, 1).unwrap();
        assert!(found[2].speedup > 1.0 && found[2].speedup >= found[1].speedup, "{found:?}");
    }

    #[test]
    fn invalid_values_are_rejected_with_key_and_allowed_range() {
        for (from, to, parts) in [
            ("page_kib = 4", "page_kib = 6", &["page_kib = 6", "power of two from 4"][..]),
            ("page_kib = 4", "page_kibs = 4", &["unknown field", "page_kibs"]),
            ("writes = 0.3", "writes = 1.5", &["region.log.writes = 1.5", "0 to 1"]),
            ("writes = 0.3", "writes = nan", &["region.log.writes = NaN", "0 to 1"]),
            ("writes = 0.3", "write = 0.3", &["unknown field", "write"]),
            ("size = \"64 MiB\"", "size = \"many\"", &["region.table.size = many", "64 MiB"]),
            ("size = \"64 MiB\"", "size = \"60 GiB\"", &["at most"]),
            (
                "hot_size = \"2 MiB\"",
                "hot_size = \"65 MiB\"",
                &["region.table.hot_size", "less than size"],
            ),
            ("hot_share = 0.5", "", &["region.table.hot_share = none", "hot_size"]),
            ("nodes = [0, 1]", "nodes = [0, 4]", &["program.server.nodes = 4", "0, 1, 2, 3"]),
            ("nodes = [0, 1]", "nodes = []", &["program.server.nodes", "at least one"]),
            ("lines = 20", "lines = -1", &["program.server.lines = -1", "0.01 to 100000"]),
            (
                "table = 0.8",
                "tables = 0.8",
                &["program.server.uses = tables", "table, log, private"],
            ),
            ("table = 0.8", "table = 0.7", &["program.server.uses", "sum 1"]),
            ("0 = 0.9", "0 = 0.8", &["region.table.touched_by", "sum 1"]),
            ("0 = 0.9", "9 = 0.9", &["region.table.touched_by = 9", "a node with CPUs"]),
            ("percent = 30", "percent = 130", &["antagonist", "130", "0 to 95"]),
            ("node = 2", "node = 12", &["antagonist", "12", "0 to 3"]),
            ("percent = 30", "gbps = 1\npercent = 30", &["gbps and percent", "either"]),
            ("name = \"log\"", "name = \"table\"", &["region.name = table"]),
        ] {
            assert!(EXAMPLE.contains(from), "{from}");
            let refused = parse(&EXAMPLE.replacen(from, to, 1), &four()).unwrap_err();
            let text = format!("{refused:#}");
            assert!(parts.iter().all(|part| text.contains(part)), "{to}: {text}");
        }
        assert!(
            format!("{:#}", parse("name = \"x\"", &four()).unwrap_err()).contains("[[region]]")
        );
    }

    #[test]
    fn a_name_with_a_slash_or_the_toml_extension_is_a_file() {
        assert!(is_path("./x") && is_path("x.toml") && !is_path("private"));
        let refused = format!("{:#}", find("/nowhere/x.toml", &four()).unwrap_err());
        assert!(refused.contains("reading workload file /nowhere/x.toml"), "{refused}");
        assert!(find("chess", &four()).unwrap_err().to_string().contains("chess"));
    }
}
