//! Streams: every access is counted at a page that it may go to.

use nearfar_sim::pages::Pages;
use nearfar_sim::rng::Rng;
use nearfar_sim::stream::{NoSource, Options, Source, Span, run};
use proptest::prelude::*;

use crate::machines::{close, region, two_tiers, workload};

fn counted(source: &Source, epoch: u64, accesses: u64, seed: u64) -> Vec<u32> {
    let mut counts = vec![0; source.pages() as usize];
    source.count(epoch, accesses, &mut Rng::new(seed), &mut counts);
    counts
}

fn sum(counts: &[u32]) -> u64 {
    counts.iter().map(|count| u64::from(*count)).sum()
}

fn any_source() -> impl Strategy<Value = Source> {
    prop_oneof![
        (1u32..500).prop_map(|pages| Source::uniform(pages).unwrap()),
        (1u32..500, 0.0f64..=4.0, any::<u64>())
            .prop_map(|(pages, s, seed)| Source::zipf(pages, s, seed).unwrap()),
        (1u32..500, 0.01f64..=1.0, 0.0f64..=1.0, 0u64..5).prop_map(
            |(pages, part, share, moves)| {
                Source::hot_set(pages, hot(pages, part), share, moves).unwrap()
            }
        ),
    ]
}

/// This part of a number of pages, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
fn hot(pages: u32, part: f64) -> u32 {
    ((f64::from(pages) * part) as u32).max(1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_access_is_counted_once(source in any_source(), epoch in 0u64..20, accesses in 0u64..5_000, seed in any::<u64>()) {
        prop_assert_eq!(sum(&counted(&source, epoch, accesses, seed)), accesses);
    }

    #[test]
    fn counting_adds_to_the_existing_counts(source in any_source(), accesses in 0u64..1_000, seed in any::<u64>()) {
        let mut counts = vec![3; source.pages() as usize];
        source.count(0, accesses, &mut Rng::new(seed), &mut counts);
        let fresh = counted(&source, 0, accesses, seed);
        prop_assert!(counts.iter().zip(fresh).all(|(after, fresh)| *after == fresh + 3));
    }

    #[test]
    fn a_hot_set_that_has_all_accesses_is_a_window_of_its_size(pages in 2u32..300, part in 0.01f64..=1.0, moves in 0u64..4, epoch in 0u64..40, seed in any::<u64>()) {
        let hot = hot(pages, part);
        let source = Source::hot_set(pages, hot, 1.0, moves).unwrap();
        let counts = counted(&source, epoch, 2_000, seed);
        let start = epoch.checked_div(moves).unwrap_or(0) * u64::from(hot) % u64::from(pages);
        for (page, count) in (0u64..).zip(&counts) {
            let inside = (page + u64::from(pages) - start) % u64::from(pages) < u64::from(hot);
            prop_assert!(inside || *count == 0, "page {page} from {start}");
        }
    }

    #[test]
    fn a_larger_zipf_exponent_raises_the_share_of_the_hottest_page(pages in 20u32..300, exponent in 0.0f64..3.0, seed in any::<u64>()) {
        let most = |exponent| {
            let source = Source::zipf(pages, exponent, seed).unwrap();
            counted(&source, 0, 20_000, seed).into_iter().max().unwrap()
        };
        prop_assert!(most(exponent + 1.0) > most(exponent));
    }

    #[test]
    fn a_trace_accesses_only_its_spans_in_proportion_to_their_weights(first in 0u32..50, pages in 1u32..50, weight in 0.1f64..10.0, seed in any::<u64>()) {
        let spans = vec![Span { first, pages, weight }, Span { first: 100, pages: 10, weight: 1.0 }];
        let source = Source::trace(110, &[spans], 1).unwrap();
        let counts = counted(&source, seed % 9, 10_000, seed);
        let (low, high) = (first as usize, (first + pages) as usize);
        let one = sum(&counts[low..high]);
        prop_assert_eq!(one + sum(&counts[100..]), 10_000);
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let share = one as f64 / 10_000.0;
        prop_assert!((share - weight / (weight + 1.0)).abs() < 0.03, "{share}");
    }

    #[test]
    fn snapshots_are_played_in_turn(snapshots in 1u64..5, each in 1u64..4, epoch in 0u64..50) {
        let span = |first: u64| vec![Span { first: u32::try_from(first).unwrap(), pages: 1, weight: 1.0 }];
        let source = Source::trace(5, &(0..snapshots).map(span).collect::<Vec<_>>(), each).unwrap();
        let playing = usize::try_from(epoch / each % snapshots).unwrap();
        prop_assert_eq!(counted(&source, epoch, 100, 1)[playing], 100);
    }

    #[test]
    fn a_uniform_stream_is_served_in_proportion_to_the_placement(near in 1u32..100, threads in 1u32..4, seed in any::<u64>()) {
        let machine = two_tiers(1_000, 1_000);
        let drawn = workload(vec![region(100, 0, 1)], 1);
        let mut pages = Pages::of(&drawn, 1);
        (near..100).for_each(|page| pages.put(page as usize, 1));
        let options = Options { accesses: 100_000, epoch_ms: 1, threads, seed };
        let found = run(&machine, &drawn, &pages, &Source::uniform(100).unwrap(), options);
        prop_assert!((found.figures.local_access_ratio - f64::from(near) / 100.0).abs() < 0.02);
        prop_assert!(found.accesses >= options.accesses && found.epochs >= 1 && found.touched <= 100);
    }

    #[test]
    fn a_longer_stream_extends_the_shorter_one(accesses in 1u64..200_000, more in 1u64..200_000, seed in any::<u64>()) {
        let machine = two_tiers(1_000, 1_000);
        let drawn = workload(vec![region(50, 0, 1)], 1);
        let pages = Pages::of(&drawn, 1);
        let source = Source::uniform(50).unwrap();
        let stream = |accesses| run(&machine, &drawn, &pages, &source, Options { accesses, epoch_ms: 1, threads: 1, seed });
        let (short, long) = (stream(accesses), stream(accesses + more));
        prop_assert!(long.accesses >= short.accesses && long.epochs >= short.epochs);
        prop_assert!(close(long.figures.gbps, short.figures.gbps, 0.05), "all near either way");
    }
}

#[test]
fn an_invalid_source_is_rejected_with_the_valid_range() {
    for (refused, part) in [
        (Source::uniform(0), "1 to"),
        (Source::zipf(10, 4.5, 1), "0 to 4"),
        (Source::zipf(10, -0.1, 1), "0 to 4"),
        (Source::hot_set(10, 0, 0.5, 1), "1 to all"),
        (Source::hot_set(10, 5, f64::NAN, 1), "0 to 1"),
        (Source::trace(10, &[vec![]], 1), "nothing to play"),
    ] {
        let error: NoSource = refused.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn the_first_epoch_runs_at_the_idle_rate_and_the_second_at_the_served_rate() {
    let machine = two_tiers(1_000, 1_000);
    let mut drawn = workload(vec![region(100, 0, 1)], 1);
    (drawn.workers[0].lines, drawn.workers[0].think_ns) = (12.0, 40.0);
    let pages = Pages::of(&drawn, 1);
    let stream = |accesses| {
        let options = Options { accesses, epoch_ms: 2, threads: 2, seed: 3 };
        run(&machine, &drawn, &pages, &Source::uniform(100).unwrap(), options)
    };
    // 12 lines, each 40 ns of thinking and 80 ns from near memory: 0.1 in a nanosecond, for 2 ms.
    let first = stream(1);
    assert_eq!((first.epochs, first.accesses), (1, 200_000));
    let second = stream(200_001);
    assert_eq!(second.epochs, 2);
    #[expect(clippy::cast_precision_loss, reason = "a count of accesses")]
    let served = (second.accesses - 200_000) as f64;
    assert!(close(served, first.figures.gbps / 64.0 * 2e6, 1e-5), "{served} {first:?}");
    assert_eq!(first.touched, 100, "of 2000 accesses a page, each has some");
}
