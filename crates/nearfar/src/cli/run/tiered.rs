//! `nearfar run --tier`: runs CMD in its own memory cgroup, which a separate process tiers.
//!
//! The tiering service starts first; it creates the cgroup, ends when the cgroup is empty, and restores all settings,
//! also if this process is killed. This process enters the cgroup to start CMD, as children start in the cgroup of
//! their parent, and leaves it again.

use std::path::Path;

use anyhow::Context as _;
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::fs::RootFs;
use nearfar_topology::Topology;

use super::super::tier;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;
use nearfar_daemon::tier::options::{EffectiveOptions, Options};
use nearfar_daemon::tier::plan;
use nearfar_daemon::tier::state::State;

/// The tiering service of CMD.
#[derive(Debug)]
pub(super) struct Tiered {
    state: State,
    hierarchy: Hierarchy,
    path: String,
    /// The cgroup to which this process returns.
    home: String,
}

/// Checks the options in `file`, which may not set a scope, and describes them for `machine`.
pub(super) fn plan(file: Option<&Path>, machine: &Topology) -> anyhow::Result<String> {
    let options = match file {
        None => Options::default(),
        Some(path) => {
            let named = || format!("--tier={}", path.display());
            let options = Options::read(path).with_context(named).ends_with(Exit::Usage)?;
            let whose = options.cgroup.is_some() || options.pid.is_some();
            let only = || {
                anyhow::anyhow!("it sets cgroup or pid, but --tier is for CMD alone; remove them")
            };
            (!whose).then_some(()).ok_or_else(only).with_context(named).ends_with(Exit::Usage)?;
            options
        }
    };
    let effective = EffectiveOptions::new(Options::default(), options);
    let options = &effective.options;
    let plan = plan::plan(machine, options.limits(), options.named())?;
    Ok(format!("nodes {}, near over far, in a cgroup of CMD's own", plan.order()))
}

impl Tiered {
    /// Starts the service with a new cgroup.
    pub(super) fn start(fs: &RootFs, file: Option<&Path>) -> anyhow::Result<Self> {
        let state = tier::for_run(file)
            // Whichever status the error has, CMD was not started.
            .map_err(|error| anyhow::anyhow!("--tier: {error:#}"))?;
        let hierarchy = Hierarchy::find(fs)?;
        let home = hierarchy.of_process(fs, std::process::id())?;
        let path = state.cgroup.clone().context("tiering runs, but without a cgroup")?;
        Ok(Self { state, hierarchy, path, home })
    }

    /// Calls `start` inside the cgroup.
    pub(super) fn within<T>(&self, fs: &RootFs, start: impl FnOnce() -> T) -> anyhow::Result<T> {
        let us = std::process::id();
        self.hierarchy.put(fs, &self.path, us).context("--tier: entering CMD's cgroup")?;
        let started = start();
        if let Err(error) = self.hierarchy.put(fs, &self.home, us) {
            output::note(format_args!("--tier: {error}; this process stays in {}", self.path));
        }
        Ok(started)
    }

    /// Stops the service after CMD has ended or failed to start, unless descendants of CMD still run. Errors do not
    /// change CMD's status.
    pub(super) fn end(&self, fs: &RootFs) {
        let pid = self.state.identity.pid;
        if self.state.is_running()
            && self.hierarchy.is_populated(fs, &self.path).is_ok_and(|there| there == Some(true))
        {
            let left = self.hierarchy.members(fs, &self.path).unwrap_or_default().len();
            output::note(format_args!(
                "CMD has ended, and {left} of its descendants still {}; tiering (process {pid}) continues until they end, or \
                 nearfar tier stop",
                if left == 1 { "runs" } else { "run" }
            ));
            return;
        }
        if !self.state.is_running() {
            output::note(format_args!("tiering ended before CMD did: {}", tier::why_ended()));
        }
        if let Err(error) = tier::end_and_put_back(&self.state) {
            output::note(format_args!("{error:#}"));
        }
    }
}
