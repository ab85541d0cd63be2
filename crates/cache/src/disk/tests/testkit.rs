//! What tests of the tier share: a small index, values that tell what they are, and a device that fails on purpose.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::super::file::{event, reset};
use super::super::words::{lock, low32};
use super::super::*;
use crate::store::Meta;

/// A tier of 30 regions of 32 KiB and 64 sets.
pub(super) fn config() -> Config {
    Config {
        bytes: (8 << 10) + (256 << 10) + (24 << 10) + 30 * (32 << 10),
        region_bytes: 32 << 10,
        small_bytes: 256 << 10,
        small_max: 600,
        small_waiting: 16 << 10,
        ghosts: 64,
        reinsert_percent: 25,
        ..Config::default()
    }
}

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

pub(crate) fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("cache")
}

pub(super) fn hash(key: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(key)
}

pub(super) fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// Bytes that follow from key and version.
pub(super) fn value(number: u64, version: u64, len: usize) -> Vec<u8> {
    let mut state = hash(&[number.to_le_bytes(), version.to_le_bytes()].concat());
    let mut out = version.to_le_bytes().to_vec();
    while out.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        out.extend((state >> 32).to_le_bytes());
    }
    out.truncate(len.max(8));
    out
}

/// The version of a value, if it is one of this key.
pub(super) fn version_of(number: u64, found: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(found.get(..8)?.try_into().ok()?);
    (value(number, version, found.len()) == found).then_some(version)
}

pub(super) fn meta(version: u64) -> Meta {
    Meta { flags: low32(version), cas: version, accessed: 1, ..Meta::default() }
}

/// An index that is a map, and what it was told. Objects whose hash is a multiple of `keep` are kept.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) places: Mutex<HashMap<u64, Place>>,
    pub(super) keep: u64,
    pub(super) gone: Mutex<Vec<u64>>,
}

impl Index {
    pub(super) fn place(&self, number: u64) -> Option<Place> {
        lock(&self.places).get(&hash(&key(number))).copied()
    }

    pub(super) fn remove(&self, number: u64) -> Option<Place> {
        lock(&self.places).remove(&hash(&key(number)))
    }

    pub(super) fn recover(&self) -> impl FnMut(&Recovered) {
        |found| assert_eq!(lock(&self.places).insert(found.hash, found.place), None, "told once")
    }
}

impl Keeper for Index {
    fn evicted(&self, hash: u64, place: Place) -> Fate {
        let mut places = lock(&self.places);
        if places.get(&hash) != Some(&place) {
            return Fate::Gone;
        }
        if self.keep > 0 && hash.is_multiple_of(self.keep) {
            return Fate::Keep;
        }
        places.remove(&hash);
        Fate::Gone
    }

    fn moved(&self, hash: u64, from: Place, to: Place) -> bool {
        let mut places = lock(&self.places);
        let is_there = places.get(&hash) == Some(&from);
        if is_there {
            places.insert(hash, to);
        }
        is_there
    }

    fn gone(&self, hash: u64, place: Place) {
        lock(&self.gone).push(hash);
        let mut places = lock(&self.places);
        if places.get(&hash) == Some(&place) {
            places.remove(&hash);
        }
    }

    fn lost(&self, range: Places) {
        lock(&self.places).retain(|_, place| !range.contains(*place));
    }
}

/// Stores a version of a key, and the place of it; ticks if there is no room.
pub(super) fn store(disk: &Disk, index: &Index, number: u64, version: u64, len: usize) -> bool {
    let key = key(number);
    let value = value(number, version, len);
    let object = Object { hash: hash(&key), key: &key, meta: meta(version) };
    for _ in 0..100 {
        // Without the place, an eviction between append and insertion could not be told.
        let mut places = lock(&index.places);
        match disk.append(&object, &[&value[..4], &value[4..]]) {
            Ok(place) => {
                places.insert(object.hash, place);
                return true;
            }
            Err(Refused::Busy) => {
                drop(places);
                disk.tick(1, index);
            }
            Err(_) => return false,
        }
    }
    false
}

/// The version of a large object, as the index has it.
pub(super) fn load(disk: &Disk, index: &Index, number: u64) -> Option<u64> {
    let mut out = Vec::new();
    let found = disk.get(index.place(number)?, &key(number), &mut out)?;
    let version = version_of(number, &out).expect("a value of this key");
    assert_eq!(found, meta(version));
    Some(version)
}

pub(super) fn store_small(
    disk: &Disk,
    number: u64,
    version: u64,
    len: usize,
) -> Result<(), Refused> {
    let key = key(number);
    let object = Object { hash: hash(&key), key: &key, meta: meta(version) };
    disk.append_small(&object, &[&value(number, version, len)])
}

pub(super) fn load_small(disk: &Disk, number: u64) -> Option<u64> {
    let (key, mut out) = (key(number), Vec::new());
    let found = disk.get_small(hash(&key), &key, &mut out)?;
    let version = version_of(number, &out).expect("a value of this key");
    assert_eq!(found, meta(version));
    Some(version)
}

/// What a failing device does instead of what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Error,
    Short,
    Flip,
}

/// What was asked: reading, where, and how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) is_read: bool,
    pub(crate) at: u64,
    pub(crate) len: usize,
}

type Rule = Box<dyn FnMut(Asked) -> Fault + Send>;

/// A device that fails by a rule.
pub(crate) struct Faulty {
    inner: BlockFile,
    /// Taken out while it is asked, so that it may use the device.
    rule: Mutex<Option<Rule>>,
    this: std::sync::Weak<Faulty>,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Faulty")
    }
}

impl Faulty {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        let inner = BlockFile::open(path, Access::Plain).expect("a file in the test's folder");
        Arc::new_cyclic(|this| Self { inner, rule: Mutex::new(None), this: this.clone() })
    }

    pub(crate) fn by(&self, rule: impl FnMut(Asked) -> Fault + Send + 'static) {
        *lock(&self.rule) = Some(Box::new(rule));
    }

    /// One in so many fails, in any way.
    pub(crate) fn by_chance(&self, seed: u64, share: u64) {
        let mut state = seed;
        self.by(move |_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let faults = [Fault::Error, Fault::Short, Fault::Flip];
            let chosen = faults[usize::try_from((state >> 60) % 3).unwrap()];
            if (state >> 32).is_multiple_of(share) { chosen } else { Fault::None }
        });
    }

    fn fault(&self, is_read: bool, at: u64, len: usize) -> Fault {
        let Some(mut rule) = lock(&self.rule).take() else { return Fault::None };
        let fault = rule(Asked { is_read, at, len });
        lock(&self.rule).get_or_insert(rule);
        fault
    }
}

impl Device for Faulty {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.inner.reserve(bytes)
    }
    fn may_be_blank(&self, bytes: u64) -> bool {
        self.inner.may_be_blank(bytes)
    }
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let read = self.inner.read_at(into, at)?;
        match self.fault(true, at, into.len()) {
            Fault::None => return Ok(read),
            Fault::Error => return Err(rustix::io::Errno::IO.into()),
            Fault::Short => return Ok(read / 2 / 512 * 512),
            Fault::Flip => into[20] ^= 0x10,
        }
        Ok(read)
    }
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<usize> {
        match self.fault(false, at, from.len()) {
            Fault::None => self.inner.write_at(from, at),
            Fault::Error => Err(rustix::io::Errno::NOSPC.into()),
            Fault::Short => self.inner.write_at(&from[..from.len() / 2 / BLOCK * BLOCK], at),
            Fault::Flip => {
                let mut changed = Aligned::new(from.len()).expect("memory for a test");
                changed[..from.len()].copy_from_slice(from);
                changed[from.len() / 3] ^= 1;
                self.inner.write_at(&changed[..from.len()], at)
            }
        }
    }
    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
    fn queue(&self, _: u32) -> io::Result<Box<dyn Queue>> {
        let device = self.this.upgrade().expect("a queue is asked of a device that is there");
        Ok(Box::new(Late { device, waiting: VecDeque::new(), ready: event()? }))
    }
    fn align(&self) -> usize {
        self.inner.align()
    }
    fn how(&self) -> String {
        String::from("failing on purpose")
    }
}

/// A queue that does one thing with each reap, the last first.
#[derive(Debug)]
struct Late {
    device: Arc<Faulty>,
    waiting: VecDeque<(u64, Job)>,
    ready: OwnedFd,
}

impl Queue for Late {
    fn push(&mut self, token: u64, job: Job) -> Result<(), Job> {
        self.waiting.push_back((token, job));
        rustix::io::write(&self.ready, &1_u64.to_ne_bytes()).expect("a counter takes a one");
        Ok(())
    }
    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn reap(&mut self, _: Wait, done: &mut Vec<Done>) -> io::Result<()> {
        reset(&self.ready);
        let Some((token, mut job)) = self.waiting.pop_back() else { return Ok(()) };
        let result = match &mut job {
            Job::Read { into, part, at } => self.device.read_at(&mut into[part.clone()], *at),
            Job::Write { from, part, at } => self.device.write_at(&from[part.clone()], *at),
        };
        done.push(Done { token, job, result });
        if !self.waiting.is_empty() {
            rustix::io::write(&self.ready, &1_u64.to_ne_bytes()).expect("a counter takes a one");
        }
        Ok(())
    }
    fn under_way(&self) -> usize {
        self.waiting.len()
    }
    fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
