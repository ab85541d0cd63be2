//! A Rust program with a kind as its heap, and collections of other kinds in it.

use std::collections::HashMap;

use allocator_api2::boxed::Box as BoxIn;
use allocator_api2::vec::Vec as VecIn;
use nearfar_alloc::{Global, Kind};

#[global_allocator]
static HEAP: Global = Global::new("bind:0;limit=2g");

fn kind_of<T>(of: &T) -> u32 {
    nearfar_alloc::ffi::nf_kind_of(std::ptr::from_ref(of).cast())
}

#[test]
fn the_global_allocator_serves_all_allocations_from_its_kind() {
    let mut map: HashMap<u64, String> = HashMap::new();
    for key in 0..10_000 {
        map.insert(key, format!("value {key}"));
    }
    assert!(map.values().all(|value| kind_of(&value.as_bytes()[0]) == HEAP.handle()));
    assert_ne!(HEAP.handle(), 0);
    let threads: Vec<_> =
        (0..4_u8).map(|thread| std::thread::spawn(move || vec![thread; 5 << 20])).collect();
    for (thread, value) in threads.into_iter().zip(0..) {
        let mut bytes = thread.join().unwrap();
        bytes.resize(9 << 20, value);
        assert!(bytes.iter().all(|byte| *byte == value));
        bytes.truncate(3);
        bytes.shrink_to_fit();
        assert_eq!(bytes, [value; 3]);
    }
}

#[test]
fn a_collection_may_be_of_another_kind() {
    let kind = Kind::new("interleave:0").unwrap();
    let mut numbers = VecIn::new_in(&kind);
    numbers.extend(0..100_000_u32);
    assert_eq!(kind_of(&numbers[0]), kind.handle());
    assert!(numbers.iter().copied().eq(0..100_000));
    numbers.truncate(10);
    numbers.shrink_to_fit();
    assert_eq!(numbers.as_slice(), &(0..10).collect::<Vec<_>>());
    let zeroes = BoxIn::new_in([0_u8; 100], &kind);
    assert_eq!(kind_of(&zeroes[0]), kind.handle());
    let nothing: VecIn<u64, _> = VecIn::new_in(&kind);
    assert_eq!(nothing.capacity(), 0);
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut pages = VecIn::new_in(&kind);
    for page in 0..20 {
        pages.push(Page([page; 4096]));
    }
    assert!(pages.iter().zip(0..).all(|(page, value)| page.0 == [value; 4096]));
    assert!(std::ptr::from_ref(&pages[0]).addr().is_multiple_of(4096));
    drop((numbers, zeroes, pages));
    assert_eq!(kind.stats().allocated, 0);
}

#[test]
fn an_unavailable_kind_or_allocation_returns_an_error() {
    assert!(Kind::new("nowhere").unwrap_err().to_string().contains("nowhere"));
    let little = Kind::new("0;limit=8m").unwrap();
    let mut bytes: VecIn<u8, _> = VecIn::new_in(&little);
    assert!(bytes.try_reserve(64 << 20).is_err());
    assert!(bytes.try_reserve(1 << 20).is_ok());
    // Any number of kinds, one after another.
    for _ in 0..3000 {
        Kind::new("bind:0").unwrap();
    }
}
