//! Page selection: no more than requested, hottest first, for any order of candidates.

use std::collections::BTreeSet;

use nearfar_policy::traffic::balance::{Candidate, Pages};
use nearfar_policy::traffic::{Page, Process};
use nearfar_topology::Bytes;
use proptest::prelude::*;

const SMALL: u64 = 4_096;
const HUGE: u64 = 2 << 20;

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (0u32..3, 0u64..200, prop::sample::select(vec![0, SMALL, SMALL, HUGE]), 0u64..1_000);
    prop::collection::btree_map((0u32..3, 0u64..200), one, 0..60).prop_map(|pages| {
        let candidate =
            |((process, number), (_, _, bytes, accesses)): ((u32, u64), (u32, u64, u64, u64))| {
                Candidate {
                    page: Page { process: Process(process), number },
                    bytes: Bytes(bytes),
                    accesses,
                }
            };
        pages.into_iter().map(candidate).collect()
    })
}

fn chosen(most: u64, candidates: &[Candidate]) -> Vec<Page> {
    let mut pages = Pages::new();
    pages.tick();
    pages.select((0, 0, 1), Bytes(most), candidates)
}

fn of(page: Page, candidates: &[Candidate]) -> Candidate {
    *candidates.iter().find(|one| one.page == page).unwrap()
}

/// Whether one is hotter for its size than another.
fn hotter(one: &Candidate, other: &Candidate) -> bool {
    u128::from(one.accesses) * u128::from(other.bytes.0)
        > u128::from(other.accesses) * u128::from(one.bytes.0)
}

proptest! {
    #[test]
    fn the_selection_stays_within_its_limit_and_has_no_duplicates(candidates in candidates(), most in 0u64..8 << 20) {
        let found = chosen(most, &candidates);
        let bytes: u64 = found.iter().map(|page| of(*page, &candidates).bytes.0).sum();
        prop_assert!(bytes <= most);
        prop_assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len());
        prop_assert!(found.iter().all(|page| of(*page, &candidates).bytes.0 > 0));
    }

    #[test]
    fn a_page_is_skipped_only_if_it_does_not_fit_beside_hotter_ones(candidates in candidates(), most in 0u64..8 << 20) {
        let found = chosen(most, &candidates);
        for left in candidates.iter().filter(|one| one.bytes.0 > 0 && !found.contains(&one.page)) {
            let before = found.iter().map(|page| of(*page, &candidates)).filter(|one| !hotter(left, one));
            let bytes: u64 = before.map(|one| one.bytes.0).sum();
            prop_assert!(bytes + left.bytes.0 > most, "{left:?}");
        }
    }

    #[test]
    fn pages_of_equal_size_are_selected_hottest_first(candidates in candidates(), most in 0u64..1 << 20) {
        let small: Vec<Candidate> = candidates.into_iter().map(|one| Candidate { bytes: Bytes(SMALL), ..one }).collect();
        let heats: Vec<u64> = chosen(most, &small).iter().map(|page| of(*page, &small).accesses).collect();
        prop_assert!(heats.iter().rev().is_sorted());
        prop_assert_eq!(heats.len() as u64, (most / SMALL).min(small.len() as u64));
    }

    #[test]
    fn the_order_of_candidates_does_not_matter(candidates in candidates(), most in 0u64..8 << 20, turn in any::<prop::sample::Index>()) {
        let mut turned = candidates.clone();
        turned.rotate_left(turn.index(candidates.len().max(1)));
        prop_assert_eq!(chosen(most, &candidates), chosen(most, &turned));
    }

    #[test]
    fn migrated_pages_are_not_selected_again_for_eight_decisions(candidates in candidates(), most in SMALL..1 << 20) {
        let small: Vec<Candidate> = candidates.into_iter().map(|one| Candidate { bytes: Bytes(SMALL), ..one }).collect();
        let mut pages = Pages::new();
        let mut gone = BTreeSet::new();
        for _ in 0..7 {
            pages.tick();
            for page in pages.select((0, 0, 1), Bytes(most), &small) {
                prop_assert!(gone.insert(page), "{page:?} went again within eight decisions");
            }
        }
    }

    #[test]
    fn pages_of_a_frozen_process_stay_and_those_of_others_move(rounds in 30u64..80) {
        let of_process = |process: u32| (0..40).map(move |number| Candidate {
            page: Page { process: Process(process), number }, bytes: Bytes(SMALL), accesses: number,
        });
        let restless: Vec<Candidate> = of_process(1).collect();
        let mut pages = Pages::new();
        for round in 0..rounds {
            pages.tick();
            let (from, to) = if round / 8 % 2 == 0 { (0, 1) } else { (1, 0) };
            let frozen = pages.is_frozen(Process(1));
            let went = pages.select((0, from, to), Bytes(u64::MAX), &restless);
            prop_assert!(!frozen || went.is_empty());
            prop_assert!(!pages.is_frozen(Process(2)));
        }
        let calm: Vec<Candidate> = of_process(2).collect();
        prop_assert_eq!(pages.select((0, 0, 1), Bytes(u64::MAX), &calm).len(), 40);
    }
}
