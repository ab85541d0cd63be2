//! Asynchronous reads of one thread from the disk tier: the cache's implementation of [`Fetch`].
//!
//! The caller has a token for each read; a ticket is stored with it here. Reads that do not fit into the queue wait, so
//! that none is refused; the caller must limit their number. If reads are system calls, the queue blocks on each of
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::cache::Cache;
use crate::disk::{Disk, Reader, Wait, Where};
use crate::on_disk::{Lookup, Ticket};
use crate::store::{Fetch, Head, Known, Landed};

/// A value buffer that has grown beyond this is freed.
const VALUE_KEPT: usize = 1 << 20;

/// A requested read.
#[derive(Debug)]
struct Ask {
    ticket: Ticket,
    key: Vec<u8>,
}

/// The requested reads of one thread.
#[derive(Debug)]
pub(crate) struct Fetcher {
    cache: Arc<Cache>,
    reader: Reader,
    asks: BTreeMap<u64, Ask>,
    /// Those of them that did not fit into the queue, oldest first.
    waiting: VecDeque<u64>,
    value: Vec<u8>,
}

impl Fetcher {
    /// For a thread with up to `depth` reads in flight. `None` without a disk, or if the system has no more queues.
    pub(crate) fn new(cache: Arc<Cache>, depth: usize) -> Option<Self> {
        let reader = cache.reader(depth).ok().flatten()?;
        let (asks, waiting) = (BTreeMap::new(), VecDeque::new());
        Some(Self { cache, reader, asks, waiting, value: Vec::new() })
    }

    fn ask(&mut self, token: u64, ask: Ask) {
        if self.reader.submit(token, ask.ticket.place(), &ask.key).is_err() {
            self.waiting.push_back(token);
        }
        self.asks.insert(token, ask);
    }

    /// Submits waiting reads.
    fn ask_waiting(&mut self) {
        while let Some(token) = self.waiting.front() {
            let Some(Ask { ticket, key }) = self.asks.get(token) else { return };
            if self.reader.submit(*token, ticket.place(), key).is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Maximum bytes of the object of a ticket.
    fn bound(&self, ticket: &Ticket) -> usize {
        let disk = self.cache.contents().below().map(|below| &below.disk);
        match ticket.place() {
            Where::Small(_) => disk.map_or(0, Disk::largest_small),
            Where::Large(place) => place.largest().or_else(|| disk.map(Disk::largest)).unwrap_or(0),
        }
    }

    /// Processes completions once; returns whether more reads were submitted, which need another call.
    fn take_once(&mut self, each: &mut Landed<'_>) -> io::Result<bool> {
        let mut again = Vec::new();
        let Self { cache, reader, asks, value, .. } = self;
        let polled = reader.poll(Wait::No, &mut |token, outcome| {
            let Some(Ask { ticket, key }) = asks.remove(&token) else { return };
            value.clear();
            match cache.landed(&key, (ticket, outcome), value, &mut |_, _, _| ()) {
                Lookup::Hit(meta) => each(token, Some((&meta, value))),
                Lookup::Miss => each(token, None),
                Lookup::Below(ticket) => again.push((token, Ask { ticket, key })),
            }
        });
        let before = self.reader.under_way();
        self.ask_waiting();
        for (token, ask) in again {
            self.ask(token, ask);
        }
        polled?;
        Ok(self.reader.under_way() > before)
    }
}

impl Fetch for Fetcher {
    fn get(&mut self, token: u64, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Known {
        match self.cache.lookup(key, out, head) {
            Lookup::Hit(meta) => Known::Found(meta),
            Lookup::Miss => Known::Missing,
            Lookup::Below(ticket) => {
                let bound = self.bound(&ticket);
                self.ask(token, Ask { ticket, key: key.to_vec() });
                Known::Later(bound)
            }
        }
    }

    fn take(&mut self, each: &mut Landed<'_>) -> io::Result<()> {
        while self.take_once(each)? {}
        self.value.shrink_to(VALUE_KEPT);
        Ok(())
    }

    fn forget(&mut self, whose: &dyn Fn(u64) -> bool) {
        let asks = &mut self.asks;
        self.waiting.retain(|token| {
            let goes = whose(*token);
            if goes {
                asks.remove(token);
            }
            !goes
        });
    }

    fn under_way(&self) -> usize {
        self.asks.len()
    }

    fn ready(&self) -> BorrowedFd<'_> {
        self.reader.ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Making;
    use crate::testkit::{config, flush, push_down};

    #[test]
    fn cancelled_reads_are_dropped_and_the_others_complete() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(&config(&folder.path().join("disk"), 60, Making::Inline)).unwrap();
        let key = |token: u64| format!("k{token}").into_bytes();
        (0..10).for_each(|token| cache.set(&key(token), &[7; 3000]).unwrap());
        push_down(&cache);
        flush(&cache);
        let mut fetcher = Fetcher::new(Arc::new(cache), 2).unwrap();
        for token in 0..10 {
            let known = fetcher.get(token, &key(token), &mut Vec::new(), &mut |_, _, _| ());
            assert!(matches!(known, Known::Later(_)), "{known:?}");
        }
        fetcher.forget(&|token| token >= 5);
        assert_eq!(fetcher.under_way(), 5);
        let mut found = Vec::new();
        while fetcher.under_way() > 0 {
            fetcher.take(&mut |token, item| found.push((token, item.is_some()))).unwrap();
        }
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3, 4].map(|token| (token, true)));
    }
}
