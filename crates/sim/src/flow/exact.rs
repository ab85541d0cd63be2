//! Exact mean value analysis of the closed network, for small whole numbers of outstanding lines.
//!
//! # Problem
//! [`super::network`] solves the network approximately (Schweitzer, Bard). This solver shows the error of that
//! approximation: a line that arrives at a station finds the mean queue of the network with one line of its class
//! less (Reiser and Lavenberg 1980), so queues are computed for every smaller population first.
//!
//! # Limits
//! Stations of [`Waiting::Queue`] alone, with service times that are exponentially distributed and the same for every
//! class, as the theorem assumes. Memory and time grow with the product of the populations (`STATES_MAX`). Lines that
//! are not waited for take a share of a station's time, as in the approximate solver; their rate follows from the
//! result, so the recursion is repeated until it is stable.

use super::network::{Class, Solved, Station};
use super::{Demand, Flow, Plan};
use crate::machine::{Machine, Waiting};

/// Largest number of populations.
const STATES_MAX: usize = 1 << 20;
/// Repetitions until the share of lines that are not waited for is stable.
const ROUNDS_MAX: usize = 100;
/// It is stable once no throughput changes by more than this share.
const STILL: f64 = 1e-9;
/// Lines that are not waited for take at most this share of a station.
const UNAWAITED_MAX: f64 = 0.95;

/// The reason why a network has no exact solution here.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Inexact {
    /// A class has a part of a line.
    #[error("{0} outstanding lines: exact analysis needs a whole number")]
    Part(f64),
    /// A station that is not a queue.
    #[error("station {0} has a curve of waiting: exact analysis needs queues")]
    Curve(usize),
    /// Too many populations.
    #[error("too many outstanding lines: exact analysis takes at most 1048576 populations")]
    Large,
}

/// Solves `machine` under `demands`, without migration.
///
/// # Errors
/// [`Inexact`].
pub fn flow(machine: &Machine, demands: &[Demand]) -> Result<Flow, Inexact> {
    let plan = Plan::of(machine);
    let stations = plan.stations(machine);
    let class = |demand: &Demand| plan.class(machine, demand, stations.len());
    let classes: Vec<Class> = demands.iter().map(class).collect();
    let solved = solve(&stations, &classes)?;
    Ok(plan.flow(machine, demands, &classes, &solved))
}

/// Solves for the steady state.
///
/// # Errors
/// [`Inexact`].
pub fn solve(stations: &[Station], classes: &[Class]) -> Result<Solved, Inexact> {
    let lattice = Lattice::of(classes)?;
    if let Some(at) = stations.iter().position(|station| station.waiting != Waiting::Queue) {
        return Err(Inexact::Curve(at));
    }
    let mut per_ns = vec![0.0; classes.len()];
    let mut settled = false;
    let mut wait_ns = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let all: f64 = per_ns.iter().sum();
        let service: Vec<f64> = stations.iter().map(|station| longer(station, all)).collect();
        let (now, residence) = lattice.recurse(stations, classes, &service);
        settled = now.iter().zip(&per_ns).all(|(now, old)| (now - old).abs() <= STILL * now);
        per_ns = now;
        let wait = |row: &Vec<f64>| {
            row.iter().zip(stations).map(|(ns, station)| ns - station.service_ns).collect()
        };
        wait_ns = residence.iter().map(wait).collect();
        if settled {
            break;
        }
    }
    let all: f64 = per_ns.iter().sum();
    let used = |(at, station): (usize, &Station)| {
        let lines: f64 = classes.iter().zip(&per_ns).map(|(class, x)| class.visits[at] * x).sum();
        station.service_ns * (lines + station.background + station.with_access * all)
    };
    let utilisation = stations.iter().enumerate().map(used).collect();
    Ok(Solved { per_ns, wait_ns, utilisation, settled })
}

/// Service time, lengthened by the lines that are not waited for.
fn longer(station: &Station, all: f64) -> f64 {
    let unawaited = station.service_ns * (station.background + station.with_access * all);
    station.service_ns / (1.0 - unawaited.min(UNAWAITED_MAX))
}

/// All populations up to that of the classes, numbered so that smaller ones come first.
struct Lattice {
    lines: Vec<usize>,
    /// Difference of the numbers of two populations that differ by a line of a class.
    strides: Vec<usize>,
    states: usize,
}

impl Lattice {
    fn of(classes: &[Class]) -> Result<Self, Inexact> {
        let (mut lines, mut strides, mut states) = (Vec::new(), Vec::new(), 1_usize);
        for class in classes {
            if class.lines < 0.0 || class.lines.fract() > 0.0 || !class.lines.is_finite() {
                return Err(Inexact::Part(class.lines));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole, and large ones are refused"
            )]
            let count = class.lines.min(1e9) as usize;
            lines.push(count);
            strides.push(states);
            states = states.saturating_mul(count + 1);
            if states > STATES_MAX {
                return Err(Inexact::Large);
            }
        }
        Ok(Self { lines, strides, states })
    }

    /// Throughputs, and residence times by class and station, at the full population.
    fn recurse(
        &self,
        stations: &[Station],
        classes: &[Class],
        service: &[f64],
    ) -> (Vec<f64>, Vec<Vec<f64>>) {
        let count = stations.len();
        let mut queues = vec![0.0; self.states * count];
        let mut per_ns = vec![0.0; classes.len()];
        let mut residence = vec![service.to_vec(); classes.len()];
        for state in 1..self.states {
            for (at, class) in classes.iter().enumerate() {
                let lines = state / self.strides[at] % (self.lines[at] + 1);
                if lines == 0 {
                    per_ns[at] = 0.0;
                    continue;
                }
                let less = (state - self.strides[at]) * count;
                let mut latency = class.base_ns;
                for (station, ns) in residence[at].iter_mut().enumerate() {
                    *ns = service[station] * (1.0 + queues[less + station]);
                    latency += class.visits[station] * (*ns - stations[station].service_ns);
                }
                #[expect(clippy::cast_precision_loss, reason = "a small count")]
                let lines = lines as f64;
                per_ns[at] = lines / (class.think_ns + latency);
            }
            for station in 0..count {
                let there = classes.iter().zip(&per_ns).zip(&residence);
                let lines = there.map(|((class, x), ns)| x * class.visits[station] * ns[station]);
                queues[state * count + station] = lines.sum();
            }
        }
        (per_ns, residence)
    }
}
