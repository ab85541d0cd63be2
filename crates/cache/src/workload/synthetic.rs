//! Requests drawn by popularity, sizes and a mix of operations; each is independent of those before it.
//!
//! A key is its number in 64 letters, always as many as the last key needs, filled up with dots to the size drawn for it: so no
//! two keys are the same, and one whose size was too short for its number is longer than drawn. Key size and value size are
//! functions of the number and the seed: a key has the same each time, whichever worker asks. Lone keys begin with a letter that
//! no other key has, and count up from a number of the run, so that no run asks for another one's.

use std::sync::Arc;

use super::alias::Alias;
use super::random::mix;
use super::{Buckets, KEY_MAX, Op, Random, Request, Sizes, Unusable, VALUE_MAX, Zipf};

/// Keys at most: numbers that a float tells apart.
pub(super) const KEYS_MAX: u64 = 1 << 53;
/// Six bits each.
const LETTERS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
/// A lone key's first letter.
const LONE: u8 = b'~';
/// What keys are filled up with.
pub(super) const FILLER: [u8; KEY_MAX] = [b'.'; KEY_MAX];

/// Which keys are asked for how often. Key 0 is asked for most.
#[derive(Clone, Debug)]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// By Zipf's law.
    Zipf(Zipf),
    /// By a table.
    Buckets(Buckets),
}

/// How often each operation is drawn, in any unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratios {
    /// [`Op::Get`].
    pub get: f64,
    /// [`Op::Set`].
    pub set: f64,
    /// [`Op::Delete`].
    pub delete: f64,
    /// [`Op::LoneGet`].
    pub lone_get: f64,
    /// [`Op::LoneSet`].
    pub lone_set: f64,
    /// [`Op::Update`].
    pub update: f64,
}

/// What a synthetic workload is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// How many keys there are.
    pub keys: u64,
    /// Which of them is asked for.
    pub popularity: Popularity,
    /// Bytes of a key; what is more than [`KEY_MAX`] is cut off.
    pub key_bytes: Sizes,
    /// Bytes of a value.
    pub value_bytes: Sizes,
    /// Seconds that what is stored lives, drawn with each request; for ever if absent.
    pub ttl: Option<Sizes>,
    /// The mix of operations.
    pub ratios: Ratios,
    /// A read that finds nothing stores the key.
    pub fill: bool,
}

/// A workload whose requests are drawn; shared by the streams that draw.
#[derive(Clone, Debug)]
pub struct Synthetic {
    parts: Parts,
    ops: Alias,
    /// Letters of each key's number.
    letters: u32,
    /// What makes sizes depend on the seed.
    salt: u64,
    seed: u64,
}

const OPS: [Op; 6] = [Op::Get, Op::Set, Op::Delete, Op::LoneGet, Op::LoneSet, Op::Update];

impl Synthetic {
    /// Of these parts; all chance comes from `seed`.
    ///
    /// # Errors
    /// No keys or too many, or ratios that are none.
    pub fn new(parts: Parts, seed: u64) -> Result<Self, Unusable> {
        if !(1..=KEYS_MAX).contains(&parts.keys) {
            return Err(Unusable::Keys(parts.keys));
        }
        let Ratios { get, set, delete, lone_get, lone_set, update } = parts.ratios;
        let ops = Alias::new(&[get, set, delete, lone_get, lone_set, update])
            .map_err(|found| Unusable::Weight { what: "ratios of operations", found })?;
        let letters = (u64::BITS - (parts.keys - 1).leading_zeros()).div_ceil(6).max(1);
        Ok(Self { parts, ops, letters, salt: mix(seed ^ 0x5157), seed })
    }

    /// What it is made of.
    #[must_use]
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Makes `request` the one that stores key `number`.
    pub fn store(&self, number: u64, request: &mut Request) {
        request.op = Op::Set;
        request.ttl = 0;
        request.fill = false;
        self.known(number, request);
    }

    /// Key and value size of key `number`.
    fn known(&self, number: u64, request: &mut Request) {
        request.key.clear();
        push_letters(number, self.letters, &mut request.key);
        self.sized(mix(number ^ self.salt), request);
    }

    /// Fills the key up to its size and sets the value's.
    fn sized(&self, hash: u64, request: &mut Request) {
        let bytes = usize::try_from(self.parts.key_bytes.of(hash)).unwrap_or(KEY_MAX).min(KEY_MAX);
        let missing = bytes.saturating_sub(request.key.len());
        request.key.extend_from_slice(&FILLER[..missing]);
        let value = self.parts.value_bytes.of(mix(hash));
        request.value_bytes = usize::try_from(value).unwrap_or(VALUE_MAX).min(VALUE_MAX);
    }
}

fn push_letters(number: u64, letters: u32, key: &mut Vec<u8>) {
    for at in (0..letters).rev() {
        let six = usize::try_from((number >> (6 * at)) & 63).unwrap_or(0);
        key.push(LETTERS[six]);
    }
}

/// One worker's requests, without end.
#[derive(Clone, Debug)]
pub struct Stream {
    workload: Arc<Synthetic>,
    random: Random,
    lone: u64,
}

impl Stream {
    /// Those of `worker`; `run` is a number that no other run has had, for keys that nobody has stored.
    #[must_use]
    pub fn new(workload: Arc<Synthetic>, worker: u64, run: u64) -> Self {
        let random = Random::of_worker(workload.seed, worker);
        Self { workload, random, lone: mix(run).wrapping_add(worker << 44) }
    }

    /// Makes `request` the next one.
    pub fn next(&mut self, request: &mut Request) {
        let parts = &self.workload.parts;
        request.op = OPS[self.workload.ops.pick(self.random.bits())];
        request.fill = parts.fill && matches!(request.op, Op::Get | Op::LoneGet);
        request.ttl = parts.ttl.as_ref().map_or(0, |ttl| ttl.of(self.random.bits()));
        if matches!(request.op, Op::LoneGet | Op::LoneSet) {
            self.lone = self.lone.wrapping_add(1);
            request.key.clear();
            request.key.push(LONE);
            push_letters(mix(self.lone), u64::BITS.div_ceil(6), &mut request.key);
            return self.workload.sized(mix(self.lone ^ self.workload.salt), request);
        }
        let number = match &parts.popularity {
            Popularity::Uniform => self.random.below(parts.keys),
            Popularity::Zipf(zipf) => zipf.draw(&mut self.random),
            Popularity::Buckets(buckets) => buckets.draw(&mut self.random),
        };
        self.workload.known(number.min(parts.keys - 1), request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn parts(keys: u64) -> Parts {
        Parts {
            keys,
            popularity: Popularity::Uniform,
            key_bytes: Sizes::fixed(16),
            value_bytes: Sizes::fixed(64),
            ttl: None,
            ratios: Ratios { get: 1.0, ..Ratios::default() },
            fill: true,
        }
    }

    fn drawn(parts: Parts, seed: u64, worker: u64, count: usize) -> Vec<Request> {
        let mut stream = Stream::new(Arc::new(Synthetic::new(parts, seed).unwrap()), worker, 77);
        let mut request = Request::default();
        (0..count)
            .map(|_| {
                stream.next(&mut request);
                request.clone()
            })
            .collect()
    }

    #[test]
    fn the_same_seed_and_worker_ask_the_same_and_others_do_not() {
        assert_eq!(drawn(parts(1000), 1, 0, 50), drawn(parts(1000), 1, 0, 50));
        assert_ne!(drawn(parts(1000), 1, 0, 50), drawn(parts(1000), 1, 1, 50));
        assert_ne!(drawn(parts(1000), 1, 0, 50), drawn(parts(1000), 2, 0, 50));
    }

    #[test]
    fn a_key_has_the_same_sizes_whoever_asks() {
        let sizes = || Sizes::weighted("v", &[0.0, 5000.0], &[1.0], 5000).unwrap();
        let parts = Parts {
            key_bytes: Sizes::weighted("k", &[1.0, 90.0], &[1.0], 250).unwrap(),
            value_bytes: sizes(),
            ..parts(20)
        };
        let mut seen = BTreeMap::new();
        for worker in 0..3 {
            for request in drawn(parts.clone(), 4, worker, 200) {
                let bytes = *seen.entry(request.key.clone()).or_insert(request.value_bytes);
                assert_eq!(bytes, request.value_bytes);
            }
        }
        assert_eq!(seen.len(), 20);
        assert!(seen.values().collect::<BTreeSet<_>>().len() > 15, "{seen:?}");
    }

    #[test]
    fn keys_shorter_than_their_number_are_lengthened_and_longer_than_allowed_cut() {
        let keys =
            |size| drawn(Parts { key_bytes: Sizes::fixed(size), ..parts(1 << 20) }, 1, 0, 300);
        assert!(keys(1).iter().all(|request| request.key.len() == 4));
        assert!(keys(9).iter().all(|request| request.key.len() == 9));
        assert!(keys(4000).iter().all(|request| request.key.len() == KEY_MAX));
    }

    #[test]
    fn operations_come_by_their_ratios_and_only_reads_fill() {
        let ratios =
            Ratios { get: 5.0, set: 1.0, delete: 1.0, lone_get: 1.0, lone_set: 1.0, update: 1.0 };
        let mut counts = BTreeMap::new();
        for request in drawn(Parts { ratios, ..parts(9) }, 1, 0, 10_000) {
            *counts.entry(request.op).or_insert(0) += 1;
            assert_eq!(request.fill, matches!(request.op, Op::Get | Op::LoneGet));
        }
        assert_eq!(counts.len(), 6);
        assert!((4700..5300).contains(&counts[&Op::Get]), "{counts:?}");
        assert!((850..1150).contains(&counts[&Op::LoneSet]), "{counts:?}");
    }

    #[test]
    fn lone_keys_never_come_again_in_this_run_nor_in_another() {
        let workload = Parts { ratios: Ratios { lone_get: 1.0, ..Ratios::default() }, ..parts(9) };
        let workload = Arc::new(Synthetic::new(workload, 1).unwrap());
        let (mut seen, mut request) = (BTreeSet::new(), Request::default());
        for (worker, run) in [(0, 1), (1, 1), (0, 2)] {
            let mut stream = Stream::new(Arc::clone(&workload), worker, run);
            for _ in 0..500 {
                stream.next(&mut request);
                assert!(seen.insert(request.key.clone()) && request.key[0] == LONE);
            }
        }
    }

    #[test]
    fn storing_all_keys_is_what_is_asked_for_later() {
        let workload = Synthetic::new(parts(100), 3).unwrap();
        let mut request = Request::default();
        let stored: BTreeSet<_> = (0..100)
            .map(|number| {
                workload.store(number, &mut request);
                assert_eq!((request.op, request.fill), (Op::Set, false));
                request.key.clone()
            })
            .collect();
        assert_eq!(stored.len(), 100);
        assert!(drawn(parts(100), 3, 0, 300).iter().all(|asked| stored.contains(&asked.key)));
    }

    #[test]
    fn what_is_no_workload_is_refused() {
        assert_eq!(Synthetic::new(parts(0), 1).unwrap_err(), Unusable::Keys(0));
        let none = Parts { ratios: Ratios::default(), ..parts(1) };
        assert!(Synthetic::new(none, 1).unwrap_err().to_string().contains("ratios of operations"));
    }

    proptest! {
        #[test]
        fn different_numbers_have_different_keys_fit_for_the_protocol(keys in 2u64..KEYS_MAX, a: u64, b: u64, seed: u64) {
            let sizes = Sizes::weighted("k", &[0.0, 300.0], &[1.0], 300).unwrap();
            let workload = Synthetic::new(Parts { key_bytes: sizes, ..parts(keys) }, seed).unwrap();
            let key = |number| {
                let mut request = Request::default();
                workload.store(number % keys, &mut request);
                request.key
            };
            prop_assert_eq!(key(a) == key(b), a % keys == b % keys);
            prop_assert!(key(a).len() <= KEY_MAX && key(a).iter().all(u8::is_ascii_graphic));
        }
    }
}
