//! A host for tests of the plugin: it has near and far memory, and records the plugin's actions.

use std::io;

use nearfar_kernel::fake::FakeFs;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process::Identity;
use nearfar_topology::{Bytes, Topology, Tree, testkit};

use super::metrics::Metrics;
use super::plugin::Host;

/// It runs nothing.
#[derive(Debug)]
pub(super) struct Fake {
    pub(super) fs: FakeFs,
    pub(super) lines: Vec<String>,
    pub(super) ended: Vec<u32>,
    pub(super) budgets: Vec<(u32, Option<Bytes>, Option<Bytes>)>,
    pub(super) metrics: Metrics,
}

impl Host for Fake {
    fn fs(&self) -> &dyn Fs {
        &self.fs
    }

    fn machine(&self) -> Topology {
        testkit::dram_and_cxl()
    }

    fn log(&mut self, line: &str) {
        self.lines.push(line.into());
    }

    fn publish(&mut self, metrics: &Metrics) {
        self.metrics = *metrics;
    }

    fn process(&self, pid: u32) -> Option<Identity> {
        Some(Identity { pid, started_ticks: 1 })
    }

    fn end(&mut self, process: Identity) -> io::Result<()> {
        self.ended.push(process.pid);
        Ok(())
    }

    fn set_budget(
        &mut self,
        pid: u32,
        max: Option<Bytes>,
        min: Option<Bytes>,
    ) -> Result<(), String> {
        self.budgets.push((pid, max, min));
        if max == Some(Bytes(1 << 40)) { Err("too much".into()) } else { Ok(()) }
    }

    fn pause(&self) {}
}

impl Fake {
    pub(super) fn new() -> Self {
        let (fs, metrics) = (FakeFs::new(Tree::new()), Metrics::default());
        Self { fs, lines: Vec::new(), ended: Vec::new(), budgets: Vec::new(), metrics }
    }
}
