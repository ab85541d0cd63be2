//! `stats detail`: requests counted by key prefix, up to the first colon.
//!
//! Off by default; when enabled, it takes a lock: it is for diagnosis, not for production. At most [`PREFIXES`] are
//! counted, so that its memory is limited; later ones are ignored.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use super::text::push;

const PREFIXES: usize = 10_000;

/// Requests counted by prefix.
#[derive(Clone, Copy, Debug)]
pub(super) enum Did {
    Hit,
    Miss,
    Set,
    Delete,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Detail {
    on: AtomicBool,
    prefixes: Mutex<BTreeMap<Vec<u8>, Tally>>,
}

impl Detail {
    pub(super) fn turn_on(&self) {
        self.on.store(true, Relaxed);
    }

    pub(super) fn turn_off(&self) {
        self.on.store(false, Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    pub(super) fn clear(&self) {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    #[inline]
    pub(super) fn note(&self, key: &[u8], did: Did) {
        if self.is_on() {
            self.note_now(key, did);
        }
    }

    #[cold]
    fn note_now(&self, key: &[u8], did: Did) {
        let Some(end) = key.iter().position(|byte| *byte == b':').filter(|end| *end > 0) else {
            return;
        };
        let mut prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        if prefixes.len() >= PREFIXES && !prefixes.contains_key(&key[..end]) {
            return;
        }
        let tally = prefixes.entry(key[..end].to_vec()).or_default();
        match did {
            Did::Hit => (tally.gets, tally.hits) = (tally.gets + 1, tally.hits + 1),
            Did::Miss => tally.gets += 1,
            Did::Set => tally.sets += 1,
            Did::Delete => tally.deletes += 1,
        }
    }

    /// Appends a line per prefix, and the end.
    pub(super) fn dump(&self, out: &mut Vec<u8>) {
        let prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        for (prefix, tally) in prefixes.iter() {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let counts: [(&[u8], u64); 4] = [
                (b" get ", tally.gets),
                (b" hit ", tally.hits),
                (b" set ", tally.sets),
                (b" del ", tally.deletes),
            ];
            for (name, count) in counts {
                out.extend_from_slice(name);
                push(out, count);
            }
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"END\r\n");
    }
}
