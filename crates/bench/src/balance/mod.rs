//! Compares traffic management on an emulated machine with several nodes: throughput of programs by placement policy.
//!
//! One boot; within it, one run of a program per row and round, all rows of a program before any is repeated, so that
//! drift affects all rows alike. [`rows`] has the compared programs and policies, [`program_output`] parses their
//! output, [`results`] has the results, [`traffic`] the emulator's counts, [`acceptance`] the thresholds; text and page are
//! in `pages/balance`.
//!
//! The kernel's NUMA balancing is off except in its own row. It is set through the journal and restored after each row;
//! if this process is killed, by the next run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nearfar_kernel::balancing::{Migrations, NumaBalancing, numa_balancing, set_numa_balancing};
use nearfar_kernel::fs::{self, RootFs};
use nearfar_kernel::journal::{Journal, OnConflict};
use nearfar_topology::Overrides;

pub mod acceptance;
pub mod program_output;
pub mod results;
pub mod rows;
#[cfg(test)]
pub mod sample;
pub mod traffic;

use crate::demo::machine;
use crate::demo::process::Launcher;
use nearfar_command::progress::Progress;
use nearfar_daemon::balance::state;
use nearfar_kernel::clock::{self, Stopwatch};
use results::{Balancing, Found, Ran, Run, SCHEMA, Tried};
use rows::{Files, Kind, Program, Row, Shape, Size};

/// Owner of the changes in the journal.
const BY: &str = "bench balance";
/// Time limit of a row beyond its run time, on the machine it runs on.
const LIMIT: Duration = Duration::from_secs(120);
/// Polling interval for the end of a program, and for the status of balancing.
const POLL: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_secs(1);
/// The requested comparison.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Programs, in display order.
    pub(crate) programs: Vec<Program>,
    /// Rows, in display order.
    pub(crate) rows: Vec<Row>,
    /// Runs of each.
    pub(crate) rounds: u64,
    /// Memory size and run time.
    pub(crate) size: Size,
    /// Warm-up part of the run time, which does not count.
    pub(crate) settle_s: u64,
    /// Whether it is a smoke run, which is not judged.
    pub(crate) smoke: bool,
}

impl Options {
    /// The kind of machine that all programs need.
    ///
    /// # Errors
    /// The programs need different kinds, or a program has no row.
    pub(crate) fn shape(&self) -> anyhow::Result<Shape> {
        let first = self.programs.first().context("no program")?;
        for (program, rows) in self.all() {
            if program.shape() != first.shape() {
                bail!(
                    "{} is for a machine with {}, {} for one with {}; run one after the other",
                    first.name(),
                    first.shape().description(),
                    program.name(),
                    program.shape().description()
                );
            }
            if rows.is_empty() {
                let fits = Kind::ALL.map(Row::from);
                let fits: Vec<String> = program.rows(&fits).iter().map(Row::name).collect();
                bail!("no requested row fits {}; it has: {}", program.name(), fits.join(", "));
            }
        }
        Ok(first.shape())
    }

    /// Memory size and run time of a row: the time that counts is the same for all.
    fn size(&self, row: &Row) -> Size {
        let saved = self.settle_s - row.kind.settle_s(self.settle_s);
        Size { seconds: self.size.seconds.saturating_sub(saved), ..self.size }
    }

    /// Programs with their rows.
    fn all(&self) -> impl Iterator<Item = (Program, Vec<Row>)> {
        self.programs.iter().map(|program| (*program, program.rows(&self.rows)))
    }
}

/// Runs everything on this machine; `dir` contains the compiled programs, and receives their output.
pub(crate) fn run(options: &Options, dir: &Path, progress: bool) -> anyhow::Result<Found> {
    let (fs, machine) = (RootFs::live()?, machine::read()?);
    refuse_other_machines(options.shape()?, &machine)?;
    let nearfar = crate::demo::beside::program("nearfar")?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    journal.make_dir()?;
    // Changes left by a killed run.
    journal.restore(BY, OnConflict::Refuse).context("restoring the settings of an earlier run")?;
    let launcher = Launcher { nearfar: &nearfar, dir };
    let files = Files { dir: dir.display().to_string(), load: load_generator(options)? };
    let stage = Stage { launcher, files, fs: &fs, journal: &journal, options };
    let steps: usize = options.all().map(|(_, rows)| rows.len()).sum();
    let rounds = options.rounds.max(1);
    let mut progress = Progress::new(steps * usize::try_from(rounds).unwrap_or(1), progress);
    let mut programs = Vec::new();
    for (program, rows) in options.all() {
        let mut tried: Vec<Ran> = rows.iter().map(|row| stage.ran(program, row)).collect();
        for round in 0..rounds {
            for ran in &mut tried {
                progress.step(&format!("{}, {}", program.name(), ran.row.name()));
                match stage.run(program, &ran.row, round) {
                    Ok(run) => ran.runs.push(run),
                    Err(error) => ran.failed = Some(format!("{error:#}")),
                }
            }
        }
        programs.push(Tried { program, rows: tried });
    }
    Ok(Found {
        schema: SCHEMA.into(),
        nearfar: env!("CARGO_PKG_VERSION").into(),
        smoke: options.smoke,
        machine,
        node_of_cpu: node_of_cpu(&fs),
        seconds: options.size.seconds,
        settle_s: options.settle_s,
        huge: options.size.huge,
        times: options.size.times,
        programs,
        done_s: Some(clock::since_boot().as_secs_f64()),
    })
}

/// `nearfar-load`, if a program needs it.
///
/// # Errors
/// It is missing.
pub(crate) fn load_generator(options: &Options) -> anyhow::Result<String> {
    if !options.programs.contains(&Program::Redis) {
        return Ok(String::new());
    }
    Ok(crate::demo::beside::program("nearfar-load")?.display().to_string())
}

/// The plan, as text.
pub(crate) fn plan(options: &Options) -> String {
    let mut out = String::new();
    for (program, rows) in options.all() {
        out += &format!("{}\n", program.description());
        for row in rows {
            let files = Files { dir: "DIR".into(), load: "nearfar-load".into() };
            let line = row.line(&program.line(&files, &row, options.size(&row)));
            match row.around("PID") {
                None => out += &format!("  {}: {line}\n", row.name()),
                Some([start, stop]) => {
                    out += &format!("  {}: {start}; {line}; {stop}\n", row.name());
                }
            }
        }
    }
    let Options { size, settle_s, rounds, .. } = options;
    let (seconds, stays) = (size.seconds, Kind::FirstTouch.settle_s(*settle_s));
    out + &format!(
        "each {rounds} times for {seconds} s of the machine's time, of which the first {settle_s} s are not evaluated ({stays} s if pages \
         stay; the run is shorter by the difference); DIR has the programs, PID is this process; kernel.numa_balancing is 0 except in its row\n"
    )
}

/// Refuses machines without the nodes that rows name.
fn refuse_other_machines(
    shape: Shape,
    machine: &nearfar_report::model::Machine,
) -> anyhow::Result<()> {
    let nodes: Vec<_> = machine.nodes.iter().map(|node| (node.id, node.cpus > 0)).collect();
    if nodes != shape.nodes() {
        bail!(
            "this machine's nodes with memory are {}; these programs are compared on one with {}, such as the lab's {}",
            machine.nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>().join(", "),
            shape.description(),
            shape.machine()
        );
    }
    Ok(())
}

fn node_of_cpu(fs: &RootFs) -> Vec<u16> {
    let (topology, _) = fs::topology(fs, &Overrides::new());
    let cpus =
        topology.nodes.iter().flat_map(|(node, of)| of.cpus.iter().map(|cpu| (cpu.0, node.0)));
    let by_cpu: std::collections::BTreeMap<_, _> = cpus.collect();
    by_cpu.into_values().collect()
}

/// State shared by all rows.
struct Stage<'a> {
    launcher: Launcher<'a>,
    files: Files,
    fs: &'a RootFs,
    journal: &'a Journal<'a>,
    options: &'a Options,
}

impl Stage<'_> {
    fn ran(&self, program: Program, row: &Row) -> Ran {
        let command = row.line(&self.line(program, row)).to_string();
        let command = match row.around("PID") {
            None => command,
            Some([start, stop]) => format!("{start}; {command}; {stop}"),
        };
        Ran { row: row.clone(), command, runs: Vec::new(), failed: None }
    }

    fn line(&self, program: Program, row: &Row) -> crate::demo::line::Line {
        program.line(&self.files, row, self.options.size(row))
    }

    /// Runs a row with the kernel's NUMA balancing set for it, and restores that in any case.
    fn run(&self, program: Program, row: &Row, round: u64) -> anyhow::Result<Run> {
        let mode = if row.kind == Kind::NumaBalancing {
            NumaBalancing::NORMAL
        } else {
            NumaBalancing::OFF
        };
        match numa_balancing(self.fs)? {
            None if row.kind == Kind::NumaBalancing => {
                bail!("this kernel has no NUMA balancing (kernel.numa_balancing)")
            }
            Some(now) if now != mode => drop(set_numa_balancing(self.journal, BY, mode)?),
            _ => {}
        }
        machine::drop_caches();
        let name = format!("{}-{}-{round}", program.name(), row.name()).replace([' ', '='], "-");
        let run = self.with_around(program, row, &name);
        let restored = self.journal.restore(BY, OnConflict::Refuse);
        restored.context("putting back the kernel's NUMA balancing")?;
        run
    }

    fn with_around(&self, program: Program, row: &Row, name: &str) -> anyhow::Result<Run> {
        let Some([start, stop]) = row.around(&std::process::id().to_string()) else {
            return self.measured(program, row, name);
        };
        self.launcher.run(&start, &format!("{name}-start"), LIMIT)?;
        let run = self.measured(program, row, name);
        self.launcher.run(&stop, &format!("{name}-stop"), LIMIT)?;
        run
    }

    /// The final output of the program, and the last status of balancing.
    fn measured(&self, program: Program, row: &Row, name: &str) -> anyhow::Result<Run> {
        let line = row.line(&self.line(program, row));
        let before = Migrations::read(self.fs)?;
        let mut running = self.launcher.start(&line, &format!("{name}.json"))?;
        let (started, mut due, mut balancing) = (Stopwatch::start(), LOOK, None);
        let settle_s = row.kind.settle_s(self.options.settle_s);
        let (settle, mut settled) = (Duration::from_secs(settle_s), None);
        let limit = LIMIT + Duration::from_secs(self.options.size(row).seconds);
        while running.ended()?.is_none() {
            let now = started.elapsed();
            if now > limit {
                bail!("`{line}` did not end within {} s", limit.as_secs());
            }
            if now >= due && row.kind.policy().is_some() {
                due = now + LOOK;
                balancing = self.balancing().or(balancing);
                settled = settled.or_else(|| balancing.clone().filter(|_| now >= settle));
            }
            clock::sleep(POLL);
        }
        let said = running.output()?;
        let said = program_output::understood(&said)
            .with_context(|| format!("reading the output of `{line}`: {said}"))?;
        let moved = Migrations::read(self.fs)?.since(&before);
        if row.kind.policy().is_some() && balancing.is_none() {
            bail!("`{line}`: balancing did not say anything of itself{}", running.last_words());
        }
        if let (Some(last), Some(first)) = (&mut balancing, settled) {
            last.cpu_share = share(&first, last);
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let settle_s = settle_s as f64;
        let rate = results::settled_rate(&said.windows, settle_s);
        Ok(Run {
            operations_per_s: rate.with_context(|| {
                format!("`{line}` ended within its settling time of {settle_s} s")
            })?,
            began_s: said.began_s,
            ended_s: said.seconds,
            windows: said.windows,
            moved_pages: moved.pgmigrate_success,
            balancing,
            traffic: None,
        })
    }

    /// The present status of `nearfar balance`; `None` if it does not run.
    fn balancing(&self) -> Option<Balancing> {
        let said = state::read(self.journal.dir()).ok()??;
        Some(Balancing {
            sensors: said.sensors.iter().map(|eye| eye.name.clone()).collect(),
            cpu_ms: said.cost.cpu_ms,
            running_s: said.running_s,
            cpu_share: None,
            decision: said.decision.what.clone(),
            moved: said.pages.get("moved").copied().unwrap_or(0),
        })
    }
}

/// Its CPU share between two statuses.
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(first: &Balancing, last: &Balancing) -> Option<f64> {
    let ms = last.running_s.checked_sub(first.running_s).filter(|s| *s > 0)? * 1000;
    Some(last.cpu_ms.saturating_sub(first.cpu_ms) as f64 / ms as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        let sensors = [rows::FULL.into(), "hint-faults".into()];
        Options {
            programs: vec![Program::Kmeans, Program::Settled],
            rows: rows::rows(&[Kind::FirstTouch, Kind::Local, Kind::Carrefour], &sensors).unwrap(),
            rounds: 2,
            size: Size { seconds: 8, times: 1, huge: false },
            settle_s: 4,
            smoke: false,
        }
    }

    #[test]
    fn the_plan_has_every_line_as_it_would_be_typed() {
        assert_eq!(
            plan(&options()),
            "kmeans: each thread reads its part of the data of one thread\n  \
               first touch: DIR/kmeans mb=32 seconds=5\n  \
               parallel first touch: DIR/kmeans mb=32 seconds=5 parallel=1\n  \
               carrefour: nearfar run --balance=carrefour -- DIR/kmeans mb=32 seconds=8\n  \
               carrefour by hint-faults: nearfar balance start --policy carrefour --pid PID --sensor hint-faults; \
             DIR/kmeans mb=32 seconds=8; nearfar balance stop\n\
             settled: jacobi, each part allocated by its thread: nothing to improve\n  \
               first touch: DIR/jacobi mb=32 seconds=5 parallel=1\n  \
               carrefour: nearfar run --balance=carrefour -- DIR/jacobi mb=32 seconds=8 parallel=1\n  \
               carrefour by hint-faults: nearfar balance start --policy carrefour --pid PID --sensor hint-faults; \
             DIR/jacobi mb=32 seconds=8 parallel=1; nearfar balance stop\n\
             each 2 times for 8 s of the machine's time, of which the first 4 s are not evaluated (1 s if pages \
             stay; the run is shorter by the difference); DIR has the programs, PID is this process; kernel.numa_balancing is 0 except in its row\n"
        );
    }

    #[test]
    fn balancings_cpu_share_is_the_difference_of_two_samples() {
        let look = |running_s, cpu_ms| Balancing { running_s, cpu_ms, ..Balancing::default() };
        assert_eq!(share(&look(10, 300), &look(14, 400)), Some(0.025));
        assert_eq!(share(&look(10, 300), &look(10, 400)), None);
    }

    #[test]
    fn machines_that_rows_do_not_fit_are_refused() {
        let mut machine = sample::found().machine;
        assert!(refuse_other_machines(Shape::FourNodes, &machine).is_ok());
        assert!(refuse_other_machines(Shape::NearAndFar, &machine).is_err());
        machine.nodes[3].cpus = 0;
        assert!(refuse_other_machines(Shape::FourNodes, &machine).is_err());
        machine.nodes.pop();
        let why = refuse_other_machines(Shape::FourNodes, &machine).unwrap_err().to_string();
        assert!(why.contains("0, 1, 2;") && why.contains("numa-4node"), "{why}");
    }

    #[test]
    fn programs_and_rows_for_different_machines_are_rejected() {
        let of = |programs: &[Program], kinds: &[Kind]| {
            let rows = rows::rows(kinds, &[rows::FULL.into()]).unwrap();
            Options { programs: programs.into(), rows, ..options() }.shape()
        };
        let contended = &[Program::Contended, Program::Uncontended];
        assert_eq!(of(contended, &Kind::ALL).unwrap(), Shape::NearAndFar);
        let why = of(&[Program::Contended, Program::Pca], &Kind::ALL).unwrap_err().to_string();
        assert!(why.contains("contended") && why.contains("pca"), "{why}");
        let why = of(contended, &[Kind::Node3]).unwrap_err().to_string();
        assert!(why.contains("no requested row") && why.contains("weighted"), "{why}");
        assert!(of(&[], &Kind::ALL).is_err());
    }
}
