//! Which class of a tier gives a slab to which.
//!
//! A class that is full has its own items go. If that were all, memory would stay with the sizes that came first. So two things
//! are kept of each class, both forgotten by and by, in the same time (an eighth whenever some slabs' worth of items has gone):
//! - what it *regrets*: how many keys came back that had gone just before, within so many slots as a few slabs have. That is about
//!   what another slab would have saved. As marginal hits of CacheLib's pool optimizer, without a queue's tail;
//! - its *heat*: how often its items are read, counted for one read in [`READS_PER_NOTE`], by slab.
//!
//! To lose a slab costs a class nothing if it has free slots for another's worth of items, and its share of heat if nothing has to
//! go there: what is in it is worth keeping as far as it is read. A class whose own items go all the time, and that has many slabs,
//! keeps what is worth most, and loses not much more than what another slab would have brought. A slab goes from the class that
//! loses least to the one that regrets most, if that is half as much again and more than chance. A class that only passes through
//! (a scan) regrets nothing and gets nothing.

use core::sync::atomic::Ordering::Relaxed;

use crate::space::Space;

/// Regrets reach back so many slots, or as many slots of those keys that are looked at.
const WINDOW: usize = 128;
/// Keys that are remembered, in lines of one.
const MARKS: usize = 512;
/// One read in so many is noted for its slab.
pub(crate) const READS_PER_NOTE: u64 = 16;
/// What is counted, is counted in parts of one, so that it can be forgotten by eighths.
const PARTS: u64 = HEAT as u64;
/// A read that is noted for a slab, and the most that is.
const HEAT: u32 = 256;
const HEAT_MAX: u32 = 1 << 24;
/// Regrets that are no chance.
const LEAST: u64 = 4 * PARTS;
/// One slot in so many of those in use may be kept free for who comes.
const KEPT_FREE: usize = 16;
/// Slabs are dealt out anew when one in so many would have been filled anew.
const TURN: usize = 128;

/// What went from a class lately, and came back.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// For some keys: a part of the hash, and the count of slots when it went. Empty until something goes.
    marks: Vec<(u16, u16)>,
    /// Keys are looked at of whose hash these bits are 0.
    passed: u32,
    /// Slots that went, of keys that are looked at.
    clock: u16,
    /// Words of slots that went, and were not told yet.
    words: u64,
    /// Slots that went, in parts.
    gone: u64,
    /// Slots of the item that went last.
    last: usize,
    /// Keys that came back, in parts.
    regrets: u64,
}

/// Where a key is remembered, and as what; none if it is not looked at.
fn mark(hash: u32, passed: u32) -> Option<(usize, u16)> {
    let spread = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [a, b, c, d, e, f, g, h] = spread.to_be_bytes();
    let looked_at = u32::from_be_bytes([a, b, c, d]) & passed == 0;
    let line = usize::from(u16::from_be_bytes([e, f])) % MARKS;
    looked_at.then(|| (line, u16::from_be_bytes([g, h]).max(1)))
}

impl Recent {
    /// An item of so many slots had to go, of a class with `per_slab` slots of `words` in a slab.
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

    /// An item comes.
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

    /// Words of slots that went and were not told.
    pub(crate) fn take_words(&mut self) -> u64 {
        core::mem::take(&mut self.words)
    }

    fn cool(&mut self) {
        self.gone -= self.gone.div_ceil(8);
        self.regrets -= self.regrets.div_ceil(8);
    }
}

/// What a class is about, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Its slabs.
    pub(crate) slabs: u64,
    /// Slots of a slab.
    per_slab: u64,
    /// Free slots, but for those that movers keep free.
    spare: u64,
    /// Slots that went, in parts.
    gone: u64,
    /// Keys that came back, in parts, of those that are looked at.
    regrets: u64,
    /// Reads of its items, in parts.
    reads: u64,
}

impl Load {
    /// What another slab would have saved: reads, in parts.
    const fn gain(&self) -> u64 {
        // Of one key in `every` within WINDOW slots: `every` cancels out.
        self.regrets * self.per_slab / WINDOW as u64
    }

    /// What the loss of a slab costs: reads, in parts.
    pub(crate) fn cost(&self) -> u64 {
        if self.spare >= self.per_slab {
            return 0;
        }
        let (gain, share) = (self.gain(), self.reads / self.slabs.max(1));
        if self.gone * 2 < self.per_slab * PARTS {
            return share.max(gain);
        }
        // Of one slab it is all that is read there; of many not much more than one more would bring.
        gain + share.saturating_sub(gain) / self.slabs.max(1)
    }
}

/// The classes, by number, that a slab goes from and to.
pub(crate) fn choose(loads: &[Load]) -> Option<(usize, usize)> {
    let is_wanting = |load: &Load| load.regrets >= LEAST && load.spare < load.per_slab;
    let wants = loads.iter().enumerate().filter(|(_, load)| is_wanting(load));
    let (to, wanting) = wants.max_by_key(|(_, load)| load.gain())?;
    let others = loads.iter().enumerate().filter(|(number, load)| *number != to && load.slabs > 0);
    let (from, giving) = others.min_by_key(|(_, load)| load.cost())?;
    (wanting.gain() * 2 > giving.cost() * 3).then_some((from, to))
}

impl Space {
    /// What its classes are about.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let load = |class: &crate::space::Class| {
            let state = class.lock();
            let heat = |slab: u32| u64::from(self.heat[slab as usize].load(Relaxed));
            // For those that come, and for one or two that just went, if it was the only one, too.
            let items = (state.used - state.chunks).max(1);
            let one = state.used.div_ceil(items).max(state.recent.last);
            let kept_free = state.used / KEPT_FREE + 2 * one;
            Load {
                slabs: state.slabs().count() as u64,
                per_slab: class.per_slab() as u64,
                spare: state.free.saturating_sub(kept_free) as u64,
                gone: state.recent.gone,
                regrets: state.recent.regrets,
                reads: state.slabs().map(|(_, slab)| heat(slab)).sum::<u64>() * READS_PER_NOTE,
            }
        };
        self.classes().map(load).collect()
    }

    /// Notes a read of an item, for those that are not.
    #[cold]
    pub(crate) fn warm(&self, at: usize) {
        let heat = &self.heat[at / self.slab_words()];
        let now = heat.load(Relaxed);
        if now < HEAT_MAX {
            // Of two at once one is enough.
            heat.store(now + HEAT, Relaxed);
        }
    }

    /// Whether enough has gone for slabs to be dealt out anew; it counts as done then.
    pub(crate) fn take_turn(&self) -> bool {
        let due = (self.slab_words() * (self.slab_count() / TURN).max(1)) as u64;
        self.pressure.load(Relaxed) >= due && self.pressure.swap(0, Relaxed) >= due
    }

    /// Forgets an eighth of what was.
    pub(crate) fn cool(&self) {
        self.classes().for_each(|class| class.lock().recent.cool());
        for heat in &self.heat {
            let now = heat.load(Relaxed);
            heat.store(now - now.div_ceil(8), Relaxed);
        }
    }
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
    fn a_class_that_nobody_reads_gives_to_one_that_regrets() {
        let loads = [load(50, 0, 0, 0), load(10, 500, 40, 900), load(9, 0, 0, 90_000)];
        assert_eq!(choose(&loads), Some((0, 1)));
    }

    #[test]
    fn a_hot_class_that_has_room_for_all_its_items_keeps_it() {
        let loads = [load(50, 0, 0, 50_000), load(10, 500, 40, 900)];
        assert_eq!(choose(&loads), None);
        // Until what the other regrets is half as much again as what is lost here.
        let loads = [load(50, 0, 0, 50_000), load(10, 9_000, 1600, 900)];
        assert_eq!(choose(&loads), Some((0, 1)));
    }

    #[test]
    fn a_class_that_only_passes_through_gets_nothing_and_gives() {
        let loads = [load(30, 90_000, 0, 10), load(30, 500, 40, 9_000)];
        assert_eq!(choose(&loads), Some((0, 1)));
        assert_eq!(choose(&[load(30, 90_000, 0, 10), load(30, 0, 0, 0)]), None);
    }

    #[test]
    fn a_class_with_free_slots_gives_first_and_gets_nothing() {
        let spare = Load { spare: 128, ..load(50, 500, 400, 90_000) };
        assert_eq!(choose(&[load(10, 0, 0, 0), load(10, 500, 40, 900), spare]), Some((0, 1)));
        assert_eq!(choose(&[load(10, 500, 40, 900), spare]), Some((1, 0)));
        let less = Load { spare: 127, ..spare };
        assert_eq!(choose(&[load(10, 500, 40, 900), less]), Some((0, 1)));
    }

    #[test]
    fn equals_keep_what_they_have_and_so_do_those_who_regret_by_chance() {
        assert_eq!(choose(&[load(30, 900, 50, 9_000), load(30, 900, 60, 9_000)]), None);
        assert_eq!(choose(&[load(30, 0, 0, 0), load(30, 900, 3, 9_000)]), None);
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn the_only_slab_of_a_class_costs_all_that_is_read_there() {
        let loads = [load(1, 900, 0, 9_000), load(60, 900, 400, 9_000)];
        assert_eq!(choose(&loads), None);
    }

    #[test]
    fn what_comes_back_soon_is_regretted_and_what_comes_late_or_never_went_is_not() {
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
