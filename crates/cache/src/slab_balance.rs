//! Reassignment of slabs between the size classes of a tier.
//!
//! A full class evicts its own items. With that alone, memory would stay with the sizes that were stored first. Two
//! quantities are therefore kept per class, both with exponential decay (by an eighth whenever some slabs' worth of
//! items has been evicted):
//! - *regrets*: the number of keys that were stored again soon after their eviction, within a window of a few slabs'
//!   slots. This estimates the hits that one more slab would have gained, as the marginal hits of CacheLib's pool
//!   optimizer, without a tail queue;
//! - *heat*: the read rate of its items, sampled at one in [`READS_PER_NOTE`] reads, by slab.
//!
//! Losing a slab costs a class nothing if it has a slab's worth of free slots. It costs its share of heat if the class
//! evicts nothing: all of its items are worth keeping in proportion to their reads. A class with many slabs that evicts
//! all the time keeps its most valuable items, so it loses little more than one more slab would have gained. A slab
//! moves from the class with the least cost to the one with the most regrets, if the gain is at least half as much
//! again as the cost and above chance. A class whose items only pass through (a scan) has no regrets and gets no slab.

/// Length of the regret window in slots, or in slots of sampled keys.
const WINDOW: usize = 128;
/// Remembered keys; the table is direct-mapped.
const MARKS: usize = 512;
/// One read in this many is counted for its slab.
pub(crate) const READS_PER_NOTE: u64 = 16;
/// Fixed-point unit of the counters, so that they can decay by eighths.
const PARTS: u64 = HEAT as u64;
/// Increment of a slab's heat for one sampled read, and its maximum.
pub(crate) const HEAT: u32 = 256;
pub(crate) const HEAT_MAX: u32 = 1 << 24;
/// Least regrets above chance.
const LEAST: u64 = 4 * PARTS;

/// Recent evictions of a class, and keys stored again after them.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// For sampled keys: part of the hash, and the clock at the eviction. Empty until the first eviction.
    marks: Vec<(u16, u16)>,
    /// Mask of the hash bits that are 0 in sampled keys.
    passed: u32,
    /// Evicted slots of sampled keys.
    clock: u16,
    /// Words of evicted slots that have not been reported yet.
    words: u64,
    /// Evicted slots, in fixed point.
    gone: u64,
    /// Slots of the last evicted item.
    last: usize,
    /// Keys stored again, in fixed point.
    regrets: u64,
}

/// The index and value of a key's mark; `None` if the key is not sampled.
fn mark(hash: u32, passed: u32) -> Option<(usize, u16)> {
    let spread = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [a, b, c, d, e, f, g, h] = spread.to_be_bytes();
    let looked_at = u32::from_be_bytes([a, b, c, d]) & passed == 0;
    let line = usize::from(u16::from_be_bytes([e, f])) % MARKS;
    looked_at.then(|| (line, u16::from_be_bytes([g, h]).max(1)))
}

impl Recent {
    /// Records the eviction of an item of `slots` slots, from a class with `per_slab` slots of `words` words per slab.
    pub(crate) fn went(&mut self, hash: u32, slots: usize, (per_slab, words): (usize, usize)) {
        if self.marks.is_empty() {
            self.marks = vec![(0, 0); MARKS];
            let every = (per_slab / WINDOW).max(1).next_power_of_two();
            self.passed = u32::try_from(every - 1).unwrap_or(u32::MAX);
        }
        self.gone += slots as u64 * PARTS;
        self.last = slots;
        self.words += (slots * words) as u64;
        if let Some((line, mark)) = mark(hash, self.passed) {
            let slots = u16::try_from(slots).unwrap_or(u16::MAX);
            self.clock = self.clock.wrapping_add(slots);
            self.marks[line] = (mark, self.clock);
        }
    }

    /// Records that an item is stored.
    #[inline]
    pub(crate) fn came(&mut self, hash: u32) {
        if self.marks.is_empty() {
            return;
        }
        let Some((line, mark)) = mark(hash, self.passed) else { return };
        let (there, when) = self.marks[line];
        if there == mark {
            self.marks[line].0 = 0;
            let ago = usize::from(self.clock.wrapping_sub(when));
            self.regrets += if ago < WINDOW { PARTS } else { 0 };
        }
    }

    /// Returns the words of evicted slots not reported yet, and resets the count.
    pub(crate) fn take_words(&mut self) -> u64 {
        core::mem::take(&mut self.words)
    }

    /// Slots of the last evicted item.
    pub(crate) const fn last(&self) -> usize {
        self.last
    }

    /// Evicted slots, and keys stored again, in fixed point.
    pub(crate) const fn counted(&self) -> (u64, u64) {
        (self.gone, self.regrets)
    }

    /// Decays the counters by an eighth.
    pub(crate) fn cool(&mut self) {
        self.gone -= self.gone.div_ceil(8);
        self.regrets -= self.regrets.div_ceil(8);
    }
}

/// Recent load of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Number of slabs.
    pub(crate) slabs: u64,
    /// Slots per slab.
    pub(crate) per_slab: u64,
    /// Free slots, without those that movers keep free.
    pub(crate) spare: u64,
    /// Evicted slots, in fixed point.
    pub(crate) gone: u64,
    /// Sampled keys that were stored again, in fixed point.
    pub(crate) regrets: u64,
    /// Reads of its items, in fixed point.
    pub(crate) reads: u64,
}

impl Load {
    /// Reads that one more slab would have gained, in fixed point.
    const fn gain(&self) -> u64 {
        // One key in `every` is sampled, within WINDOW slots of sampled keys: `every` cancels out.
        self.regrets * self.per_slab / WINDOW as u64
    }

    /// Reads that the loss of a slab would cost, in fixed point.
    pub(crate) fn cost(&self) -> u64 {
        if self.spare >= self.per_slab {
            return 0;
        }
        let (gain, share) = (self.gain(), self.reads / self.slabs.max(1));
        if self.gone * 2 < self.per_slab * PARTS {
            return share.max(gain);
        }
        // With one slab, all of its reads; with many, little more than the gain of one more slab.
        gain + share.saturating_sub(gain) / self.slabs.max(1)
    }
}

/// The classes, by number, between which a slab should move: from, to.
pub(crate) fn choose(loads: &[Load]) -> Option<(usize, usize)> {
    let is_wanting = |load: &Load| load.regrets >= LEAST && load.spare < load.per_slab;
    let wants = loads.iter().enumerate().filter(|(_, load)| is_wanting(load));
    let (to, wanting) = wants.max_by_key(|(_, load)| load.gain())?;
    let others = loads.iter().enumerate().filter(|(number, load)| *number != to && load.slabs > 0);
    let (from, giving) = others.min_by_key(|(_, load)| load.cost())?;
    (wanting.gain() * 2 > giving.cost() * 3).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(slabs: u64, gone: u64, regrets: u64, reads: u64) -> Load {
        Load {
            slabs,
            per_slab: 128,
            spare: 0,
            gone: gone * PARTS,
            regrets: regrets * PARTS,
            reads: reads * PARTS,
        }
    }

    #[test]
    fn an_unread_class_donates_slabs_to_a_class_with_ghost_hits() {
        let loads = [load(50, 0, 0, 0), load(10, 500, 40, 900), load(9, 0, 0, 90_000)];
        assert_eq!(choose(&loads), Some((0, 1)));
    }

    #[test]
    fn a_hot_class_keeps_its_slabs_unless_the_gain_exceeds_the_cost() {
        let loads = [load(50, 0, 0, 50_000), load(10, 500, 40, 900)];
        assert_eq!(choose(&loads), None);
        // The gain must exceed half as much again as the cost.
        let loads = [load(50, 0, 0, 50_000), load(10, 9_000, 1600, 900)];
        assert_eq!(choose(&loads), Some((0, 1)));
    }

    #[test]
    fn a_class_without_rereads_donates_slabs_and_receives_none() {
        let loads = [load(30, 90_000, 0, 10), load(30, 500, 40, 9_000)];
        assert_eq!(choose(&loads), Some((0, 1)));
        assert_eq!(choose(&[load(30, 90_000, 0, 10), load(30, 0, 0, 0)]), None);
    }

    #[test]
    fn a_class_with_free_slots_donates_first_and_receives_none() {
        let spare = Load { spare: 128, ..load(50, 500, 400, 90_000) };
        assert_eq!(choose(&[load(10, 0, 0, 0), load(10, 500, 40, 900), spare]), Some((0, 1)));
        assert_eq!(choose(&[load(10, 500, 40, 900), spare]), Some((1, 0)));
        let less = Load { spare: 127, ..spare };
        assert_eq!(choose(&[load(10, 500, 40, 900), less]), Some((0, 1)));
    }

    #[test]
    fn similar_classes_and_rare_ghost_hits_cause_no_reassignment() {
        assert_eq!(choose(&[load(30, 900, 50, 9_000), load(30, 900, 60, 9_000)]), None);
        assert_eq!(choose(&[load(30, 0, 0, 0), load(30, 900, 3, 9_000)]), None);
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn the_last_slab_of_a_class_costs_all_its_hits() {
        let loads = [load(1, 900, 0, 9_000), load(60, 900, 400, 9_000)];
        assert_eq!(choose(&loads), None);
    }

    #[test]
    fn only_keys_requested_soon_after_eviction_count_as_ghost_hits() {
        let mut recent = Recent::default();
        recent.came(1);
        (0..400_u32).for_each(|key| recent.went(key, 1, (64, 32)));
        assert_eq!((recent.regrets, recent.gone), (0, 400 * PARTS));
        (0..200).chain(1000..2000).for_each(|key| recent.came(key));
        assert_eq!(recent.regrets, 0);
        (300..400).for_each(|key| recent.came(key));
        assert!(recent.regrets > 70 * PARTS && recent.regrets <= 100 * PARTS);
        let once = recent.regrets;
        (300..400).for_each(|key| recent.came(key));
        assert_eq!(recent.regrets, once);
        assert_eq!((recent.take_words(), recent.take_words()), (400 * 32, 0));
        (0..200).for_each(|_| recent.cool());
        assert_eq!((recent.regrets, recent.gone), (0, 0));
    }
}
