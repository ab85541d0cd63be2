//! The signals that end an operation or a service: SIGINT, SIGTERM and SIGHUP (its terminal is gone). A signal becomes an
//! error at the next step, so that children are stopped, temporary files removed and settings restored as after any other
//! error. Where SIGHUP is ignored, as by nohup(1), it stays so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use nearfar_kernel::process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{Exit, WithExit};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// The status a shell reports for SIGINT.
const STATUS: u8 = 130;

/// The signals' numbers.
pub fn signals() -> impl Iterator<Item = i32> {
    let hangup = (!process::ignores(SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup)
}

/// A flag that is set once one of the signals has arrived.
///
/// # Errors
/// The errno of sigaction(2).
pub fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    let asked = Arc::default();
    set_on_signals(&asked)?;
    Ok(asked)
}

/// Installs the handlers: from now on, [`check`] fails once a signal has arrived.
///
/// # Errors
/// The errno of sigaction(2).
pub fn listen() -> anyhow::Result<()> {
    set_on_signals(ASKED.get_or_init(Arc::default))
}

fn set_on_signals(asked: &Arc<AtomicBool>) -> anyhow::Result<()> {
    for signal in signals() {
        signal_hook::flag::register(signal, Arc::clone(asked)).context("listening for signals")?;
    }
    Ok(())
}

/// Fails once a signal has arrived.
///
/// # Errors
/// The operation was interrupted.
pub fn check() -> anyhow::Result<()> {
    if ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed)) {
        let error = anyhow::anyhow!("interrupted; started operations are stopped");
        return Err(WithExit { exit: Exit::Command(STATUS), error }.into());
    }
    Ok(())
}
