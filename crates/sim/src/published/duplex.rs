//! Weighted interleave over DRAM and CXL memory (HMSDK, 2024): 8 channels of DDR5 and 4 of CXL memory, two pages to one.
//!
//! DRAM is half duplex: reads and writes share its capacity; CXL memory is full duplex: each direction has its own. So
//! the gain by CXL memory depends on the mix: at two reads per write its read direction saturates first, at one to one
//! both are used and DRAM is the limit.
//!
//! Two gains over DRAM alone are published, and two parameters are fitted to them: the capacity of CXL memory per
//! direction ([`CXL_GBPS`], the DRAM's being 250 GB/s, which cancels out) and the outstanding lines ([`LINES`]), about
//! twice the number that DRAM alone needs. Latencies of 100 and 250 ns are typical of the class. So both rows show that
//! the model *can* reproduce the figures, not that it predicts them.

use nearfar_topology::Bytes;

use super::{How, Row, Unit};
use crate::flow::{self, Demand};
use crate::machine::{Builder, Machine, Node, Refusal, Waiting};

/// Outstanding lines of all CPUs.
pub const LINES: f64 = 780.0;
/// Capacity of CXL memory in each direction.
pub const CXL_GBPS: f64 = 68.0;
const DRAM_GBPS: f64 = 250.0;
const TOLERANCE: f64 = 0.05;

/// The study's machine.
///
/// # Errors
/// [`Refusal`] if the figures above are invalid, which the present ones are not.
pub fn machine() -> Result<Machine, Refusal> {
    let node = |gbps: f64, duplex: bool| Node {
        size: Bytes(512 << 30),
        read_gbps: gbps,
        write_gbps: gbps,
        duplex,
        waiting: Waiting::Queue,
    };
    let tiers = vec![(100.0, node(DRAM_GBPS, false)), (250.0, node(CXL_GBPS, true))];
    Builder::tiers("hmsdk", 2.0, tiers).build()
}

/// Gain by the share `far` of pages in CXL memory over DRAM alone, where `reads` is the share of lines read.
#[must_use]
pub fn gain(machine: &Machine, far: f64, reads: f64) -> f64 {
    let per_ns = |far: f64| {
        let demand =
            Demand { row: 0, lines: LINES, think_ns: 0.0, reads, shares: vec![1.0 - far, far] };
        flow::solve(machine, &[demand], &[]).served[0].per_ns
    };
    per_ns(far) / per_ns(0.0) - 1.0
}

/// Both rows.
#[must_use]
pub fn rows() -> Vec<Row> {
    let Ok(machine) = machine() else { return Vec::new() };
    let row = |what: &str, reads: f64, paper: f64| Row {
        table: "HMSDK, weights 2:1",
        what: what.to_owned(),
        unit: Unit::Gain,
        paper,
        model: gain(&machine, 1.0 / 3.0, reads),
        tolerance: TOLERANCE,
        how: How::Fitted,
        because: "",
        left_out: None,
    };
    vec![
        row("bandwidth at 2 reads : 1 write", 2.0 / 3.0, 0.21),
        row("bandwidth at 1 read : 1 write", 0.5, 0.31),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_share_of_cxl_pages_is_lower_for_reads_than_for_a_mix() {
        let machine = machine().unwrap();
        let best = |reads: f64| {
            let shares = (1..50).map(|far| f64::from(far) / 100.0);
            shares
                .max_by(|a, b| gain(&machine, *a, reads).total_cmp(&gain(&machine, *b, reads)))
                .unwrap()
        };
        let [even, more, only] = [best(0.5), best(2.0 / 3.0), best(1.0)];
        assert!(even >= more && more > only + 0.03, "{even} {more} {only}");
    }

    #[test]
    fn no_mix_exceeds_the_bandwidth_of_the_memories() {
        let machine = machine().unwrap();
        let alone = |reads| {
            let shares = vec![1.0, 0.0];
            let demand = Demand { row: 0, lines: LINES, think_ns: 0.0, reads, shares };
            crate::machine::LINE * flow::solve(&machine, &[demand], &[]).served[0].per_ns
        };
        for (far, reads) in [(0.1, 1.0), (1.0 / 3.0, 0.5), (1.0 / 3.0, 1.0), (0.6, 0.5), (0.9, 0.0)]
        {
            // DRAM has 250 GB/s for both directions, CXL memory 68 for each.
            let most = f64::min(250.0 / (1.0 - far), 68.0 / (far * f64::max(reads, 1.0 - reads)));
            let found = (1.0 + gain(&machine, far, reads)) * alone(reads);
            assert!(found <= most * 1.001, "{far} far, {reads} read: {found} of {most}");
        }
    }

    #[test]
    fn the_busier_direction_of_cxl_memory_limits_the_gain() {
        let machine = machine().unwrap();
        // All lines to CXL memory: 68 GB/s of reads, or twice as much half and half.
        let [reads, both] = [1.0, 0.5].map(|reads| 1.0 + gain(&machine, 1.0, reads));
        assert!((both / reads / 2.0 - 1.0).abs() < 0.02, "{both} {reads}");
        let writes = 1.0 + gain(&machine, 1.0, 0.0);
        assert!((writes / reads - 1.0).abs() < 1e-9, "{writes} {reads}");
    }
}
