//! nearfar-lab: the lab by itself. All of it is the library; this is start, error and exit status.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use nearfar_lab::cli;

fn main() -> ExitCode {
    let args = match cli::Args::try_parse() {
        Ok(args) => args,
        Err(refused) => {
            let _ = refused.print();
            return ExitCode::from(if refused.use_stderr() { 2 } else { 0 });
        }
    };
    match cli::run(args, &[]) {
        Ok(code) => code,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "nearfar lab: {failure}");
            ExitCode::from(failure.status)
        }
    }
}
