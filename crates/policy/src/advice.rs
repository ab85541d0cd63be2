//! The advice page: what is said of each node's memory to those who place some, and how it lies in a file.
//!
//! One process writes it, any number read it, through a shared mapping and without asking each other. The file has
//! [`WORDS`] words of 8 bytes, all little-endian; what is not named here is zero.
//!
//! | at byte | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `nfadvice` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | bytes that are used, this head included |
//! | 16 | 8 | sequence: odd while it is written |
//! | 24 | 8 | heartbeat: when it was written, in ns of the monotonic clock; 0 if nobody writes it any more |
//! | 32 | 8 | interval: how often it is written, in ns |
//! | 40 | 4 | id of the process that writes it |
//! | 44 | 4 | nodes that follow |
//! | 48 | 4 | sources: bit 0 loads are timed, bit 1 bandwidth in use is counted (resctrl) |
//! | 52 | 4 | bytes of a node, 64 |
//! | 56 | 8 | CPU time that looking has cost, in ns |
//! | 64 | 8 | when looking began, in ns of the same clock |
//! | 72 | 8 | looks since then |
//! | 128 | 64 each | nodes, by rising id |
//!
//! | in a node | bytes | what |
//! |---|---|---|
//! | 0 | 4 | id |
//! | 4 | 4 | pressure: what a dependent load takes, in per cent of what it takes when nothing else goes on |
//! | 8 | 8 | idle latency, in ns |
//! | 16 | 8 | latency now, in ns |
//! | 24 | 8 | bandwidth in use, in bytes/s |
//! | 32 | 8 | the most it gives to reads, in bytes/s |
//! | 40 | 8 | the most it gives to writes, in bytes/s |
//! | 48 | 4 | share of its memory that is free, in hundredths of a per cent |
//! | 52 | 4 | weight for new memory; all weights together are [`super::interleave::PARTS`] |
//!
//! Bandwidths that are not known are all ones. A reader takes the sequence, what it wants, and the sequence again: if that
//! was odd or has changed, a writer came between ([`read`]; H. Boehm, "Can seqlocks get along with programming language memory
//! models?", MSPC 2012). A page older than [`STALE`] intervals has nobody behind it. Here is no file and no clock.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds, NodeId};

/// Words of the file.
pub const WORDS: usize = HEAD + NODES_MAX * NODE;
/// So many intervals without a heartbeat, and whoever wrote it has gone.
pub const STALE: u64 = 3;

const MAGIC: u64 = u64::from_le_bytes(*b"nfadvice");
const VERSION: u32 = 1;
const NODES_MAX: usize = 1024;
/// Words of the head and of a node.
const HEAD: usize = 16;
const NODE: usize = 8;
/// The same in bytes.
const HEAD_BYTES: u32 = 128;
const NODE_BYTES: u32 = 64;
/// Where the sequence stands.
const SEQUENCE: usize = 2;
const TIMED: u32 = 1;
const COUNTED: u32 = 2;

/// How bandwidth in use is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// It is not.
    Unknown,
    /// From the processor's counters, by resctrl.
    Resctrl,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// When it was written, by the monotonic clock; 0 if nobody writes it any more.
    pub heartbeat: Nanoseconds,
    /// How often it is written.
    pub interval: Nanoseconds,
    /// Who writes it.
    pub pid: u32,
    /// How bandwidth in use is known.
    pub traffic: Traffic,
    /// CPU time that looking has cost.
    pub cpu: Nanoseconds,
    /// When looking began.
    pub begun: Nanoseconds,
    /// Looks since then.
    pub looks: u64,
    /// By rising id.
    pub nodes: Vec<Advice>,
}

/// What is said of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Which.
    pub node: NodeId,
    /// What a load takes when nothing else goes on.
    pub idle: Nanoseconds,
    /// What it takes now.
    pub load: Nanoseconds,
    /// That in per cent of this.
    pub pressure: u32,
    /// Bandwidth in use.
    pub used: Option<BytesPerSecond>,
    /// The most it gives to reads.
    pub read: Option<BytesPerSecond>,
    /// The most it gives to writes.
    pub write: Option<BytesPerSecond>,
    /// The share of its memory that is free.
    pub free: BasisPoints,
    /// Its weight for new memory.
    pub weight: u8,
}

/// Why there is no page in some words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// They are something else.
    Foreign,
    /// Another version, this one.
    Version(u32),
    /// They were being written meanwhile; again, and they are whole.
    Torn,
    /// They can't be what a writer has written.
    Malformed(&'static str),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("no advice page"),
            Self::Version(version) => {
                write!(
                    f,
                    "an advice page of version {version}; this program reads version {VERSION}"
                )
            }
            Self::Torn => f.write_str("an advice page that was being written all the time"),
            Self::Malformed(what) => write!(f, "a damaged advice page: {what}"),
        }
    }
}

impl core::error::Error for Unreadable {}

impl Page {
    /// Whether somebody is behind it at this time of its clock. A time before its heartbeat is of another clock.
    #[must_use]
    pub fn is_fresh(&self, now: Nanoseconds) -> bool {
        let lasts = self.interval.0.saturating_mul(STALE);
        self.heartbeat.0 > 0 && now.0.checked_sub(self.heartbeat.0).is_some_and(|age| age <= lasts)
    }

    /// What is said of a node.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&Advice> {
        let at = self.nodes.binary_search_by_key(&node, |advice| advice.node).ok()?;
        self.nodes.get(at)
    }

    /// The words that make this the page, each with its place, in the order in which they are to be stored; `sequence` is that of
    /// the page before.
    #[must_use]
    pub fn stores(&self, sequence: u64) -> Vec<(usize, u64)> {
        let writing = sequence | 1;
        let words = self.words();
        let body = words.iter().copied().enumerate().filter(|(at, _)| *at != SEQUENCE);
        let mut stores = vec![(SEQUENCE, writing)];
        stores.extend(body);
        stores.push((SEQUENCE, writing.wrapping_add(1)));
        stores
    }

    fn words(&self) -> Vec<u64> {
        let nodes = &self.nodes[..self.nodes.len().min(NODES_MAX)];
        let sources = TIMED | if self.traffic == Traffic::Resctrl { COUNTED } else { 0 };
        let count = u32::try_from(nodes.len()).unwrap_or(0);
        let mut words = vec![0; HEAD];
        words[0] = MAGIC;
        words[1] = pair(VERSION, HEAD_BYTES + count * NODE_BYTES);
        words[3] = self.heartbeat.0;
        words[4] = self.interval.0;
        words[5] = pair(self.pid, count);
        words[6] = pair(sources, NODE_BYTES);
        words[7] = self.cpu.0;
        words[8] = self.begun.0;
        words[9] = self.looks;
        nodes.iter().for_each(|node| words.extend(node.words()));
        words
    }
}

impl Advice {
    fn words(&self) -> [u64; NODE] {
        let known = |bandwidth: Option<BytesPerSecond>| bandwidth.map_or(u64::MAX, |known| known.0);
        [
            pair(u32::from(self.node.0), self.pressure),
            self.idle.0,
            self.load.0,
            known(self.used),
            known(self.read),
            known(self.write),
            pair(self.free.0, u32::from(self.weight)),
            0,
        ]
    }

    fn of(words: [u64; NODE]) -> Result<Self, Unreadable> {
        let known = |word: u64| Some(BytesPerSecond(word)).filter(|_| word != u64::MAX);
        let ((id, pressure), (free, weight)) = (halves(words[0]), halves(words[6]));
        let id = u16::try_from(id).ok().map(NodeId).filter(|id| *id <= NodeId::MAX);
        let share = Some(BasisPoints(free)).filter(|_| free <= 10_000);
        Ok(Self {
            node: id.ok_or(Unreadable::Malformed("a node's id"))?,
            idle: Nanoseconds(words[1]),
            load: Nanoseconds(words[2]),
            pressure,
            used: known(words[3]),
            read: known(words[4]),
            write: known(words[5]),
            free: share.ok_or(Unreadable::Malformed("a share of more than all"))?,
            weight: weight.try_into().map_err(|_| Unreadable::Malformed("a weight"))?,
        })
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Reads a page word by word, by place; no place is [`WORDS`] or more.
///
/// # Errors
/// [`Unreadable`].
pub fn read(mut load: impl FnMut(usize) -> u64) -> Result<Page, Unreadable> {
    // Whose it is first: what is something else is not torn.
    if load(0) != MAGIC {
        return Err(Unreadable::Foreign);
    }
    let before = load(SEQUENCE);
    if before & 1 == 1 {
        return Err(Unreadable::Torn);
    }
    let mut words: Vec<_> = (0..HEAD).map(&mut load).collect();
    let (_, count) = halves(words[5]);
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(NODES_MAX);
    words.extend((HEAD..HEAD + count * NODE).map(&mut load));
    // Only what is whole is understood.
    if load(SEQUENCE) == before { understand(&words) } else { Err(Unreadable::Torn) }
}

fn understand(words: &[u64]) -> Result<Page, Unreadable> {
    let (version, length) = halves(words[1]);
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let ((pid, count), (sources, node_bytes)) = (halves(words[5]), halves(words[6]));
    let bytes = words.len() * 8;
    if node_bytes != NODE_BYTES || u64::from(length) != bytes as u64 {
        return Err(Unreadable::Malformed("its length"));
    }
    let nodes = words[HEAD..].chunks_exact(NODE).map(|node| {
        let mut own = [0; NODE];
        own.copy_from_slice(node);
        Advice::of(own)
    });
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let rises = nodes.windows(2).all(|two| two[0].node < two[1].node);
    if !rises || nodes.len() as u64 != u64::from(count) {
        return Err(Unreadable::Malformed("its nodes"));
    }
    let counted = sources & COUNTED != 0;
    Ok(Page {
        heartbeat: Nanoseconds(words[3]),
        interval: Nanoseconds(words[4]),
        pid,
        traffic: if counted { Traffic::Resctrl } else { Traffic::Unknown },
        cpu: Nanoseconds(words[7]),
        begun: Nanoseconds(words[8]),
        looks: words[9],
        nodes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec as vec_of;
    use proptest::prelude::*;
    use std::cell::RefCell;

    fn any_node() -> impl Strategy<Value = Advice> {
        let bandwidth = || prop::option::of((0..u64::MAX).prop_map(BytesPerSecond));
        let figures = (any::<u32>(), any::<u64>(), any::<u64>(), 0_u32..=10_000, any::<u8>());
        (0..=NodeId::MAX.0, figures, bandwidth(), bandwidth(), bandwidth()).prop_map(
            |(id, (pressure, idle, load, free, weight), used, read, write)| Advice {
                node: NodeId(id),
                idle: Nanoseconds(idle),
                load: Nanoseconds(load),
                pressure,
                used,
                read,
                write,
                free: BasisPoints(free),
                weight,
            },
        )
    }

    fn any_page() -> impl Strategy<Value = Page> {
        let times = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let rest = (any::<u32>(), any::<u64>(), any::<bool>());
        (times, rest, vec_of(any_node(), 0..6)).prop_map(
            |((heartbeat, interval, cpu, begun), (pid, looks, counted), mut nodes)| {
                nodes.sort_by_key(|node| node.node);
                nodes.dedup_by_key(|node| node.node);
                Page {
                    heartbeat: Nanoseconds(heartbeat),
                    interval: Nanoseconds(interval),
                    pid,
                    traffic: if counted { Traffic::Resctrl } else { Traffic::Unknown },
                    cpu: Nanoseconds(cpu),
                    begun: Nanoseconds(begun),
                    looks,
                    nodes,
                }
            },
        )
    }

    fn store(words: &mut [u64], stores: Vec<(usize, u64)>) {
        stores.into_iter().for_each(|(at, word)| words[at] = word);
    }

    fn reading(words: &[u64]) -> Result<Page, Unreadable> {
        read(|at| words[at])
    }

    fn page(heartbeat: u64) -> Page {
        let node = |id| Advice {
            node: NodeId(id),
            idle: Nanoseconds(100),
            load: Nanoseconds(150),
            pressure: 150,
            used: None,
            read: Some(BytesPerSecond(1)),
            write: None,
            free: BasisPoints(5000),
            weight: 8,
        };
        Page {
            heartbeat: Nanoseconds(heartbeat),
            interval: Nanoseconds(10),
            pid: 7,
            traffic: Traffic::Unknown,
            cpu: Nanoseconds(1),
            begun: Nanoseconds(2),
            looks: 3,
            nodes: vec![node(0), node(1)],
        }
    }

    #[test]
    fn the_page_lies_as_its_head_says() {
        let mut words = vec![0; WORDS];
        store(&mut words, page(1000).stores(4));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(&bytes[..8], b"nfadvice");
        assert_eq!((four(8), four(12), eight(16)), (1, 256, 6));
        assert_eq!((eight(24), eight(32), four(40), four(44)), (1000, 10, 7, 2));
        assert_eq!((four(48), four(52)), (1, 64));
        assert_eq!((four(128), four(192), four(196)), (0, 1, 150));
        assert_eq!((eight(200), eight(208), eight(216)), (100, 150, u64::MAX));
        assert_eq!((eight(224), four(240), four(244)), (1, 5000, 8));
    }

    #[test]
    fn three_intervals_without_a_heartbeat_are_too_many() {
        let page = page(1000);
        let fresh = [999, 1000, 1030, 1031].map(|now| page.is_fresh(Nanoseconds(now)));
        assert_eq!(fresh, [false, true, true, false]);
        let gone = Page { heartbeat: Nanoseconds(0), ..page };
        assert!(!gone.is_fresh(Nanoseconds(0)) && !gone.is_fresh(Nanoseconds(5)));
    }

    #[test]
    fn what_is_none_says_why() {
        let mut words = vec![0; WORDS];
        assert_eq!(reading(&words), Err(Unreadable::Foreign));
        store(&mut words, page(1).stores(0));
        let with = |at: usize, word: u64| {
            let mut changed = words.clone();
            changed[at] = word;
            reading(&changed).unwrap_err()
        };
        assert_eq!(with(1, pair(2, 256)), Unreadable::Version(2));
        assert_eq!(with(SEQUENCE, 3), Unreadable::Torn);
        for (at, word) in [
            (1, pair(1, 255)),
            (5, pair(7, 1)),
            (5, pair(7, u32::MAX)),
            (6, pair(1, 63)),
            (HEAD, pair(1024, 0)),
            (HEAD, pair(1, 0)),
            (HEAD + 6, pair(10_001, 0)),
            (HEAD + 6, pair(1, 256)),
        ] {
            assert!(matches!(with(at, word), Unreadable::Malformed(_)), "{at}: {word:x}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(pages in vec_of(any_page(), 1..4), sequence in any::<u64>()) {
            let mut words = vec![0; WORDS];
            words[SEQUENCE] = sequence;
            for page in pages {
                let sequence = words[SEQUENCE];
                store(&mut words, page.stores(sequence));
                prop_assert_ne!(words[SEQUENCE], sequence);
                prop_assert_eq!(reading(&words), Ok(page));
            }
        }

        /// A reader whose loads a writer comes between anywhere gets one of the pages whole, or learns that it has not.
        #[test]
        fn of_two_pages_no_mixture_is_read(
            old in any_page(), new in any_page(), before in 0_usize..80, paces in vec_of(0_usize..12, 1..40),
        ) {
            let words = RefCell::new(vec![0; WORDS]);
            store(&mut words.borrow_mut(), old.stores(0));
            let stores = RefCell::new(new.stores(2).into_iter());
            let advance = |steps: usize| {
                for (at, word) in stores.borrow_mut().by_ref().take(steps) {
                    words.borrow_mut()[at] = word;
                }
            };
            advance(before);
            let mut paces = paces.iter().cycle();
            let found = read(|at| {
                advance(*paces.next().unwrap());
                words.borrow()[at]
            });
            match found {
                Ok(page) => prop_assert!(page == old || page == new),
                Err(error) => prop_assert_eq!(error, Unreadable::Torn),
            }
        }

        #[test]
        fn any_words_are_a_page_or_an_error(
            noise in vec_of(any::<u64>(), HEAD..200), counts in (0_u32..5, 0_u32..3), is_headed in any::<bool>(),
        ) {
            let mut words = noise;
            words.resize(WORDS, 0);
            if is_headed {
                let (count, off) = counts;
                words[0] = MAGIC;
                words[1] = pair(VERSION, 128 + count * NODE_BYTES + off);
                words[SEQUENCE] &= !1;
                words[5] = pair(1, count);
                words[6] = pair(1, NODE_BYTES);
            }
            if let Ok(page) = reading(&words) {
                let mut again = vec![0; WORDS];
                store(&mut again, page.stores(0));
                prop_assert_eq!(reading(&again), Ok(page));
            }
        }
    }
}
