//! Flags of memory policies.

use libc::c_int;

/// Flags of a mode (set_mempolicy(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The nodes are physical ones: a change of the cpuset does not map them to others (MPOL_F_STATIC_NODES).
    pub static_nodes: bool,
    /// The nodes are counted within the cpuset (MPOL_F_RELATIVE_NODES).
    pub relative_nodes: bool,
    /// NUMA balancing migrates pages within the policy (MPOL_F_NUMA_BALANCING, Linux 5.12).
    pub numa_balancing: bool,
}

impl Flags {
    /// The bits of set_mempolicy(2).
    pub(super) fn raw(self) -> c_int {
        let bit = |is_set: bool, bit: c_int| if is_set { bit } else { 0 };
        bit(self.static_nodes, 1 << 15)
            | bit(self.relative_nodes, 1 << 14)
            | bit(self.numa_balancing, 1 << 13)
    }
}
