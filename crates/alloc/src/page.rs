//! Reader of the advice page of `nearfar daemon`: follows it while the daemon writes it, and otherwise checks for it
//! periodically.

use core::sync::atomic::{AtomicU64, Ordering};
use std::path::PathBuf;
use std::sync::Mutex;

use nearfar_kernel::advice::{self, Reader};
use nearfar_kernel::chase;
use nearfar_policy::advice::{Advice, Page};
use nearfar_policy::interleave::Seen;
use nearfar_topology::Nanoseconds;

use crate::haste;

/// Interval between checks for a page where there is none, or none that is written.
const LOOK_MS: u64 = 1000;

/// An advice page that may exist.
#[derive(Debug)]
pub(crate) struct Advised {
    path: PathBuf,
    reader: Mutex<Option<Reader>>,
    looked_ms: AtomicU64,
    heartbeat: AtomicU64,
}

/// Result of a read of the page.
#[derive(Debug)]
pub(crate) enum Found {
    /// No daemon writes a page.
    Nothing,
    /// The page is unchanged since the last read.
    Same,
    /// The page has changed.
    New(Page),
}

impl Advised {
    /// The page at its default path. The environment is read now, once.
    pub(crate) fn new() -> Self {
        Self {
            path: advice::default_path(),
            reader: Mutex::new(None),
            looked_ms: AtomicU64::new(0),
            heartbeat: AtomicU64::new(0),
        }
    }

    /// Reads the page.
    pub(crate) fn look(&self) -> Found {
        // In a child of fork the lock may be held for ever: then the child does without.
        let Ok(mut reader) = self.reader.try_lock() else { return Found::Nothing };
        if reader.is_none() && self.is_time() {
            *reader = Reader::open(&self.path).ok().flatten();
        }
        let page = reader.as_ref().and_then(|reader| reader.read().ok());
        let Some(page) = page.filter(|page| page.is_fresh(chase::now())) else {
            // There may be a new file of that name by now.
            *reader = None;
            return Found::Nothing;
        };
        let heartbeat = page.heartbeat.0;
        if self.heartbeat.swap(heartbeat, Ordering::Relaxed) == heartbeat {
            Found::Same
        } else {
            Found::New(page)
        }
    }

    fn is_time(&self) -> bool {
        let (now, last) = (haste::now_ms(), self.looked_ms.load(Ordering::Relaxed));
        let is_time = last == 0 || now >= last + LOOK_MS;
        if is_time {
            self.looked_ms.store(now, Ordering::Relaxed);
        }
        is_time
    }
}

/// Converts the advice for a node to a load, as seen from here; `idle` is the node's unloaded latency.
pub(crate) fn seen(said: &Advice, idle: Nanoseconds) -> Seen {
    let load = Nanoseconds(idle.0.saturating_mul(u64::from(said.pressure)) / 100);
    Seen { load, free: said.free, placed: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::advice::Publisher;
    use nearfar_policy::advice::Traffic;
    use nearfar_topology::{BasisPoints, NodeId};

    fn page(interval: u64) -> Page {
        let node = Advice {
            node: NodeId(0),
            idle: Nanoseconds(100),
            load: Nanoseconds(250),
            pressure: 250,
            used: None,
            read: None,
            write: None,
            free: BasisPoints(5000),
            weight: 16,
        };
        Page {
            heartbeat: chase::now(),
            interval: Nanoseconds(interval),
            pid: 7,
            traffic: Traffic::Unknown,
            cpu: Nanoseconds(0),
            begun: Nanoseconds(0),
            looks: 1,
            nodes: std::vec![node],
        }
    }

    fn advised(name: &str) -> Advised {
        let name = std::format!("nearfar-alloc-{}-{name}", std::process::id());
        Advised { path: std::env::temp_dir().join(name), ..Advised::new() }
    }

    /// Simulates that the last check was long ago.
    fn later(advised: &Advised) {
        advised.looked_ms.store(0, Ordering::Relaxed);
    }

    #[test]
    fn an_advice_page_is_followed_until_it_disappears() {
        const HOUR: u64 = 3_600_000_000_000;
        let advised = advised("followed");
        assert!(matches!(advised.look(), Found::Nothing));
        let mut publisher = Publisher::start(&advised.path, page(HOUR)).unwrap();
        // The last check was a moment ago.
        assert!(matches!(advised.look(), Found::Nothing));
        later(&advised);
        let Found::New(found) = advised.look() else { panic!("no page") };
        assert_eq!(found.of(NodeId(0)).map(|node| node.pressure), Some(250));
        assert!(matches!(advised.look(), Found::Same));
        publisher.publish(page(HOUR));
        assert!(matches!(advised.look(), Found::New(_)));
        drop(publisher);
        later(&advised);
        assert!(matches!(advised.look(), Found::Nothing));
        // A new publisher is found.
        let _publisher = Publisher::start(&advised.path, page(HOUR)).unwrap();
        later(&advised);
        assert!(matches!(advised.look(), Found::New(_)));
    }

    #[test]
    fn an_advice_page_without_recent_updates_is_ignored() {
        let advised = advised("stale");
        let _publisher = Publisher::start(&advised.path, page(0)).unwrap();
        assert!(matches!(advised.look(), Found::Nothing));
        assert!(advised.reader.lock().unwrap().is_none());
    }

    #[test]
    fn pressure_scales_the_local_load_latency() {
        let seen = seen(&page(1).nodes[0], Nanoseconds(140));
        assert_eq!((seen.load, seen.free), (Nanoseconds(350), BasisPoints(5000)));
    }
}
