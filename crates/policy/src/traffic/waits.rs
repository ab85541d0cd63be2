//! Waiting in a queue as a function of its utilisation: a formula, or measured points.
//!
//! Between points waiting is linear. Its derivative is interpolated between the middles of segments, since prices are
//! built from it and should not jump. Beyond the last point waiting grows as in a queue, without limit at full
//! utilisation, so that a closed loop always has a solution.

use nearfar_topology::{BasisPoints, Curves};

use super::number::{count, pow};

/// Number of measured points.
pub const POINTS: usize = 8;
/// No measured point is beyond this utilisation.
const LAST_MOST: f64 = 0.99;

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPoint {
    /// Utilisation of the queue's capacity.
    pub used: BasisPoints,
    /// Waiting, in picoseconds.
    pub ps: u32,
}

/// Waiting curve of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// `a u^k / (1 - u)` at utilisation `u`.
    Formula {
        /// `a`, in picoseconds.
        ps: u32,
        /// `k`, in hundredths.
        power_percent: u32,
    },
    /// As measured, in order of utilisation, up to 99 %; there is no waiting at no utilisation.
    Points([WaitPoint; POINTS]),
}

/// Utilisations of a measured queue at which its curve is taken, in basis points; the last is the measured peak.
const MEASURED_AT: [u32; POINTS] = [1500, 3500, 5000, 6500, 7800, 8700, 9400, 9804];

impl Waits {
    /// Points of measured curves at a share of reads, for a capacity a little above their peak
    /// ([`Curves::BEYOND_PEAK`]), so that the peak itself is a point.
    pub(super) fn measured(curves: &Curves, read_share: f64) -> Self {
        Self::Points(MEASURED_AT.map(|used| {
            let of_peak = f64::from(used) / 10_000.0 * Curves::BEYOND_PEAK;
            let gbps = curves.peak_gbps(read_share) * of_peak.min(1.0);
            let ps = count(curves.waiting_ns(read_share, gbps) * 1e3);
            WaitPoint { used: BasisPoints(used), ps: u32::try_from(ps).unwrap_or(u32::MAX) }
        }))
    }
}

/// A waiting curve in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    Formula { a: f64, k: f64 },
    Points([(f64, f64); POINTS]),
}

impl Shape {
    /// `None` if measured points do not rise.
    pub(super) fn of(waits: &Waits) -> Option<Self> {
        match waits {
            Waits::Formula { ps, power_percent } => Some(Self::Formula {
                a: f64::from(*ps) / 1e3,
                k: f64::from((*power_percent).clamp(25, 1000)) / 1e2,
            }),
            Waits::Points(points) => {
                let point = |at: &WaitPoint| (f64::from(at.used.0) / 1e4, f64::from(at.ps) / 1e3);
                let points = points.each_ref().map(point);
                let rise = points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
                let within = points[0].0 > 0.0 && points[POINTS - 1].0 <= LAST_MOST;
                (rise && within).then_some(Self::Points(points))
            }
        }
    }

    pub(super) fn wait(&self, u: f64) -> f64 {
        match self {
            Self::Formula { a, k } => {
                // The most common case: a queue served line by line.
                let rises = if *k == 1.0 { u } else { pow(u, *k) };
                a * rises / (1.0 - u)
            }
            Self::Points(points) => measured(points, u).0,
        }
    }

    /// Waiting, and its derivative by utilisation.
    pub(super) fn wait_and_slope(&self, u: f64) -> (f64, f64) {
        match self {
            Self::Formula { k, .. } => {
                let wait = self.wait(u);
                (wait, wait * (k / u + 1.0 / (1.0 - u)))
            }
            Self::Points(points) => measured(points, u),
        }
    }
}

/// Slope of the segment that ends at a point.
fn slope(points: &[(f64, f64); POINTS], to: usize) -> f64 {
    let from = if to == 0 { (0.0, 0.0) } else { points[to - 1] };
    (points[to].1 - from.1) / (points[to].0 - from.0)
}

/// Middle of the segment that ends at a point.
fn middle(points: &[(f64, f64); POINTS], to: usize) -> f64 {
    let from = if to == 0 { 0.0 } else { points[to - 1].0 };
    f64::midpoint(from, points[to].0)
}

fn measured(points: &[(f64, f64); POINTS], u: f64) -> (f64, f64) {
    let last = points[POINTS - 1];
    if u >= last.0 {
        // x is 0 at the last point and 1 at full utilisation: x / (1 - x) continues the last slope.
        let room = 1.0 - last.0;
        let x = (u - last.0) / room;
        let steep = slope(points, POINTS - 1).max(last.1);
        return (last.1 + steep * room * x / (1.0 - x), steep / ((1.0 - x) * (1.0 - x)));
    }
    let to = points.iter().position(|point| u < point.0).unwrap_or(POINTS - 1);
    let (own, at) = (slope(points, to), middle(points, to));
    let wait = points[to].1 - own * (points[to].0 - u);
    let next = if u < at { to.checked_sub(1) } else { (to + 1 < POINTS).then_some(to + 1) };
    let steep = next.map_or(own, |next| {
        let part = (u - at) / (middle(points, next) - at);
        own + (slope(points, next) - own) * part
    });
    (wait, steep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(ps: [u32; POINTS]) -> Waits {
        let used = [1500, 3500, 5000, 6500, 7800, 8700, 9400, 9800];
        let mut at = [WaitPoint { used: BasisPoints(0), ps: 0 }; POINTS];
        for (point, (used, ps)) in at.iter_mut().zip(used.into_iter().zip(ps)) {
            *point = WaitPoint { used: BasisPoints(used), ps };
        }
        Waits::Points(at)
    }

    const RISING: [u32; POINTS] = [1000, 3000, 6000, 12_000, 25_000, 60_000, 90_000, 300_000];

    #[test]
    fn measured_points_are_reproduced_and_delay_is_unbounded_beyond_them() {
        let shape = Shape::of(&points(RISING)).unwrap();
        for (used, ns) in [(0.15, 1.0), (0.5, 6.0), (0.87, 60.0), (0.98, 300.0)] {
            assert!((shape.wait(used) - ns).abs() < 1e-9, "{used}");
        }
        assert!((shape.wait(0.25) - 2.0).abs() < 1e-9);
        assert!(shape.wait(0.9999) > 10_000.0);
    }

    #[test]
    fn points_that_decrease_or_reach_full_utilisation_are_rejected() {
        assert_eq!(Shape::of(&points([5, 4, 6, 7, 8, 9, 10, 11])), None);
        let full = WaitPoint { used: BasisPoints(9_950), ps: 400_000 };
        let Waits::Points(mut all) = points(RISING) else { unreachable!() };
        all[POINTS - 1] = full;
        assert_eq!(Shape::of(&Waits::Points(all)), None);
        all[POINTS - 1] = all[0];
        assert_eq!(Shape::of(&Waits::Points(all)), None);
    }

    #[test]
    fn the_formula_gives_the_queueing_delay_and_its_derivative() {
        let shape = Shape::of(&Waits::Formula { ps: 2_000, power_percent: 200 }).unwrap();
        // 2 ns x 0.25 / 0.5, and 1 ns x (2 / 0.5 + 1 / 0.5).
        let (wait, slope) = shape.wait_and_slope(0.5);
        assert!((wait - 1.0).abs() < 1e-12 && (slope - 6.0).abs() < 1e-9, "{wait} {slope}");
        // A power beyond its bounds counts as the bound: a quarter.
        let flat = Shape::of(&Waits::Formula { ps: 2_000, power_percent: 0 }).unwrap();
        assert!((flat.wait(0.0625) - 2.0 * 0.5 / 0.9375).abs() < 1e-9, "{}", flat.wait(0.0625));
    }

    #[test]
    fn measured_curves_are_reproduced_up_to_their_peak() {
        let text =
            "# source: made up\nread_share,gbps,ns\n1,10,100\n1,40,104\n1,70,130\n1,100,220\n";
        let curves = Curves::parse(text).unwrap();
        let shape = Shape::of(&Waits::measured(&curves, 1.0)).unwrap();
        let at = |gbps: f64| shape.wait(gbps / (100.0 * Curves::BEYOND_PEAK));
        assert!((at(100.0) - 120.0).abs() < 0.5, "{}", at(100.0));
        for gbps in [20.0, 55.0, 85.0, 95.0] {
            let right = curves.waiting_ns(1.0, gbps);
            assert!(
                (at(gbps) - right).abs() < 0.1 * right + 1.0,
                "{gbps}: {}, not {right}",
                at(gbps)
            );
        }
        assert!(at(101.99) > 5.0 * at(100.0), "beyond the peak waiting has no limit");
    }

    proptest! {
        #[test]
        fn the_slope_is_interpolated_between_the_midpoints_of_segments(
            steps in proptest::array::uniform8(1u32..50_000), at in 0usize..POINTS - 1, part in 0.0f64..1.0,
        ) {
            let mut sum = 0;
            let Shape::Points(points) = Shape::of(&points(steps.map(|step| { sum += step; sum }))).unwrap() else {
                unreachable!()
            };
            let (low, high) = (middle(&points, at), middle(&points, at + 1));
            let (before, after) = (slope(&points, at), slope(&points, at + 1));
            let near = |found: f64, right: f64| (found - right).abs() < 1e-6 * right.max(1.0);
            prop_assert!(near(measured(&points, low).1, before) && near(measured(&points, high).1, after));
            let between = measured(&points, low + (high - low) * part).1;
            prop_assert!(near(between, before + (after - before) * part), "{before} to {after}: {between}");
        }

        #[test]
        fn queueing_delay_is_monotonic_with_a_continuous_slope(
            steps in proptest::array::uniform8(0u32..200_000),
            u in 0.0f64..0.999,
        ) {
            let mut sum = 0;
            let shape = Shape::of(&points(steps.map(|step| { sum += step; sum }))).unwrap();
            let (wait, slope) = shape.wait_and_slope(u);
            let (later, next) = shape.wait_and_slope(u + 1e-7);
            prop_assert!(wait >= 0.0 && later >= wait && slope >= 0.0);
            prop_assert!((next - slope).abs() <= 1e-2 * slope.abs() + 1e3, "{slope} to {next}");
        }
    }
}
