//! The versions each key may have: the expected state, which survives every crash.

use std::collections::BTreeSet;

pub(crate) const KEYS: usize = 24;

/// A key.
#[derive(Clone, Debug, Default)]
struct Expected {
    /// Versions that may be found; a miss is always possible.
    now: BTreeSet<u64>,
    /// As it was when everything was written the last time.
    flushed: BTreeSet<u64>,
    /// All since everything was forgotten.
    ever: BTreeSet<u64>,
}

/// The versions a crash may bring back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// None that was written before the last flush, and replaced or removed then.
    SinceFlush,
    /// Any that was stored since the last clear.
    Ever,
}

/// All keys.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    keys: Vec<Expected>,
    version: u64,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self { keys: vec![Expected::default(); KEYS], version: 0 }
    }

    /// A version that was never stored.
    pub(crate) const fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// A key is stored, or removed; `is_certain` excludes all previous versions.
    pub(crate) fn set(&mut self, key: usize, version: Option<u64>) {
        let Expected { now, flushed, ever } = &mut self.keys[key];
        now.clear();
        now.extend(version);
        ever.extend(version);
        // Until the next flush, a crash may leave the flushed version or any later one.
        flushed.extend(version);
    }

    /// Everything is written.
    pub(crate) fn flushed(&mut self) {
        self.keys.iter_mut().for_each(|one| one.flushed.clone_from(&one.now));
    }

    /// Everything is forgotten.
    pub(crate) fn clear(&mut self) {
        self.keys.fill(Expected::default());
    }

    /// A crash after which the objects are kept.
    pub(crate) fn keep(&mut self, back: Back) {
        for Expected { now, flushed, ever } in &mut self.keys {
            match back {
                Back::SinceFlush => now.clone_from(flushed),
                Back::Ever => now.clone_from(ever),
            }
            flushed.clone_from(now);
        }
    }

    /// Whether a version may be found.
    pub(crate) fn allows(&self, key: usize, version: u64) -> bool {
        self.keys[key].now.contains(&version)
    }

    /// The versions that may be found, as text.
    pub(crate) fn expected(&self, key: usize) -> String {
        let Expected { now, ever, .. } = &self.keys[key];
        format!("{now:?} of {ever:?}")
    }

    /// Whether anything may be found, and the newest.
    pub(crate) fn newest(&self, key: usize) -> Option<u64> {
        self.keys[key].now.last().copied()
    }

    /// The newest that was ever stored.
    pub(crate) fn newest_ever(&self, key: usize) -> Option<u64> {
        self.keys[key].ever.last().copied()
    }
}
