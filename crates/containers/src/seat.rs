//! A container's place on a machine: the nodes and CPUs of its cpuset, and the packages of CPUs.

use std::collections::BTreeMap;

use nearfar_kernel::fs::Fs;
use nearfar_topology::{CpuId, NodeSet, Topology};

use crate::annotations::{Memory, Request};
use crate::intel::Nodes;

/// A container's place on a machine.
#[derive(Clone, Debug)]
pub struct Seat<'a> {
    /// The machine.
    pub machine: &'a Topology,
    /// The container's `cpuset.mems`; `None` if it may use every node.
    pub mems: Option<NodeSet>,
    /// Its CPUs; empty if it may use every one.
    pub cpus: Vec<CpuId>,
    /// The package of each CPU, as far as known.
    pub packages: BTreeMap<CpuId, u32>,
}

/// A list in a container's cpuset that is no list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the container's cpuset has {key} `{text}`; write numbers and ranges as 0,2-3")]
pub struct CpusetError {
    key: &'static str,
    text: String,
}

impl<'a> Seat<'a> {
    /// The seat of a container with this cpuset, in the kernel's list format; empty lists are no limit. The packages of
    /// CPUs are read from `fs` only if `request` depends on them.
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn new(
        machine: &'a Topology,
        (mems, cpus): (&str, &str),
        request: &Request,
        fs: &dyn Fs,
    ) -> Result<Self, CpusetError> {
        let wrong = |key, text: &str| CpusetError { key, text: text.into() };
        let mems_listed = NodeSet::parse_list(mems).ok_or_else(|| wrong("mems", mems))?;
        let cpus_listed = cpu_list(cpus).ok_or_else(|| wrong("cpus", cpus))?;
        let memory = request.memory.as_ref().map(|memory| &memory.value);
        let packages = match memory {
            Some(Memory::Policy(policy)) if policy.nodes == Nodes::CpuPackages => {
                packages(fs, machine)
            }
            _ => BTreeMap::new(),
        };
        let mems = Some(mems_listed).filter(|mems| !mems.is_empty());
        Ok(Self { machine, mems, cpus: cpus_listed, packages })
    }
}

/// CPUs in the kernel's list format.
fn cpu_list(text: &str) -> Option<Vec<CpuId>> {
    const MOST: u32 = 8192;
    CpuId::parse_list(text).filter(|cpus| cpus.iter().all(|cpu| cpu.0 < MOST))
}

fn packages(fs: &dyn Fs, machine: &Topology) -> BTreeMap<CpuId, u32> {
    let cpus = machine.nodes.values().flat_map(|node| node.cpus.iter().copied());
    let package = |cpu: CpuId| {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        Some((cpu, fs.read(&path).ok()??.trim().parse().ok()?))
    };
    cpus.filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fake::FakeFs;
    use nearfar_topology::{NodeId, Tree, testkit};

    #[test]
    fn lists_of_the_cpuset_are_read_and_packages_if_needed() {
        let machine = testkit::dram_and_cxl();
        let fs = FakeFs::new(Tree::new());
        fs.plant(&[("sys/devices/system/cpu/cpu1/topology/physical_package_id".into(), "3\n")]);
        let read = |text: &str| {
            let pairs = [("policy.memory-policy.nri.io".to_string(), text.to_string())].into();
            let request = Request::read(&pairs, None, &BTreeMap::new()).unwrap();
            Seat::new(&machine, ("1", "0-1,3"), &request, &fs).unwrap()
        };
        let seat = read("mode: MPOL_BIND\nnodes: cpu-packages");
        assert_eq!(seat.mems, Some([NodeId(1)].into_iter().collect()));
        assert_eq!(seat.cpus, [CpuId(0), CpuId(1), CpuId(3)]);
        assert_eq!(seat.packages, [(CpuId(1), 3)].into());
        assert_eq!(read("mode: MPOL_BIND\nnodes: all").packages, BTreeMap::new());
    }

    #[test]
    fn an_empty_cpuset_means_no_limit_and_an_invalid_one_is_rejected() {
        let machine = testkit::dram_and_cxl();
        let fs = FakeFs::new(Tree::new());
        let of = |mems, cpus| Seat::new(&machine, (mems, cpus), &Request::default(), &fs);
        let seat = of("", "").unwrap();
        assert_eq!((seat.mems, seat.cpus), (None, Vec::new()));
        assert!(of("a", "").unwrap_err().to_string().contains("mems `a`"));
        assert!(of("", "3-1").unwrap_err().to_string().contains("cpus `3-1`"));
    }
}
