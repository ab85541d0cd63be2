//! Which machine a command looks at: this one, a directory that stands for `/`, or a recording; shared by commands.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nearfar_kernel::fs::{self, Fs, RootFs, TreeFs};
use nearfar_topology::{Finding, MemoryKind, NodeId, Overrides, Topology, Tree};

use super::output;
use crate::exit::{EndsWith as _, Exit};

/// Where sysfs says what the nodes are; a root without it is no machine.
const NODES: &str = "sys/devices/system/node";

/// Where a recording of a guest keeps what the lab said of it.
pub(crate) const LAB: &str = "run/nearfar-lab";

/// What decides which machine is looked at, and what its memory is taken for.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MachineArgs {
    /// Look at this machine instead of the running one: a directory that stands for /, or a file made by
    /// `nearfar topo --record`
    #[arg(long, value_name = "DIR|FILE")]
    sysfs: Option<PathBuf>,
    /// Take a node's memory for this kind, whatever the machine says: dram, cxl, hbm, pmem or unknown
    #[arg(long = "kind", value_name = "NODE=KIND", value_parser = kind_override)]
    kinds: Vec<(NodeId, MemoryKind)>,
}

/// As `--kind` takes it.
pub(crate) fn kind_override(text: &str) -> Result<(NodeId, MemoryKind), String> {
    let (node, kind) = text.split_once('=').ok_or("write it as NODE=KIND, for example 1=cxl")?;
    let node = node.parse().ok().map(NodeId).filter(|id| *id <= NodeId::MAX);
    let node = node.ok_or_else(|| format!("nodes are numbers from 0 to {}", NodeId::MAX))?;
    let kind = kind.parse::<MemoryKind>().map_err(|error| error.to_string())?;
    Ok((node, kind))
}

impl MachineArgs {
    /// Whether this is the running machine, as opposed to a directory or recording.
    pub(crate) fn is_live(&self) -> bool {
        self.sysfs.is_none()
    }

    /// The same, as it would be typed.
    pub(crate) fn as_arguments(&self) -> Vec<std::ffi::OsString> {
        let sysfs = self.sysfs.iter().flat_map(|path| ["--sysfs".into(), path.into()]);
        let kinds = self.kinds.iter();
        let kinds =
            kinds.flat_map(|(node, kind)| ["--kind".into(), format!("{node}={kind}").into()]);
        sysfs.chain(kinds).collect()
    }

    /// The same with kinds of memory that are stated elsewhere, written as for `--kind`; those stated here are stronger.
    pub(crate) fn with_kinds(&self, stated: &[String]) -> Self {
        let mut both = self.clone();
        let stated = stated.iter().filter_map(|text| kind_override(text).ok());
        both.kinds = stated.chain(both.kinds).collect();
        both
    }

    /// The kinds of memory that are stated here, as for `--kind`; `None` if there are none.
    pub(crate) fn stated_kinds(&self) -> Option<Vec<String>> {
        let kinds = self.kinds.iter().map(|(node, kind)| format!("{node}={kind}"));
        Some(kinds.collect::<Vec<_>>()).filter(|kinds| !kinds.is_empty())
    }

    /// What the lab says of the guest this is, or that a recording is of; `None` on any other machine.
    ///
    /// A word that can't be understood is kept as it is: the machine is emulated all the same.
    pub(crate) fn lab(&self, fs: &dyn Fs) -> Option<serde_json::Value> {
        if self.is_live() {
            let said = nearfar_probe::marker::read().transpose()?;
            return Some(said.map_or_else(Into::into, |lab| serde_json::json!(lab)));
        }
        let text = fs.read(LAB).ok().flatten()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|_| text.trim().into()))
    }

    /// The files of the machine.
    ///
    /// # Errors
    /// Bad usage if what `--sysfs` names is no machine; failure if this system shows no nodes.
    pub(crate) fn open(&self) -> anyhow::Result<Box<dyn Fs>> {
        let Some(path) = &self.sysfs else {
            let fs = RootFs::live()?;
            anyhow::ensure!(
                fs.list(NODES)?.is_some(),
                "this kernel shows no memory nodes (no /{NODES}): it was built without CONFIG_NUMA, or /sys is not mounted"
            );
            return Ok(Box::new(fs));
        };
        open_other(path)
            .with_context(|| format!("--sysfs {}", path.display()))
            .ends_with(Exit::Usage)
    }

    /// The directory that stands for `/`.
    pub(crate) fn root(&self) -> PathBuf {
        let named = self.sysfs.as_ref();
        named.map_or("/".into(), |path| path.canonicalize().unwrap_or_else(|_| path.clone()))
    }

    /// The machine read from `fs`, with the kinds the user states.
    ///
    /// # Errors
    /// Bad usage if a stated node is not there.
    pub(crate) fn read(&self, fs: &dyn Fs) -> anyhow::Result<(Topology, Vec<Finding>)> {
        let overrides: Overrides = self.kinds.iter().copied().collect();
        let (machine, findings) = fs::topology(fs, &overrides);
        for (id, kind) in &overrides {
            let there = machine.nodes.contains_key(id);
            let has = machine.inventory();
            let said =
                || anyhow::anyhow!("--kind {id}={kind}: no node {id} here; this machine has {has}");
            there.then_some(()).ok_or_else(said).ends_with(Exit::Usage)?;
        }
        Ok((machine, findings))
    }
}

/// Says in a line that a machine is emulated, and how.
pub(crate) fn emulated(out: &mut String, lab: &serde_json::Value) {
    let name = lab["machine"].as_str().unwrap_or("of unknown make");
    let mut text = format!("emulated by nearfar lab: machine {name}");
    if let Some(factor) = lab["slow_motion"].as_f64().filter(|factor| *factor > 1.0) {
        let _ = write!(text, ", {factor} times slower than the machine it stands for");
    }
    output::wrapped(out, "", &text, 2);
}

fn open_other(path: &Path) -> anyhow::Result<Box<dyn Fs>> {
    let is_directory = std::fs::metadata(path)?.is_dir();
    let fs: Box<dyn Fs> = if is_directory {
        Box::new(RootFs::new(path)?)
    } else {
        Box::new(TreeFs(Tree::parse(&recording(path)?)))
    };
    if fs.list(NODES)?.is_some() {
        return Ok(fs);
    }
    let what = if is_directory { "directory" } else { "recording" };
    let hint = if fs.list("devices/system/node")?.is_some() {
        "this looks like a copy of /sys: name the directory that holds it as sys"
    } else if is_directory {
        "name a directory that stands for /, one that holds sys and proc"
    } else {
        "make one with nearfar topo --record FILE"
    };
    anyhow::bail!("no machine: the {what} has no {NODES}; {hint}");
}

/// The text of a recording, which may come from a pipe.
fn recording(path: &Path) -> anyhow::Result<String> {
    const BYTES_MAX: u64 = 64 << 20;
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() as u64 <= BYTES_MAX, "more than 64 MiB; that is no recording");
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
