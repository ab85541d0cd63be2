//! Figures: shares of served lines, means between extremes, imbalance of proportions.

use nearfar_sim::flow::solve;
use nearfar_sim::machine::LINE;
use nearfar_sim::metrics::{Figures, figures, imbalance, mean};
use proptest::prelude::*;

use crate::machines::{any_traffic, close, region, workload};

fn counts() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.0f64..100.0, 2..8)
}

proptest! {
    #[test]
    fn imbalance_depends_on_proportions_and_not_on_order(counts in counts(), by in 0.5f64..20.0) {
        let scaled: Vec<f64> = counts.iter().rev().map(|count| count * by).collect();
        prop_assert!((imbalance(&counts) - imbalance(&scaled)).abs() < 1e-9);
    }

    #[test]
    fn imbalance_lies_between_even_and_one_node_with_everything(counts in counts()) {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let most = (counts.len() as f64).sqrt();
        prop_assert!((0.0..=most + 1e-9).contains(&imbalance(&counts)));
    }

    #[test]
    fn adding_the_same_load_to_each_node_never_raises_imbalance(counts in counts(), more in 0.1f64..100.0) {
        let raised: Vec<f64> = counts.iter().map(|count| count + more).collect();
        prop_assert!(imbalance(&raised) <= imbalance(&counts) + 1e-9 || counts.iter().sum::<f64>() <= 0.0);
    }

    #[test]
    fn a_mean_lies_between_the_least_and_the_most(gbps in prop::collection::vec(0.0f64..100.0, 1..10)) {
        let all: Vec<Figures> = gbps.iter().map(|gbps| Figures { gbps: *gbps, latency_ns: 300.0 - gbps, ..Figures::default() }).collect();
        let found = mean(all.iter());
        let (least, most) = (gbps.iter().copied().fold(f64::INFINITY, f64::min), gbps.iter().copied().fold(0.0, f64::max));
        prop_assert!(found.gbps >= least - 1e-9 && found.gbps <= most + 1e-9);
        prop_assert!(close(found.latency_ns, 300.0 - found.gbps, 1e-9), "each figure has its own mean");
    }

    #[test]
    fn figures_are_computed_from_the_lines_served((machine, demands) in any_traffic()) {
        let flow = solve(&machine, &demands, &[]);
        let mut workload = workload(vec![region(1, 0, 1)], demands.len());
        for (worker, demand) in workload.workers.iter_mut().zip(&demands) {
            worker.row = demand.row;
        }
        let shares: Vec<Vec<f64>> = demands.iter().map(|demand| demand.shares.clone()).collect();
        let found = figures(&machine, &workload, &shares, &flow);
        let lines: f64 = flow.served.iter().map(|served| served.per_ns).sum();
        prop_assert!(close(found.gbps, lines * LINE, 1e-9));
        prop_assert!((0.0..=1.0 + 1e-9).contains(&found.local_access_ratio));
        let latencies = || flow.served.iter().map(|served| served.latency_ns);
        prop_assert!(found.latency_ns >= latencies().fold(f64::INFINITY, f64::min) - 1e-6);
        prop_assert!(found.latency_ns <= latencies().fold(0.0, f64::max) + 1e-6);
        prop_assert!(flow.controllers_busy.iter().all(|busy| *busy <= found.busiest_controller));
    }

    #[test]
    fn accesses_to_local_memory_alone_have_a_local_ratio_of_one((machine, demands) in any_traffic()) {
        let mut own = demands;
        for demand in &mut own {
            let home = machine.cpu_nodes[demand.row];
            demand.shares.iter_mut().enumerate().for_each(|(node, share)| *share = if node == home { 1.0 } else { 0.0 });
        }
        let mut workload = workload(vec![region(1, 0, 1)], own.len());
        workload.workers.iter_mut().zip(&own).for_each(|(worker, demand)| worker.row = demand.row);
        let shares: Vec<Vec<f64>> = own.iter().map(|demand| demand.shares.clone()).collect();
        let found = figures(&machine, &workload, &shares, &solve(&machine, &own, &[]));
        prop_assert!(close(found.local_access_ratio, 1.0, 1e-9));
    }
}
