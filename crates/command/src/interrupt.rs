//! SIGINT and SIGTERM during a long operation. A signal becomes an error at the next step, so that children are
//! stopped, temporary files removed and settings restored as after any other error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;

use crate::exit::{Exit, WithExit};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// The status a shell reports for SIGINT.
const STATUS: u8 = 130;

/// Installs the handlers: from now on, [`check`] fails once either signal has arrived.
///
/// # Errors
/// The errno of sigaction(2).
pub fn listen() -> anyhow::Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
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
