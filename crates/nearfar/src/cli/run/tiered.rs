//! `nearfar run --tier`: CMD in a memory cgroup of its own, and tiering of that cgroup beside it as a process of its own.
//!
//! Tiering is started first; it makes the cgroup, ends when nobody is left in it, and puts everything back, also if we
//! are killed. We step into the cgroup to start CMD, as what a process starts is where it is, and out again.

use std::path::Path;

use anyhow::Context as _;
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::fs::RootFs;
use nearfar_topology::Topology;

use super::super::tier;
use super::output;
use crate::exit::{EndsWith as _, Exit};
use crate::tier::options::{InForce, Options};
use crate::tier::plan;
use crate::tier::state::State;

/// Tiering that runs for CMD.
#[derive(Debug)]
pub(super) struct Tiered {
    state: State,
    hierarchy: Hierarchy,
    path: String,
    /// Where we are otherwise.
    home: String,
}

/// The options in `file`, which may not say whose memory it is about, and what they come to on `machine`.
pub(super) fn plan(file: Option<&Path>, machine: &Topology) -> anyhow::Result<String> {
    let options = match file {
        None => Options::default(),
        Some(path) => {
            let named = || format!("--tier={}", path.display());
            let options = Options::read(path).with_context(named).ends_with(Exit::Usage)?;
            let whose = options.cgroup.is_some() || options.pid.is_some();
            let only = || anyhow::anyhow!("cgroup or pid is in it, and here it is about CMD alone");
            (!whose).then_some(()).ok_or_else(only).with_context(named).ends_with(Exit::Usage)?;
            options
        }
    };
    let force = InForce::new(Options::default(), options);
    let options = &force.options;
    let plan = plan::plan(machine, options.wishes(), options.named())?;
    Ok(format!("nodes {}, near over far, in a cgroup of CMD's own", plan.order()))
}

impl Tiered {
    /// Starts tiering of a new cgroup.
    pub(super) fn start(fs: &RootFs, file: Option<&Path>) -> anyhow::Result<Self> {
        let state = tier::for_run(file)
            // Whatever status it ends with, CMD was not started.
            .map_err(|error| anyhow::anyhow!("--tier: {error:#}"))?;
        let hierarchy = Hierarchy::find(fs)?;
        let home = hierarchy.of_process(fs, std::process::id())?;
        let path = state.cgroup.clone().context("tiering runs, but of no cgroup")?;
        Ok(Self { state, hierarchy, path, home })
    }

    /// Does something in the cgroup, such as starting CMD.
    pub(super) fn within<T>(&self, fs: &RootFs, start: impl FnOnce() -> T) -> anyhow::Result<T> {
        let us = std::process::id();
        self.hierarchy.put(fs, &self.path, us).context("--tier: going into CMD's cgroup")?;
        let started = start();
        if let Err(error) = self.hierarchy.put(fs, &self.home, us) {
            output::note(format_args!("--tier: {error}; this process stays in {}", self.path));
        }
        Ok(started)
    }

    /// CMD has ended, or was not started: ends tiering, unless something that CMD started goes on. No failure of CMD's.
    pub(super) fn end(&self, fs: &RootFs) {
        let pid = self.state.identity.pid;
        if self.state.is_running()
            && self.hierarchy.is_populated(fs, &self.path).is_ok_and(|there| there == Some(true))
        {
            let left = self.hierarchy.members(fs, &self.path).unwrap_or_default().len();
            output::note(format_args!(
                "CMD has ended, and {left} of what it started {} on; tiering (process {pid}) goes on with it, and ends with it, \
                 or by nearfar tier stop",
                if left == 1 { "goes" } else { "go" }
            ));
            return;
        }
        if !self.state.is_running() {
            output::note(format_args!("tiering ended before CMD did: {}", tier::why_ended()));
        }
        if let Err(error) = tier::end_and_put_back(Some(&self.state)) {
            output::note(format_args!("{error:#}"));
        }
    }
}
