//! nearfar-lab: the lab as a program. The library has all of the function; here are start, errors and exit status.
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
