//! The command `nearfar-bench`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    nearfar_bench::cli::main()
}
