//! The command `nearfar`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    nearfar_cli::main()
}
