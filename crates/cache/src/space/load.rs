//! The load of a tier's classes, from which slabs are reassigned (`slab_balance.rs`).

use core::sync::atomic::Ordering::Relaxed;

use super::{Class, Space, State};
use crate::slab_balance::{HEAT, HEAT_MAX, Load, READS_PER_NOTE};

/// One slot in this many of the used ones may be kept free for new items.
const KEPT_FREE: usize = 16;
/// Slabs are reassigned each time one in this many could have been refilled.
const TURN: usize = 128;

impl Space {
    /// The load of each class.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let load = |class: &Class| {
            let state = class.lock();
            let heat = |slab: u32| u64::from(self.heat(slab));
            // Kept free for new items, plus room for one or two of the largest that went last.
            let items = (state.used - state.chunks).max(1);
            let one = state.used.div_ceil(items).max(state.recent.last());
            let kept_free = state.used / KEPT_FREE + 2 * one;
            let (gone, regrets) = state.recent.counted();
            Load {
                slabs: state.slabs().count() as u64,
                per_slab: class.per_slab() as u64,
                spare: state.free.saturating_sub(kept_free) as u64,
                gone,
                regrets,
                reads: state.slabs().map(|(_, slab)| heat(slab)).sum::<u64>() * READS_PER_NOTE,
            }
        };
        self.classes().map(load).collect()
    }

    /// Recent reads of the items of a slab.
    pub(crate) fn heat(&self, slab: u32) -> u32 {
        self.heat[slab as usize].load(Relaxed)
    }

    /// Counts a sampled read of an item for its slab.
    #[cold]
    pub(crate) fn warm(&self, at: usize) {
        let heat = &self.heat[at / self.slab_words()];
        let now = heat.load(Relaxed);
        if now < HEAT_MAX {
            // Of two concurrent increments, losing one is acceptable.
            heat.store(now + HEAT, Relaxed);
        }
    }

    /// Whether enough items were evicted since the last reassignment; resets the count if so.
    pub(crate) fn take_turn(&self) -> bool {
        let due = (self.slab_words() * (self.slab_count() / TURN).max(1)) as u64;
        self.pressure.load(Relaxed) >= due && self.pressure.swap(0, Relaxed) >= due
    }

    /// Decays all counters by an eighth.
    pub(crate) fn cool(&self) {
        self.classes().for_each(|class| class.lock().recent.cool());
        for heat in &self.heat {
            let now = heat.load(Relaxed);
            heat.store(now - now.div_ceil(8), Relaxed);
        }
    }

    /// Adds the evicted words of a class to the pressure.
    pub(crate) fn press(&self, state: &mut State) {
        self.pressure.fetch_add(state.recent.take_words(), Relaxed);
    }

    /// Gives a class a slab that was taken from another.
    pub(crate) fn deal(&self, class: usize, state: &mut State) {
        self.dealt.fetch_add(u64::from(self.grow(class, state)), Relaxed);
    }

    /// Number of reassigned slabs.
    pub(crate) fn dealt(&self) -> u64 {
        self.dealt.load(Relaxed)
    }
}
