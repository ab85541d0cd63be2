//! The machine a command works on: the running one, a directory that stands for `/`, or a recording made by
//! `nearfar topo --record`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nearfar_kernel::fs::{self, Fs, RootFs, TreeFs};
use nearfar_topology::{Finding, MemoryKind, NodeId, Overrides, Topology, Tree};

use crate::exit::{EndsWith as _, Exit};
use crate::output;

/// The nodes in sysfs; a root directory without it is not a machine.
const NODES: &str = "sys/devices/system/node";

/// The description of the lab's guest in a recording.
pub const LAB: &str = "run/nearfar-lab";

/// A machine, and the kinds of memory that the user states for its nodes.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// A directory that stands for `/`, or a recording; `None` for the running machine.
    pub root: Option<PathBuf>,
    /// Stated kinds by node; a later entry overrides an earlier one.
    pub kinds: Vec<(NodeId, MemoryKind)>,
}

/// Parses NODE=KIND.
///
/// # Errors
/// The text is not of that form, with the valid forms.
pub fn kind_override(text: &str) -> Result<(NodeId, MemoryKind), String> {
    let (node, kind) = text.split_once('=').ok_or("write it as NODE=KIND, for example 1=cxl")?;
    let node = node.parse().ok().and_then(NodeId::new);
    let node = node.ok_or_else(|| format!("nodes are numbers from 0 to {}", NodeId::MAX))?;
    let kind = kind.parse::<MemoryKind>().map_err(|error| error.to_string())?;
    Ok((node, kind))
}

impl Machine {
    /// Whether this is the running machine, as opposed to a directory or recording.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.root.is_none()
    }

    /// The options that name this machine on a command line.
    #[must_use]
    pub fn as_arguments(&self) -> Vec<std::ffi::OsString> {
        let sysfs = self.root.iter().flat_map(|path| ["--sysfs".into(), path.into()]);
        let kinds = self.kinds.iter();
        let kinds =
            kinds.flat_map(|(node, kind)| ["--kind".into(), format!("{node}={kind}").into()]);
        sysfs.chain(kinds).collect()
    }

    /// Adds kinds stated elsewhere, each as NODE=KIND; kinds stated here override them.
    #[must_use]
    pub fn with_kinds(&self, stated: &[String]) -> Self {
        let mut both = self.clone();
        let stated = stated.iter().filter_map(|text| kind_override(text).ok());
        both.kinds = stated.chain(both.kinds).collect();
        both
    }

    /// The stated kinds, each as NODE=KIND; `None` if there are none.
    #[must_use]
    pub fn stated_kinds(&self) -> Option<Vec<String>> {
        let kinds = self.kinds.iter().map(|(node, kind)| format!("{node}={kind}"));
        Some(kinds.collect::<Vec<_>>()).filter(|kinds| !kinds.is_empty())
    }

    /// The lab's description of the guest, if this is one or a recording of one; `None` on any other machine.
    ///
    /// A description that is not JSON is kept as a string: the machine is emulated in any case.
    #[must_use]
    pub fn lab(&self, fs: &dyn Fs) -> Option<serde_json::Value> {
        if self.is_live() {
            let lab = nearfar_probe::marker::read().transpose()?;
            return Some(lab.map_or_else(Into::into, |lab| serde_json::json!(lab)));
        }
        let text = fs.read(LAB).ok().flatten()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|_| text.trim().into()))
    }

    /// The files of the machine.
    ///
    /// # Errors
    /// Bad usage if `--sysfs` does not name a machine; failure if this system shows no nodes.
    pub fn open(&self) -> anyhow::Result<Box<dyn Fs>> {
        let Some(path) = &self.root else {
            let fs = RootFs::live()?;
            anyhow::ensure!(
                fs.list(NODES)?.is_some(),
                "this kernel shows no memory nodes (no /{NODES}): it was built without CONFIG_NUMA, or /sys is not mounted \
                 (mount -t sysfs sysfs /sys); nearfar lab shell has near and far memory on an emulated machine"
            );
            return Ok(Box::new(fs));
        };
        open_other(path)
            .with_context(|| format!("--sysfs {}", path.display()))
            .ends_with(Exit::Usage)
    }

    /// The directory that stands for `/`.
    #[must_use]
    pub fn root_dir(&self) -> PathBuf {
        let named = self.root.as_ref();
        named.map_or("/".into(), |path| path.canonicalize().unwrap_or_else(|_| path.clone()))
    }

    /// Reads the topology from `fs`, with the stated kinds.
    ///
    /// # Errors
    /// Bad usage if a stated node does not exist.
    pub fn read(&self, fs: &dyn Fs) -> anyhow::Result<(Topology, Vec<Finding>)> {
        let overrides: Overrides = self.kinds.iter().copied().collect();
        let (machine, findings) = fs::topology(fs, &overrides);
        for (id, kind) in &overrides {
            let there = machine.nodes.contains_key(id);
            let has = machine.inventory();
            let missing =
                || anyhow::anyhow!("--kind {id}={kind}: no node {id} here; this machine has {has}");
            there.then_some(()).ok_or_else(missing).ends_with(Exit::Usage)?;
        }
        Ok((machine, findings))
    }
}

/// Appends a line that the machine is emulated, by which model and with which slow-motion factor.
pub fn emulated(out: &mut String, lab: &serde_json::Value) {
    let name = lab["machine"].as_str().unwrap_or("of unknown make");
    let mut text = format!("emulated by nearfar lab: machine {name}");
    if let Some(factor) = lab["slow_motion"].as_f64().filter(|factor| *factor > 1.0) {
        let _ = write!(text, ", {factor} times slower than the machine it stands for");
    }
    output::wrapped(out, "", &text, 2);
}

fn open_other(path: &Path) -> anyhow::Result<Box<dyn Fs>> {
    let found = std::fs::metadata(path);
    let is_directory =
        found.context("name a recording, or a directory that holds sys and proc")?.is_dir();
    let fs: Box<dyn Fs> = if is_directory {
        Box::new(RootFs::new(path)?)
    } else {
        Box::new(TreeFs(Tree::parse(&recording(path)?)))
    };
    if fs.list(NODES)?.is_some() {
        return Ok(fs);
    }
    let kind = if is_directory { "directory" } else { "recording" };
    let hint = if fs.list("devices/system/node")?.is_some() {
        "this looks like a copy of /sys: name the directory that holds it as sys"
    } else if is_directory {
        "name a directory that stands for /, one that holds sys and proc"
    } else {
        "make one with nearfar topo --record FILE"
    };
    anyhow::bail!("no machine: the {kind} has no {NODES}; {hint}");
}

/// The text of a recording, which may come from a pipe.
fn recording(path: &Path) -> anyhow::Result<String> {
    const BYTES_MAX: u64 = 64 << 20;
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() as u64 <= BYTES_MAX, "more than 64 MiB; that is no recording");
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
