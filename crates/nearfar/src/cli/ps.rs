//! `nearfar ps`: the memory of running processes, near and far.
//!
//! It reads `/proc/PID/numa_maps` of each process and needs neither DAMON nor, for one's own processes, root; of cgroups it reads
//! `memory.numa_stat`. A process or cgroup that ends meanwhile is left out.

use std::cmp::Reverse;
use std::process::ExitCode;
use std::time::Duration;

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::machine::Machine;
use nearfar_command::usage::{Group, Process, Report, details, groups, table};
use nearfar_command::{interrupt, output};
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::clock;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process;
use nearfar_kernel::usage;
use nearfar_topology::Topology;

/// Interval at which an interruption is noticed.
const TURN: Duration = Duration::from_millis(100);

/// Arguments of `nearfar ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these processes, by number or name, with their memory by node, kind of page and policy
    #[arg(value_name = "PID|NAME")]
    processes: Vec<String>,
    /// Only processes of this cgroup and its descendants
    #[arg(long, value_name = "PATH", conflicts_with = "processes")]
    cgroup: Option<String>,
    /// Cgroups instead of processes, each with its descendants and its page cache
    #[arg(long, conflicts_with = "processes")]
    cgroups: bool,
    /// Order of the processes or cgroups
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
    /// By process id, or by path
    Pid,
}

/// Prints the processes.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Fails with the reason where the kernel shows no nodes: then nothing is near or far.
    let fs = Machine::default().open()?;
    let (machine, _) = Machine::default().read(fs.as_ref())?;
    if args.watch.is_some() {
        interrupt::listen()?;
    }
    loop {
        let report = report(fs.as_ref(), &machine, args)?;
        match (args.json, args.watch) {
            (true, None) => output::print_json(&report)?,
            (true, Some(_)) => output::print(&(serde_json::to_string(&report)? + "\n"))?,
            (false, _) if args.cgroups => output::print(&groups(&report))?,
            (false, _) if args.processes.is_empty() => output::print(&table(&report))?,
            (false, _) => output::print(&details(&report))?,
        }
        let Some(interval) = args.watch else { return Ok(Exit::Done.into()) };
        let since = clock::Stopwatch::start();
        while since.elapsed() < interval {
            clock::sleep(TURN.min(interval));
            if interrupt::check().is_err() || output::is_unread() {
                return Ok(Exit::Done.into());
            }
        }
        if !args.json {
            output::print("\n")?;
        }
    }
}

/// The cgroups with memory.
fn cgroups(fs: &dyn Fs, machine: &Topology, args: &Args) -> anyhow::Result<Report> {
    let hierarchy = Hierarchy::find(fs)?;
    let top = hierarchy.named(fs, args.cgroup.as_deref().unwrap_or("/")).ends_with(Exit::Usage)?;
    let (near, far) = (machine.near(), machine.far());
    let found = hierarchy.numa_stats(fs, &top)?.into_iter();
    let mut cgroups: Vec<Group> = found
        .map(|(path, nodes)| Group::new(path, &nodes, (&near, &far)))
        .filter(|one| one.memory.bytes > 0)
        .collect();
    match args.sort {
        Order::Far => cgroups.sort_by_key(|one| Reverse(one.memory)),
        Order::Memory => cgroups.sort_by_key(|one| Reverse(one.memory.bytes)),
        Order::Pid => cgroups.sort_by(|one, other| one.cgroup.cmp(&other.cgroup)),
    }
    Ok(Report {
        schema: "nearfar.ps/1",
        processes: Vec::new(),
        cgroups: Some(cgroups),
        unreadable: 0,
    })
}

/// The processes with these numbers or names, as `numastat -p` takes them.
fn named(fs: &dyn Fs, asked: &[String]) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for one in asked {
        if one.bytes().all(|byte| byte.is_ascii_digit()) {
            let pid = one.parse().ok();
            found.push(pid.ok_or_else(|| anyhow::anyhow!("process {one} does not exist"))?);
            continue;
        }
        // The kernel keeps 15 bytes of a name.
        let is_it = |pid: &u32| {
            let name = process::command(fs, *pid);
            name == *one || name.len() == 15 && one.starts_with(&name)
        };
        let before = found.len();
        found.extend(process::all(fs)?.into_iter().filter(is_it));
        anyhow::ensure!(before < found.len(), "no process is named {one}; nearfar ps lists them");
    }
    Ok(found)
}

fn report(fs: &dyn Fs, machine: &Topology, args: &Args) -> anyhow::Result<Report> {
    if args.cgroups {
        return cgroups(fs, machine, args);
    }
    let pids = match &args.cgroup {
        Some(name) => {
            let hierarchy = Hierarchy::find(fs)?;
            let path = hierarchy.named(fs, name).ends_with(Exit::Usage)?;
            hierarchy.members(fs, &path)?
        }
        None if args.processes.is_empty() => process::all(fs)?,
        None => named(fs, &args.processes)?,
    };
    let (near, far) = (machine.near(), machine.far());
    let is_named = !args.processes.is_empty();
    let is_numbered = is_named && args.processes.iter().all(|one| one.parse::<u32>().is_ok());
    let (mut processes, mut unreadable) = (Vec::new(), 0);
    for pid in pids {
        match usage::of_process(fs, pid) {
            Ok(Some(usage)) => {
                let command = process::command(fs, pid);
                let mut process = Process::new(pid, command, &usage, (&near, &far));
                // It takes as long as the rest: not for all processes.
                let huge = is_named.then(|| usage::transparent_huge(fs, pid)).flatten();
                process.transparent_huge_bytes = huge.map(|bytes| bytes.0);
                processes.push(process);
            }
            Ok(None) if is_numbered => {
                anyhow::bail!("process {pid} does not exist, or has no memory")
            }
            Err(error) if is_named && error.is_permission() => {
                return Err(output::forbidden(pid, "CAP_SYS_PTRACE"));
            }
            Err(error) if is_numbered => return Err(error.into()),
            Err(error) if error.is_permission() => unreadable += 1,
            // It has no memory, or has ended meanwhile.
            Ok(None) | Err(_) => {}
        }
    }
    match args.sort {
        _ if is_named => {}
        Order::Far => processes.sort_by_key(|one| Reverse(one.memory)),
        Order::Memory => processes.sort_by_key(|one| Reverse(one.memory.bytes)),
        Order::Pid => processes.sort_by_key(|one| one.pid),
    }
    Ok(Report { schema: "nearfar.ps/1", processes, cgroups: None, unreadable })
}
