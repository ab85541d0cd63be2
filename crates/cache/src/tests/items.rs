//! Headers of items: when two are of the same item.

use nearfar_kernel::mempolicy::Policy;

use crate::arena::{Arena, PageSize};
use crate::item::{Header, Item, Shape};

#[test]
fn slot_headers_repeat_only_across_epochs_of_64_bits() {
    let arena = Arena::new(1, PageSize::Base, &Policy::Default).unwrap();
    let item = Item { arena: &arena, at: 0 };
    let shape = Shape { key: 3, value: 5, ..Shape::default() };
    item.begin(Header::new(item.header(), shape));
    let first = item.header();
    for _ in 0..1 << 16 {
        item.begin(Header::new(item.header(), shape));
    }
    let then = item.header();
    assert_eq!(first.0, then.0, "it has begun again");
    assert_ne!(first.epoch(), then.epoch());
    assert!(item.is_still(then) && !item.is_still(first));
    assert_eq!(size_of_val(&then.epoch()), 8);
}
