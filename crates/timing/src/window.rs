//! The lines a vCPU can have under way: so many places, each taken until its line has come.

/// Completion times of the lines under way, as a heap with the earliest on top.
///
/// Picoseconds of modelled time. A place whose time has passed is free.
#[derive(Debug)]
pub(crate) struct Window {
    completions: Box<[u64]>,
}

impl Window {
    /// `places` free places, at least one.
    pub(crate) fn new(places: u32) -> Self {
        Self { completions: vec![0; places.max(1) as usize].into_boxed_slice() }
    }

    /// When a line can be asked for at the earliest.
    #[inline]
    pub(crate) fn free_from(&self) -> u64 {
        self.completions[0]
    }

    /// Takes the place that is free first, until `completion`.
    #[inline]
    pub(crate) fn take(&mut self, completion: u64) {
        let heap = &mut self.completions;
        let mut at = 0;
        loop {
            let left = 2 * at + 1;
            if left >= heap.len() {
                break;
            }
            let right = (left + 1).min(heap.len() - 1);
            let child = if heap[right] < heap[left] { right } else { left };
            if completion <= heap[child] {
                break;
            }
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = completion;
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
        fn places_come_free_in_order_of_time(
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
