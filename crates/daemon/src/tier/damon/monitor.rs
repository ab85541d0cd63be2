//! State of each kdamond, and the CPU time between scans: of kdamonds, which sample and do background migration,
//! and of this program. It grows with the interval between scans, so it is told apart from the cost of a scan, and of a
//! pass.

use nearfar_kernel::damon::DamonError;
use nearfar_kernel::fs::Fs;
use nearfar_topology::{Bytes, NodeId};

use super::super::passes::PassTiming;
use super::super::reading::{meminfo, process_cpu_ns, thread_cpu_ns};
use super::DamonMigrator;

/// State of a node's kdamond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Monitor {
    pub(super) timing: PassTiming,
    /// All memory of the node, by the kernel's count, when its ranges were read.
    pub(super) total: Bytes,
    /// Allocations meant for the node that fell back to another one, by the last count.
    pub(super) foreign: Option<Bytes>,
    /// CPU time that the thread used between scans since the last count.
    pub(super) idle_ns: u64,
}

impl Monitor {
    pub(super) fn new(fs: &dyn Fs, node: NodeId) -> Self {
        let (timing, total) = (PassTiming::default(), meminfo(fs, node).total);
        Self { timing, total, foreign: None, idle_ns: 0 }
    }
}

/// CPU times so far in ns.
#[derive(Clone, Debug)]
pub(super) struct CpuTimes {
    own: u64,
    /// By kdamond of the nodes at turn.
    threads: Vec<(usize, u64)>,
}

impl DamonMigrator<'_> {
    /// CPU time of a node's kdamond.
    pub(super) fn thread_ns(&self, index: usize) -> Result<u64, DamonError> {
        let thread = self.session.thread(index)?;
        Ok(thread.map_or(0, |thread| thread_cpu_ns(self.fs, &thread.to_string())))
    }

    fn cpu_times(&self) -> Result<CpuTimes, DamonError> {
        let of = |(index, _): (usize, bool)| self.thread_ns(index).map(|ns| (index, ns));
        let threads = self.at_turn().into_iter().map(of).collect::<Result<_, _>>()?;
        Ok(CpuTimes { own: process_cpu_ns(self.fs, "self"), threads })
    }

    /// The time between scans begins.
    pub(super) fn begin_rest(&mut self) -> Result<(), DamonError> {
        self.rests = Some(self.cpu_times()?);
        Ok(())
    }

    /// It ends, if it had begun.
    pub(super) fn end_rest(&mut self) -> Result<bool, DamonError> {
        let Some(before) = self.rests.take() else { return Ok(false) };
        let now = self.cpu_times()?;
        let idle_ns = &mut self.totals[self.turn].idle_cpu.0;
        *idle_ns += now.own.saturating_sub(before.own);
        for ((index, now), (_, before)) in now.threads.into_iter().zip(before.threads) {
            let used = now.saturating_sub(before);
            *idle_ns += used;
            self.kdamonds[index].idle_ns += used;
        }
        Ok(true)
    }
}
