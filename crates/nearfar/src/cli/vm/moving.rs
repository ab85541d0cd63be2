//! `nearfar vm move`: migrates memory of a running QEMU to other nodes, and reports where it is afterwards.
//!
//! What can't succeed is refused before a page moves: too little free memory on the targets, nodes outside of the
//! process's cpuset, confidential guests, pages of 1 GiB. The result is not taken from the calls, which are known to report
//! errors for pages that did move, but read again from the kernel's tables, with the policy that remains in force for
//! pages that are touched later.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::{moving, output};
use nearfar_kernel::cgroup::{Hierarchy, Version};
use nearfar_kernel::clock::Stopwatch;
use nearfar_kernel::fs::{Fs as _, RootFs};
use nearfar_kernel::mapped::{self, Mapping};
use nearfar_kernel::moving::Migration;
use nearfar_kernel::process;
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeExpr, NodeSet};
use nearfar_vm::running::machine::{Backend, Machine, Target};
use nearfar_vm::running::verify::{self, Fact};
use serde_json::json;

use super::super::machine::MachineArgs;
use super::memory::count;

/// Maximum size of pages that can be migrated one by one.
const PAGE_MAX: Bytes = Bytes(2 << 20);

/// Arguments of `nearfar vm move`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("memory").required(true)))]
pub(super) struct Args {
    /// The virtual machine: the process id of QEMU, or the path of a QMP socket
    #[arg(value_name = "PID|QMP")]
    machine: String,
    /// Memory of this backend only
    #[arg(long, value_name = "ID", group = "memory")]
    backend: Option<String>,
    /// All memory of the process, QEMU's own included
    #[arg(long, group = "memory")]
    all: bool,
    /// Then write the target nodes to cpuset.mems of the process's cgroup, so that pages touched later are there, too; for
    /// a cgroup of its own
    #[arg(long, requires = "all")]
    rebind: bool,
    /// Target nodes
    #[arg(long, value_name = "NODES")]
    to: NodeExpr,
    /// Maximum bytes per second
    #[arg(long, value_name = "SIZE", default_value = "1g")]
    rate: Bytes,
    /// Print JSON (schema nearfar.vm-move/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    topology: MachineArgs,
}

/// Runs it.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = RootFs::live()?;
    let select = args.topology.select();
    let (topology, _) = select.read(select.open()?.as_ref())?;
    let targets = args.to.resolve(&topology, &[]).context("--to").ends_with(Exit::Usage)?;
    let usage = || anyhow::anyhow!("--rate: it must be above zero");
    (args.rate > Bytes(0)).then_some(()).ok_or_else(usage).ends_with(Exit::Usage)?;
    let mut machine = Machine::connect(&fs, &Target::parse(&args.machine))?;
    not_confidential(&mut machine, "can't be migrated; choose its nodes when it is started")?;
    let pid = machine.pid;
    let backends = machine.backends()?;
    // A monitor serves one client at a time, and this may take long.
    drop(machine);
    let mappings = mapped::of_process(&fs, pid)?;
    let ranges = selected(args, &backends, &mappings)?;
    let facts = |mappings: &[Mapping]| {
        let mut fact = verify::fact(&ranges, mappings, false, |start, end| count(pid, start, end));
        fact.policies.sort();
        fact
    };
    let before = facts(&mappings);
    let outside = outside(&before, &targets);
    moving::has_room(&topology, &targets, outside)?;
    moving::may_use(pid, &targets)?;
    let cpuset = args.rebind.then(|| Cpuset::of(&fs, pid)).transpose()?;
    let rate = BytesPerSecond(args.rate.0);
    let watch = Stopwatch::start();
    let free = moving::free(&topology, &targets);
    let mut migration = Migration::new(pid, ranges.iter().copied(), free, rate, Nanoseconds(0));
    let is_whole = moving::carry_out(&mut migration, &fs, watch)?;
    anyhow::ensure!(
        !migration.has_ended(),
        "process {pid} has ended; there is nothing left to move"
    );
    let rebound = cpuset.filter(|_| is_whole).map(|cpuset| cpuset.set(&fs, &targets)).transpose();
    let (rebound, refused) = rebound.map_or_else(|error| (None, Some(error)), |done| (done, None));
    let after = mapped::of_process(&fs, pid)?;
    let after = facts(&after);
    let took = watch.elapsed();
    report(args, &Report { targets, before, after, migration, took, rebound })?;
    if let Some(error) = refused {
        return Err(error.context("the memory is moved, but --rebind failed"));
    }
    Ok(if is_whole { Exit::Done } else { Exit::Failed }.into())
}

/// Refuses confidential guests, of whose memory `so` holds.
pub(super) fn not_confidential(machine: &mut Machine, so: &str) -> anyhow::Result<()> {
    match machine.confidential()? {
        Some(kind) => {
            anyhow::bail!("this is a confidential guest ({kind}): its memory is pinned, and {so}")
        }
        None => Ok(()),
    }
}

/// The cgroup of a virtual machine that has one to itself, with a cpuset.
struct Cpuset {
    path: String,
    file: String,
    before: String,
}

impl Cpuset {
    fn of(fs: &RootFs, pid: u32) -> anyhow::Result<Self> {
        let hierarchy = Hierarchy::find(fs)?;
        anyhow::ensure!(hierarchy.version == Version::V2, "--rebind needs cgroup version 2");
        let path = hierarchy.of_process(fs, pid)?;
        let tree = process::tree(fs, pid)?;
        let members = hierarchy.members(fs, &path)?;
        if let Some(other) = members.iter().find(|member| !tree.contains(member)) {
            let name = process::command(fs, *other);
            anyhow::bail!(
                "--rebind: cgroup {path} is not the machine's own: process {other} ({name}) is in it, too"
            );
        }
        let file = format!("{}{path}/cpuset.mems", hierarchy.mount().trim_start_matches('/'));
        let before = fs.read(&file)?.with_context(|| {
            format!("--rebind: cgroup {path} has no cpuset; write +cpuset to cgroup.subtree_control above it")
        })?;
        Ok(Self { path, file, before: before.trim().to_owned() })
    }

    /// Restricts the cgroup to these nodes: the kernel rebinds policies and migrates the remaining pages. Returns the change in
    /// words.
    fn set(self, fs: &RootFs, nodes: &NodeSet) -> anyhow::Result<String> {
        fs.write(&self.file, &nodes.to_string())?;
        let before = if self.before.is_empty() { "(all)" } else { &self.before };
        Ok(format!("cpuset.mems of cgroup {} is {nodes}; it was {before}", self.path))
    }
}

/// Address ranges to move: those of the backend, or for `--all` all with resident pages.
fn selected(
    args: &Args,
    backends: &[Backend],
    mappings: &[Mapping],
) -> anyhow::Result<Vec<(u64, u64)>> {
    let Some(id) = &args.backend else {
        if let Some((backend, page)) = backends.iter().find_map(|backend| {
            let block = backend.blocks.iter().find(|block| block.page > PAGE_MAX)?;
            Some((&backend.id, block.page))
        }) {
            anyhow::bail!(
                "--all: backend {backend} has pages of {page}, which the kernel can't migrate one by one; name the others with \
                 --backend"
            );
        }
        let resident = mappings.iter().filter(|mapping| mapping.resident() > Bytes(0));
        return Ok(resident.map(|mapping| (mapping.start, mapping.end)).collect());
    };
    let Some(backend) = backends.iter().find(|backend| backend.id == *id) else {
        let has: Vec<&str> = backends.iter().map(|backend| backend.id.as_str()).collect();
        return Err(anyhow::anyhow!(
            "--backend {id}: there is no such backend; there are {}",
            has.join(", ")
        ))
        .ends_with(Exit::Usage);
    };
    if let Some(block) = backend.blocks.iter().find(|block| block.page > PAGE_MAX) {
        anyhow::bail!(
            "backend {id} has pages of {}; the kernel can't migrate them one by one",
            block.page
        );
    }
    anyhow::ensure!(
        !backend.blocks.is_empty(),
        "QEMU reports no address for backend {id}: it is not in use yet"
    );
    Ok(backend.ranges())
}

fn outside(fact: &Fact, targets: &NodeSet) -> Bytes {
    let elsewhere = fact.nodes.iter().filter(|(node, _)| !targets.contains(**node));
    Bytes(elsewhere.map(|(_, bytes)| bytes.0).sum())
}

/// The result.
struct Report {
    targets: NodeSet,
    before: Fact,
    after: Fact,
    migration: Migration,
    took: Duration,
    /// The change of the cpuset, in words.
    rebound: Option<String>,
}

fn report(args: &Args, report: &Report) -> anyhow::Result<()> {
    let tally = report.migration.tally();
    let left = outside(&report.after, &report.targets);
    let stayed = moving::stayed(tally);
    let elsewhere: Vec<&String> = report
        .after
        .policies
        .iter()
        .filter(|policy| {
            let nodes = policy.rsplit_once(':').and_then(|(_, nodes)| NodeSet::parse_list(nodes));
            nodes.is_some_and(|nodes| nodes.iter().any(|node| !report.targets.contains(node)))
        })
        .collect();
    if args.json {
        let by_node = |fact: &Fact| -> BTreeMap<String, u64> {
            fact.nodes.iter().map(|(node, bytes)| (node.to_string(), bytes.0)).collect()
        };
        return output::print_json(&json!({
            "schema": "nearfar.vm-move/1",
            "moved": tally.bytes().0,
            "seconds": report.took.as_secs_f64(),
            "before": by_node(&report.before),
            "after": by_node(&report.after),
            "left": left.0,
            "not_moved_pages": stayed,
            "kernel_policies": report.after.policies,
            "rebound": report.rebound,
        }));
    }
    let mut out = format!(
        "Moved {} to {} in {:.1} s; {left} left elsewhere.\n",
        tally.bytes(),
        report.targets.named(),
        report.took.as_secs_f64()
    );
    for (reason, count) in stayed {
        out.push_str(&format!("  {count} pages: {}\n", reason.replace('_', " ")));
    }
    if let Some(rebound) = &report.rebound {
        output::wrapped(&mut out, "", rebound, 0);
    }
    if !elsewhere.is_empty() {
        let list: Vec<&str> = elsewhere.iter().map(|policy| policy.as_str()).collect();
        let text = format!(
            "The kernel's policy of this memory is still {}: pages that the guest touches for the first time go there. Only \
             cpuset.mems of the process's cgroup changes that for a running process (--all --rebind).",
            list.join("; ")
        );
        output::wrapped(&mut out, "", &text, 0);
    }
    output::print(&out)
}
