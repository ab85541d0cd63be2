//! The same workload on the same machine under several policies.

use crate::flow;
use crate::machine::Machine;
use crate::metrics::{Figures, figures};
use crate::pages::Pages;
use crate::policy::Policy;
use crate::workload::Workload;

/// What a policy came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Which.
    pub policy: Policy,
    /// Its figures.
    pub figures: Figures,
    /// Its throughput over that of first touch.
    pub speedup: f64,
}

/// Each of `policies` in turn, in the same draw of pages; first touch is run beside them whether it is one of them or not.
#[must_use]
pub fn compare(
    machine: &Machine,
    workload: &Workload,
    policies: &[Policy],
    seed: u64,
) -> Vec<Compared> {
    let run = |policy: Policy| {
        let mut pages = Pages::of(workload, seed);
        policy.place(&mut pages, workload, machine);
        steady(machine, workload, &pages)
    };
    let first_touch = run(Policy::FirstTouch);
    policies
        .iter()
        .map(|policy| {
            let figures =
                if *policy == Policy::FirstTouch { first_touch.clone() } else { run(*policy) };
            let speedup =
                if first_touch.gbps > 0.0 { figures.gbps / first_touch.gbps } else { 1.0 };
            Compared { policy: *policy, figures, speedup }
        })
        .collect()
}

/// The steady state with pages where they are.
#[must_use]
pub fn steady(machine: &Machine, workload: &Workload, pages: &Pages) -> Figures {
    let demands = pages.demands(workload, machine);
    let flow = flow::solve(machine, &demands, &[]);
    let shares: Vec<Vec<f64>> = demands.into_iter().map(|demand| demand.shares).collect();
    figures(machine, workload, &shares, &flow)
}
