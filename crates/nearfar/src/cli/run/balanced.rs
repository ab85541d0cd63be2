//! `nearfar run --balance`: a separate process balances the memory of CMD and its descendants.
//!
//! Its scope is this process and its descendants, so it needs no cgroup; orphans of CMD stay in scope, as this process
//! is their subreaper. The service ends when CMD has ended, and by itself if this process is killed.

use super::super::balance;
use nearfar_command::output;
use nearfar_daemon::balance::state::State;

/// The balancing service of CMD.
#[derive(Debug)]
pub(super) struct Balanced {
    state: State,
}

impl Balanced {
    /// Starts the service.
    pub(super) fn start(policy: balance::PolicyArg) -> anyhow::Result<Self> {
        let state = balance::for_run(policy.0)
            // Whichever status the error has, CMD was not started.
            .map_err(|error| anyhow::anyhow!("--balance: {error:#}"))?;
        Ok(Self { state })
    }

    /// Stops the service after CMD has ended or failed to start. Errors do not change CMD's status.
    pub(super) fn end(&self) {
        if !self.state.is_running() {
            let why = balance::why_ended();
            output::note(format_args!("balancing ended before CMD did: {why}"));
        }
        if let Err(error) = balance::end_and_put_back(&self.state) {
            output::note(format_args!("{error:#}"));
        }
    }
}
