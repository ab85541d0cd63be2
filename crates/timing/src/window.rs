//! The outstanding lines of a vCPU: a fixed number of places, each taken until its line arrives.

/// Completion times of the outstanding lines, as a ring in order of time.
///
/// Picoseconds of modelled time. A place whose time has passed is free. Lines mostly complete in the order of their
/// requests, so that adding one takes a step or two.
#[derive(Debug)]
pub(crate) struct Window {
    /// A power of two; of these, `places` from `first` on are in use.
    ring: Box<[u64]>,
    places: usize,
    first: usize,
}

impl Window {
    /// `places` free places, at least one.
    pub(crate) fn new(places: u32) -> Self {
        let places = places.max(1) as usize;
        Self { ring: vec![0; places.next_power_of_two()].into_boxed_slice(), places, first: 0 }
    }

    /// Earliest time at which a line can be requested.
    #[inline]
    pub(crate) fn free_from(&self) -> u64 {
        self.ring[self.first & (self.ring.len() - 1)]
    }

    /// Takes the place that becomes free first, until `completion`.
    #[inline]
    pub(crate) fn take(&mut self, completion: u64) {
        let mask = self.ring.len() - 1;
        self.first = self.first.wrapping_add(1);
        let mut at = self.first.wrapping_add(self.places - 1);
        while at != self.first && self.ring[at.wrapping_sub(1) & mask] > completion {
            self.ring[at & mask] = self.ring[at.wrapping_sub(1) & mask];
            at = at.wrapping_sub(1);
        }
        self.ring[at & mask] = completion;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_waits_for_the_earliest_of_a_full_window() {
        let mut window = Window::new(3);
        for completion in [300, 100, 200] {
            assert_eq!(window.free_from(), 0);
            window.take(completion);
        }
        assert_eq!(window.free_from(), 100);
        window.take(900);
        assert_eq!(window.free_from(), 200);
    }

    proptest! {
        #[test]
        fn slots_become_free_in_order_of_time(
            places in 1u32..80,
            completions in proptest::collection::vec(1u64..1_000_000, 1..400),
        ) {
            let mut window = Window::new(places);
            let mut plain = vec![0; places as usize];
            for completion in completions {
                plain.sort_unstable();
                prop_assert_eq!(window.free_from(), plain[0]);
                plain[0] = completion;
                window.take(completion);
            }
        }
    }
}
