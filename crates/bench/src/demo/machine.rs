//! The machine of a demo, and the residency of processes.

use nearfar_kernel::fs::{self, RootFs};
use nearfar_kernel::residency;
use nearfar_topology::{Overrides, Topology};

use nearfar_report::model::{Emulation, Machine, Node, Resident};

/// Describes this machine.
///
/// # Errors
/// The system shows no nodes.
pub fn read() -> anyhow::Result<Machine> {
    let (topology, _) = fs::topology(&RootFs::live()?, &Overrides::new());
    let lab = nearfar_probe::marker::read().map_err(anyhow::Error::msg)?;
    let emulation = lab.map(|lab| Emulation {
        machine: lab.machine,
        clock: lab.clock,
        slow_motion: lab.slow_motion,
    });
    Ok(Machine {
        emulation,
        kernel: topology.kernel.clone().unwrap_or_else(|| "unknown".into()),
        cpus: count(topology.nodes.values().map(|node| node.cpus.len()).sum()),
        nodes: nodes(&topology),
    })
}

/// Whether there is far memory to compare near memory with.
pub fn has_two_tiers(machine: &Machine) -> bool {
    let has = |near| machine.nodes.iter().any(|node| node.near == near);
    has(true) && has(false)
}

fn nodes(topology: &Topology) -> Vec<Node> {
    let near = topology.near();
    let with_memory = topology.memory_nodes();
    with_memory
        .iter()
        .filter_map(|id| Some((id, topology.nodes.get(&id)?)))
        .map(|(id, node)| Node {
            id: id.0,
            kind: node.kind.word().into(),
            size_bytes: node.size.0,
            cpus: count(node.cpus.len()),
            near: near.contains(id),
        })
        .collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Residency of a process; shared pages count proportionally.
pub(crate) fn residency(pid: u32) -> anyhow::Result<Vec<Resident>> {
    let found = residency::of_process(&RootFs::live()?, pid);
    anyhow::ensure!(
        found.processes > 0,
        "/proc/{pid}/numa_maps can't be read, so where the pages of process {pid} are stays unknown; run as the same \
         user, or as root"
    );
    Ok(found.nodes.iter().map(|(node, bytes)| Resident { node: node.0, bytes: bytes.0 }).collect())
}

/// Drops cached files, so that programs begin in the same state. Needs root; without it, they begin with the present caches.
pub(crate) fn drop_caches() {
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
}
