//! nearfar: near and far memory for Linux. This binary alone connects the other crates; it is a library so that its
//! parsers of outside text can be fuzzed.
//!
//! It contains start, error printing and exit status. The commands are in `cli/`, one file each, and each goes through
//! three stages: `Args` (as typed), `Plan` (resolved against the machine; all errors of usage are found there), run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod cli;
mod serve;

/// The command: its arguments and its exit status are the process's.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match cli::Cli::of_process() {
        Ok(cli) => cli,
        Err((refused, words)) => {
            let refused = cli::tips::improved(refused, &words);
            let _ = refused.print();
            return if refused.use_stderr() {
                nearfar_command::exit::Exit::Usage
            } else {
                nearfar_command::exit::Exit::Done
            }
            .into();
        }
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            nearfar_command::output::note(nearfar_command::exit::text(&error));
            nearfar_command::exit::of_error(&error).into()
        }
    }
}
