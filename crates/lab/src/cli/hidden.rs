//! The commands that the lab itself runs: the guest's runner, the guest's terminal, the guard around QEMU.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use super::Failure;

/// Arguments of `guest`.
#[derive(Debug, clap::Args)]
pub(super) struct GuestArgs {
    translations_ms: u64,
}

/// Arguments of `guest-exec`.
#[derive(Debug, clap::Args)]
pub(super) struct GuestExecArgs {
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Arguments of `shim`.
#[derive(Debug, clap::Args)]
pub(super) struct ShimArgs {
    parent: u32,
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

pub(super) fn guest(args: &GuestArgs, reenter: &[String]) -> Result<ExitCode, Failure> {
    match crate::guest::run(reenter, Duration::from_millis(args.translations_ms)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure { status: 1, message: error.to_string() }),
    }
}

pub(super) fn guest_exec(args: &GuestExecArgs) -> Result<ExitCode, Failure> {
    let (message, status) = crate::guest::exec_in_terminal(&args.command);
    Err(Failure { status, message })
}

pub(super) fn shim(args: &ShimArgs) -> Result<ExitCode, Failure> {
    Err(Failure { status: 125, message: crate::host::shim(args.parent, &args.command) })
}
