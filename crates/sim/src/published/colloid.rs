//! Colloid (Vuppalapati and Agarwal, 2024) on HeMem: two tiers, with contention by others for the near one.
//!
//! # The machine and the workload
//! Near memory has 70 ns and 145 GB/s, far memory 70 GB/s and 135 to 192 ns, loaded latency is `L0 + a u^k / (1 - u)`.
//! An application of 15 cores with [`LINES`] outstanding lines makes 90 % of its accesses to 24 of its 72 GB; near
//! memory has 32 GB. Filled with the hottest pages first, near memory serves 0.917 of its accesses. Contention of 1, 2
//! and 3 is 5, 10 and 15 cores that read near memory, with [`CONTENDING_LINES`] outstanding lines per unit. Far memory
//! can hold all 72 GB, so every smaller near share is possible, down to zero.
//!
//! # Fitted parameters
//! Near capacity, far capacity, a, k and both numbers of lines: six parameters, fitted to the rows of 135 and 192 ns.
//! Of the rows of 148 and 168 ns, those are predicted in which the search leaves the end of the range; in the others the
//! ratio is 1 by construction. Sizes are from memory, not from the paper.
//!
//! # Comparison
//! The published figure is Colloid's throughput over that of filling near memory first. The model's is the throughput
//! at equal latencies of the tiers, or at the end of the range if they are never equal: the point to which Colloid's
//! search converges.

use nearfar_topology::Bytes;

pub use crate::workload::HOT_SET_LINES as LINES;

use super::{How, Row, Unit, fit};
use crate::flow::{self, Demand, Flow};
use crate::machine::{Builder, Machine, Node, Refusal, Waiting};
use crate::threads;

/// Latencies of far memory in the study, ns.
pub const FAR_NS: [f64; 4] = [135.0, 148.0, 168.0, 192.0];
/// Outstanding lines per unit of contention.
pub const CONTENDING_LINES: f64 = 222.0;
/// Share of accesses served by near memory filled with the hottest pages: 24 GB receive 90 %, and 8 of the other 48 GB
/// a sixth of the rest.
pub const NEAR_MOST: f64 = 0.9 + 0.1 * 8.0 / 48.0;

/// Published ratios, by far latency and contention of 0 to 3.
const PUBLISHED: [[f64; 4]; 4] = [
    [1.01, 1.17, 1.65, 2.36],
    [1.00, 1.09, 1.54, 2.19],
    [0.99, 1.02, 1.37, 1.97],
    [0.99, 1.01, 1.25, 1.76],
];
const TOLERANCE: f64 = 0.05;

/// The free parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// Bandwidth of near and of far memory, GB/s.
    pub gbps: [f64; 2],
    /// Scale of the waiting curve, a.
    pub factor_ns: f64,
    /// Exponent of the waiting curve, k.
    pub power: f64,
    /// Outstanding lines of the application.
    pub lines: f64,
    /// Outstanding lines per unit of contention.
    pub contending: f64,
}

/// Their values.
pub const FITTED: Fitted = Fitted {
    gbps: [145.0, 70.0],
    factor_ns: 2.66,
    power: 2.45,
    lines: LINES,
    contending: CONTENDING_LINES,
};
/// Waiting curve of both nodes.
pub const CURVE: Waiting = Waiting::Curve { factor_ns: FITTED.factor_ns, power: FITTED.power };

impl Fitted {
    fn machine(&self, far_ns: f64) -> Result<Machine, Refusal> {
        let waiting = Waiting::Curve { factor_ns: self.factor_ns, power: self.power };
        let node = |gib: u64, gbps: f64| Node {
            size: Bytes(gib << 30),
            read_gbps: gbps,
            write_gbps: gbps,
            duplex: false,
            waiting: waiting.clone(),
        };
        let tiers = vec![(70.0, node(32, self.gbps[0])), (far_ns, node(96, self.gbps[1]))];
        Builder::tiers(&format!("colloid-{far_ns}ns"), 2.8, tiers).build()
    }

    fn demands(&self, contention: f64, near: f64) -> [Demand; 2] {
        let demand = |lines: f64, near: f64| Demand {
            row: 0,
            lines,
            think_ns: 0.0,
            reads: 1.0,
            shares: vec![near, 1.0 - near],
        };
        [demand(self.lines, near), demand(self.contending * contention, 1.0)]
    }

    fn flow(&self, machine: &Machine, contention: f64, near: f64) -> Flow {
        flow::solve(machine, &self.demands(contention, near), &[])
    }

    fn equal_latency(&self, machine: &Machine, contention: f64) -> f64 {
        let near_slower = |near: f64| {
            let loaded = &self.flow(machine, contention, near).served[0].loaded_ns;
            loaded[0] > loaded[1]
        };
        let (mut low, mut high) = (0.0, NEAR_MOST);
        if !near_slower(high) {
            return high;
        }
        for _ in 0..24 {
            let middle = 0.5 * (low + high);
            if near_slower(middle) { high = middle } else { low = middle }
        }
        low
    }

    /// Throughput at equal latencies over that of near memory filled first; not a number if there is no such machine.
    fn ratio(&self, far_ns: f64, contention: f64) -> f64 {
        let Ok(machine) = self.machine(far_ns) else { return f64::NAN };
        let per_ns = |near| self.flow(&machine, contention, near).served[0].per_ns;
        per_ns(self.equal_latency(&machine, contention)) / per_ns(NEAR_MOST)
    }
}

/// The study's machine with far memory of this latency.
///
/// # Errors
/// [`Refusal`] for an invalid latency.
pub fn machine(far_ns: f64) -> Result<Machine, Refusal> {
    FITTED.machine(far_ns)
}

/// Demands of the application, with the share `near` of its accesses to near memory, and of the contending cores.
#[must_use]
pub fn demands(contention: f64, near: f64) -> [Demand; 2] {
    FITTED.demands(contention, near)
}

/// The steady state with the share `near` of the application's accesses to near memory, beside the contending cores.
#[must_use]
pub fn flow(machine: &Machine, contention: f64, near: f64) -> Flow {
    FITTED.flow(machine, contention, near)
}

/// The near share at which both tiers have equal latency; the nearest end of the range if they are never equal.
#[must_use]
pub fn equal_latency(machine: &Machine, contention: f64) -> f64 {
    FITTED.equal_latency(machine, contention)
}

const CLAMPED: &str = "1.00 by construction: near memory stays the faster one, so nothing is moved";

/// Far latency, contention and published ratio of all rows.
fn published() -> impl Iterator<Item = (f64, f64, f64)> {
    let of = |(far_ns, papers): (f64, [f64; 4])| {
        [0.0, 1.0, 2.0, 3.0].into_iter().zip(papers).map(move |(load, paper)| (far_ns, load, paper))
    };
    FAR_NS.into_iter().zip(PUBLISHED).flat_map(of)
}

/// All 16 ratios.
#[must_use]
pub fn rows() -> Vec<Row> {
    let row = |(far_ns, contention, paper): (f64, f64, f64)| {
        let model = FITTED.ratio(far_ns, contention);
        let is_clamped =
            machine(far_ns).is_ok_and(|machine| equal_latency(&machine, contention) >= NEAR_MOST);
        let (how, because) = if is_clamped {
            (How::Implied, CLAMPED)
        } else if far_ns == FAR_NS[0] || far_ns == FAR_NS[3] {
            (How::Fitted, "")
        } else {
            (How::Predicted, "")
        };
        Row {
            table: "Colloid on HeMem",
            what: format!("far memory of {far_ns} ns, contention {contention}"),
            unit: Unit::Ratio,
            paper,
            model,
            tolerance: TOLERANCE,
            how,
            because,
            left_out: None,
        }
    };
    published().map(row).collect()
}

/// Refits all six parameters without each fitted row in turn, and notes how far the row then is off.
pub(super) fn left_out(rows: &mut [Row]) {
    let start = [
        FITTED.gbps[0],
        FITTED.gbps[1],
        FITTED.factor_ns,
        FITTED.power,
        FITTED.lines,
        FITTED.contending,
    ];
    let errors = |at: &[f64]| -> Vec<f64> {
        let of = Fitted {
            gbps: [at[0], at[1]],
            factor_ns: at[2],
            power: at[3],
            lines: at[4],
            contending: at[5],
        };
        published().map(|(far_ns, load, paper)| of.ratio(far_ns, load) / paper - 1.0).collect()
    };
    let places: Vec<usize> = (0..rows.len()).filter(|row| rows[*row].how == How::Fitted).collect();
    let off = threads::map(&places, |place| {
        let without = |at: &[f64]| {
            let mut errors = errors(at);
            errors[*place] = 0.0;
            errors
        };
        Some(errors(&fit::fit(&start, &without)?)[*place])
    });
    for (place, off) in places.into_iter().zip(off) {
        rows[place].left_out = off;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The publication's trends, as a check of the copied figures.
    #[test]
    fn published_gains_rise_with_contention_and_fall_with_the_latency_of_far_memory() {
        assert!(PUBLISHED.iter().all(|row| row.is_sorted()));
        for load in 0..4 {
            assert!(PUBLISHED.map(|row| row[load]).iter().rev().is_sorted(), "{load}");
        }
    }

    #[test]
    fn a_row_at_the_end_of_the_range_is_implied_and_only_middle_latencies_are_predicted() {
        let found = rows();
        assert_eq!(found.len(), 16);
        for (row, (far_ns, load, paper)) in found.iter().zip(published()) {
            assert!(
                (row.paper - paper).abs() < 1e-12 && row.what.contains(&format!("{far_ns} ns"))
            );
            // Contention of 1 leaves near memory the faster one if far memory is far enough.
            let is_clamped = load == 0.0 || (load == 1.0 && far_ns > 140.0);
            let is_fitted = far_ns == 135.0 || far_ns == 192.0;
            if row.how == How::Implied {
                assert!(is_clamped && (row.model - 1.0).abs() < 1e-12, "{row:?}");
            } else {
                assert_eq!(row.how == How::Fitted, is_fitted, "{row:?}");
                assert!(row.model > 1.0, "{row:?}");
            }
        }
    }

    #[test]
    fn equal_tiers_without_contention_balance_at_a_share_of_one_half() {
        let equal = Fitted { gbps: [100.0, 100.0], ..FITTED };
        // Both have 70 ns.
        let machine = equal.machine(70.0).unwrap();
        let share = equal.equal_latency(&machine, 0.0);
        assert!((share - 0.5).abs() < 1e-6, "{share}");
        assert!(equal.ratio(70.0, 0.0) > 1.0);
        assert!(equal.ratio(f64::NAN, 0.0).is_nan(), "no such machine");
    }
}
