//! Fuzzing of a closed tier with arbitrary bytes on the device: checksums are corrected, so that the code behind the
//! checksum checks is reached.
//!
//! The input is a list of changes: part of the device 8, address in it 16, length 8, then that many bytes.

use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::config::{Geometry, TABLE_AT, table_bytes};
use super::device::{read_exact, write_all};
use super::entry::{self, Spot};
use super::footer;
use super::set;
use super::superblock;
use super::words::{narrow, put, size, u16_at, u32_at, u64_at, wide};
use super::*;
use crate::meta::Meta;

const REGION: usize = 16 << 10;
/// Objects that the tier begins with: this many large ones, and as many small ones.
const OBJECTS: u64 = 40;

fn config() -> Config {
    Config {
        bytes: (288 << 10) + 5 * wide(REGION),
        region_bytes: REGION,
        small_bytes: 4 * wide(BLOCK),
        small_max: 600,
        small_waiting: 16 << 10,
        writing: 1,
        free_regions: 1,
        ghosts: 64,
        reinsert_percent: 25,
        access: Access::Plain,
        after_crash: AfterCrash::Keep,
        ..Config::default()
    }
}

/// The index: one place per hash. A third of the objects is kept when their region is evicted.
#[derive(Default)]
struct Index(RefCell<BTreeMap<u64, Place>>);

impl Keeper for Index {
    fn evicted(&self, hash: u64, place: Place) -> Fate {
        match self.0.borrow_mut().entry(hash) {
            std::collections::btree_map::Entry::Occupied(found) if *found.get() == place => {
                if hash.is_multiple_of(3) {
                    return Fate::Keep;
                }
                found.remove();
                Fate::Gone
            }
            _ => Fate::Gone,
        }
    }
    fn moved(&self, hash: u64, from: Place, to: Place) -> bool {
        let mut places = self.0.borrow_mut();
        let found = places.get_mut(&hash).filter(|place| **place == from);
        found.map(|place| *place = to).is_some()
    }
    fn gone(&self, hash: u64, place: Place) {
        self.0.borrow_mut().retain(|one, at| (*one, *at) != (hash, place));
    }
    fn lost(&self, range: Places) {
        self.0.borrow_mut().retain(|_, place| !range.contains(*place));
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn hash(key: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(key)
}

/// Stores objects while there is room for them, and removes one in five.
fn store(disk: &Disk, index: &Index, numbers: core::ops::Range<u64>) {
    for number in numbers {
        let key = key(number);
        let object =
            Object { hash: hash(&key), key: &key, meta: Meta { cas: number, ..Meta::default() } };
        let value = vec![b'v'; size(number % 50 * 13)];
        if let Ok(place) = disk.append(&object, &[&value]) {
            let before = index.0.borrow_mut().insert(object.hash, place);
            before.into_iter().for_each(|place| disk.forget(place));
        }
        let _ = disk.append_small(&object, &[&value]);
        if number.is_multiple_of(5) {
            index.0.borrow_mut().remove(&object.hash).into_iter().for_each(|at| disk.forget(at));
            disk.remove_small(object.hash, &key);
        }
        disk.tick(1, index);
    }
}

/// A device in memory with these bytes; it ends with its last user.
fn device(bytes: &[u8]) -> Arc<dyn Device> {
    static NUMBER: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    let path = format!("/dev/shm/nearfar-fuzz.{}.{number}", std::process::id());
    let file = BlockFile::open(Path::new(&path), Access::Plain).expect("a file in /dev/shm");
    std::fs::remove_file(&path).expect("it was made here");
    if !bytes.is_empty() {
        let mut aligned = Aligned::new(bytes.len()).expect("memory for a small device");
        aligned[..bytes.len()].copy_from_slice(bytes);
        write_all(&file, &aligned[..bytes.len()], 0).expect("room in /dev/shm");
    }
    Arc::new(file)
}

/// A cleanly closed tier.
fn closed() -> &'static [u8] {
    static CLOSED: OnceLock<Vec<u8>> = OnceLock::new();
    CLOSED.get_or_init(|| {
        let (device, index) = (device(&[]), Index::default());
        let path = Path::new("fuzzed");
        let opened = Disk::open_on(&device, path, &config(), &mut |_| {});
        let (disk, _) = opened.expect("an empty file is made a tier");
        store(&disk, &index, 0..OBJECTS);
        store(&disk, &index, 10..20);
        disk.close().expect("room in /dev/shm");
        let mut bytes = Aligned::new(size(config().bytes)).expect("memory for a small device");
        read_exact(&*device, &mut bytes, 0).expect("it was written");
        bytes.to_vec()
    })
}

/// Applies the changes.
fn change(bytes: &mut [u8], geometry: &Geometry, mut data: &[u8]) {
    while let [part, low, high, len, rest @ ..] = data {
        let (new, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        data = rest;
        let at = usize::from(u16::from_le_bytes([*low, *high]));
        let (begin, span) = match part % 5 {
            0 => (0, 2 * BLOCK),
            1 => (size(TABLE_AT), BLOCK),
            2 => (size(geometry.sets_at), geometry.sets as usize * BLOCK),
            // Lists and footers, which are at the end of regions.
            3 => (size(geometry.region_at(narrow(at >> 13))) + REGION - 2 * BLOCK, 2 * BLOCK),
            _ => (size(geometry.regions_at), geometry.regions as usize * REGION),
        };
        let at = begin + at % span;
        let end = bytes.len().min(at + new.len());
        bytes.get_mut(at..end).into_iter().for_each(|into| into.copy_from_slice(&new[..end - at]));
    }
}

/// Corrects the checksums: of objects, lists, footers and sets, of the table, of the superblocks.
fn seal(bytes: &mut [u8], geometry: &Geometry) {
    let table = size(TABLE_AT);
    for region in 0..geometry.regions {
        let begin = size(geometry.region_at(region));
        let sum = seal_region(&mut bytes[begin..begin + REGION]);
        let known = table + region as usize * 12;
        if u64_at(bytes, known) > 0 {
            put(bytes, known + 8, &sum.to_le_bytes());
        }
    }
    let sums = table + geometry.regions as usize * 12;
    for number in 0..geometry.sets as usize {
        let begin = size(geometry.sets_at) + number * BLOCK;
        let block = &mut bytes[begin..begin + BLOCK];
        let used = usize::from(u16_at(block, 18));
        let mut sum = set::EMPTY;
        if (set::HEADER..=BLOCK).contains(&used) {
            let found = crc32c::crc32c(&block[4..used]);
            put(block, 0, &found.to_le_bytes());
            sum = found.max(set::EMPTY + 1);
        }
        put(bytes, sums + number * 4, &sum.to_le_bytes());
    }
    let room = size(table_bytes(geometry.regions.into(), geometry.sets.into()));
    let sum = crc32c::crc32c(&bytes[table..table + room]);
    superblock::seal(bytes, sum);
}

/// The checksum of its footer.
fn seal_region(region: &mut [u8]) -> u32 {
    let end = REGION - BLOCK;
    if u64_at(region, end) == 0 {
        return 0;
    }
    let (seq, epoch, count) =
        (u64_at(region, end + 16), u64_at(region, end + 24), u32_at(region, end + 32) as usize);
    if footer::tail(count) <= REGION {
        let begin = REGION - footer::tail(count);
        for record in (begin..).step_by(20).take(count) {
            let unit = u32_at(region, record + 8);
            entry::seal_again(region, &Spot { epoch, seq, unit });
        }
        let sum = crc32c::crc32c(&region[begin..end]);
        put(region, end + 36, &sum.to_le_bytes());
    }
    let sum = crc32c::crc32c(&region[end + 12..end + 48]);
    put(region, end + 8, &sum.to_le_bytes());
    sum
}

/// Opens it, reads it, fills it, evicts from it, closes it, and checks that a reopened tier has the same objects.
///
/// # Panics
/// If the tier misbehaves.
pub fn fuzz(data: &[u8]) {
    let Ok(geometry) = Geometry::new(&config()) else { return };
    let mut bytes = closed().to_vec();
    change(&mut bytes, &geometry, data);
    seal(&mut bytes, &geometry);
    let (device, path, index) = (device(&bytes), Path::new("fuzzed"), Index::default());
    let mut recover = |found: &Recovered| {
        let before = index.0.borrow_mut().insert(found.hash, found.place);
        assert_eq!(before, None, "each hash is told once");
    };
    let Ok((disk, _)) = Disk::open_on(&device, path, &config(), &mut recover) else { return };
    let mut out = Vec::new();
    for number in 0..OBJECTS {
        let key = key(number);
        let place = index.0.borrow().get(&hash(&key)).copied();
        let _ = place.and_then(|place| disk.get(place, &key, &mut out));
        let _ = disk.get_small(hash(&key), &key, &mut out);
    }
    store(&disk, &index, 30..120);
    if disk.close().is_err() {
        return;
    }
    drop(disk);
    let mut hashes = BTreeSet::new();
    let again = Disk::open_on(&device, path, &config(), &mut |found| {
        assert!(hashes.insert(found.hash), "each hash is told once");
    });
    let (_, opened) = again.expect("a tier that was closed is opened");
    assert!(opened.was_closed && !opened.discarded && opened.torn == 0, "{opened:?}");
    let there = index.0.borrow().keys().copied().collect();
    assert!(hashes.is_superset(&there), "{:?} is not found again", &there - &hashes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sealing_unchanged_bytes_reproduces_them() {
        let geometry = Geometry::new(&config()).unwrap();
        let mut bytes = closed().to_vec();
        seal(&mut bytes, &geometry);
        let differs = bytes.iter().zip(closed()).position(|(new, old)| new != old);
        assert_eq!(differs, None);
        fuzz(&[]);
    }

    #[test]
    fn a_damaged_counter_is_never_written_back() {
        let last = (superblock::COUNTED - 1).to_le_bytes();
        // Generation, and next sequence number, in both copies.
        for at in [16, 64] {
            let copies = [0, 16].map(|high| [&[0, at, high, 8], &last[..]].concat());
            fuzz(&copies.concat());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_tier_with_arbitrary_bytes_under_valid_checksums_keeps_working(
            changes in prop::collection::vec((0..5_u8, any::<u16>(), prop::collection::vec(any::<u8>(), 1..9)), 0..6),
        ) {
            let change = |(part, at, new): &(u8, u16, Vec<u8>)| {
                let [low, high] = at.to_le_bytes();
                [&[*part, low, high, u8::try_from(new.len()).unwrap()], new.as_slice()].concat()
            };
            fuzz(&changes.iter().flat_map(change).collect::<Vec<_>>());
        }
    }
}
