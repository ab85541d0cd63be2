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
    /// CPU time of the thread when it was last charged, and its part for scans since the last count.
    cpu_ns: u64,
    pub(super) scan_ns: u64,
}

impl Monitor {
    pub(super) fn new(fs: &dyn Fs, node: NodeId) -> Self {
        let (timing, total) = (PassTiming::default(), meminfo(fs, node).total);
        Self { timing, total, foreign: None, cpu_ns: 0, scan_ns: 0 }
    }
}

impl DamonMigrator<'_> {
    /// Charges the CPU time of kdamonds at turn and of this program since the last call to scans, or to the time between
    /// them. A kdamond that was not at turn had no scan.
    pub(super) fn charge(&mut self) -> Result<(), DamonError> {
        let own_ns = process_cpu_ns(self.fs, "self");
        let mut used = own_ns.saturating_sub(std::mem::replace(&mut self.own_ns, own_ns));
        for (index, _) in self.at_turn() {
            let thread = self.session.thread(index)?;
            let now = thread.map_or(0, |thread| thread_cpu_ns(self.fs, &thread.to_string()));
            let kdamond = &mut self.kdamonds[index];
            let spent = now.saturating_sub(std::mem::replace(&mut kdamond.cpu_ns, now));
            used += spent;
            if !self.rests {
                kdamond.scan_ns += spent;
            }
        }
        let total = &mut self.totals[self.turn];
        total.cpu.0 += used;
        if self.rests {
            total.idle_cpu.0 += used;
        }
        Ok(())
    }

    /// The time between scans begins, or ends.
    pub(super) fn rest(&mut self, rests: bool) -> Result<(), DamonError> {
        self.charge()?;
        self.rests = rests;
        Ok(())
    }
}
