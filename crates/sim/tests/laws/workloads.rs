//! Workloads by name: each is whole on the machines it is for, and refused with a reason on others.

use nearfar_sim::machine::Machine;
use nearfar_sim::published::{How, Row, Unit, colloid};
use nearfar_sim::workload::{NAMES, Unsuited, find};

use crate::machines::{alike, close, two_tiers};

fn machines() -> [Machine; 4] {
    [
        alike(2, 1 << 20),
        alike(4, 1 << 20),
        two_tiers(1 << 23, 1 << 24),
        colloid::machine(168.0).unwrap(),
    ]
}

#[test]
fn shares_of_every_workload_add_up_to_the_whole() {
    let mut found = 0;
    for machine in machines() {
        for (name, _) in NAMES {
            let Ok(workload) = find(name, &machine) else { continue };
            found += 1;
            assert_eq!(workload.name, name);
            let whole = |shares: &[f64]| close(shares.iter().sum(), 1.0, 1e-9);
            assert!(workload.workers.iter().all(|worker| whole(&worker.uses)), "{name}");
            assert!(
                workload.workers.iter().all(|of| of.uses.len() == workload.regions.len()),
                "{name}"
            );
            assert!(workload.regions.iter().all(|region| whole(&region.touched_by)), "{name}");
            assert!(
                workload.regions.iter().all(|of| of.hot_pages <= of.pages && of.pages > 0),
                "{name}"
            );
        }
    }
    assert!(found >= 12, "{found}");
}

#[test]
fn every_row_has_one_worker_and_every_antagonist_a_valid_node() {
    for machine in machines() {
        for (name, _) in NAMES {
            let Ok(workload) = find(name, &machine) else { continue };
            let rows: Vec<usize> = workload.workers.iter().map(|worker| worker.row).collect();
            assert_eq!(rows, (0..machine.cpu_nodes.len()).collect::<Vec<_>>(), "{name}");
            let known = workload.antagonists.iter().all(|of| of.node < machine.nodes.len());
            assert!(known, "{name}");
        }
    }
}

#[test]
fn a_workload_on_an_unsuited_machine_is_rejected_with_both_names() {
    for machine in machines() {
        for (name, _) in NAMES {
            if let Err(error) = find(name, &machine) {
                assert!(matches!(error, Unsuited::Machine { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains(name) && text.contains(&machine.name), "{text}");
            }
        }
    }
    let unknown = find("streamclusters", &alike(2, 1)).unwrap_err();
    assert_eq!(unknown, Unsuited::Unknown("streamclusters".into()));
}

#[test]
fn contention_changes_antagonists_and_nothing_else() {
    let machine = colloid::machine(135.0).unwrap();
    let quiet = find("hot-set", &machine).unwrap();
    let mut loud = quiet.clone().contended(77.0);
    assert!(loud.antagonists.iter().all(|of| close(of.lines, 77.0, 1e-12)));
    loud.antagonists.clone_from(&quiet.antagonists);
    assert_eq!(loud, quiet);
}

#[test]
fn the_share_of_equal_latencies_falls_with_contention_and_rises_with_distance() {
    let mut before: Option<Vec<f64>> = None;
    for far_ns in colloid::FAR_NS {
        let machine = colloid::machine(far_ns).unwrap();
        let shares: Vec<f64> =
            (0..4).map(|load| colloid::equal_latency(&machine, f64::from(load))).collect();
        assert!(shares.iter().rev().is_sorted(), "{far_ns}: {shares:?}");
        if let Some(nearer) = &before {
            assert!(nearer.iter().zip(&shares).all(|(nearer, farther)| *farther >= nearer - 1e-6));
        }
        before = Some(shares);
    }
}

#[test]
fn latencies_are_equal_at_the_equal_latency_share_within_its_limits() {
    for far_ns in colloid::FAR_NS {
        let machine = colloid::machine(far_ns).unwrap();
        for load in [0.0, 0.5, 1.0, 2.0, 3.0] {
            let share = colloid::equal_latency(&machine, load);
            let loaded = &colloid::flow(&machine, load, share).served[0].loaded_ns;
            let is_end = !(1e-5..colloid::NEAR_MOST - 1e-5).contains(&share);
            assert!(
                is_end || close(loaded[0], loaded[1], 1e-3),
                "{far_ns} {load}: {loaded:?} at {share}"
            );
        }
    }
}

#[test]
fn the_difference_of_a_row_is_relative_to_the_published_value() {
    let row = |model: f64, how| Row {
        table: "t",
        what: "w".into(),
        unit: Unit::Ratio,
        paper: 4.0,
        model,
        tolerance: 0.1,
        how,
        because: "",
        left_out: None,
    };
    assert!(close(row(5.0, How::Predicted).difference(), 0.25, 1e-12));
    for how in [How::Fitted, How::Predicted] {
        assert!(row(4.39, how).within() && row(3.61, how).within() && !row(4.41, how).within());
    }
    let words = [How::Fitted, How::Predicted, How::Implied, How::Limit].map(How::word);
    assert_eq!(words, ["fitted", "predicted", "implied", "limit"]);
}
