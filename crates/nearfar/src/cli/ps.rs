//! `nearfar ps`: the memory of running processes, near and far.
//!
//! It reads `/proc/PID/numa_maps` of each process and needs neither DAMON nor, for one's own processes, root. Shared
//! pages count in each process that maps them, so columns do not add up to the machine's memory. A process that ends
//! meanwhile is left out.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::machine::Machine;
use nearfar_command::{interrupt, output};
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::clock;
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::process;
use nearfar_kernel::usage::{self, Usage};
use nearfar_topology::{Bytes, NodeId, NodeSet, Topology};
use serde::Serialize;

/// Interval at which an interruption is noticed.
const TURN: Duration = Duration::from_millis(100);

/// Arguments of `nearfar ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these processes, with their memory by node, kind of page and policy
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// Only processes of this cgroup and its descendants
    #[arg(long, value_name = "CGROUP", conflicts_with = "pids")]
    cgroup: Option<String>,
    /// Order of the processes
    #[arg(long, value_enum, default_value_t = Order::Far)]
    sort: Order,
    /// Print again at this interval until interrupted
    #[arg(long, value_name = "TIME", value_parser = super::record::duration)]
    watch: Option<Duration>,
    /// Print JSON (schema nearfar.ps/1); with --watch an object per line
    #[arg(long)]
    json: bool,
}

/// Order of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Order {
    /// Most far memory first
    Far,
    /// Most memory first
    Memory,
    /// By process id
    Pid,
}

/// The JSON of `nearfar.ps/1`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    processes: Vec<Process>,
    /// Processes that this user may not read.
    unreadable: usize,
}

/// A process.
#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    command: String,
    bytes: u64,
    near_bytes: u64,
    far_bytes: u64,
    nodes: Vec<OnNode>,
    policies: Vec<WithPolicy>,
}

/// Memory of a process on a node.
#[derive(Debug, Serialize)]
struct OnNode {
    node: u16,
    anonymous_bytes: u64,
    file_bytes: u64,
    shared_bytes: u64,
    hugetlb_bytes: u64,
}

/// Memory of a process under a memory policy.
#[derive(Debug, Serialize)]
struct WithPolicy {
    policy: String,
    bytes: u64,
}

/// Prints the processes.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = RootFs::live()?;
    let (machine, _) = Machine::default().read(&fs)?;
    if args.watch.is_some() {
        interrupt::listen()?;
    }
    loop {
        let report = report(&fs, &machine, args)?;
        match (args.json, args.watch) {
            (true, None) => output::print_json(&report)?,
            (true, Some(_)) => output::print(&(serde_json::to_string(&report)? + "\n"))?,
            (false, _) if args.pids.is_empty() => output::print(&table(&report))?,
            (false, _) => output::print(&details(&report))?,
        }
        let Some(interval) = args.watch else { return Ok(Exit::Done.into()) };
        let since = clock::Stopwatch::start();
        while since.elapsed() < interval {
            clock::sleep(TURN.min(interval));
            if interrupt::check().is_err() {
                return Ok(Exit::Done.into());
            }
        }
        if !args.json {
            output::print("\n")?;
        }
    }
}

fn report(fs: &dyn Fs, machine: &Topology, args: &Args) -> anyhow::Result<Report> {
    let pids = match &args.cgroup {
        Some(name) => {
            let hierarchy = Hierarchy::find(fs)?;
            let path = hierarchy.named(fs, name).ends_with(Exit::Usage)?;
            hierarchy.members(fs, &path)?
        }
        None if args.pids.is_empty() => process::all(fs)?,
        None => args.pids.clone(),
    };
    let (near, far) = (machine.near(), machine.far());
    let is_named = !args.pids.is_empty();
    let (mut processes, mut unreadable) = (Vec::new(), 0);
    for pid in pids {
        match usage::of_process(fs, pid) {
            Ok(Some(usage)) => processes.push(Process::new(fs, pid, &usage, (&near, &far))),
            Ok(None) if is_named => anyhow::bail!("process {pid} does not exist, or has no memory"),
            Err(error) if is_named && error.is_permission() => {
                return Err(output::forbidden(pid, "CAP_SYS_PTRACE"));
            }
            Err(error) if is_named => return Err(error.into()),
            Err(error) if error.is_permission() => unreadable += 1,
            // It has no memory, or has ended meanwhile.
            Ok(None) | Err(_) => {}
        }
    }
    match args.sort {
        _ if is_named => {}
        Order::Far => processes.sort_by_key(|one| Reverse((one.far_bytes, one.bytes))),
        Order::Memory => processes.sort_by_key(|one| Reverse(one.bytes)),
        Order::Pid => processes.sort_by_key(|one| one.pid),
    }
    Ok(Report { schema: "nearfar.ps/1", processes, unreadable })
}

impl Process {
    fn new(fs: &dyn Fs, pid: u32, usage: &Usage, (near, far): (&NodeSet, &NodeSet)) -> Self {
        let on_node = |(node, kinds): (&NodeId, &usage::Kinds)| OnNode {
            node: node.0,
            anonymous_bytes: kinds.anonymous.0,
            file_bytes: kinds.file.0,
            shared_bytes: kinds.shared.0,
            hugetlb_bytes: kinds.hugetlb.0,
        };
        let policy = |(policy, bytes): (&String, &Bytes)| WithPolicy {
            policy: policy.clone(),
            bytes: bytes.0,
        };
        Self {
            pid,
            command: process::command(fs, pid),
            bytes: usage.on(|_| true).0,
            near_bytes: usage.on(|node| near.contains(node)).0,
            far_bytes: usage.on(|node| far.contains(node)).0,
            nodes: usage.nodes.iter().map(on_node).collect(),
            policies: usage.policies.iter().map(policy).collect(),
        }
    }

    /// The share of its memory that is far, in percent.
    fn far_percent(&self) -> u64 {
        self.far_bytes.saturating_mul(100) / self.bytes.max(1)
    }
}

fn table(report: &Report) -> String {
    let mut out = format!(
        "{:>8} {:>11} {:>11} {:>11} {:>5}  COMMAND\n",
        "PID", "MEMORY", "NEAR", "FAR", "FAR%"
    );
    for one in &report.processes {
        let [bytes, near, far] =
            [one.bytes, one.near_bytes, one.far_bytes].map(|bytes| Bytes(bytes).to_string());
        let percent = one.far_percent();
        let _ = writeln!(
            out,
            "{:>8} {bytes:>11} {near:>11} {far:>11} {percent:>5}  {}",
            one.pid, one.command
        );
    }
    if report.unreadable > 0 {
        let count = report.unreadable;
        let text = match rustix::process::geteuid().is_root() {
            true => format!(
                "not shown: {count} (this container or kernel lets not even root read their memory)"
            ),
            false => format!("not shown: {count} of other users (sudo nearfar ps)"),
        };
        output::wrapped(&mut out, "", &text, 0);
    }
    out
}

fn details(report: &Report) -> String {
    let mut out = String::new();
    for one in &report.processes {
        let (bytes, percent) = (Bytes(one.bytes), one.far_percent());
        let _ = writeln!(out, "{} {}: {bytes}, {percent} % far", one.pid, one.command);
        let _ = writeln!(
            out,
            "  {:<6} {:>11} {:>11} {:>11} {:>11}",
            "node", "anonymous", "file", "shared", "hugetlb"
        );
        for on in &one.nodes {
            let [anonymous, file, shared, hugetlb] =
                [on.anonymous_bytes, on.file_bytes, on.shared_bytes, on.hugetlb_bytes]
                    .map(|bytes| Bytes(bytes).to_string());
            let _ = writeln!(
                out,
                "  {:<6} {anonymous:>11} {file:>11} {shared:>11} {hugetlb:>11}",
                on.node
            );
        }
        for with in &one.policies {
            let _ = writeln!(out, "  policy {}: {}", with.policy, Bytes(with.bytes));
        }
    }
    out
}
