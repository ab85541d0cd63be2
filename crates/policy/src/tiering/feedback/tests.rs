//! Feedback at its thresholds: the part is halved, the hot set has moved, a trial fails and backs off.

use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds};
use proptest::prelude::*;

use super::super::{Goals, Scanned, Seek, TierUsage};
use super::*;

const MIB: u64 = 1 << 20;
const HALF: u64 = WHOLE / 2;

/// A controller of 1 GiB of near memory with this window and these shares of near and far pages referenced, in basis
/// points; a part of one half that was last judged with 496 MiB referenced near and 200 MiB far.
fn tiering(window_ns: u64, near_used: u64, far_used: u64) -> Tiering {
    let mut tiering = Tiering::new(Goals::with_traffic(BytesPerSecond(1 << 30)));
    tiering.seek = Seek::Found;
    (tiering.window_ns, tiering.near_used) = (window_ns, Some(near_used));
    tiering.far_used = Some(far_used);
    let gain = tiering.gain().unwrap();
    tiering.part = Part::fresh(gain, [496 * MIB, 200 * MIB], window_ns);
    tiering
}

/// A scan after a second in which this was promoted; near pages were counted if `counted`.
fn seen(promoted: u64, counted: bool) -> Observation {
    let scan = |at, moved| Scanned { at: Bytes(at), used: Bytes(0), moved: Bytes(moved) };
    let side = |total, free| TierUsage { total: Bytes(total), free: Bytes(free) };
    Observation {
        elapsed: Nanoseconds(SECOND_NS),
        near: side(1024 * MIB, 0),
        far: side(4096 * MIB, 2096 * MIB),
        near_scan: scan(if counted { 1024 * MIB } else { 0 }, 0),
        far_scan: scan(2000 * MIB, promoted),
        ..Observation::default()
    }
}

#[test]
fn a_part_is_kept_if_near_memory_gained_a_referenced_page_for_eight_promoted() {
    // 128 MiB are an eighth of near memory, and 16 MiB an eighth of that; 512 MiB are referenced now.
    for (before, share) in [(496 * MIB, HALF), (496 * MIB + 1, HALF / 2)] {
        let mut tiering = tiering(SECOND_NS, 5_000, 1_000);
        tiering.part.used = before;
        tiering.judge_part(&seen(128 * MIB, true));
        assert_eq!((tiering.part.share, tiering.part.used), (share, 512 * MIB));
        assert_eq!(tiering.part.promoted, 0, "the next part begins");
    }
}

#[test]
fn a_part_is_judged_once_an_eighth_of_near_memory_has_been_promoted_in_any_number_of_scans() {
    let mut tiering = tiering(SECOND_NS, 4_000, 1_000);
    for _ in 0..127 {
        tiering.judge_part(&seen(MIB, true));
        assert_eq!(tiering.part.share, HALF);
    }
    tiering.judge_part(&seen(MIB, true));
    assert_eq!(tiering.part.share, HALF / 2, "near memory has lost referenced pages meanwhile");
}

#[test]
fn without_a_count_of_near_pages_far_memory_must_lose_a_referenced_page_for_sixteen_promoted() {
    // 200 MiB of far pages are referenced now, and 128 MiB were promoted: 8 MiB.
    for (before, share) in [(208 * MIB, HALF), (208 * MIB - 1, HALF / 2)] {
        let mut tiering = tiering(SECOND_NS, 5_000, 1_000);
        tiering.part.far = before;
        tiering.judge_part(&seen(128 * MIB, false));
        assert_eq!((tiering.part.share, tiering.part.far), (share, 200 * MIB));
    }
}

#[test]
fn six_scans_by_age_are_judged_however_little_they_promoted() {
    let mut tiering = tiering(SECOND_NS, 5_000, 1_000);
    let shares = [(); 12].map(|()| {
        tiering.judge_part(&seen(0, false));
        tiering.part.share
    });
    assert_eq!(shares[4..7], [HALF, HALF / 2, HALF / 2]);
    assert_eq!(shares[10..], [HALF / 2, HALF / 4]);
}

#[test]
fn a_gain_below_four_fifths_of_its_average_resets_the_part_and_all_trials() {
    // The average is 200 %; 160 % are four fifths.
    for (near_used, moved) in [(1_600, false), (1_599, true)] {
        let mut tiering = tiering(SECOND_NS, near_used, 1_000);
        (tiering.part.gain, tiering.part.share, tiering.calm) = (200, 700, 3);
        (tiering.trial.failed, tiering.trial.promoted) = (4, MIB);
        tiering.judge_part(&seen(0, true));
        assert_eq!(tiering.part.share, if moved { HALF } else { 700 });
        assert_eq!((tiering.trial.failed, tiering.calm), if moved { (0, 0) } else { (4, 3) });
        // One scan in four counts: (3 x 200 + 160) / 4.
        assert_eq!(tiering.part.gain, if moved { 159 } else { 190 });
    }
}

#[test]
fn a_window_that_changed_by_more_than_an_eighth_starts_another_comparison() {
    for (window_ns, kept) in [(SECOND_NS * 9 / 10, true), (SECOND_NS * 10 / 8, false)] {
        let mut tiering = tiering(window_ns, 1_500, 1_000);
        (tiering.part.gain, tiering.part.window_ns) = (180, SECOND_NS);
        tiering.part.promoted = 100 * MIB;
        tiering.judge_part(&seen(MIB, true));
        // Three quarters of the average, of 180 or started at 150, and a quarter of 150; each rounded down.
        assert_eq!(tiering.part.window_ns, if kept { SECOND_NS } else { window_ns });
        assert_eq!(tiering.part.gain, if kept { 135 + 37 } else { 112 + 37 });
        assert_eq!(tiering.part.promoted, 101 * MIB, "promotion keeps accumulating");
    }
}

/// One judgement of the trial at the longest window, which always fits; returns the remaining backoff in seconds.
fn trial(tiering: &mut Tiering, promoted: u64) -> u64 {
    tiering.judge_trial(&seen(promoted, true));
    tiering.trial.rest_ns / SECOND_NS
}

#[test]
fn each_failed_trial_in_a_row_backs_off_twice_as_long_up_to_half_an_hour() {
    let mut tiering = tiering(2 * SECOND_NS, 1_000, 1_000);
    let rests = [(); 9].map(|()| {
        let rest = trial(&mut tiering, 512 * MIB);
        (0..rest).for_each(|_| _ = trial(&mut tiering, 0));
        assert_eq!(tiering.trial.rest_ns, 0);
        rest
    });
    assert_eq!(rests, [30, 60, 120, 240, 480, 960, 1920, 1920, 1920]);
}

#[test]
fn a_trial_is_judged_after_half_of_near_memory_or_once_the_part_is_small() {
    let mut one = tiering(2 * SECOND_NS, 1_000, 1_000);
    assert_eq!([trial(&mut one, 511 * MIB), trial(&mut one, MIB)], [0, 30]);
    let mut small = tiering(2 * SECOND_NS, 1_000, 1_000);
    small.part.share = PART_SETTLED;
    assert_eq!(trial(&mut small, 0), 30);
    let mut unfit = tiering(SECOND_NS, 100, 100);
    assert_eq!(trial(&mut unfit, 1024 * MIB), 0, "the window finds 30 MiB hot, not about 500");
}

#[test]
fn a_trial_succeeds_by_a_gain_of_a_quarter_or_a_growth_of_a_twentieth() {
    for (before, near_used, rest) in
        [(0, 1_250, 0), (0, 1_240, 30), (100, 1_050, 0), (100, 1_040, 30), (120, 1_240, 30)]
    {
        let mut tiering = tiering(2 * SECOND_NS, near_used, 1_000);
        tiering.trial.gain = before;
        assert_eq!(trial(&mut tiering, 512 * MIB), rest, "{before} % to {} %", near_used / 10);
        assert_eq!(tiering.trial.failed, u32::from(rest > 0));
        assert_eq!(tiering.trial.gain, near_used / 10);
    }
}

#[test]
fn a_gain_that_changes_by_more_than_a_tenth_ends_the_backoff_and_forgets_failures() {
    for (near_used, rest) in [(1_100, 29), (1_110, 0), (900, 29), (890, 0)] {
        let mut tiering = tiering(2 * SECOND_NS, 1_000, 1_000);
        assert_eq!(trial(&mut tiering, 512 * MIB), 30);
        (tiering.near_used, tiering.part.share) = (Some(near_used), 700);
        assert_eq!(trial(&mut tiering, 0), rest, "{near_used}");
        let ended = rest == 0;
        assert_eq!(tiering.trial.failed, u32::from(!ended));
        assert_eq!(tiering.part.share, if ended { PART_MOST } else { 700 });
    }
    // A sample of near pages is no count of them: by age the backoff lasts.
    let mut tiering = tiering(2 * SECOND_NS, 1_000, 1_000);
    trial(&mut tiering, 512 * MIB);
    tiering.near_used = Some(5_000);
    tiering.judge_trial(&seen(0, false));
    assert_eq!(tiering.trial.rest_ns, 29 * SECOND_NS);
}

proptest! {
    #[test]
    fn the_part_stays_between_a_sixty_fourth_and_one_half_of_the_referenced_far_pages(
        scans in prop::collection::vec((0_u64..=10_000, 0_u64..=10_000, 0_u64..2048, any::<bool>(), 20_u64..2_000), 1..60),
    ) {
        let mut tiering = tiering(SECOND_NS, 5_000, 1_000);
        for (near_used, far_used, mib, counted, window_ms) in scans {
            (tiering.near_used, tiering.far_used) = (Some(near_used), Some(far_used));
            tiering.window_ns = window_ms * 1_000_000;
            tiering.judge_part(&seen(mib * MIB, counted));
            tiering.judge_trial(&seen(mib * MIB, counted));
            prop_assert!((PART_LEAST..=PART_MOST).contains(&tiering.part.share));
            prop_assert!(tiering.trial.rest_ns <= REST_NS << RESTS_MAX);
        }
    }
}
