//! The command line: one definition, from which help, man pages and completions are generated.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use nearfar_command::terminal::width;

mod background;
mod balance;
mod cache;
mod complete;
mod daemon;
mod demo;
mod dev;
mod doctor;
mod dra;
mod generate;
mod groups;
mod lab;
pub(crate) mod machine;
mod moving;
mod nri;
mod oci_runtime;
mod off;
mod pages;
mod probe;
mod ps;
mod record;
mod report;
mod run;
mod sense;
mod sim;
mod snapshot;
mod status;
mod terminal;
mod tier;
pub(crate) mod tips;
mod topo;
mod vm;
mod weights;
mod why;

#[cfg(test)]
#[path = "../../tests/tidy/files.rs"]
mod files;

/// Longest line of help.
const WIDEST: usize = 100;

/// Near and far memory for Linux: find it, measure it, place data over it.
#[derive(Debug, Parser)]
#[command(name = "nearfar", version, propagate_version = true, max_term_width = WIDEST)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    terminal: terminal::Args,
}

// One line per command, in the order of the help; each module has `Args` and `run(Args) -> Result<ExitCode>`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show the machine, what nearfar does on it now, and what to try next (also: nearfar without a command)
    Status(status::Args),
    /// Explain the last decisions of tiering and balancing with their figures
    Why(why::Args),
    /// End the services that move pages and restore all settings that nearfar has changed; needs root
    Off(off::Args),
    /// Show nodes, kinds of memory, tiers, CXL regions and devices, firmware's figures
    Topo(topo::Args),
    /// Show the near and far memory of running processes
    Ps(ps::Args),
    /// Report the capabilities of this kernel and machine, missing ones and how to get them
    Doctor(doctor::Args),
    /// Write the evidence for a bug report into one file, without names and serial numbers
    Snapshot(snapshot::Args),
    /// Measure idle latency, bandwidth and loaded latency between every CPU node and memory node
    Probe(probe::Args),
    /// Show, set or restore interleave weights that add up the bandwidth of several nodes
    Weights(weights::Args),
    /// Run a program with its memory and CPUs on given nodes, as numactl does, also by kind of memory
    Run(run::Args),
    /// Move the memory of running processes to other nodes, and back
    Move(moving::Args),
    /// Record how often memory is accessed and on which node it is, over time
    Record(record::Args),
    /// Show records of memory accesses: heatmap, working set, temperature, residency
    Report(report::Args),
    /// Migrate hot pages to near memory and cold ones to far memory, for unmodified programs
    Tier(tier::Args),
    /// Balance memory traffic over controllers and links by migrating pages, for unmodified programs
    Balance(balance::Args),
    /// Show readings of memory-traffic sensors: traffic between nodes, latency
    Sense(sense::Args),
    /// Measure the load of each node's memory and publish it to allocators, as a service
    Daemon(daemon::Args),
    /// Place, verify and change the memory of virtual machines
    Vm(vm::Args),
    /// Serve a cache over near and far memory by memcached's protocol; benchmark it or any memcached
    Cache(cache::Args),
    /// Place the memory of containers by annotations, as an OCI runtime before runc or crun
    OciRuntime(oci_runtime::Args),
    /// Place the memory of containers by annotations, as a plugin of containerd or CRI-O (NRI)
    Nri(nri::Args),
    /// Offer the memory of this node to Kubernetes' claims, as a DRA driver
    Dra(dra::Args),
    /// Run commands on an emulated machine with near and far memory, under a real kernel
    Lab(lab::Args),
    /// Simulate memory traffic: compare placements on modelled machines
    Sim(sim::Args),
    /// Show the effect of near and far memory on unmodified programs, here or in the lab
    Demo(demo::Args),
    /// Check the emulation and the simulator, for those who change them
    Dev(dev::Args),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArgs),
    /// Write the man pages into a directory
    Man(generate::ManArgs),
}

impl Cli {
    /// Parses the process's arguments. The error has the arguments after the program's name beside it, in the order in
    /// which they were parsed.
    pub(crate) fn of_process() -> Result<Self, (clap::Error, Vec<String>)> {
        let mut command = groups::grouped(Self::command(), width().min(WIDEST));
        let words = groups::in_order(&command, std::env::args_os().collect());
        let matches = command.try_get_matches_from_mut(&words);
        let parsed = matches.and_then(|matches| Self::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let words = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
            (error.format(&mut command), words.collect())
        })
    }

    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        self.terminal.set()?;
        let Some(command) = self.command else { return status::run(&status::Args::default()) };
        match command {
            Command::Status(args) => status::run(&args),
            Command::Move(args) => moving::run(&args),
            Command::Why(args) => why::run(&args),
            Command::Off(args) => off::run(&args),
            Command::Topo(args) => topo::run(&args),
            Command::Ps(args) => ps::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Snapshot(args) => snapshot::run(&args),
            Command::Probe(args) => probe::run(&args),
            Command::Record(args) => record::run(&args),
            Command::Report(args) => report::run(&args),
            Command::Lab(args) => lab::run(args),
            Command::Weights(args) => weights::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Tier(args) => tier::run(&args),
            Command::Balance(args) => balance::run(&args),
            Command::Sense(args) => sense::run(&args),
            Command::Daemon(args) => daemon::run(&args),
            Command::Vm(args) => vm::run(&args),
            Command::Cache(args) => cache::run(&args),
            Command::OciRuntime(args) => oci_runtime::run(&args),
            Command::Nri(args) => nri::run(&args),
            Command::Dra(args) => dra::run(&args),
            Command::Sim(args) => sim::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Dev(args) => dev::run(&args),
            Command::Completions(args) => generate::completions(&args),
            Command::Man(args) => generate::man(&args),
        }
    }
}

/// Prints the help of a command that has no option for it.
fn help(name: &str) -> anyhow::Result<ExitCode> {
    let mut root = Cli::command();
    root.build();
    let command = root.find_subcommand_mut(name);
    let text = command.map(|command| command.render_long_help().to_string()).unwrap_or_default();
    nearfar_command::output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command, subcommands included.
    fn commands() -> Vec<clap::Command> {
        let mut all = vec![Cli::command()];
        all[0].build();
        let mut at = 0;
        while let Some(command) = all.get(at) {
            let below: Vec<_> = command.get_subcommands().cloned().collect();
            all.extend(below);
            at += 1;
        }
        all
    }

    #[test]
    fn only_the_parser_wraps_paragraphs_of_help() {
        for command in commands() {
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            for pair in lines.windows(2) {
                let is_broken = !pair[0].is_empty() && pair[1].starts_with(|c: char| c != ' ');
                assert!(!is_broken, "{}: {pair:?}", command.get_name());
            }
        }
    }

    #[test]
    fn options_of_a_group_are_below_its_heading() {
        let all = commands();
        let bench = all.iter().find(|command| {
            command
                .get_about()
                .is_some_and(|about| about.to_string().starts_with("Put a load on the cache"))
        });
        let heading = |name: &str| {
            let argument = bench?.get_arguments().find(|argument| argument.get_id() == name);
            argument?.get_help_heading().map(str::to_owned)
        };
        for (name, of) in [
            ("item_max", "In this process"),
            ("disk", "Disk"),
            ("sysfs", "Machine"),
            ("keys", "Workload"),
        ] {
            assert_eq!(heading(name).as_deref(), Some(of), "{name}");
        }
    }

    #[test]
    fn commands_within_sentences_and_tables_of_documents_exist_with_their_options() {
        use clap::error::ErrorKind::{InvalidSubcommand, UnknownArgument};

        let (mut wrong, mut read) = (Vec::new(), 0);
        let root = Cli::command();
        for (page, text) in files::markdown() {
            if page == "CHANGELOG.md" {
                continue; // commands of older versions
            }
            // Other tests run the commands in blocks; this one checks code within sentences and tables.
            let prose = text.split("```").step_by(2);
            let spans = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
            for span in spans.filter(|span| span.starts_with("nearfar ")) {
                let span = span.replace("\\|", "|");
                let words = span.split_whitespace().map(std::ffi::OsString::from).collect();
                let words = groups::in_order(&root, words);
                read += 1;
                if let Err(error) = root.clone().try_get_matches_from(words)
                    && matches!(error.kind(), InvalidSubcommand | UnknownArgument)
                {
                    wrong.push(format!("{page}: {span}: {error}"));
                }
            }
        }
        assert!(read > 200, "{read}: are commands found?");
        files::complain(&wrong);
    }
}
