//! `nearfar` without a command, and `nearfar status`: the machine in short, what nearfar does on it now, what is wrong,
//! and the next command to try.
//!
//! It only reads, and needs no privilege: services are found as processes, settings in the journal. What only root may
//! read is said to be unknown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use nearfar_command::machine;
use nearfar_command::output::{self, wrapped};
use nearfar_command::weighing::source;
use nearfar_kernel::damon;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::{Batch, Journal, OnConflict};
use nearfar_kernel::process::{self, Running};
use nearfar_topology::{Bytes, Finding, NodeSet, Topology};
use serde::Serialize;

use super::machine::MachineArgs;

/// Arguments of `nearfar status`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.status/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// The JSON of `nearfar.status/1`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    product: Option<String>,
    kernel: Option<String>,
    /// In a guest of the lab, the lab's description of it; else null.
    lab: Option<serde_json::Value>,
    /// A short description of the machine.
    machine: String,
    near: String,
    far: String,
    near_memory: Memory,
    far_memory: Memory,
    /// nearfar's processes; null for a recorded machine.
    services: Option<Vec<Service>>,
    /// Settings that nearfar has changed and not restored yet; null if unknown.
    settings: Option<Vec<Setting>>,
    /// What is wrong.
    problems: Vec<String>,
    /// The next commands to try.
    next: Vec<Next>,
}

/// The memory of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Memory {
    bytes: u64,
    free_bytes: u64,
}

impl Memory {
    fn of(topology: &Topology, nodes: &NodeSet) -> Self {
        let nodes = || nodes.iter().filter_map(|node| topology.nodes.get(&node));
        Self {
            bytes: nodes().map(|node| node.size.0).sum(),
            free_bytes: nodes().map(|node| node.free.0).sum(),
        }
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} free", Bytes(self.free_bytes), Bytes(self.bytes))
    }
}

/// A process of nearfar.
#[derive(Debug, Serialize)]
struct Service {
    pid: u32,
    command: String,
    user: String,
    running_s: u64,
}

/// A changed setting.
#[derive(Debug, Serialize)]
struct Setting {
    path: String,
    value: String,
    before: String,
    /// The present value, if another process has changed it since.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<String>,
    /// The part of nearfar that has changed it.
    by: String,
    pid: u32,
    /// Whether that process still runs.
    running: bool,
    /// The time since the change, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    since_s: Option<u64>,
}

/// A command to try.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Next {
    command: &'static str,
    purpose: &'static str,
}

/// Parts of nearfar whose settings stay when their process has ended, as was asked for.
const STAYS: &str = "weights";

/// Prints the status.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = of(&args.machine.select())?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The status of a machine.
pub(crate) fn of(selected: &machine::Machine) -> anyhow::Result<Report> {
    let fs = selected.open()?;
    let (topology, findings) = selected.read(fs.as_ref())?;
    let mut report = report(&topology, &findings, selected.lab(fs.as_ref()));
    if selected.is_live() {
        add_live(&mut report, fs.as_ref());
    }
    report.next = next(&report, &topology, selected.is_live());
    Ok(report)
}

fn report(topology: &Topology, findings: &[Finding], lab: Option<serde_json::Value>) -> Report {
    Report {
        schema: "nearfar.status/1",
        product: topology.product.clone(),
        kernel: topology.kernel.clone(),
        lab,
        machine: topology.inventory(),
        near: topology.near().to_string(),
        far: topology.far().to_string(),
        near_memory: Memory::of(topology, &topology.near()),
        far_memory: Memory::of(topology, &topology.far()),
        services: None,
        settings: None,
        problems: findings.iter().map(ToString::to_string).chain(errors(topology)).collect(),
        next: Vec::new(),
    }
}

/// Memory errors that were not corrected.
fn errors(topology: &Topology) -> impl Iterator<Item = String> {
    let pages = topology.nodes.iter().filter_map(|(id, node)| {
        node.failures.filter(|of| of.total > 0).map(|of| format!("node {id}: {of}"))
    });
    let controllers = topology.controllers.iter().filter(|one| one.uncorrected > 0);
    pages.chain(controllers.map(|one| format!("memory controller {one}")))
}

/// Adds processes and settings of the running machine.
fn add_live(report: &mut Report, fs: &dyn Fs) {
    let own = std::process::id();
    let running = process::running("nearfar").into_iter().filter(|one| one.pid != own);
    report.services = Some(running.filter_map(service).collect());
    let journal = Journal::new(Journal::default_dir(), fs, "/");
    match journal.all_pending() {
        Ok(pending) => {
            // Values that this user may not read are not known to be another process's.
            let foreign = journal.foreign(OnConflict::Refuse).unwrap_or_default();
            let settings: Vec<_> =
                pending.batches.iter().flat_map(|batch| settings(batch, fs, &foreign)).collect();
            let left = settings.iter().filter(|one| !one.running && one.by != STAYS).count();
            if left > 0 {
                report.problems.push(format!(
                    "{left} settings are as a killed process has left them; nearfar off restores them"
                ));
            }
            let unreadable = pending.unreadable.iter().map(|one| {
                format!(
                    "settings in {} are unknown: {}",
                    one.path.display(),
                    output::unreadable(one)
                )
            });
            report.problems.extend(unreadable);
            // None is what can be read, and may not be all.
            let is_known = !settings.is_empty() || pending.unreadable.is_empty();
            report.settings = is_known.then_some(settings);
        }
        Err(error) => report.problems.push(format!("changed settings are unknown: {error}")),
    }
    let is_own = |one: &Setting| one.path.starts_with("/sys/kernel/mm/damon/");
    if !report.settings.iter().flatten().any(is_own) {
        let holders = damon::holders(fs).unwrap_or_default();
        // nearfar pauses the kernel's statistics by itself.
        let holder = holders.into_iter().find(|holder| holder.name() != "damon_stat");
        report.problems.extend(holder.map(|holder| {
            format!(
                "nearfar tier and record can't start: DAMON is in use by {holder}; to release it: {}",
                holder.way_out()
            )
        }));
    }
}

/// A process as a service, unless it is this command or one that only looks.
fn service(running: Running) -> Option<Service> {
    const LOOKS: [&str; 8] =
        ["status", "topo", "doctor", "snapshot", "why", "off", "man", "completions"];
    let words = running.arguments.get(1..).unwrap_or_default();
    let options = words.iter().take_while(|word| word.starts_with('-')).count();
    let words = &words[options..];
    // The first process of the lab's guests.
    let is_guest = words.iter().take(2).eq(["lab", "guest"]);
    if is_guest || words.first().is_none_or(|first| LOOKS.contains(&first.as_str())) {
        return None;
    }
    // Options tell little, and may be private.
    let words = words.iter().take_while(|word| !word.starts_with('-')).take(2);
    let command = words.fold("nearfar".to_owned(), |text, word| text + " " + word);
    let Running { pid, user, running_s, .. } = running;
    Some(Service { pid, command, user, running_s })
}

fn settings<'a>(
    batch: &'a Batch,
    fs: &'a dyn Fs,
    foreign: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = Setting> + 'a {
    let running = process::lives(fs, batch.pid);
    let since_s = batch.since.and_then(|since| since.elapsed().ok()).map(|since| since.as_secs());
    batch.changes.iter().map(move |change| Setting {
        path: format!("/{}", change.path),
        value: change.new.clone(),
        before: change.old.clone(),
        found: foreign.get(&change.path).cloned(),
        by: batch.by.clone(),
        pid: batch.pid,
        running,
        since_s,
    })
}

fn next(report: &Report, topology: &Topology, is_live: bool) -> Vec<Next> {
    let to = |command, purpose| Next { command, purpose };
    let has_two = topology.memory_nodes().len() > 1;
    let is_measured = is_live && source::saved(topology).is_ok_and(|saved| saved.is_some());
    let mut next = Vec::new();
    if report.settings.as_ref().is_some_and(|all| all.iter().any(|one| !one.running)) {
        next.push(to("nearfar off", "end nearfar's services and restore all settings"));
    }
    if !has_two {
        next.push(to("nearfar demo", "see near and far memory in the lab, on an emulated machine"));
        next.push(to("nearfar doctor", "see what this kernel can do"));
        return next;
    }
    if !is_measured {
        next.push(to("nearfar probe", "measure latency and bandwidth of each node's memory"));
    }
    let runs = |command: &str| {
        report.services.iter().flatten().any(|one| one.command.starts_with(command))
    };
    let balances = to("nearfar balance status", "see which pages are moved, and why");
    if topology.tiers.len() < 2 {
        next.push(to(
            "nearfar run -N 0 -p same -- CMD",
            "run a program on the CPUs and memory of one node",
        ));
        next.push(match runs("nearfar balance") {
            true => balances,
            false => to("nearfar balance start", "spread the traffic of the sockets (root)"),
        });
        return next;
    }
    next.push(to("nearfar run -p near -- CMD", "run a program, and allocate in near memory first"));
    next.push(if runs("nearfar tier") {
        to("nearfar tier status", "see which pages are moved, and why")
    } else if runs("nearfar balance") {
        balances
    } else {
        to("nearfar tier start", "keep hot pages near and cold ones far (root)")
    });
    next
}

impl Report {
    fn text(&self) -> String {
        let mut out = String::new();
        let product = self.product.as_deref().unwrap_or("Unnamed machine");
        let kernel = self.kernel.as_deref().unwrap_or("of unknown release");
        wrapped(&mut out, "", &format!("{product}, Linux {kernel}: {}", self.machine), 2);
        if let Some(lab) = &self.lab {
            machine::emulated(&mut out, lab);
        }
        match self.far.is_empty() {
            true => {
                let _ = writeln!(out, "All memory is near, {}.", self.near_memory);
            }
            false => {
                let [near, far] = [self.near_memory, self.far_memory];
                let text =
                    format!("Near nodes: {}, {near}; far nodes: {}, {far}.", self.near, self.far);
                wrapped(&mut out, "", &text, 2);
            }
        }
        if let Some(services) = &self.services {
            out.push_str("\nrunning\n");
            if services.is_empty() {
                out.push_str("  no process of nearfar\n");
            }
            for one in services {
                let Service { pid, command, user, running_s } = one;
                let text = format!("process {pid} of {user}, for {}", duration(*running_s));
                wrapped(&mut out, &format!("  {command:<24} "), &text, 27);
            }
        }
        if self.services.is_some() && self.settings.is_none() {
            out.push_str("\nchanged settings\n  unknown\n");
        }
        if let Some(settings) = &self.settings {
            out.push_str("\nchanged settings\n");
            if settings.is_empty() {
                out.push_str("  none\n");
            }
            for one in settings {
                let Setting { path, value, before, found, by, pid, running, since_s } = one;
                let foreign = found.as_ref().map_or_else(String::new, |found| {
                    format!("; another process has set {found} since")
                });
                let whose = if *running { format!("process {pid}") } else { "ended".into() };
                let since = since_s.map_or_else(String::new, |s| format!(", {} ago", duration(s)));
                wrapped(
                    &mut out,
                    "  ",
                    &format!("{path}: {value}, before {before} (by {by}, {whose}{since}){foreign}"),
                    4,
                );
            }
        }
        if !self.problems.is_empty() {
            out.push_str("\nproblems\n");
            self.problems.iter().for_each(|one| wrapped(&mut out, "  ", one, 4));
        }
        out.push_str("\nnext\n");
        let width = self.next.iter().map(|next| next.command.len()).max().unwrap_or(0).max(28);
        for Next { command, purpose } in &self.next {
            wrapped(&mut out, &format!("  {command:<width$} "), purpose, width + 3);
        }
        out
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3599, "59 min"),
            (3600, "1 h 0 min"),
            (90_061, "1 d 1 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn services_are_named_without_their_options() {
        let running = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
            service(Running { pid: 1, arguments, user: "root".into(), running_s: 1 })
                .map(|one| one.command)
        };
        assert_eq!(
            running(&["/usr/bin/nearfar", "tier", "start", "--foreground"]).as_deref(),
            Some("nearfar tier start")
        );
        assert_eq!(
            running(&["nearfar", "daemon", "--interval", "5"]).as_deref(),
            Some("nearfar daemon")
        );
        assert_eq!(running(&["nearfar", "run", "-m", "near", "x"]).as_deref(), Some("nearfar run"));
        for looks in [
            &["nearfar"][..],
            &["nearfar", "status"],
            &["nearfar", "topo", "--json"],
            &["nearfar", "lab", "guest"],
        ] {
            assert_eq!(running(looks), None);
        }
    }
}
