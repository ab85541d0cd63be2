//! A station's response to load: the ratio of loaded to idle latency, and, where curves were measured, its capacity for
//! the present share of reads.
//!
//! Both come from tables that are built once, so that an access costs two look-ups.

use nearfar_topology::Curves;

use crate::config::Processor;
use crate::station::FULL_LOAD;

/// Steps of utilisation in a row.
const LOADS: usize = 1024;
/// Steps of the share of reads in measured responses.
const SHARES: usize = 32;
/// A ratio of one.
pub(crate) const UNIT: u64 = 1 << 10;
/// Full share of reads.
pub(crate) const ALL_READS: u64 = 1 << 32;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Response {
    /// One row, or `SHARES + 1` by share of reads.
    rows: Box<[Row]>,
}

#[derive(Debug)]
struct Row {
    /// Service of a line where capacity depends on the share of reads, else 0.
    service_ps: u64,
    /// Ratios of loaded to idle latency, by utilisation.
    ratios: Box<[u32]>,
}

impl Response {
    /// The formula of the processor's settings, whatever the share of reads.
    pub(crate) fn by_formula(processor: &Processor) -> Self {
        let ratio = |u: f64| {
            let u = u.min(0.9999);
            let times = 1.0 + processor.load_factor * u.powf(processor.load_power) / (1.0 - u);
            times.min(processor.load_limit)
        };
        Self { rows: [Row { service_ps: 0, ratios: table(ratio) }].into() }
    }

    /// As measured. The capacity is a little above the measured peak, as the latencies already contain the queueing of
    /// requests that come at random.
    pub(crate) fn measured(curves: &Curves) -> Self {
        let most = |of_peak: f64| of_peak * Curves::BEYOND_PEAK;
        let row = |step: usize| {
            let share = step as f64 / SHARES as f64;
            Row {
                service_ps: rounded(64_000.0 / most(curves.peak_gbps(share))).max(1),
                ratios: table(|u| curves.latency_ns(share, most(u)) / curves.idle_ns()),
            }
        };
        Self { rows: (0..=SHARES).map(row).collect() }
    }

    /// Whether it depends on the share of reads.
    pub(crate) fn is_measured(&self) -> bool {
        self.rows.len() > 1
    }

    /// The longest service of a line, if measured.
    pub(crate) fn longest_service_ps(&self) -> u64 {
        self.rows.iter().map(|row| row.service_ps).max().unwrap_or(0)
    }

    /// Service of a line at this share of reads; `None` if it does not depend on it.
    #[inline]
    pub(crate) fn service_ps(&self, reads: u64) -> Option<u64> {
        self.is_measured().then(|| self.row(reads).service_ps)
    }

    /// The ratio of loaded to idle latency at this share of reads and this utilisation, in units of [`UNIT`].
    #[inline]
    pub(crate) fn ratio(&self, reads: u64, load: u64) -> u64 {
        let step = (load * LOADS as u64 / FULL_LOAD) as usize;
        u64::from(self.row(reads).ratios[step.min(LOADS)])
    }

    #[inline]
    fn row(&self, reads: u64) -> &Row {
        let nearest = (reads * SHARES as u64 + ALL_READS / 2) / ALL_READS;
        &self.rows[(nearest as usize).min(self.rows.len() - 1)]
    }
}

fn table(ratio: impl Fn(f64) -> f64) -> Box<[u32]> {
    let at = |step: usize| rounded(ratio(step as f64 / LOADS as f64) * UNIT as f64);
    (0..=LOADS).map(|step| u32::try_from(at(step)).unwrap_or(u32::MAX)).collect()
}

fn rounded(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "settings are checked: positive, and far below 2^64"
    )]
    let whole = value.round() as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = FULL_LOAD / 2;

    #[test]
    fn the_formula_rises_from_one_to_its_limit() {
        let response = Response::by_formula(&crate::testkit::two_tiers().processor);
        assert_eq!((response.service_ps(0), response.ratio(0, 0)), (None, UNIT));
        assert!(response.ratio(0, HALF) > UNIT);
        assert_eq!(response.ratio(0, FULL_LOAD), response.ratio(ALL_READS, 2 * FULL_LOAD));
    }

    #[test]
    fn measured_points_are_met_for_each_share_of_reads() {
        let text = "# source: a test\nread_share,gbps,ns\n0.5,0,100\n0.5,10,150\n0.5,20,400\n\
                    1,0,100\n1,16,120\n1,32,200\n";
        let response = Response::measured(&Curves::parse(text).unwrap());
        assert!(response.is_measured());
        // Half of the capacity is a little more than half of the peak.
        let at = |reads, load| (response.service_ps(reads), response.ratio(reads, load));
        assert_eq!(at(ALL_READS, 0), (Some(1961), UNIT));
        assert_eq!(at(ALL_READS / 2, HALF), (Some(3137), 1587));
        assert_eq!(at(ALL_READS, HALF), (Some(1961), 1245));
        assert_eq!(at(0, FULL_LOAD), (Some(3137), UNIT * 4));
        assert_eq!(response.longest_service_ps(), 3137);
    }
}
