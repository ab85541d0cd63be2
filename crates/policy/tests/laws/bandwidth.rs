//! Bandwidth by mix: exact on a shared bus, between its neighbours elsewhere, and never invented.

use nearfar_policy::{BandwidthByMix, BandwidthError};
use nearfar_topology::{BytesPerSecond, Mix};
use proptest::prelude::*;

prop_compose! {
    fn any_mix()(reads in 0u16..=100, writes in 0u16..=100) -> Mix {
        Mix::new(reads, writes).unwrap_or(Mix::READS)
    }
}

fn rate() -> impl Strategy<Value = u64> {
    1u64..=1_000_000_000_000
}

fn bus(read: u64, write: u64) -> BandwidthByMix {
    BandwidthByMix::from_read_write(BytesPerSecond(read), Some(BytesPerSecond(write))).unwrap()
}

fn at(known: &BandwidthByMix, mix: Mix) -> u64 {
    known.at(mix).unwrap().0
}

/// Points at distinct mixes.
fn points() -> impl Strategy<Value = Vec<(Mix, BytesPerSecond)>> {
    prop::collection::btree_map(any_mix(), rate().prop_map(BytesPerSecond), 1..6)
        .prop_map(Vec::from_iter)
        .prop_shuffle()
}

proptest! {
    #[test]
    fn on_a_shared_bus_the_time_of_a_mix_is_that_of_its_reads_and_writes(mix in any_mix(), read in rate(), write in rate()) {
        let (r, w) = (u128::from(mix.reads()), u128::from(mix.writes()));
        let (read, write) = (u128::from(read), u128::from(write));
        let exact = (r + w) * read * write / (r * write + w * read);
        let found = at(&bus(u64::try_from(read).unwrap(), u64::try_from(write).unwrap()), mix);
        prop_assert!(exact.abs_diff(u128::from(found)) <= 1, "{found} {exact}");
    }

    #[test]
    fn order_and_repetition_of_points_do_not_matter(points in points(), asked in any_mix()) {
        let known = BandwidthByMix::from_points(points.clone()).unwrap();
        let reversed = BandwidthByMix::from_points(points.iter().rev().copied()).unwrap();
        let twice = BandwidthByMix::from_points(points.iter().chain(&points).copied()).unwrap();
        prop_assert_eq!(&known, &reversed);
        prop_assert_eq!(&known, &twice);
        prop_assert_eq!(known.at(asked), twice.at(asked));
    }

    #[test]
    fn a_known_point_is_returned_exactly(points in points()) {
        let known = BandwidthByMix::from_points(points.clone()).unwrap();
        for (mix, bandwidth) in points {
            prop_assert_eq!(known.at(mix), Ok(bandwidth));
        }
    }

    #[test]
    fn points_are_listed_by_rising_share_of_writes(points in points()) {
        let known = BandwidthByMix::from_points(points.clone()).unwrap();
        prop_assert_eq!(known.points().len(), points.len());
        let shares = known.points().iter().map(|(mix, _)| mix.read_share());
        prop_assert!(shares.rev().is_sorted());
    }

    #[test]
    fn a_mix_within_the_known_range_is_interpolated_and_rejected_outside(points in points(), asked in any_mix()) {
        let known = BandwidthByMix::from_points(points.clone()).unwrap();
        let more_writes = |a: Mix, b: Mix| u32::from(a.writes()) * u32::from(b.reads()) > u32::from(b.writes()) * u32::from(a.reads());
        let [first, last] = [known.points()[0].0, known.points()[points.len() - 1].0];
        let outside = more_writes(first, asked) || more_writes(asked, last);
        match known.at(asked) {
            Ok(bandwidth) => {
                prop_assert!(!outside);
                let all = || points.iter().map(|(_, bandwidth)| *bandwidth);
                prop_assert!(Some(bandwidth) >= all().min() && Some(bandwidth) <= all().max());
            }
            Err(error) => {
                prop_assert!(outside && matches!(error, BandwidthError::Outside { .. }), "{error}");
                prop_assert!(points.iter().all(|(mix, _)| error.to_string().contains(&mix.to_string())), "{error}");
            }
        }
    }

    #[test]
    fn a_faster_bus_is_never_slower_at_any_mix(mix in any_mix(), read in rate(), write in rate(), more in 0u64..1 << 40) {
        prop_assert!(at(&bus(read + more, write), mix) >= at(&bus(read, write), mix));
        prop_assert!(at(&bus(read, write + more), mix) >= at(&bus(read, write), mix));
    }

    #[test]
    fn more_reads_never_lower_bandwidth_if_reads_are_faster(reads in 0u16..100, writes in 1u16..=100, write in rate(), more in 0u64..1 << 40) {
        let known = bus(write + more, write);
        let [fewer, more] = [reads, reads + 1].map(|reads| Mix::new(reads, writes).unwrap());
        prop_assert!(at(&known, more) >= at(&known, fewer));
    }

    #[test]
    fn scaling_both_figures_scales_every_mix(mix in any_mix(), read in 1u64..1_000_000, write in 1u64..1_000_000, by in 1u64..1_000) {
        let (one, scaled) = (at(&bus(read, write), mix), at(&bus(read * by, write * by), mix));
        prop_assert!(scaled >= one * by && scaled < (one + 1) * by, "rounded down at the finer scale");
    }

    #[test]
    fn two_figures_for_one_mix_are_refused_and_the_mix_is_named(points in points(), at in any::<prop::sample::Index>()) {
        let (mix, bandwidth) = points[at.index(points.len())];
        let other = BytesPerSecond(bandwidth.0 + 1);
        let error = BandwidthByMix::from_points(points.into_iter().chain([(mix, other)])).unwrap_err();
        prop_assert_eq!(&error, &BandwidthError::Twice { mix });
        prop_assert!(error.to_string().contains(&mix.to_string()));
    }
}

#[test]
fn a_single_point_gives_a_bandwidth_for_its_own_mix_only() {
    let known = BandwidthByMix::from_points([(Mix::TWO_TO_ONE, BytesPerSecond(5))]).unwrap();
    assert_eq!(known.at(Mix::TWO_TO_ONE), Ok(BytesPerSecond(5)));
    for mix in [Mix::READS, Mix::ONE_TO_ONE] {
        assert!(matches!(known.at(mix), Err(BandwidthError::Outside { .. })), "{mix}");
    }
}
