//! What is recorded, resolved against the system: kdamonds and the record's header.

use std::time::Duration;

use anyhow::Context as _;
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::damon::spec::{Action, AddrRange, Kdamond, Scheme};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::ranges;
use nearfar_record::{Header, Intervals, Node, Operations, Range, Target};

use super::super::machine::MachineArgs;
use super::Args;
use crate::clock;
use crate::exit::{EndsWith as _, Exit};

/// Processes of a cgroup that are recorded at most: each needs a thread of the kernel's.
const PROCESSES_MAX: usize = 16;
/// How often DAMON looks at what a process has mapped.
const UPDATE_US: u64 = 1_000_000;

/// What is watched, and what the record says of itself.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kdamonds: Vec<Kdamond>,
    pub(super) header: Header,
    /// The processes; none for the whole machine.
    pub(super) processes: Vec<u32>,
}

impl Plan {
    /// `child` is the command's process, if there is one.
    pub(super) fn new(
        args: &Args,
        child: Option<u32>,
        machine: &MachineArgs,
        fs: &dyn Fs,
    ) -> anyhow::Result<Self> {
        let (topology, _) = machine.read(fs)?;
        let ranges = ranges::of_nodes(fs);
        let (target, processes) = target(args, child, fs)?;
        let mut kdamonds: Vec<Kdamond> =
            processes.iter().map(|pid| Kdamond::process(*pid)).collect();
        if processes.is_empty() {
            let nodes = ranges.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
            let mut all: Vec<AddrRange> = nodes.values().flatten().copied().collect();
            all.sort_unstable();
            anyhow::ensure!(
                !all.is_empty(),
                "this kernel shows no addresses of memory; that takes root"
            );
            kdamonds.push(Kdamond::physical(&all));
        }
        for kdamond in &mut kdamonds {
            kdamond.context.intervals.update_us = UPDATE_US;
            kdamond.context.schemes = vec![Scheme::new(Action::Stat)];
        }
        let given = nearfar_kernel::damon::spec::Intervals::default();
        let near = topology.near(&[]);
        let ranges = ranges.unwrap_or_default();
        let nodes =
            topology.nodes.iter().filter(|(_, node)| node.size.0 > 0).map(|(id, node)| Node {
                id: *id,
                kind: node.kind.to_string(),
                near: near.contains(*id),
                ranges: ranges
                    .get(id)
                    .into_iter()
                    .flatten()
                    .filter(|of| !of.is_empty())
                    .map(|of| Range { start: of.start, end: of.end })
                    .collect(),
            });
        let lab = machine.lab(fs);
        let name = lab.as_ref().and_then(|lab| lab["machine"].as_str().map(str::to_owned));
        let kernel = fs.read("proc/sys/kernel/osrelease")?.unwrap_or_default();
        let header = Header {
            writer: concat!("nearfar ", env!("CARGO_PKG_VERSION")).into(),
            machine: name.or_else(|| topology.product.clone()).unwrap_or_default(),
            fingerprint: topology.fingerprint(),
            kernel: kernel.trim().into(),
            emulated: lab.is_some(),
            started_unix_ns: clock::unix_ns(),
            operations: match processes.is_empty() {
                true => Operations::Physical,
                false => Operations::Virtual,
            },
            target,
            intervals: Intervals { sample_us: given.sample_us, aggregation_us: given.aggr_us },
            nodes: nodes.collect(),
        };
        Ok(Self { kdamonds, header, processes })
    }
}

fn target(args: &Args, child: Option<u32>, fs: &dyn Fs) -> anyhow::Result<(Target, Vec<u32>)> {
    if let Some(name) = &args.cgroup {
        let asked = || format!("--cgroup {name}");
        let cgroups = Hierarchy::find(fs).with_context(asked)?;
        let path = cgroups.named(fs, name).with_context(asked).ends_with(Exit::Usage)?;
        let members = cgroups.members(fs, &path).with_context(asked)?;
        anyhow::ensure!(!members.is_empty(), "--cgroup {name}: no process is in it");
        anyhow::ensure!(
            members.len() <= PROCESSES_MAX,
            "--cgroup {name}: {} processes are in it, and at most {PROCESSES_MAX} are recorded apart; record --machine, \
             or one of them with --pid",
            members.len()
        );
        return Ok((Target::Cgroup(path), members));
    }
    let Some(pid) = args.pid.or(child) else { return Ok((Target::Machine, Vec::new())) };
    let command = fs.read(&format!("proc/{pid}/comm"))?;
    let command = command.with_context(|| format!("--pid {pid}: no such process"));
    let command = match child {
        Some(_) => args.command.first().cloned().unwrap_or_default(),
        None => command.ends_with(Exit::Usage)?.trim().to_owned(),
    };
    Ok((Target::Process { pid, command }, vec![pid]))
}

/// `500ms`, `2s`, `1.5s`, `5m`, `1h`; at least a tenth of a second, at most a year.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let seconds = match &text[unit..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("write it as 500ms, 2s, 5m or 1h".into()),
    };
    let number: f64 = text[..unit].trim().parse().map_err(|_| "it begins with no number")?;
    let seconds = number * seconds;
    if !(0.1..=31_536_000.0).contains(&seconds) {
        return Err("it has to be between 100ms and a year".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_a_sensible_length() {
        for (text, ms) in
            [("500ms", 500), ("2s", 2000), ("1.5s", 1500), ("5m", 300_000), ("1h", 3_600_000)]
        {
            assert_eq!(time(text).unwrap().as_millis(), ms, "{text}");
        }
        for text in ["5", "", "s", "-1s", "0s", "99ms", "9999999h", "NaNs", "infs", "2 days"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
