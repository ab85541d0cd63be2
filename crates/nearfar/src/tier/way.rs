//! Where the pages of a tiered node may go, and what has arrived there.

use nearfar_topology::{Bytes, NodeId};

/// A node of the next tier up or down to which pages may go. Each way has a scheme of its own, so that it has counters of
/// its own, and because kernels differ in whether a running scheme may be given another destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) to: NodeId,
    /// Whether `to` is the faster one.
    pub(crate) up: bool,
    pub(super) distance: u32,
    /// Moved at the last count, as the kernel counts: by its own scheme and by that of upkeep.
    applied: [u64; 2],
    /// Arrived there since the beginning.
    pub(crate) moved: Bytes,
}

impl Way {
    pub(super) const fn new(to: NodeId, up: bool, distance: u32) -> Self {
        Self { to, up, distance, applied: [0; 2], moved: Bytes(0) }
    }

    /// Takes in the counters of its schemes; gives what each has moved since.
    pub(super) fn count(&mut self, applied: [u64; 2]) -> [u64; 2] {
        let before = std::mem::replace(&mut self.applied, applied);
        [0, 1].map(|by| applied[by].saturating_sub(before[by]))
    }

    /// Takes in that so much was moved, while so much that was for the same node had to go elsewhere; gives what arrived.
    pub(super) fn arrived(&mut self, moved: u64, elsewhere: &mut u64) -> u64 {
        let lost = moved.min(*elsewhere);
        *elsewhere -= lost;
        self.moved.0 += moved - lost;
        moved - lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_way_has_moved_is_the_growth_of_its_counters_without_what_went_elsewhere() {
        let mut way = Way::new(NodeId(2), true, 20);
        assert_eq!([way.count([4096, 0]), way.count([12_288, 5])], [[4096, 0], [8192, 5]]);
        let mut elsewhere = 10_000;
        assert_eq!((way.arrived(4096, &mut elsewhere), elsewhere), (0, 5904));
        assert_eq!((way.arrived(8192, &mut elsewhere), elsewhere), (2288, 0));
        assert_eq!(way.moved, Bytes(2288));
    }
}
