//! A minimal index for the disk tier.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use nearfar_cache_disk::{Fate, Keeper, Place, Places};

/// An index with one place per hash.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) places: Mutex<HashMap<u64, Place>>,
    pub(super) keeps: bool,
}

impl Index {
    pub(super) fn with<R>(&self, what: impl FnOnce(&mut HashMap<u64, Place>) -> R) -> R {
        what(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Keeper for Index {
    fn evicted(&self, hash: u64, place: Place) -> Fate {
        self.with(|places| {
            if places.get(&hash) != Some(&place) {
                return Fate::Gone;
            }
            if self.keeps && hash.is_multiple_of(3) {
                return Fate::Keep;
            }
            places.remove(&hash);
            Fate::Gone
        })
    }

    fn moved(&self, hash: u64, from: Place, to: Place) -> bool {
        self.with(|places| {
            let is_there = places.get(&hash) == Some(&from);
            if is_there {
                places.insert(hash, to);
            }
            is_there
        })
    }

    fn gone(&self, hash: u64, place: Place) {
        self.with(|places| {
            if places.get(&hash) == Some(&place) {
                places.remove(&hash);
            }
        });
    }

    fn lost(&self, range: Places) {
        self.with(|places| places.retain(|_, place| !range.contains(*place)));
    }
}
