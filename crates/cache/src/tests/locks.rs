//! Locks of a cache that are taken in a wrong order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::index::hash;
use crate::{Cache, Config, Tier};

/// Whether `act` panics with a violation of the lock order.
fn is_refused(act: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(act)) else { return false };
    panic.downcast_ref::<String>().is_some_and(|text| text.contains("must not wait for"))
}

#[test]
fn locking_a_cache_in_the_wrong_order_panics() {
    let mut config = Config::of_bytes(8 << 20);
    config.tiers.push(Tier { ..config.tiers[0].clone() });
    let cache = Cache::new(&config).unwrap();
    let contents = cache.contents();
    let class = |tier: usize| contents.space(tier).class(0);
    let (one, other) = (hash(b"one"), hash(b"other"));
    assert!(!is_refused(|| {
        let _stripe = contents.index().lock(one);
        let _emptying = contents.space(0).emptying.lock();
        let (_first, _second) = (class(0).lock(), class(1).lock());
        assert!(contents.index().try_lock(other).is_some(), "it may be tried");
    }));
    let wrong: [&dyn Fn(); 5] = [
        &|| drop((class(0).lock(), contents.index().lock(one))),
        &|| drop((contents.index().lock(one), contents.index().lock(other))),
        &|| drop((class(1).lock(), class(0).lock())),
        &|| drop((class(0).lock(), contents.space(0).class(1).lock())),
        &|| drop((class(0).lock(), contents.space(0).emptying.lock())),
    ];
    for (number, act) in wrong.into_iter().enumerate() {
        assert!(is_refused(act), "number {number}");
    }
    assert!(!is_refused(|| drop(contents.index().lock(one))), "nothing is held any more");
}
