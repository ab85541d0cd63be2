//! nearfar: near and far memory for Linux. This binary is the only place that wires the parts.
//!
//! Here: start, error printing, exit status. The commands are in `cli/`, one file each, and each goes through three
//! types: `Args` (as typed), `Plan` (resolved against the machine; everything that can be wrong is found there), run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;

mod balance;
mod bench;
mod cache;
mod cli;
mod clock;
mod daemon;
mod demo;
mod exit;
mod recording;
mod report;
mod sense;
mod simulate;
mod tier;
mod weighing;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(refused) => {
            let _ = refused.print();
            return if refused.use_stderr() { exit::Exit::Usage } else { exit::Exit::Done }.into();
        }
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the one place errors are shown")]
            {
                eprintln!("nearfar: {error:#}");
            }
            exit::of_error(&error).into()
        }
    }
}
