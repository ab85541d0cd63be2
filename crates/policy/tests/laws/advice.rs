//! The advice page: fresh while a writer updates it, found node by node, and refused if it is invalid.

use nearfar_policy::advice::{Advice, Page, STALE, Traffic, Unreadable, WORDS, read};
use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds, NodeId};
use proptest::prelude::*;

fn advice(node: u16) -> Advice {
    Advice {
        node: NodeId(node),
        idle: Nanoseconds(100),
        load: Nanoseconds(150),
        pressure: 150,
        used: Some(BytesPerSecond(1)),
        read: None,
        write: None,
        free: BasisPoints(5_000),
        weight: 1,
    }
}

fn page(nodes: impl IntoIterator<Item = u16>) -> Page {
    Page {
        heartbeat: Nanoseconds(1_000),
        interval: Nanoseconds(10),
        pid: 7,
        traffic: Traffic::Resctrl,
        cpu: Nanoseconds(1),
        begun: Nanoseconds(2),
        looks: 3,
        nodes: nodes.into_iter().map(advice).collect(),
    }
}

/// The words of a file in which pages were written one after the other.
fn written(pages: &[Page]) -> Vec<u64> {
    let mut words = vec![0; WORDS];
    for page in pages {
        for (at, word) in page.stores(words[2]) {
            words[at] = word;
        }
    }
    words
}

fn reading(words: &[u64]) -> Result<Page, Unreadable> {
    read(|at| words[at])
}

fn ids() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::btree_set(0u16..=1023, 0..12).prop_map(Vec::from_iter)
}

proptest! {
    #[test]
    fn a_page_is_fresh_for_three_intervals_of_its_own_clock(heartbeat in 1u64..1 << 40, interval in 0u64..1 << 40, off in -2i64..3, now in any::<u64>()) {
        let page = Page { heartbeat: Nanoseconds(heartbeat), interval: Nanoseconds(interval), ..page([]) };
        let end = (heartbeat + STALE * interval).saturating_add_signed(off);
        for now in [now, end, heartbeat, heartbeat - 1] {
            let fresh = now >= heartbeat && now - heartbeat <= STALE * interval;
            prop_assert_eq!(page.is_fresh(Nanoseconds(now)), fresh);
        }
    }

    #[test]
    fn a_page_with_a_zero_heartbeat_is_never_fresh(interval in any::<u64>(), now in any::<u64>()) {
        let page = Page { heartbeat: Nanoseconds(0), interval: Nanoseconds(interval), ..page([]) };
        prop_assert!(!page.is_fresh(Nanoseconds(now)));
    }

    #[test]
    fn advice_is_found_for_exactly_the_listed_nodes(ids in ids()) {
        let page = page(ids.clone());
        for id in 0..=1023 {
            let found = page.of(NodeId(id)).map(|advice| advice.node.0);
            prop_assert_eq!(found, ids.contains(&id).then_some(id));
        }
    }

    #[test]
    fn the_sequence_is_odd_before_the_first_store_and_even_after_the_last(ids in ids(), sequence in any::<u64>()) {
        let stores = page(ids).stores(sequence);
        let (first, last) = (stores[0], stores[stores.len() - 1]);
        prop_assert!(first.0 == 2 && last.0 == 2);
        prop_assert!(first.1 % 2 == 1 && last.1 % 2 == 0 && last.1 == first.1.wrapping_add(1));
        let between = &stores[1..stores.len() - 1];
        prop_assert!(between.iter().all(|(at, _)| *at != 2 && *at < WORDS));
    }

    #[test]
    fn every_write_changes_the_sequence_number(ids in ids(), sequence in any::<u64>()) {
        let after = |sequence| page(ids.clone()).stores(sequence).last().unwrap().1;
        prop_assert_ne!(after(sequence), sequence);
        prop_assert_ne!(after(after(sequence)), after(sequence));
    }

    #[test]
    fn a_shorter_page_over_a_longer_one_reads_as_the_shorter(long in ids(), short in ids()) {
        let [long, short] = [page(long), page(short)];
        prop_assert_eq!(reading(&written(&[long, short.clone()])), Ok(short));
    }

    #[test]
    fn an_unsupported_version_is_rejected_by_number(ids in ids(), version in any::<u32>()) {
        let mut words = written(&[page(ids)]);
        words[1] = words[1] >> 32 << 32 | u64::from(version);
        prop_assume!(version != 1);
        prop_assert_eq!(reading(&words), Err(Unreadable::Version(version)));
        let text = Unreadable::Version(version).to_string();
        prop_assert!(text.contains(&version.to_string()) && text.contains("version 1"), "{text}");
    }

    #[test]
    fn a_file_without_the_magic_number_is_foreign(ids in ids(), other in any::<u64>()) {
        let mut words = written(&[page(ids)]);
        prop_assume!(words[0] != other);
        words[0] = other;
        prop_assert_eq!(reading(&words), Err(Unreadable::Foreign));
    }

    #[test]
    fn a_page_being_written_is_torn(ids in ids(), store in any::<prop::sample::Index>()) {
        let mut words = written(&[page([3])]);
        let stores = page(ids).stores(words[2]);
        let stop = 1 + store.index(stores.len() - 1);
        stores[..stop].iter().for_each(|(at, word)| words[*at] = *word);
        prop_assert_eq!(reading(&words), Err(Unreadable::Torn));
    }

    #[test]
    fn nodes_out_of_order_or_with_invalid_values_are_malformed(ids in prop::collection::btree_set(0u16..1000, 2..8).prop_map(Vec::from_iter), wrong in 0usize..4) {
        let mut words = written(&[page(ids.iter().copied())]);
        let first = 16;
        match wrong {
            0 => words.swap(first, first + 8),
            1 => words[first] = words[first] >> 32 << 32 | 1024,
            2 => words[first + 6] = words[first + 6] >> 32 << 32 | 10_001,
            _ => words[first + 6] |= 256 << 32,
        }
        prop_assert!(matches!(reading(&words), Err(Unreadable::Malformed(_))), "{:?}", reading(&words));
    }
}

#[test]
fn reading_never_accesses_a_word_beyond_the_page() {
    for count in [0, 1, 1024] {
        let words = written(&[page(0..count)]);
        let mut most = 0;
        let found = read(|at| {
            most = most.max(at);
            words[at]
        });
        assert_eq!(found.unwrap().nodes.len(), usize::from(count));
        assert!(most < WORDS);
    }
}
