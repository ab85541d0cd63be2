//! A set: a block of 4 KiB with the small objects whose hash selects it, newest first.
//!
//! ```text
//! set    crc32c of the rest, to the last object's end 32 | number of the set 32 | epoch 64 | objects 16 | bytes in use 16
//! object marks 8 | key length 8 | value length 16 | flags 32, cas 64, expires 32, accessed 32 (each if not 0) | key | value
//! ```
//! Blocks of another epoch or another set are ignored. The same objects, without a block around them, wait in memory;
//! among them are removals, which a set never contains. The filter of a set has 128 bits of which a key sets 3: with 26
//! objects, the number at 150 bytes each, its false positive rate is one in ten.

use core::ops::Range;

use crate::meta::Meta;

use super::buffer::BLOCK;
use super::entry;
use super::words::{low32, mixed, put, short, u16_at, u32_at, u64_at};

/// Bytes before the first object.
pub(super) const HEADER: usize = 20;
const FLAGS: u8 = 8;
const CAS: u8 = 16;
const EXPIRES: u8 = 32;
const ACCESSED: u8 = 64;
const REMOVAL: u8 = 128;
/// Longest key.
pub(super) const KEY_MAX: usize = 255;

/// An object, as ranges of the bytes around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Small {
    pub(super) meta: Meta,
    pub(super) is_removal: bool,
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
    /// The whole object.
    pub(super) whole: Range<usize>,
}

impl Small {
    pub(super) fn is_over(&self, now: u32) -> bool {
        self.meta.expires != 0 && self.meta.expires <= now
    }
}

/// Appends an object; without a value, a removal.
pub(super) fn push(to: &mut Vec<u8>, key: &[u8], value: Option<&[&[u8]]>, meta: &Meta) {
    let parts = value.unwrap_or_default();
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let bit = |bit, set| if set { bit } else { 0 };
    let [low, _] = entry::marks(meta).to_le_bytes();
    let marks = low
        | bit(FLAGS, meta.flags != 0)
        | bit(CAS, meta.cas != 0)
        | bit(EXPIRES, meta.expires != 0)
        | bit(ACCESSED, meta.accessed != 0)
        | bit(REMOVAL, value.is_none());
    let [key_len, _] = short(key.len()).to_le_bytes();
    to.extend([marks, key_len]);
    to.extend(short(len).to_le_bytes());
    for (is_there, number) in
        [(FLAGS, meta.flags), (EXPIRES, meta.expires), (ACCESSED, meta.accessed)]
    {
        if marks & is_there != 0 {
            to.extend(number.to_le_bytes());
        }
    }
    if marks & CAS != 0 {
        to.extend(meta.cas.to_le_bytes());
    }
    to.extend(key);
    parts.iter().for_each(|part| to.extend(*part));
}

/// Maximum bytes of an object with this key and value.
pub(super) const fn room(key: usize, value: usize) -> usize {
    4 + 20 + key + value
}

/// The object at `at`, if there is one before `end`.
pub(super) fn object(bytes: &[u8], at: usize, end: usize) -> Option<Small> {
    let marks = *bytes.get(at)?;
    let key_len = usize::from(*bytes.get(at + 1)?);
    let mut next = at + 4;
    let mut number = |is_there: u8| {
        let found = if marks & is_there != 0 { u32_at(bytes, next) } else { 0 };
        next += if marks & is_there != 0 { 4 } else { 0 };
        found
    };
    let (flags, expires, accessed) = (number(FLAGS), number(EXPIRES), number(ACCESSED));
    let cas = if marks & CAS != 0 { u64_at(bytes, next) } else { 0 };
    next += if marks & CAS != 0 { 8 } else { 0 };
    let key = next..next + key_len;
    let value = key.end..key.end + usize::from(u16_at(bytes, at + 2));
    if value.end > end.min(bytes.len()) {
        return None;
    }
    let meta = entry::with_marks(
        Meta { flags, cas, expires, accessed, ..Meta::default() },
        u16::from(marks & 7),
    );
    let whole = at..value.end;
    Some(Small { meta, is_removal: marks & REMOVAL != 0, key, value, whole })
}

/// Consecutive objects.
pub(super) fn objects(bytes: &[u8], part: Range<usize>) -> impl Iterator<Item = Small> {
    let mut at = part.start;
    core::iter::from_fn(move || {
        let found = object(bytes, at, part.end).filter(|_| at < part.end)?;
        at = found.whole.end;
        Some(found)
    })
}

/// Contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// None: it was never written, or in another epoch.
    Nothing,
    /// Objects, up to this byte.
    Objects(usize),
    /// Invalid data.
    Corrupt,
}

/// Checks the block of a set.
pub(super) fn look(block: &[u8], epoch: u64, set: u32) -> Held {
    if block.iter().take(HEADER).all(|byte| *byte == 0) {
        return Held::Nothing;
    }
    let used = usize::from(u16_at(block, 18));
    let fits = block.len() == BLOCK && (HEADER..=BLOCK).contains(&used);
    if !fits || crc32c::crc32c(&block[4..used]) != u32_at(block, 0) || u32_at(block, 4) != set {
        return Held::Corrupt;
    }
    if u64_at(block, 8) == epoch { Held::Objects(used) } else { Held::Nothing }
}

/// The checksum is not known.
pub(super) const UNKNOWN: u32 = 0;
/// The set has no objects.
pub(super) const EMPTY: u32 = 1;

/// The checksum that identifies the current block of a set. `None` if the block is damaged.
pub(super) fn sum(block: &[u8], held: Held) -> Option<u32> {
    match held {
        Held::Objects(used) if used > HEADER => Some(u32_at(block, 0).max(EMPTY + 1)),
        Held::Objects(_) | Held::Nothing => Some(EMPTY),
        Held::Corrupt => None,
    }
}

/// The object of a key in a block with objects up to `used`.
pub(super) fn find(block: &[u8], used: usize, key: &[u8]) -> Option<Small> {
    objects(block, HEADER..used).find(|one| &block[one.key.clone()] == key)
}

/// The result of merging waiting objects into a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// The block changed, and must be written.
    pub(super) changed: bool,
    /// Objects evicted for lack of space.
    pub(super) evicted: usize,
}

/// Makes the new block of a set in `to`, from the old one and the waiting objects (oldest first). Objects expired by
/// `now` are left out.
pub(super) fn merge(
    to: &mut [u8],
    (old, used): (&[u8], usize),
    waiting: &[u8],
    (epoch, set, now): (u64, u32, u32),
) -> Merged {
    to.fill(0);
    let (mut at, mut count, mut full) = (HEADER, 0_usize, false);
    let mut merged = Merged::default();
    let mut hidden: Vec<&[u8]> = Vec::new();
    let newest: Vec<Small> = objects(waiting, 0..waiting.len()).collect();
    let newest = newest.into_iter().rev().map(|one| (waiting, one, true));
    let olds = objects(old, HEADER..used).map(|one| (old, one, false));
    for (bytes, one, is_new) in newest.chain(olds) {
        let key = &bytes[one.key.clone()];
        let is_hidden = hidden.contains(&key);
        if is_new && !is_hidden {
            hidden.push(key);
        }
        if is_hidden || one.is_removal || one.is_over(now) {
            // The removal of an old object changes the block.
            merged.changed |= !is_new;
            continue;
        }
        let whole = &bytes[one.whole.clone()];
        full |= at + whole.len() > BLOCK;
        if full {
            merged.evicted += 1;
            continue;
        }
        put(to, at, whole);
        at += whole.len();
        count += 1;
        merged.changed |= is_new;
    }
    put(to, 4, &set.to_le_bytes());
    put(to, 8, &epoch.to_le_bytes());
    put(to, 16, &short(count).to_le_bytes());
    put(to, 18, &short(at).to_le_bytes());
    let sum = crc32c::crc32c(&to[4..at]);
    put(to, 0, &sum.to_le_bytes());
    merged
}

/// The set of a hash.
pub(super) fn of(hash: u64, sets: u32) -> u32 {
    let high = (u128::from(mixed(hash)) * u128::from(sets)) >> 64;
    u32::try_from(high).unwrap_or(0)
}

/// The bits of a key in the filter of its set. Filters are never written, so any hash function suffices.
pub(super) fn bits(key: &[u8]) -> [u64; 2] {
    let hash = rapidhash::v3::rapidhash_v3(key);
    let mut bits = [0; 2];
    for step in 0..3 {
        let bit = low32(hash >> (7 * step)) & 127;
        bits[(bit / 64) as usize] |= 1 << (bit % 64);
    }
    bits
}

/// The filter of a block's objects.
pub(super) fn filter(block: &[u8], used: usize) -> [u64; 2] {
    objects(block, HEADER..used).fold([0; 2], |sum, one| {
        let bits = bits(&block[one.key]);
        [sum[0] | bits[0], sum[1] | bits[1]]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn block(waiting: &[u8], old: &[u8], now: u32) -> (Vec<u8>, Merged) {
        let used = match look(old, 1, 5) {
            Held::Objects(used) => used,
            _ => HEADER,
        };
        let mut to = vec![0; BLOCK];
        let merged = merge(&mut to, (old, used), waiting, (1, 5, now));
        (to, merged)
    }

    fn value_of(block: &[u8], key: &[u8]) -> Option<Vec<u8>> {
        let Held::Objects(used) = look(block, 1, 5) else { return None };
        find(block, used, key).map(|one| block[one.value].to_vec())
    }

    #[test]
    fn a_full_set_evicts_its_oldest_objects() {
        let mut old = vec![0; BLOCK];
        for n in 0..10_u8 {
            let mut waiting = Vec::new();
            push(&mut waiting, &[n], Some(&[&[n; 500]]), &Meta::default());
            old = block(&waiting, &old, 0).0;
        }
        assert!((0..10_u8).all(|n| value_of(&old, &[n]).is_some() == (n >= 2)));
    }

    #[test]
    fn removed_and_expired_objects_leave_a_set_without_needless_writes() {
        let mut waiting = Vec::new();
        let expires = Meta { expires: 100, ..Meta::default() };
        push(&mut waiting, b"a", Some(&[b"1"]), &Meta::default());
        push(&mut waiting, b"b", Some(&[b"2"]), &expires);
        let (old, merged) = block(&waiting, &[0; BLOCK], 99);
        assert!(merged.changed && value_of(&old, b"b").is_some());
        let mut waiting = Vec::new();
        push(&mut waiting, b"c", None, &Meta::default());
        assert!(!block(&waiting, &old, 99).1.changed);
        push(&mut waiting, b"a", None, &Meta::default());
        let (new, merged) = block(&waiting, &old, 100);
        assert!(merged.changed && value_of(&new, b"a").is_none() && value_of(&new, b"b").is_none());
    }

    proptest! {
        #[test]
        fn a_set_is_a_map_of_its_newest_objects(
            batches in proptest::collection::vec(
                proptest::collection::vec((0..8_u8, proptest::option::of(0..300_usize), any::<u64>()), 0..10), 1..10),
        ) {
            let (mut old, mut map) = (vec![0; BLOCK], BTreeMap::new());
            for batch in batches {
                let mut waiting = Vec::new();
                for (key, len, cas) in batch {
                    let value = vec![key; len.unwrap_or(0)];
                    let meta = Meta { cas, stale: cas % 2 == 0, accessed: low32(cas) % 3, ..Meta::default() };
                    push(&mut waiting, &[key], len.map(|_| [value.as_slice()]).as_ref().map(|parts| &parts[..]), &meta);
                    match len {
                        Some(_) => map.insert(key, (value, meta)),
                        None => map.remove(&key),
                    };
                }
                old = block(&waiting, &old, 0).0;
                for key in 0..8 {
                    let Held::Objects(used) = look(&old, 1, 5) else { panic!("a merged block holds") };
                    let found = find(&old, used, &[key]).map(|one| (old[one.value].to_vec(), one.meta));
                    prop_assert_eq!(found, map.get(&key).cloned());
                }
                prop_assert_eq!(look(&old, 2, 5), Held::Nothing);
                prop_assert_eq!(look(&old, 1, 6), Held::Corrupt);
            }
        }

        #[test]
        fn any_changed_byte_in_use_is_noticed(at in 0..60_usize, flip in 1..=255_u8) {
            let mut waiting = Vec::new();
            push(&mut waiting, b"key", Some(&[&[7; 60]]), &Meta::default());
            let (mut block, _) = block(&waiting, &[0; BLOCK], 0);
            block[at] ^= flip;
            prop_assert!(matches!(look(&block, 1, 5), Held::Corrupt | Held::Nothing), "{}", at);
        }

        #[test]
        fn iterating_over_arbitrary_set_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let all = objects(&bytes, 0..bytes.len()).map(|one| one.whole.len()).sum::<usize>();
            prop_assert!(all <= bytes.len());
        }
    }

    #[test]
    fn a_filter_contains_its_keys_and_has_few_false_positives() {
        let mut waiting = Vec::new();
        (0..26).for_each(|n| push(&mut waiting, &[0, n], Some(&[&[n; 100]]), &Meta::default()));
        let (block, _) = block(&waiting, &[0; BLOCK], 0);
        let Held::Objects(used) = look(&block, 1, 5) else { panic!("a merged block holds") };
        let filter = filter(&block, used);
        let seems = |key: [u8; 2]| {
            let bits = bits(&key);
            bits[0] & !filter[0] == 0 && bits[1] & !filter[1] == 0
        };
        assert!((0..26).all(|n| seems([0, n])));
        let wrong = (0..=255).flat_map(|n| (1..5).map(move |m| [m, n])).filter(|key| seems(*key));
        assert!(wrong.count() < 1024 / 5);
    }
}
