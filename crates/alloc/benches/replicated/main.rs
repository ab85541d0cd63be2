//! `make bench-alloc`, replicated regions: the cost of reading through the library compared with memcpy, and, on an
//! emulated machine of four nodes, the gain when each node reads its own copy.
//!
//! `NEARFAR` names the command that starts the lab; without it that part is left out, with a message.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what a benchmark says")]

mod calls;
mod clock;
mod nodes;

use std::process::{Command, ExitCode};

const MACHINE: &str = "numa-4node";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => calls::compare(9).and_then(|()| in_the_lab("3")),
        ["--smoke"] => calls::compare(1).and_then(|()| in_the_lab("1")),
        ["inside", rounds] => match rounds.parse() {
            Ok(rounds) => nodes::compare(rounds),
            Err(error) => Err(format!("{rounds}: {error}")),
        },
        _ => Err("usage: replicated [--smoke]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program on the emulated machine.
fn in_the_lab(rounds: &str) -> Result<(), String> {
    let Some(nearfar) = std::env::var_os("NEARFAR") else {
        println!("nodes: left out, as NEARFAR names no command that starts the lab");
        return Ok(());
    };
    println!("EMULATED machine {MACHINE}");
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut lab = Command::new(&nearfar);
    lab.args(["lab", "run", "--machine", MACHINE, "--"]).arg(own).args(["inside", rounds]);
    let status = lab.status().map_err(|error| format!("{}: {error}", nearfar.display()))?;
    if status.success() { Ok(()) } else { Err(format!("in the lab: {status}")) }
}
