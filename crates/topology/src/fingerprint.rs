//! A short text that identifies a machine: it is stable, and differs where measurements would differ.
//!
//! It covers the properties that determine latency and bandwidth and do not change with the kernel: the product, and
//! each node's id, CPUs and size. Kinds are left out: they may be stated by the user, or be known by a newer kernel only. A kernel's `MemTotal` is the installed size less the memory that the kernel
//! reserved, so sizes are rounded up to a quarter of their leading power of two, which hides some per cent of
//! difference. Free memory, tiers, distances and the kernel's release are left out. The text is a 64-bit FNV-1a hash in
//! hexadecimal: it distinguishes machines, and does not protect against forgery.

use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;

use crate::machine::Topology;
use crate::nodeset::CpuList;
use crate::units::Bytes;

impl Topology {
    /// The fingerprint: 16 hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut text = format!("2 {}\n", self.product.as_deref().unwrap_or_default());
        for (id, node) in &self.nodes {
            let size = rounded(node.size);
            let _ = writeln!(text, "{id} {} {size}", CpuList(&node.cpus));
        }
        format!("{:016x}", fnv(text.as_bytes()))
    }
}

/// Rounds up to a multiple of a quarter of the leading power of two.
fn rounded(size: Bytes) -> u64 {
    let Some(power) = size.0.checked_ilog2() else { return 0 };
    let step = (1u64 << power).div_ceil(4);
    size.0.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

fn fnv(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryKind;
    use crate::testkit::{machine, node};

    fn pair() -> Topology {
        machine([node(0).cpus(0..4).mib(16 * 1024), node(1).mib(8 * 1024).kind(MemoryKind::Cxl)])
    }

    #[test]
    fn the_fingerprint_is_stable_across_releases() {
        // Saved measurements are found by it: a change here must be intended.
        assert_eq!(pair().fingerprint(), "02854acbe44d6127");
    }

    #[test]
    fn installed_memory_counts_and_memory_reserved_by_the_kernel_does_not() {
        let with_size = |mib: u64| {
            let mut changed = pair();
            changed.nodes.values_mut().next().unwrap().size = Bytes(mib << 20);
            changed.fingerprint()
        };
        assert_eq!(with_size(15_900), with_size(15_700));
        assert_eq!(with_size(15_900), pair().fingerprint());
        assert_ne!(with_size(15_900), with_size(32_000));
        let mut changed = pair();
        changed.kernel = Some("7.2".into());
        changed.tiers.clear();
        assert_eq!(changed.fingerprint(), pair().fingerprint());
    }

    #[test]
    fn nodes_and_cpus_count_and_kinds_do_not() {
        let unknown = machine([node(0).cpus(0..4).mib(16 * 1024), node(1).mib(8 * 1024)]);
        assert_eq!(unknown.fingerprint(), pair().fingerprint());
        let others = [
            machine([
                node(0).cpus(0..8).mib(16 * 1024),
                node(1).mib(8 * 1024).kind(MemoryKind::Cxl),
            ]),
            machine([
                node(0).cpus(0..4).mib(16 * 1024),
                node(2).mib(8 * 1024).kind(MemoryKind::Cxl),
            ]),
        ];
        for other in others {
            assert_ne!(other.fingerprint(), pair().fingerprint());
        }
    }
}
