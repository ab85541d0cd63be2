//! The advice page: the state of each node's memory, published for programs that place memory, and its file format.
//!
//! One process writes the page, any number read it through a shared mapping, without locks or messages. The file has
//! [`WORDS`] words of 8 bytes, all little-endian; bytes not named here are zero.
//!
//! | at byte | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `nfadvice` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | bytes in use, this head included |
//! | 16 | 8 | sequence: odd while a write is in progress |
//! | 24 | 8 | heartbeat: time of the last write, in ns of the monotonic clock; 0 once the writer has stopped |
//! | 32 | 8 | interval between writes, in ns |
//! | 40 | 4 | process id of the writer |
//! | 44 | 4 | number of nodes that follow |
//! | 48 | 4 | sources: bit 0 loads are timed, bit 1 bandwidth in use is counted (resctrl) |
//! | 52 | 4 | bytes per node, 64 |
//! | 56 | 8 | CPU time spent on sampling, in ns |
//! | 64 | 8 | start of sampling, in ns of the same clock |
//! | 72 | 8 | samples since then |
//! | 128 | 64 each | nodes, by rising id |
//!
//! | in a node | bytes | content |
//! |---|---|---|
//! | 0 | 4 | id |
//! | 4 | 4 | pressure: loaded latency in per cent of idle latency |
//! | 8 | 8 | idle latency, in ns |
//! | 16 | 8 | loaded latency, in ns |
//! | 24 | 8 | bandwidth in use, in bytes/s |
//! | 32 | 8 | maximal read bandwidth, in bytes/s |
//! | 40 | 8 | maximal write bandwidth, in bytes/s |
//! | 48 | 4 | share of its memory that is free, in hundredths of a per cent |
//! | 52 | 4 | weight for new memory; all weights together are [`super::interleave::PARTS`] |
//!
//! Unknown bandwidths are all ones. A reader loads the sequence, the words it needs, and the sequence again: an odd or
//! changed sequence means that a write interfered, and the read is repeated ([`read`]; H. Boehm, "Can seqlocks get
//! along with programming language memory models?", MSPC 2012). A page older than [`STALE`] intervals has no live
//! writer. This module does no I/O and reads no clock.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds, NodeId};

/// Words of the file.
pub const WORDS: usize = HEAD + NODES_MAX * NODE;
/// A writer that missed this many intervals counts as gone.
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
/// Index of the sequence word.
const SEQUENCE: usize = 2;
const TIMED: u32 = 1;
const COUNTED: u32 = 2;

/// Source of the figures for bandwidth in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Not measured.
    Unknown,
    /// From the processor's counters, by resctrl.
    Resctrl,
}

/// Content of an advice page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Time of the last write, by the monotonic clock; 0 once the writer has stopped.
    pub heartbeat: Nanoseconds,
    /// Interval between writes.
    pub interval: Nanoseconds,
    /// Process id of the writer.
    pub pid: u32,
    /// Source of the figures for bandwidth in use.
    pub traffic: Traffic,
    /// CPU time spent on sampling.
    pub cpu: Nanoseconds,
    /// Start of sampling.
    pub begun: Nanoseconds,
    /// Samples since then.
    pub looks: u64,
    /// Nodes by rising id.
    pub nodes: Vec<Advice>,
}

/// State of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The node.
    pub node: NodeId,
    /// Latency of a dependent load on the idle node.
    pub idle: Nanoseconds,
    /// Its latency now.
    pub load: Nanoseconds,
    /// `load` in per cent of `idle`.
    pub pressure: u32,
    /// Bandwidth in use; `None` if unknown.
    pub used: Option<BytesPerSecond>,
    /// Maximal read bandwidth; `None` if unknown.
    pub read: Option<BytesPerSecond>,
    /// Maximal write bandwidth; `None` if unknown.
    pub write: Option<BytesPerSecond>,
    /// The share of its memory that is free.
    pub free: BasisPoints,
    /// Its weight for new memory, of [`super::interleave::PARTS`] in all.
    pub weight: u8,
}

/// Reason why words are not a valid advice page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Not an advice page.
    Foreign,
    /// A page of this other version.
    Version(u32),
    /// A write was in progress; retry.
    Torn,
    /// No writer produces these words; the text names the field.
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
    /// Whether the writer is alive at `now`, by the same clock as the heartbeat. A `now` before the heartbeat is from
    /// another clock.
    #[must_use]
    pub fn is_fresh(&self, now: Nanoseconds) -> bool {
        let lasts = self.interval.0.saturating_mul(STALE);
        self.heartbeat.0 > 0 && now.0.checked_sub(self.heartbeat.0).is_some_and(|age| age <= lasts)
    }

    /// State of `node`, if the page has it.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&Advice> {
        let at = self.nodes.binary_search_by_key(&node, |advice| advice.node).ok()?;
        self.nodes.get(at)
    }

    /// The words of the page, each with its index, in the order in which they must be stored; `sequence` is that of the
    /// previous page.
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
        let share = Some(BasisPoints(free)).filter(|_| free <= 10_000);
        Ok(Self {
            node: NodeId::new(id.into()).ok_or(Unreadable::Malformed("a node's id"))?,
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

/// Reads a page through `load`, which returns the word at an index below [`WORDS`].
///
/// # Errors
/// [`Unreadable`].
pub fn read(mut load: impl FnMut(usize) -> u64) -> Result<Page, Unreadable> {
    // The magic first: a foreign file is not torn.
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
    // Only a complete copy is decoded.
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
    fn the_page_layout_matches_the_documented_format() {
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
    fn a_page_without_a_heartbeat_for_three_intervals_is_stale() {
        let page = page(1000);
        let fresh = [999, 1000, 1030, 1031].map(|now| page.is_fresh(Nanoseconds(now)));
        assert_eq!(fresh, [false, true, true, false]);
        let gone = Page { heartbeat: Nanoseconds(0), ..page };
        assert!(!gone.is_fresh(Nanoseconds(0)) && !gone.is_fresh(Nanoseconds(5)));
    }

    #[test]
    fn an_invalid_page_is_rejected_with_the_reason() {
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
        fn a_written_page_reads_back_equal(pages in vec_of(any_page(), 1..4), sequence in any::<u64>()) {
            let mut words = vec![0; WORDS];
            words[SEQUENCE] = sequence;
            for page in pages {
                let sequence = words[SEQUENCE];
                store(&mut words, page.stores(sequence));
                prop_assert_ne!(words[SEQUENCE], sequence);
                prop_assert_eq!(reading(&words), Ok(page));
            }
        }

        /// A reader with a write between any two of its loads gets one complete page or an error.
        #[test]
        fn a_reader_never_sees_a_mixture_of_two_pages(
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
        fn arbitrary_words_parse_as_a_page_or_return_an_error(
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
