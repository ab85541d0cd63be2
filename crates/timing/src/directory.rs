//! A directory: which vCPUs' caches hold a line, and which of them has written it.
//!
//! Problem: caches with tags alone know nothing of each other, and vCPUs run some microseconds apart, so that two
//! writers of a line hardly ever alternate as they would on a machine. Approach: accesses beyond the first-level cache
//! visit the line's word in a table. A line that a vCPU needs from others' caches is *transferred*. Two transfers of a
//! line within [`WINDOW_PS`] make it *contended*: until it has been left alone for that long, no first-level cache keeps
//! it, so that each access visits the directory, and pays for a transfer as long as other vCPUs write the line. With
//! several other writers, it waits for all of them, because the line is in one place at a time. A store that follows the
//! same vCPU's load has the line already. The number of transfers that a vCPU pays for is bounded by [`PER_WRITE`] times
//! the others' writes: one would be exact if vCPUs ran in order of time, but a vCPU that is ahead would then make
//! thousands of accesses at no cost before others write again.
//!
//! Limits: the table remembers the last of the lines that share a word, so a transfer may go unnoticed, but a line used
//! by one vCPU alone never pays. Contended lines that share an entry are not all tracked. In a contended line only
//! writes of others count, since stores do not wait for caches that only read. Where the host does not run one of two
//! writers for a while, the other is alone meanwhile, and pays nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::config::CPUS_MAX;

/// Words, as a shift: 2 MiB of them.
const WORDS_SHIFT: u32 = 18;
/// Contended lines that can be tracked; a power of two.
const CONTENDED: usize = 256;
/// Two transfers closer than this make a line contended: 2^26 ps, 67 us, several times the distance of running vCPUs.
const WINDOW_PS: u64 = 1 << 26;

/// Transfers that a vCPU pays for at most for each write of others.
const PER_WRITE: u64 = 8;
/// Transfers that it pays for before others have written. vCPUs that wait for memory run at most 1.5 us apart, which is
/// 30 transfers of 50 ns.
const AHEAD: u64 = 64;
/// Transfers that are still due when others have written much more often than it had accessed the line.
const DUE_MAX: u64 = 1024;

/// A line's word: 16 bits for the vCPUs that hold it, 4 for the one that holds it modified, then the flags, 18 bits of
/// the line's number and 24 for the time of the last transfer, in units of 2^20 ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

const OWNER_SHIFT: u32 = 16;
const MODIFIED: u64 = 1 << 20;
const IS_CONTENDED: u64 = 1 << 21;
const TAG_SHIFT: u32 = 22;
const TAG_MASK: u64 = (1 << 18) - 1;
const TIME_SHIFT: u32 = 40;
const TIME_UNIT_SHIFT: u32 = 20;
const TIME_MASK: u64 = (1 << 24) - 1;

/// A set of vCPUs, a bit each.
pub(crate) type Vcpus = u16;

/// The vCPUs in a set.
pub(crate) fn members(set: Vcpus) -> impl Iterator<Item = usize> {
    (0..CPUS_MAX).filter(move |vcpu| set >> vcpu & 1 == 1)
}

/// A directory's answer to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// No other vCPU has to give anything up.
    Alone,
    /// Others give up the line, if this is a write, or one of them its modification.
    Elsewhere {
        /// Those that do.
        others: Vcpus,
        /// Whether the line has become contended.
        contended: bool,
    },
    /// The line is contended.
    Contended {
        /// The vCPUs that the access waits for; none if the line has not been elsewhere.
        others: Vcpus,
    },
}

/// An access to a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) vcpu: usize,
    pub(crate) line: u64,
    pub(crate) store: bool,
    pub(crate) now_ps: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Directory {
    words: Box<[AtomicU64]>,
    contended: Box<[Contended]>,
}

/// A contended line.
#[derive(Debug, Default)]
struct Contended {
    line: AtomicU64,
    by: [Party; CPUS_MAX],
}

/// A vCPU's use of it.
#[derive(Debug, Default)]
struct Party {
    /// Time of the last access.
    last_ps: AtomicU64,
    writes: AtomicU64,
    /// Transfers that it has paid for.
    paid: AtomicU64,
    /// Whether its last access was a load that has paid.
    holds: AtomicBool,
}

impl Directory {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            words: (0..1 << WORDS_SHIFT).map(|_| AtomicU64::new(0)).collect(),
            contended: (0..CONTENDED).map(|_| Contended::default()).collect(),
        }
    }

    /// Records an access beyond the first-level cache.
    #[inline]
    pub(crate) fn visit(&self, visit: Visit) -> Held {
        let cell = self.cell(visit.line);
        let mut word = cell.load(Relaxed);
        loop {
            let (new, held) = Word(word).after(visit);
            if new.0 != word {
                match cell.compare_exchange_weak(word, new.0, Relaxed, Relaxed) {
                    Ok(_) => {}
                    Err(now) => {
                        word = now;
                        continue;
                    }
                }
            }
            return match held {
                Held::Alone => held,
                Held::Elsewhere { others, contended: true } => {
                    Held::Elsewhere { others, contended: self.begin(visit, others) }
                }
                Held::Elsewhere { .. } => held,
                Held::Contended { .. } => self.contend(visit),
            };
        }
    }

    /// Forgets a line: it is in no cache.
    pub(crate) fn forget(&self, line: u64) {
        let cell = self.cell(line);
        let word = cell.load(Relaxed);
        if Word(word).is_of(line) {
            let _ = cell.compare_exchange(word, 0, Relaxed, Relaxed);
        }
    }

    fn cell(&self, line: u64) -> &AtomicU64 {
        // Lines of one word are far apart, or differ in the higher bits alone.
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let at = (line ^ line >> WORDS_SHIFT) as usize & ((1 << WORDS_SHIFT) - 1);
        &self.words[at]
    }

    fn entry(&self, line: u64) -> &Contended {
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let at = (line ^ line >> 8 ^ line >> 16) as usize & (CONTENDED - 1);
        &self.contended[at]
    }

    /// Begins to track a contended line; returns whether it does, or else leaves the line as any other.
    #[cold]
    fn begin(&self, visit: Visit, others: Vcpus) -> bool {
        let entry = self.entry(visit.line);
        if entry.line.load(Relaxed) != visit.line {
            if entry.active(visit) != 0 {
                self.calm(visit);
                return false;
            }
            entry.line.store(visit.line, Relaxed);
        }
        for party in &entry.by {
            party.last_ps.store(0, Relaxed);
            party.writes.store(0, Relaxed);
            party.paid.store(0, Relaxed);
            party.holds.store(false, Relaxed);
        }
        for vcpu in members(others | 1 << visit.vcpu) {
            entry.by[vcpu].last_ps.store(visit.now_ps, Relaxed);
            // A load is transferred from the vCPU that has written.
            let writes = u64::from(visit.store == (vcpu == visit.vcpu));
            entry.by[vcpu].writes.store(writes, Relaxed);
        }
        true
    }

    /// An access to a contended line.
    fn contend(&self, visit: Visit) -> Held {
        let entry = self.entry(visit.line);
        let others = entry.active(visit);
        if entry.line.load(Relaxed) != visit.line || others == 0 {
            self.calm(visit);
            return Held::Alone;
        }
        let own = &entry.by[visit.vcpu];
        own.last_ps.store(visit.now_ps, Relaxed);
        if visit.store {
            own.writes.store(own.writes.load(Relaxed) + 1, Relaxed);
            if own.holds.swap(false, Relaxed) {
                return Held::Contended { others: 0 };
            }
        }
        let written = |vcpu: usize| entry.by[vcpu].writes.load(Relaxed);
        let elsewhere: u64 = members(!(1 << visit.vcpu)).map(written).sum();
        let payable = elsewhere * PER_WRITE + AHEAD;
        let due = payable.saturating_sub(own.paid.load(Relaxed)).min(DUE_MAX);
        let writers = members(others).filter(|vcpu| written(*vcpu) > 0);
        let writers = writers.fold(0, |set, vcpu| set | 1 << vcpu);
        if writers == 0 || due == 0 {
            return Held::Contended { others: 0 };
        }
        own.paid.store(payable - due + 1, Relaxed);
        own.holds.store(!visit.store, Relaxed);
        Held::Contended { others: writers }
    }

    /// The line is contended no more, and the visitor's.
    fn calm(&self, visit: Visit) {
        self.cell(visit.line).store(Word::new(visit).0, Relaxed);
    }
}

impl Contended {
    /// The vCPUs other than the visitor that have used the line lately.
    fn active(&self, visit: Visit) -> Vcpus {
        members(!(1 << visit.vcpu))
            .filter(|vcpu| {
                let last_ps = self.by[*vcpu].last_ps.load(Relaxed);
                last_ps != 0 && last_ps + WINDOW_PS >= visit.now_ps
            })
            .fold(0, |set, vcpu| set | 1 << vcpu)
    }
}

impl Word {
    /// Of a line that the visitor's caches alone hold.
    fn new(visit: Visit) -> Self {
        // As far from the present as can be.
        let never = time(visit.now_ps) ^ (TIME_MASK / 2 + 1);
        let tag = visit.line >> WORDS_SHIFT & TAG_MASK;
        Self(1 << visit.vcpu | tag << TAG_SHIFT | never << TIME_SHIFT).owned_if_stored(visit)
    }

    fn owned_if_stored(self, visit: Visit) -> Self {
        if !visit.store {
            return self;
        }
        Self(self.0 & !(0xf << OWNER_SHIFT) | (visit.vcpu as u64) << OWNER_SHIFT | MODIFIED)
    }

    #[inline]
    fn is_of(self, line: u64) -> bool {
        self.0 & 0xffff != 0 && self.0 >> TAG_SHIFT & TAG_MASK == line >> WORDS_SHIFT & TAG_MASK
    }

    /// The word after a visit, and the answer; the last fields of the answer are the caller's.
    #[inline]
    fn after(self, visit: Visit) -> (Self, Held) {
        if !self.is_of(visit.line) {
            return (Self::new(visit), Held::Alone);
        }
        if self.0 & IS_CONTENDED != 0 {
            return (self, Held::Contended { others: 0 });
        }
        let own = 1u64 << visit.vcpu;
        let others = self.0 & 0xffff & !own;
        if others == 0 {
            return (self.owned_if_stored(visit), Held::Alone);
        }
        if !visit.store && (self.0 & MODIFIED == 0 || self.0 & own != 0) {
            return (Self(self.0 | own), Held::Alone);
        }
        self.transferred(visit, others)
    }

    #[cold]
    fn transferred(self, visit: Visit, others: u64) -> (Self, Held) {
        let now = time(visit.now_ps);
        let since = now.wrapping_sub(self.0 >> TIME_SHIFT) & TIME_MASK;
        let near = WINDOW_PS >> TIME_UNIT_SHIFT;
        // vCPUs are not in order of time: the last transfer may be ahead.
        let contended = since <= near || since >= TIME_MASK - near;
        let owner = 1u64 << (self.0 >> OWNER_SHIFT & 0xf);
        let (holders, others) = match visit.store {
            true => (1 << visit.vcpu, others),
            false => (self.0 & 0xffff | 1 << visit.vcpu, owner),
        };
        let kept = self.0 & (TAG_MASK << TAG_SHIFT | 0xf << OWNER_SHIFT);
        let flag = if contended { IS_CONTENDED } else { 0 };
        let word = Self(kept | holders | now << TIME_SHIFT | flag).owned_if_stored(visit);
        #[expect(clippy::cast_possible_truncation, reason = "16 bits of a word")]
        (word, Held::Elsewhere { others: others as Vcpus, contended })
    }
}

fn time(ps: u64) -> u64 {
    ps >> TIME_UNIT_SHIFT & TIME_MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn visit(vcpu: usize, line: u64, store: bool, now_ps: u64) -> Visit {
        Visit { vcpu, line, store, now_ps }
    }

    #[test]
    fn readers_share_and_a_writer_takes_the_line_from_all() {
        let directory = Directory::new();
        for vcpu in 0..3 {
            assert_eq!(directory.visit(visit(vcpu, 7, false, 0)), Held::Alone);
        }
        let taken = directory.visit(visit(1, 7, true, 0));
        assert_eq!(taken, Held::Elsewhere { others: 0b101, contended: false });
        let read = directory.visit(visit(2, 7, false, 4 * WINDOW_PS));
        assert_eq!(read, Held::Elsewhere { others: 0b010, contended: false });
        assert_eq!(directory.visit(visit(2, 7, false, 4 * WINDOW_PS)), Held::Alone);
    }

    #[test]
    fn two_writers_pay_as_often_as_they_write_however_they_take_turns() {
        for turn in [1, 10, 100] {
            let directory = Directory::new();
            let (mut writes, mut paid) = (0, [0, 0]);
            let mut now_ps = [1, 1];
            while writes < 4000 {
                for vcpu in 0..2 {
                    for _ in 0..turn {
                        let held = directory.visit(visit(vcpu, 9, true, now_ps[vcpu]));
                        let pays = !matches!(held, Held::Alone | Held::Contended { others: 0 });
                        paid[vcpu] += u64::from(pays);
                        now_ps[vcpu] += 50_000;
                        writes += 1;
                    }
                }
            }
            for paid in paid {
                assert!(paid > 2000 - 3 * turn, "{paid} of 2000 in turns of {turn}");
            }
        }
    }

    #[test]
    fn the_transfers_that_a_writer_pays_for_are_bounded_by_the_writes_of_others() {
        let directory = Directory::new();
        let mut paid = 0;
        for turn in 0..10_000 {
            if turn % 100 == 0 {
                directory.visit(visit(1, 3, true, 1000 * turn));
            }
            let held = directory.visit(visit(0, 3, true, 1000 * turn));
            paid += u64::from(!matches!(held, Held::Alone | Held::Contended { others: 0 }));
        }
        assert!((100..=100 * PER_WRITE + AHEAD + 2).contains(&paid), "{paid}");
    }

    #[test]
    fn a_contended_line_that_one_vcpu_leaves_is_the_other_s_again() {
        let directory = Directory::new();
        for turn in 0..20 {
            directory.visit(visit(turn % 2, 3, true, 1000 * turn as u64));
        }
        let later = 20_000 + 2 * WINDOW_PS;
        assert_eq!(directory.visit(visit(0, 3, true, later)), Held::Alone);
        assert!(matches!(
            directory.visit(visit(1, 3, true, later + 4 * WINDOW_PS)),
            Held::Elsewhere { .. }
        ));
    }

    #[test]
    fn a_contended_line_s_writer_does_not_wait_for_readers() {
        let directory = Directory::new();
        let mut waits = 0;
        for turn in 0..1000 {
            directory.visit(visit(1, 3, false, 1000 * turn));
            let held = directory.visit(visit(0, 3, true, 1000 * turn));
            waits += u32::from(matches!(held, Held::Contended { others } if others != 0));
        }
        assert_eq!(waits, 0);
    }

    proptest! {
        #[test]
        fn a_single_vcpu_never_pays(
            lines in proptest::collection::vec((0u64..1 << 34, any::<bool>()), 1..500), vcpu in 0usize..16,
        ) {
            let directory = Directory::new();
            for (at, (line, store)) in lines.iter().enumerate() {
                let held = directory.visit(visit(vcpu, *line, *store, 1000 * at as u64));
                prop_assert_eq!(held, Held::Alone);
            }
        }

        #[test]
        fn vcpus_with_lines_of_their_own_never_pay(
            lines in proptest::collection::vec((0u64..1 << 30, any::<bool>(), 0usize..16), 1..500),
        ) {
            let directory = Directory::new();
            for (at, (line, store, vcpu)) in lines.iter().enumerate() {
                let line = line << 4 | *vcpu as u64;
                let held = directory.visit(visit(*vcpu, line, *store, 1000 * at as u64));
                prop_assert_eq!(held, Held::Alone);
            }
        }
    }
}
