//! Workloads for tiering: real programs larger than near memory, timed over time, under one placement or several.
//!
//! For each placement, in this order: cold data is allocated in its share of near memory, the server starts and is
//! filled (or the program allocates its memory and stops, if it supports that), the command of `--before` starts the
//! compared system, the program is timed, the command of `--after` ends it. Everything started here is ended here. The
//! placement is that of the process with the data: the server, or the program.
//!
//! Under a modelled clock, server and client share a CPU as batch work (why: `demo/servers.rs`), and the other CPUs are
//! left to the tiering system. It is an isolated one if there is one, as in the lab's guests, else CPU 0.
//!
//! [`mod@file`] is the format of a workload, [`programs`] the programs, [`results`] the results.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nearfar_topology::Bytes;

pub mod effort;
pub mod file;
pub mod guest;
pub mod programs;
pub mod results;

use crate::demo::line::Line;
use crate::demo::process::{self, Launcher, Server, free_port};
use crate::demo::{machine, placements};
use effort::Effort;
use file::{Fit, Fitted, Workload};
use nearfar_command::progress::Progress;
use nearfar_kernel::clock::{self, Stopwatch};
use results::{Found, Look, Run, SCHEMA};

/// Time limit of filling a server, or of allocating cold data.
const FILL_LIMIT: Duration = Duration::from_secs(600);
/// Time limit of a program beyond its run time, for its set-up.
const SET_UP_LIMIT: Duration = Duration::from_secs(600);
/// Polling interval for a program.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum number of residency samples per run, at a minimum interval. Each walks page tables, which is slow on an
/// emulated machine.
const LOOKS: u32 = 40;
const RESIDENCY: Duration = Duration::from_secs(1);

/// Environment variable of commands: the process with the data.
const DATA_PID: &str = "NEARFAR_DATA_PID";

/// The request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The workload.
    pub(crate) workload: Workload,
    /// `near`, `far`, `default`.
    pub(crate) placements: Vec<Placement>,
    /// Near memory for which the workload is sized; the machine's if `None`: the same sizes on different machines.
    pub(crate) near_mib: Option<u64>,
    /// Working set; the workload's if `None`.
    pub(crate) set_mib: Option<u64>,
    /// Run time; the workload's if `None`.
    pub(crate) seconds: Option<u64>,
    /// Percentage of the time in which programs work.
    pub(crate) busy_percent: u64,
    /// Cold data; the workload's if `None`.
    pub(crate) filler_percent: Option<u64>,
    /// Shell command to run first.
    pub(crate) first: Option<String>,
    /// Shell command to run before the timed part. [`DATA_PID`] is the process with the data.
    pub(crate) before: Option<String>,
    /// Shell command to run after the timed part, even if that failed.
    pub(crate) after: Option<String>,
    /// Interval in milliseconds at which another process gets the programs' CPUs (`lab/programs/switches.c`); 0: never.
    pub(crate) switch_ms: u64,
    /// Words of the command line of a daemon whose CPU time is to be reported.
    pub(crate) daemon: Option<String>,
}

/// Placement of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placement {
    /// Near memory only, without cold data.
    Near,
    /// Far memory only.
    Far,
    /// The kernel's default placement.
    Default,
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Default => "default",
        }
    }

    fn prefix(self) -> Line {
        placements::prefix(match self {
            Self::Near => "-m near",
            Self::Far => "-m far",
            Self::Default => "",
        })
    }
}

/// Runs a workload on this machine. `dir` contains the compiled programs, and receives the output of every program.
pub(crate) fn run(request: &Request, dir: &Path, progress: bool) -> anyhow::Result<Found> {
    let machine = machine::read()?;
    let nearfar = crate::demo::beside::program("nearfar")?;
    let launcher = Launcher { nearfar: &nearfar, dir };
    let near: Vec<_> = machine.nodes.iter().filter(|node| node.near).collect();
    let Some(node) = near.first().map(|node| node.id) else { bail!("no node here is near") };
    let fit = Fit {
        near_bytes: request
            .near_mib
            .map_or_else(|| near.iter().map(|node| node.size_bytes).sum(), |mib| mib << 20),
        set_mib: request.set_mib,
        seconds: request.seconds,
        busy_percent: request.busy_percent,
        programs: dir.display().to_string(),
        load: programs::load_generator(&request.workload)?.display().to_string(),
        port: free_port()?,
    };
    let fitted = request.workload.fit(&fit)?;
    refuse_oversized_set(request, &fitted, &machine.nodes)?;
    let modelled = machine.emulation.as_ref().is_some_and(|of| of.clock == "virtual");
    let cpu = modelled.then(isolated_cpu).transpose()?;
    let stage = Stage { launcher, cpu, node, port: fit.port, request, fitted: &fitted };
    let mut progress = Progress::new(request.placements.len(), progress);
    let mut runs = Vec::new();
    for placement in &request.placements {
        progress.step(&format!("{}, {}", request.workload.name, placement.name()));
        runs.push(stage.run(*placement)?);
    }
    Ok(Found {
        schema: SCHEMA.into(),
        workload: request.workload.name.clone(),
        description: request.workload.description.clone(),
        set_bytes: fitted.set_bytes,
        machine,
        runs,
    })
}

/// Refuses a working set larger than the nodes it is bound to, with which the kernel would kill the program.
fn refuse_oversized_set(
    request: &Request,
    fitted: &Fitted,
    nodes: &[nearfar_report::model::Node],
) -> anyhow::Result<()> {
    for placement in &request.placements {
        let held = |node: &&nearfar_report::model::Node| match placement {
            Placement::Near => node.near,
            Placement::Far => !node.near,
            Placement::Default => true,
        };
        let size: u64 = nodes.iter().filter(held).map(|node| node.size_bytes).sum();
        // A tenth is reserved for other memory.
        if fitted.set_bytes > size / 10 * 9 {
            bail!(
                "{} needs {} and is to run with placement {}, whose nodes have {} in all; say --set-mib, another \
                 --placement or another --machine (cxl-2tier-ample has near memory for all)",
                request.workload.name,
                Bytes(fitted.set_bytes),
                placement.name(),
                Bytes(size)
            );
        }
    }
    Ok(())
}

/// State shared by all runs.
struct Stage<'a> {
    launcher: Launcher<'a>,
    /// The CPU shared by server and client, if any.
    cpu: Option<u32>,
    node: u16,
    port: u16,
    request: &'a Request,
    fitted: &'a Fitted,
}

impl Stage<'_> {
    fn run(&self, placement: Placement) -> anyhow::Result<Run> {
        let file = |what: &str| format!("{}-{what}.txt", placement.name());
        let mut commands = Vec::new();
        commands.extend(self.request.first.iter().map(|command| shell(command).to_string()));
        self.shell(self.request.first.as_ref(), None, &file("first"))?;
        let switches = self.switches(&file("switches"), &mut commands)?;
        let (filler, filler_bytes) = self.fill(placement, &file("filler"), &mut commands)?;
        let pin = self.pin();
        let placed = |line: &Line| pin.clone().and(&placement.prefix()).and(line);
        let mut server = None;
        if let Some(line) = &self.fitted.server {
            let line = placed(line);
            commands.push(line.to_string());
            server = Some(self.launcher.serve(&line, self.port, &file("server"))?);
        }
        if let Some(line) = &self.fitted.load {
            let line = pin.clone().and(line);
            commands.push(line.to_string());
            self.launcher.run(&line, &file("load"), FILL_LIMIT)?;
        }
        let line = match server {
            Some(_) => pin.clone().and(&self.fitted.run),
            None => placed(&self.fitted.run),
        };
        let ready = self.ready(&line, &file("run"))?;
        let before = Effort::now(self.daemon())?;
        let data = server.as_ref().or(ready.as_ref()).map(Server::pid);
        let said_before = self.shell(self.request.before.as_ref(), data, &file("before"))?;
        let began_s = clock::since_boot().as_secs_f64();
        let timed = self.timed(&line, ready, server.as_ref(), &file("run"));
        // Ended in any case; the first error is reported.
        let effort = Effort::now(self.daemon());
        let ended = self.shell(self.request.after.as_ref(), data, &file("after"));
        let (text, residency) = timed?;
        let said_after = ended?;
        drop((server, filler, switches));
        let (intervals, said) = results::understood(&text)?;
        let shells = |command: &Option<String>| {
            command.iter().map(shell).map(|line| line.to_string()).collect()
        };
        let (first, last): (Vec<_>, Vec<_>) =
            (shells(&self.request.before), shells(&self.request.after));
        commands.extend(first.into_iter().chain([line.to_string()]).chain(last));
        Ok(Run {
            placement: placement.name().into(),
            filler_bytes,
            began_s,
            cpu: self.cpu,
            operations_per_s: said["operations_per_s"].as_f64().unwrap_or(0.0),
            steady_operations_per_s: results::steady(&intervals),
            intervals,
            residency,
            effort: effort?.since(&before),
            said,
            said_before,
            said_after,
            commands,
        })
    }

    /// The command prefix that pins programs to their CPU.
    fn pin(&self) -> Line {
        Line::words(&self.cpu.map(|cpu| format!("chrt -b 0 taskset -c {cpu}")).unwrap_or_default())
    }

    /// The process that makes an emulated CPU drop translations.
    fn switches(&self, name: &str, commands: &mut Vec<String>) -> anyhow::Result<Option<Server>> {
        let every_ms = self.request.switch_ms;
        if every_ms == 0 {
            return Ok(None);
        }
        let program = format!("{}/switches", self.launcher.dir.display());
        let mut line = Line::new([program, format!("ms={every_ms}")]);
        if let Some(cpu) = self.cpu {
            line = line.and(&Line::new([format!("cpu={cpu}")]));
        }
        commands.push(line.to_string());
        self.launcher.start(&line, name).map(Some)
    }

    /// Allocates cold data in near memory first, except where the data is to have near memory for itself.
    fn fill(
        &self,
        placement: Placement,
        name: &str,
        commands: &mut Vec<String>,
    ) -> anyhow::Result<(Option<Server>, u64)> {
        let percent = self.request.filler_percent.unwrap_or(self.request.workload.filler_percent);
        if percent == 0 || placement == Placement::Near {
            return Ok((None, 0));
        }
        let dir = self.launcher.dir.display();
        let program = format!("{dir}/filler");
        let line = Line::new([program, format!("node={}", self.node), format!("share={percent}")]);
        let mut filler = self.launcher.start(&line, name)?;
        let started = Stopwatch::start();
        let said = loop {
            if let Some(said) = filler.output()?.lines().next() {
                break serde_json::from_str::<serde_json::Value>(said)
                    .with_context(|| format!("understanding `{line}`: {said}"))?;
            }
            if started.elapsed() > FILL_LIMIT {
                bail!("`{line}` did not have its memory within {} s", FILL_LIMIT.as_secs());
            }
            clock::sleep(LOOK);
        };
        commands.push(line.to_string());
        Ok((Some(filler), said["bytes"].as_u64().unwrap_or(0)))
    }

    fn daemon(&self) -> Option<&str> {
        self.request.daemon.as_deref()
    }

    /// The output of a shell command.
    fn shell(
        &self,
        command: Option<&String>,
        data: Option<u32>,
        name: &str,
    ) -> anyhow::Result<String> {
        let Some(command) = command else { return Ok(String::new()) };
        let pid = data.map(|pid| Line::new(["env".into(), format!("{DATA_PID}={pid}")]));
        let line = pid.unwrap_or_else(|| Line::words("")).and(&shell(command));
        self.launcher.run(&line, name, FILL_LIMIT)
    }

    /// The program with its memory allocated, stopped before its timed part, if it supports that.
    fn ready(&self, line: &Line, name: &str) -> anyhow::Result<Option<Server>> {
        if !self.fitted.stops_when_ready {
            return Ok(None);
        }
        let mut program = self.launcher.start(line, name)?;
        let started = Stopwatch::start();
        while !is_stopped(program.pid()) {
            if let Some(status) = program.ended()? {
                bail!("`{line}` ended with {status} before its time began{}", program.last_words());
            }
            if started.elapsed() > SET_UP_LIMIT {
                bail!(
                    "`{line}` did not stop itself within {} s, ready to be timed",
                    SET_UP_LIMIT.as_secs()
                );
            }
            clock::sleep(LOOK);
        }
        Ok(Some(program))
    }

    /// Runs the timed program to its end: returns its output, and the residency of the data meanwhile.
    fn timed(
        &self,
        line: &Line,
        ready: Option<Server>,
        server: Option<&Server>,
        name: &str,
    ) -> anyhow::Result<(String, Vec<Look>)> {
        let mut program = match ready {
            Some(program) => {
                process::go_on(program.pid()).with_context(|| format!("continuing `{line}`"))?;
                program
            }
            None => self.launcher.start(line, name)?,
        };
        let holds_the_data = server.map_or(program.pid(), Server::pid);
        let limit = Duration::from_secs(self.fitted.seconds).saturating_add(SET_UP_LIMIT);
        let (started, from) = (Stopwatch::start(), Effort::now(self.daemon())?);
        let apart = RESIDENCY.max(Duration::from_secs(self.fitted.seconds) / LOOKS);
        let (mut looks, mut due) = (Vec::new(), Duration::ZERO);
        loop {
            if let Some(status) = program.ended()? {
                if !status.success() {
                    bail!("`{line}` ended with {status}{}", program.last_words());
                }
                return Ok((program.output()?, looks));
            }
            let now = started.elapsed();
            if now > limit {
                bail!("`{line}` did not end within {} s{}", limit.as_secs(), program.last_words());
            }
            if now >= due {
                due = now + apart;
                // A program that is just ending has no memory left.
                if let Ok(nodes) = machine::residency(holds_the_data) {
                    let effort = Effort::now(self.daemon())?.since(&from);
                    looks.push(Look { at_s: now.as_secs_f64(), nodes, effort });
                }
            }
            clock::sleep(LOOK);
        }
    }
}

/// The first CPU isolated from the scheduler (`isolcpus`), else the first one.
fn isolated_cpu() -> anyhow::Result<u32> {
    const FILE: &str = "/sys/devices/system/cpu/isolated";
    let list = std::fs::read_to_string(FILE).with_context(|| format!("reading {FILE}"))?;
    let first = list.trim().split([',', '-']).next().and_then(|first| first.parse().ok());
    Ok(first.unwrap_or(0))
}

/// Whether a process was stopped by a signal.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    nearfar_kernel::process::stat_fields(&stat).next().is_some_and(|state| state.starts_with('T'))
}

fn shell(command: impl AsRef<str>) -> Line {
    Line::new(["sh", "-c", command.as_ref()])
}
