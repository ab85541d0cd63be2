//! The studies' machines beyond their published rows: constraints between the published figures.

use nearfar_sim::published::{Row, colloid, duplex};
use proptest::prelude::*;

use crate::machines::close;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_far_share_of_zero_has_no_gain(reads in 0.0f64..=1.0) {
        let machine = duplex::machine().unwrap();
        prop_assert!(duplex::gain(&machine, 0.0, reads).abs() < 1e-9);
    }

    #[test]
    fn all_pages_in_cxl_memory_lose(reads in 0.3f64..=1.0) {
        let machine = duplex::machine().unwrap();
        prop_assert!(duplex::gain(&machine, 1.0, reads) < -0.3);
    }

    #[test]
    fn the_gain_has_one_maximum_over_the_share_of_far_pages(reads in 0.4f64..=1.0) {
        let machine = duplex::machine().unwrap();
        let gains: Vec<f64> = (0..=40).map(|far| duplex::gain(&machine, f64::from(far) / 40.0, reads)).collect();
        let top = (0..gains.len()).max_by(|a, b| gains[*a].total_cmp(&gains[*b])).unwrap();
        prop_assert!(gains[..=top].is_sorted_by(|a, b| *a <= b + 1e-6), "{gains:?}");
        prop_assert!(gains[top..].is_sorted_by(|a, b| *a >= b - 1e-6), "{gains:?}");
        prop_assert!(gains[top] > 0.0, "some far pages always gain on a machine this busy");
    }

    #[test]
    fn cxl_memory_gains_no_less_for_a_mix_than_for_reads_alone(far in 0.1f64..0.5, reads in 0.5f64..=1.0) {
        let machine = duplex::machine().unwrap();
        prop_assert!(duplex::gain(&machine, far, reads) >= duplex::gain(&machine, far, 1.0) - 1e-6);
    }

    #[test]
    fn contention_never_helps_the_application(near in 0.0f64..0.917, load in 0.0f64..3.0, more in 0.0f64..2.0, far in 0usize..4) {
        let machine = colloid::machine(colloid::FAR_NS[far]).unwrap();
        let per_ns = |load| colloid::flow(&machine, load, near).served[0].per_ns;
        prop_assert!(per_ns(load + more) <= per_ns(load) * (1.0 + 1e-6));
    }

    #[test]
    fn farther_memory_never_helps_the_application(near in 0.0f64..0.917, load in 0.0f64..3.0) {
        let per_ns = |far_ns| colloid::flow(&colloid::machine(far_ns).unwrap(), load, near).served[0].per_ns;
        let found = colloid::FAR_NS.map(per_ns);
        prop_assert!(found.iter().rev().is_sorted(), "{found:?}");
    }

    #[test]
    fn demands_have_the_published_numbers_of_lines(near in 0.0f64..=1.0, load in 0.0f64..3.0) {
        let [own, others] = colloid::demands(load, near);
        prop_assert!(close(own.lines, colloid::LINES, 1e-12) && close(own.shares.iter().sum(), 1.0, 1e-12));
        prop_assert!(close(others.lines, colloid::CONTENDING_LINES * load, 1e-12));
        prop_assert!(close(others.shares[0], 1.0, 1e-12), "they contend for near memory");
    }

    #[test]
    fn under_contention_equal_latencies_beat_filling_near_memory(load in 1.0f64..3.0) {
        let machine = colloid::machine(colloid::FAR_NS[0]).unwrap();
        let per_ns = |near| colloid::flow(&machine, load, near).served[0].per_ns;
        prop_assert!(per_ns(colloid::equal_latency(&machine, load)) > per_ns(colloid::NEAR_MOST));
    }
}

#[test]
fn machines_with_invalid_latencies_are_rejected() {
    for far_ns in [0.0, -135.0, f64::NAN, 1e9] {
        assert!(colloid::machine(far_ns).is_err(), "{far_ns}");
    }
}

#[test]
fn every_row_has_a_name_of_its_own_and_finite_figures() {
    let all = [colloid::rows(), duplex::rows()].concat();
    let names: std::collections::BTreeSet<(&str, &str)> =
        all.iter().map(|row: &Row| (row.table, row.what.as_str())).collect();
    assert_eq!(names.len(), all.len());
    assert_eq!(all.len(), 18);
    for row in &all {
        assert!(row.paper.is_finite() && row.model.is_finite(), "{row:?}");
        assert!(row.paper > 0.0 && row.tolerance > 0.0, "{row:?}");
    }
}

#[test]
fn colloid_and_duplex_rows_are_within_bounds() {
    for row in colloid::rows().into_iter().chain(duplex::rows()) {
        assert!(row.within(), "{row:?}");
    }
}
