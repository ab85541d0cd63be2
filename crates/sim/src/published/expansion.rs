//! Gains of weighted interleave over DRAM and CXL memory, predicted from measured curves alone.
//!
//! The curves of DRAM and of a CXL device were measured on other machines than those of the publications, and nothing is
//! fitted: the number of channels and cards is the publications', a card on half of the lanes has half of the measured
//! device's bandwidth, and the CPUs have as many outstanding lines as saturate the memory. So a figure here can miss, and
//! misses are shown; they do not count among the figures that must be within bounds.

use std::sync::Arc;

use nearfar_topology::{Bytes, Curves};

use crate::flow::{self, Demand};
use crate::machine::{Builder, LINE, Machine, Node, Refusal, Waiting};

/// Outstanding lines of a core: those of Golden Cove's L2 cache.
const LINES_PER_CORE: f64 = 48.0;
/// Cores for each channel of DRAM, of current servers.
const CORES_PER_CHANNEL: f64 = 8.0;
/// A prediction is a hit within this share of the published throughput.
pub const HIT: f64 = 0.10;
/// Steps of the share of pages in CXL memory where the publication takes the best.
const STEPS: u32 = 32;
/// A throughput this far below the best so far is past it: there is one maximum.
const PAST_BEST: f64 = 0.98;

/// Measured curves that predictions start from.
#[derive(Clone, Debug)]
pub struct Measured {
    /// 8 channels of DDR5-4800.
    pub ddr5_4800: Curves,
    /// 12 channels of DDR5-6400.
    pub ddr5_6400: Curves,
    /// One CXL device on 16 lanes of PCIe 5.0.
    pub cxl: Curves,
}

/// A published gain and the predicted one.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The publication.
    pub source: &'static str,
    /// The quantity.
    pub what: &'static str,
    /// The assumption, where the publication leaves something open.
    pub assumed: &'static str,
    /// Published throughput over that of DRAM alone.
    pub paper: f64,
    /// Predicted throughput over that of DRAM alone.
    pub model: f64,
    /// Share of pages in CXL memory.
    pub far: f64,
}

impl Prediction {
    /// Whether the prediction is within [`HIT`] of the published figure.
    #[must_use]
    pub fn hits(&self) -> bool {
        (self.model / self.paper - 1.0).abs() <= HIT
    }
}

/// Memory of a publication's machine.
struct Setup<'a> {
    dram: &'a Curves,
    /// Channels of DRAM, and those of the curve.
    channels: (f64, f64),
    cxl: &'a Curves,
    /// Cards of 8 lanes.
    cards: f64,
}

impl Setup<'_> {
    fn machine(&self) -> Result<Machine, Refusal> {
        let tier = |curves: &Curves, scale: f64| {
            // The measured figures are within the curves' bounds, and so are small multiples of them.
            let curves = curves.scaled(scale).unwrap_or_else(|_| curves.clone());
            let node = Node {
                size: Bytes(1 << 40),
                read_gbps: curves.peak_gbps(1.0),
                write_gbps: curves.peak_gbps(0.0),
                duplex: false,
                waiting: Waiting::Points(Arc::new(curves.clone())),
            };
            (curves.idle_ns(), node)
        };
        let dram = tier(self.dram, self.channels.0 / self.channels.1);
        Builder::tiers("expansion", 2.0, vec![dram, tier(self.cxl, self.cards / 2.0)]).build()
    }

    /// Lines per nanosecond for this share of pages in CXL memory and this share of reads.
    fn per_ns(&self, machine: &Machine, far: f64, reads: f64) -> f64 {
        let lines = LINES_PER_CORE * CORES_PER_CHANNEL * self.channels.0;
        let demand = Demand { row: 0, lines, think_ns: 0.0, reads, shares: vec![1.0 - far, far] };
        flow::solve(machine, &[demand], &[]).served[0].per_ns
    }

    /// A share of pages in CXL memory, and the gain by it.
    fn at(&self, far: f64, reads: f64) -> Result<(f64, f64), Refusal> {
        let machine = self.machine()?;
        Ok((far, self.per_ns(&machine, far, reads) / self.per_ns(&machine, 0.0, reads)))
    }

    /// The best share of pages in CXL memory, up to a half, and the gain by it.
    fn best(&self, reads: f64) -> Result<(f64, f64), Refusal> {
        let machine = self.machine()?;
        let alone = self.per_ns(&machine, 0.0, reads);
        let mut best = (0.0, alone);
        for step in 1..=STEPS {
            let far = f64::from(step) / f64::from(2 * STEPS);
            let found = self.per_ns(&machine, far, reads);
            if found > best.1 {
                best = (far, found);
            } else if found < best.1 * PAST_BEST {
                break;
            }
        }
        Ok((best.0, best.1 / alone))
    }
}

/// All predictions.
///
/// # Errors
/// [`Refusal`] if the curves make no machine.
pub fn predictions(measured: &Measured) -> Result<Vec<Prediction>, Refusal> {
    let micron =
        Setup { dram: &measured.ddr5_6400, channels: (12.0, 12.0), cxl: &measured.cxl, cards: 8.0 };
    let hmsdk =
        Setup { dram: &measured.ddr5_4800, channels: (8.0, 8.0), cxl: &measured.cxl, cards: 4.0 };
    let smdk =
        Setup { dram: &measured.ddr5_4800, channels: (1.0, 8.0), cxl: &measured.cxl, cards: 1.0 };
    let row = |(source, what, assumed), paper, (far, model)| Prediction {
        source,
        what,
        assumed,
        paper,
        model,
        far,
    };
    let micron_s = "Micron on Xeon 6, arXiv 2412.12491";
    let hmsdk_s = "HMSDK, talk 2024";
    let any = "the memory's best share of pages";
    let speed = "DDR5-4800";
    Ok(vec![
        row((micron_s, "8 CZ122 beside 12 DDR5-6400, reads", any), 1.24, micron.best(1.0)?),
        row((micron_s, "the same, 2 reads : 1 write", any), 1.39, micron.best(2.0 / 3.0)?),
        row(
            (hmsdk_s, "4 CMM-DDR5 beside 8 channels, weights 2:1, 2 reads : 1 write", speed),
            1.21,
            hmsdk.at(1.0 / 3.0, 2.0 / 3.0)?,
        ),
        row((hmsdk_s, "the same, 1 read : 1 write", speed), 1.31, hmsdk.at(1.0 / 3.0, 0.5)?),
        row(
            ("SMDK wiki, 7.4.2", "GPT-2 with adaptive interleaving", "one DIMM, one card, reads"),
            1.5,
            smdk.best(1.0)?,
        ),
    ])
}

/// Share of reads at which a memory's peak bandwidth is highest, in steps of a hundredth.
#[must_use]
pub fn best_mix(curves: &Curves) -> f64 {
    let shares = (0..=100).map(|percent| f64::from(percent) / 100.0);
    let peak = |share: f64| LINE * curves.peak_gbps(share);
    shares.fold(0.0, |best, share| if peak(share) > peak(best) { share } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(ns: f64, gbps: f64) -> Curves {
        let rows: String = [0.0, 0.3, 0.6, 0.9, 1.0]
            .iter()
            .map(|u| format!("1,{},{}\n", gbps * u, ns * (1.0 + u * u)))
            .collect();
        Curves::parse(&format!("# source: a test\nread_share,gbps,ns\n{rows}")).unwrap()
    }

    #[test]
    fn more_cxl_bandwidth_raises_the_gain_and_the_share_of_pages() {
        let dram = curves(100.0, 200.0);
        let measured = |cxl: f64| Measured {
            ddr5_4800: dram.clone(),
            ddr5_6400: dram.clone(),
            cxl: curves(250.0, cxl),
        };
        let (slow, fast) =
            (predictions(&measured(10.0)).unwrap(), predictions(&measured(40.0)).unwrap());
        assert_eq!((slow.len(), fast.len()), (5, 5));
        assert!(slow[0].model > 1.0 && fast[0].model > slow[0].model, "{slow:?} {fast:?}");
        assert!(fast[0].far > slow[0].far);
        // All the bandwidth there is, at most.
        assert!(fast[0].model <= (200.0 + 160.0) / 200.0 * Curves::BEYOND_PEAK);
    }

    #[test]
    fn a_prediction_hits_only_within_its_tolerance() {
        let of =
            |model| Prediction { source: "", what: "", assumed: "", paper: 1.5, model, far: 0.0 };
        assert!(of(1.4).hits() && of(1.6).hits() && !of(1.3).hits() && !of(f64::NAN).hits());
    }

    #[test]
    fn the_best_mix_has_the_highest_peak_bandwidth() {
        let text = "# source: a test\nread_share,gbps,ns\n0.5,0,100\n0.5,10,120\n0.5,20,200\n\
                    0.7,0,100\n0.7,12,110\n0.7,24,300\n1,0,100\n1,11,110\n1,22,300\n";
        assert_eq!(best_mix(&Curves::parse(text).unwrap()), 0.7);
    }

    #[test]
    fn the_busier_memory_limits_throughput_at_any_share_of_pages() {
        let memory = curves(100.0, 100.0);
        // Two cards of 8 lanes are one device; one of them has half of its bandwidth.
        for (cards, far, expected) in [
            (2.0, 0.25, 1.0 / 0.75),
            (2.0, 0.5, 2.0),
            (2.0, 0.75, 1.0 / 0.75),
            (1.0, 1.0 / 3.0, 1.5),
            (1.0, 0.5, 1.0),
        ] {
            let setup = Setup { dram: &memory, channels: (8.0, 8.0), cxl: &memory, cards };
            let (_, gain) = setup.at(far, 1.0).unwrap();
            assert!((gain / expected - 1.0).abs() < 0.02, "{cards} cards, {far} far: {gain}");
        }
    }

    #[test]
    fn a_cxl_share_of_zero_has_no_gain_and_the_best_share_no_loss() {
        let (dram, slow) = (curves(100.0, 200.0), curves(2_000.0, 1.0));
        let setup = Setup { dram: &dram, channels: (8.0, 8.0), cxl: &slow, cards: 1.0 };
        let (far, gain) = setup.at(0.0, 1.0).unwrap();
        assert!(far.abs() < 1e-12 && (gain - 1.0).abs() < 1e-12);
        assert!(setup.best(1.0).unwrap().1 >= 1.0);
        assert!(setup.at(0.5, 1.0).unwrap().1 < 0.1, "half of the pages wait for 1 GB/s");
    }

    #[test]
    fn bandwidth_scales_with_the_number_of_channels() {
        let dram = curves(100.0, 200.0);
        let peak = |channels| {
            let setup = Setup { dram: &dram, channels: (channels, 8.0), cxl: &dram, cards: 2.0 };
            setup.machine().unwrap().nodes[0].read_gbps
        };
        assert!((peak(8.0) / peak(1.0) - 8.0).abs() < 1e-9 && (peak(8.0) - 200.0).abs() < 1e-9);
    }
}
