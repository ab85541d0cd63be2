//! Changes during a read from disk, made by the device: it calls the cache in the middle of a read.

use std::sync::Weak;

use super::*;
use crate::disk::testkit::{Asked, Fault, Faulty};
use crate::on_disk::Lookup;
use crate::store::{Edit, Old};

const KEY: u64 = 7;

/// A cache with a key on disk in version 5, and its device.
fn made(folder: &tempfile::TempDir, len: usize) -> (Arc<Faulty>, Arc<Cache>) {
    let faulty = Faulty::new(&file(folder));
    let device: Arc<dyn Device> = faulty.clone();
    let cache = Arc::new(open_on(&config(&file(folder), 100, Making::Inline), &device));
    put(&cache, KEY, 5, len);
    down(&cache);
    (faulty, cache)
}

/// Has all items leave memory, and buffers, too.
fn down(cache: &Cache) {
    push_down(cache);
    assert!(cache.contents().below().expect("it has a disk").disk.flush());
}

/// Has something done in the midst of the next read.
fn meanwhile(faulty: &Faulty, cache: &Arc<Cache>, what: fn(&Cache, usize), len: usize) {
    let (cache, mut is_done): (Weak<Cache>, bool) = (Arc::downgrade(cache), false);
    faulty.by(move |asked: Asked| {
        if asked.is_read && !core::mem::replace(&mut is_done, true) {
            what(&cache.upgrade().expect("it is being read"), len);
        }
        Fault::None
    });
}

/// A change, and the version present afterwards.
type Change = (fn(&Cache, usize), Option<u64>);

const CHANGES: [Change; 6] = [
    (|cache, len| put(cache, KEY, 6, len), Some(6)),
    (
        |cache, len| {
            put(cache, KEY, 6, len);
            down(cache);
        },
        Some(6),
    ),
    (|cache, _| assert!(cache.delete(&key(KEY))), None),
    (|cache, _| cache.flush(0), None),
    (
        |cache, len| {
            cache.flush(0);
            put(cache, KEY, 6, len);
            down(cache);
        },
        Some(6),
    ),
    // It is promoted, and demoted again.
    (
        |cache, _| {
            (0..2).for_each(|_| assert_eq!(get(cache, KEY), Some(5)));
            push_down(cache);
        },
        Some(5),
    ),
];

#[test]
fn an_edit_sees_a_value_stored_during_its_disk_read() {
    for (len, (change, after)) in [200, 3000].into_iter().flat_map(|len| CHANGES.map(|c| (len, c)))
    {
        let folder = folder();
        let (faulty, cache) = made(&folder, len);
        meanwhile(&faulty, &cache, change, len);
        let mut seen = None;
        let mut decide = |old: Option<&dyn Old>, _: &mut Vec<u8>| {
            let mut out = Vec::new();
            seen = old.and_then(|old| {
                old.read(&mut out);
                assert_eq!(version_of(KEY, &out), Some(old.meta().cas));
                version_of(KEY, &out)
            });
            Edit::Set(meta(9, 0))
        };
        cache.edit(&key(KEY), &mut Vec::new(), &mut decide).expect("there is room");
        assert_eq!(seen, after);
        check_count(&cache);
    }
}

#[test]
fn a_change_during_a_disk_read_is_preserved() {
    for (len, (change, after)) in [200, 3000].into_iter().flat_map(|len| CHANGES.map(|c| (len, c)))
    {
        let folder = folder();
        let (faulty, cache) = made(&folder, len);
        meanwhile(&faulty, &cache, change, len);
        // The version present when the read began, or the present one.
        let found = get(&cache, KEY);
        assert!(found == Some(5) || found == after, "{found:?}");
        assert_eq!(get(&cache, KEY), after);
        down(&cache);
        assert_eq!(get(&cache, KEY), after);
        check_count(&cache);
    }
}

#[test]
fn delete_reports_presence_at_the_time_of_removal() {
    for (len, (change, after)) in [200, 3000].into_iter().flat_map(|len| CHANGES.map(|c| (len, c)))
    {
        let folder = folder();
        let (faulty, cache) = made(&folder, len);
        meanwhile(&faulty, &cache, change, len);
        assert_eq!(cache.delete(&key(KEY)), after.is_some());
        assert_eq!(get(&cache, KEY), None);
        down(&cache);
        assert_eq!(get(&cache, KEY), None);
        check_count(&cache);
    }
}

/// The reader looks up the key and reads its object in the midst of the removal, and continues after it.
#[test]
fn a_small_object_read_while_it_is_removed_is_not_promoted() {
    let folder = folder();
    let (_faulty, cache) = made(&folder, 200);
    let (name, contents) = (key(KEY), cache.contents());
    let (hash, below) = (contents.hasher().hash(&name), contents.below().expect("it has a disk"));
    let held = contents.index().lock(hash);
    let change = below.change(hash);
    let found = cache.lookup(&name, &mut Vec::new(), &mut |_, _, _| ());
    let Lookup::Below(ticket) = found else { panic!("not on disk: {found:?}") };
    below.disk.read(ticket.place(), &name, |outcome| {
        below.disk.remove_small(hash.0, &name);
        drop((change, held));
        let mut out = Vec::new();
        let found = cache.landed(&name, (ticket, outcome), &mut out, &mut |_, _, _| ());
        assert!(matches!(found, Lookup::Hit(_)) && version_of(KEY, &out) == Some(5), "{found:?}");
    });
    assert_eq!(get(&cache, KEY), None);
    assert!(!cache.delete(&name));
    check_count(&cache);
}
