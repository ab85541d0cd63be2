//! Metrics of the traffic studies, computed from a flow.

use crate::flow::{self, Flow};
use crate::machine::Machine;
use crate::pages::Pages;
use crate::workload::Workload;

/// Figures of a placement. All of them are simulated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Share of the workload's lines served by the node of the requesting CPUs.
    pub local_access_ratio: f64,
    /// Mean latency of the workload's lines.
    pub latency_ns: f64,
    /// Imbalance of controllers: sample standard deviation over mean.
    pub controller_imbalance: f64,
    /// The same for directed links, coherence probes included; 0 on a machine without links.
    pub interconnect_imbalance: f64,
    /// The workload's bytes per nanosecond, equal to 10^9 bytes/s.
    pub gbps: f64,
    /// Utilisation of the busiest controller.
    pub busiest_controller: f64,
}

/// The figures of `workload`; its workers' demands come first in `flow`, then those of antagonists.
#[must_use]
pub fn figures(
    machine: &Machine,
    workload: &Workload,
    shares: &[Vec<f64>],
    flow: &Flow,
) -> Figures {
    let own = flow.served.iter().zip(&workload.workers).zip(shares);
    let (mut lines, mut waited, mut local) = (0.0, 0.0, 0.0);
    for ((served, worker), shares) in own {
        lines += served.per_ns;
        waited += served.per_ns * served.latency_ns;
        local += served.per_ns * shares[machine.cpu_nodes[worker.row]];
    }
    let of = |sum: f64| if lines > 0.0 { sum / lines } else { 0.0 };
    Figures {
        local_access_ratio: of(local),
        latency_ns: of(waited),
        controller_imbalance: imbalance(&flow.controllers),
        interconnect_imbalance: imbalance(&flow.links),
        gbps: lines * crate::machine::LINE,
        busiest_controller: flow.controllers_busy.iter().copied().fold(0.0, f64::max),
    }
}

/// The mean of each figure; zeros without any.
pub fn mean<'a>(of: impl Iterator<Item = &'a Figures>) -> Figures {
    let mut sum = Figures::default();
    let mut count = 0.0;
    for one in of {
        count += 1.0;
        sum.each(one, |sum, one| sum + one);
    }
    let all = sum.clone();
    sum.each(&all, |_, all| if count > 0.0 { all / count } else { 0.0 });
    sum
}

impl Figures {
    fn each(&mut self, other: &Self, with: impl Fn(f64, f64) -> f64) {
        let Self {
            local_access_ratio,
            latency_ns,
            controller_imbalance,
            interconnect_imbalance,
            gbps,
            busiest_controller,
        } = self;
        for (own, other) in [
            (local_access_ratio, other.local_access_ratio),
            (latency_ns, other.latency_ns),
            (controller_imbalance, other.controller_imbalance),
            (interconnect_imbalance, other.interconnect_imbalance),
            (gbps, other.gbps),
            (busiest_controller, other.busiest_controller),
        ] {
            *own = with(*own, other);
        }
    }
}

/// Sample standard deviation over mean; 0 for fewer than two counts or without traffic. All traffic on one of four
/// gives 2.
#[must_use]
pub fn imbalance(of: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let count = of.len() as f64;
    let mean = of.iter().sum::<f64>() / count.max(1.0);
    if count < 2.0 || mean <= 0.0 {
        return 0.0;
    }
    let squares: f64 = of.iter().map(|one| (one - mean) * (one - mean)).sum();
    (squares / (count - 1.0)).sqrt() / mean
}

/// The steady state of the present placement.
#[must_use]
pub fn steady(machine: &Machine, workload: &Workload, pages: &Pages) -> Figures {
    let demands = pages.demands(workload, machine);
    let flow = flow::solve(machine, &demands, &[]);
    let shares: Vec<Vec<f64>> = demands.into_iter().map(|demand| demand.shares).collect();
    figures(machine, workload, &shares, &flow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Served;

    #[test]
    fn the_mean_is_taken_for_each_figure() {
        let of = |gbps| Figures { gbps, latency_ns: 2.0 * gbps, ..Figures::default() };
        let found = mean([of(1.0), of(4.0)].iter());
        assert!((found.gbps - 2.5).abs() < 1e-12 && (found.latency_ns - 5.0).abs() < 1e-12);
        assert_eq!(mean([].iter()), Figures::default());
    }

    #[test]
    fn imbalance_is_two_if_one_of_four_nodes_serves_everything() {
        assert!((imbalance(&[8.0, 0.0, 0.0, 0.0]) - 2.0).abs() < 1e-12);
        assert!(imbalance(&[3.0; 4]).abs() < 1e-12);
        for nothing in [&[][..], &[1.0], &[0.0, 0.0]] {
            assert!(imbalance(nothing).abs() < 1e-12);
        }
    }

    #[test]
    fn figures_are_weighted_by_lines_and_exclude_antagonists() {
        let machine = crate::testkit::ring();
        let mut workload = crate::workload::find("pca", &machine).unwrap();
        workload.workers.truncate(2);
        let served = |per_ns, latency_ns| Served { per_ns, latency_ns, loaded_ns: vec![0.0; 4] };
        let flow = Flow {
            // The last is an antagonist's.
            served: vec![served(1.0, 100.0), served(3.0, 200.0), served(50.0, 900.0)],
            controllers: vec![2.0, 2.0, 0.0, 0.0],
            links: vec![3.0, 1.0],
            controllers_busy: vec![0.3, 0.7, 0.0, 0.1],
            links_busy: vec![0.9, 0.2],
            settled: true,
        };
        let shares = [vec![0.5, 0.5, 0.0, 0.0], vec![0.2, 0.8, 0.0, 0.0]];
        let found = figures(&machine, &workload, &shares, &flow);
        for (found, expected) in [
            // Half of one line and 80 % of three.
            (found.local_access_ratio, 2.9 / 4.0),
            (found.latency_ns, 700.0 / 4.0),
            (found.gbps, 256.0),
            (found.busiest_controller, 0.7),
            // Deviations of one on four nodes: the root of 4 / 3, over a mean of 1. On two links: of 2 / 1, over 2.
            (found.controller_imbalance, (4.0f64 / 3.0).sqrt()),
            (found.interconnect_imbalance, 2.0f64.sqrt() / 2.0),
        ] {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
    }
}
