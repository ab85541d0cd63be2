//! Options that select the machine, shared by commands.

use std::path::PathBuf;

use nearfar_command::machine::{Machine, kind_override};
use nearfar_topology::{MemoryKind, NodeId};

/// The machine and the kinds of its memory.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MachineArgs {
    /// Use this machine instead of the running one: a directory that stands for /, or a file made by `nearfar topo
    /// --record`
    #[arg(long, value_name = "DIR|FILE")]
    sysfs: Option<PathBuf>,
    /// Set the kind of a node's memory, overriding detection: dram, cxl, hbm, pmem, gpu or unknown
    #[arg(long = "kind", value_name = "NODE=KIND", value_parser = kind_override)]
    kinds: Vec<(NodeId, MemoryKind)>,
}

impl MachineArgs {
    /// The machine that these options select.
    pub(crate) fn select(&self) -> Machine {
        Machine { root: self.sysfs.clone(), kinds: self.kinds.clone() }
    }
}
