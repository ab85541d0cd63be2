//! `nearfar run --balance`: what CMD and all it starts have in memory is balanced beside it, by a process of its own.
//!
//! It is about this process and what it starts, so it needs no cgroup; what CMD leaves orphaned stays ours, as we are its
//! reaper. It ends when CMD has ended, and by itself if we are killed.

use super::super::balance;
use super::output;
use crate::balance::options::Policy;
use crate::balance::state::State;

/// Balancing that runs for CMD.
#[derive(Debug)]
pub(super) struct Balanced {
    state: State,
}

impl Balanced {
    /// Starts it.
    pub(super) fn start(policy: Policy) -> anyhow::Result<Self> {
        let state = balance::for_run(policy)
            // Whatever status it ends with, CMD was not started.
            .map_err(|error| anyhow::anyhow!("--balance: {error:#}"))?;
        Ok(Self { state })
    }

    /// CMD has ended, or was not started. No failure of CMD's.
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
