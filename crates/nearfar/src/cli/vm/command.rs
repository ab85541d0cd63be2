//! QEMU's command line as `vm args` and `vm run` take it, and its plan on the machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::meminfo;
use nearfar_topology::{Bytes, Nanoseconds, NodeId, Topology};
use nearfar_vm::qemu::{self, Far, Plan, Request, Shape};
use nearfar_vm::{Figure, Figures, Host, HugePages, Policy};

use super::super::machine::MachineArgs;
use super::native;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;
use nearfar_command::weighing::source;

/// The longest configuration file that is read.
const BYTES_MAX: u64 = 1 << 20;

/// Text of help that both commands have.
pub(super) const HELP: &str = "\
On -object memory-backend-ram, memory-backend-file and memory-backend-memfd, and on -m for all of the memory, two keys are \
accepted: host-mem-type=TYPE and host-mem-policy=POLICY. TYPE is cxlram (cxl), dram, hbm, pmem, far, near, tier:N, or nodes \
such as 1 or 1-2; commas in a list are doubled as everywhere in QEMU's options (1,,3). POLICY is bind (default), \
preferred, interleave or weighted-interleave. docs/vm.md has examples.";

/// The command line and the machine.
#[derive(Debug, clap::Args)]
pub(super) struct CommandArgs {
    /// Add far memory to that of -m, as a node without CPUs: SIZE, or SIZE:TYPE such as 2G:cxl; may be given several times
    #[arg(long, value_name = "SIZE[:TYPE]")]
    pub(super) far: Vec<Far>,
    /// The form in which the guest sees memory of --far
    #[arg(long, value_enum, default_value_t, requires = "far")]
    shape: ShapeArg,
    /// Also bind memory to nodes that have less free memory than that
    #[arg(long)]
    pub(super) overcommit: bool,
    /// For weighted interleave, preload a library that makes QEMU's interleaved memory weighted: with huge pages
    /// (hugetlb=on), and without root
    #[arg(long)]
    preload: bool,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// QEMU and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "QEMU")]
    pub(super) command: Vec<OsString>,
}

/// The value of `--shape`.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum ShapeArg {
    /// A node without CPUs, with HMAT
    #[default]
    Numa,
    /// A CXL type-3 device, for tests: slow, and unstable under KVM
    Type3,
}

impl CommandArgs {
    /// The plan, on the selected machine.
    pub(super) fn plan(&self) -> anyhow::Result<Plan> {
        let fs = self.machine.select().open()?;
        let (machine, _) = self.machine.select().read(fs.as_ref())?;
        let host = host(fs.as_ref(), &machine)?;
        let shape = match self.shape {
            ShapeArg::Numa => Shape::Numa,
            ShapeArg::Type3 => Shape::Type3,
        };
        let wants_weights = self.command.iter().any(|word| {
            word.to_str().is_some_and(|word| word.contains(Policy::WeightedInterleave.word()))
        });
        let native = if wants_weights { native::policy(&self.command[0]) } else { None };
        let request = Request {
            argv: &self.command,
            far: &self.far,
            shape,
            native: native.as_deref(),
            preload: self.preload,
            overcommit: self.overcommit,
            read: &read,
            huge_pages_at: &|path| huge_pages_at(Path::new(path)),
        };
        qemu::plan(&request, &host).ends_with(Exit::Usage)
    }
}

/// The host: its nodes, available memory and figures.
pub(super) fn host<'a>(fs: &dyn Fs, machine: &'a Topology) -> anyhow::Result<Host<'a>> {
    let huge = huge_pages(fs, machine);
    Ok(Host { room: room(fs, machine), huge, figures: figures(machine), machine })
}

/// Memory of each node that is free or holds file pages, which the kernel reclaims at once.
pub(super) fn room(fs: &dyn Fs, machine: &Topology) -> BTreeMap<NodeId, Bytes> {
    let room = |(id, node): (&NodeId, &nearfar_topology::Node)| {
        let cached = meminfo::of_node(fs, *id).map_or(Bytes(0), |info| info.cached);
        (*id, Bytes(node.free.0.saturating_add(cached.0)))
    };
    machine.nodes.iter().map(room).collect()
}

/// Free huge pages of each node, by their size.
fn huge_pages(fs: &dyn Fs, machine: &Topology) -> HugePages {
    let mut free: BTreeMap<Bytes, BTreeMap<NodeId, Bytes>> = BTreeMap::new();
    for node in machine.nodes.keys() {
        for (size, bytes) in meminfo::huge_pages(fs, *node) {
            free.entry(size).or_default().insert(*node, bytes);
        }
    }
    HugePages { default: meminfo::huge_page_size(fs), free }
}

/// The page size of the file system of huge pages that has, or will have, a file.
fn huge_pages_at(path: &Path) -> Option<Bytes> {
    /// HUGETLBFS_MAGIC of linux/magic.h.
    const HUGETLBFS: u64 = 0x9584_58f6;
    let found = rustix::fs::statfs(path).or_else(|error| match path.parent() {
        Some(parent) => rustix::fs::statfs(parent),
        None => Err(error),
    });
    let found = found.ok()?;
    // The field is signed and narrower on some architectures.
    let kind = u64::try_from(found.f_type).ok()? & 0xffff_ffff;
    (kind == HUGETLBFS).then(|| u64::try_from(found.f_bsize).ok().map(Bytes)).flatten()
}

/// Figures of the machine's nodes: firmware's if it has them for all nodes, else those of the saved probe.
fn figures(machine: &Topology) -> Option<Figures> {
    let firmware = Figures::of_firmware(machine);
    if firmware.as_ref().is_some_and(|known| known.cover(machine.memory_nodes().iter())) {
        return firmware;
    }
    let saved = source::saved(machine).unwrap_or_else(|error| {
        output::note(format_args!("{error:#}; the guest gets firmware's figures, if any"));
        None
    });
    let Some(report) = saved else { return firmware };
    let pairs = report.pairs.iter().filter_map(|pair| {
        let bandwidth = pair.bandwidth.first()?.median_bytes_per_second;
        let latency = nanoseconds(pair.idle_latency.median_ns);
        Some(((pair.cpu_node, pair.memory_node), Figure { latency, bandwidth }))
    });
    let pairs = pairs.collect();
    Some(Figures { pairs, source: "the saved probe".into() })
}

/// A measured latency in whole nanoseconds.
fn nanoseconds(measured: f64) -> Nanoseconds {
    let rounded = format!("{:.0}", measured.clamp(0.0, 1e9));
    Nanoseconds(rounded.parse().unwrap_or(0))
}

/// A file of -readconfig. Pipes and devices can be read only once, by QEMU.
fn read(path: &str) -> Result<String, String> {
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("not a regular file".into());
    }
    if about.len() > BYTES_MAX {
        return Err("longer than 1 MiB".into());
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}
