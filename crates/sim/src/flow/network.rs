//! A closed queueing network with several classes, solved for its steady state.
//!
//! # Closed model
//! A CPU has a limited number of outstanding cache lines: N of them, with a think time Z after each. So a class's
//! throughput is N / (Z + L), and slow memory lowers the demand for it. An open model, with demand independent of
//! latency, has no steady state on a machine with an overloaded controller, and such machines are the subject here.
//!
//! # Waiting
//! *Queue* stations: approximate mean value analysis (Schweitzer 1979, Bard 1979). A line of class i that arrives at
//! station k finds the average queue, less its own class's share of one line, and waits until that is served: `W[i][k]
//! = s_k (Q_k - Q[i][k] / N_i)`. Lines that are not waited for (coherence probes, page migration) take a share u of the
//! station's time, which lengthens service to `s_k / (1 - u)`. *Curve* stations: `W_k = a u^p / (1 - u)` with the total
//! utilisation u, the same for every class. *Points* stations: as curve stations, with measured waiting by bandwidth and
//! share of reads; the share of reads is that of the present throughputs, and updated with them.
//!
//! # Solution
//! The curve stations alone are the optimality conditions of a concave problem (maximise `sum N_i ln X_i - Z_i X_i`
//! less each station's integral of W). Solving one station after the other exactly within a bracket, with the others
//! fixed, is coordinate ascent and converges from any start. Queue stations are iterated along with it, by half a step
//! at a time. Near saturation a step on u itself would oscillate; a bracket does not.

use nearfar_topology::Curves;

use crate::machine::{LINE, Waiting};

/// Maximal number of sweeps; beyond it the present state is returned with [`Solved::settled`] false. Some tens suffice,
/// or tens of thousands if two stations are equally saturated.
const SWEEPS_MAX: usize = 200_000;
/// The iteration has converged once throughputs change by less than this share per sweep.
const STILL: f64 = 1e-10;
/// Upper limit of utilisation, at which curves diverge.
const FULL: f64 = 1.0 - 1e-7;
/// Lines that are not waited for take at most this share of a queue station.
const UNAWAITED_MAX: f64 = 0.95;
/// The solution is found once a utilisation is this close to the one it causes,
const CLOSE: f64 = 1e-14;
/// which takes fewer steps than this.
const STEPS_MAX: usize = 100;

/// A station that serves lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Station {
    /// Time to serve a line.
    pub service_ns: f64,
    /// Model of waiting.
    pub waiting: Waiting,
    /// Constant rate of lines per nanosecond from outside the classes.
    pub background: f64,
    /// Lines that accompany each access of any class without being waited for.
    pub with_access: f64,
}

/// Requests with common properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Outstanding lines, N.
    pub lines: f64,
    /// Think time between a line's arrival and the next request, Z.
    pub think_ns: f64,
    /// Latency without waiting, average over its accesses.
    pub base_ns: f64,
    /// Visits of each station, average over its accesses.
    pub visits: Vec<f64>,
    /// Those of them that are writes.
    pub writes: Vec<f64>,
}

/// The steady state.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// Lines per nanosecond, by class.
    pub per_ns: Vec<f64>,
    /// Waiting time at each station, by class.
    pub wait_ns: Vec<Vec<f64>>,
    /// Utilisation of each station.
    pub utilisation: Vec<f64>,
    /// Whether the iteration converged.
    pub settled: bool,
}

/// Solves for the steady state.
#[must_use]
pub fn solve(stations: &[Station], classes: &[Class]) -> Solved {
    let mut state = State::new(stations, classes);
    let mut settled = false;
    for _ in 0..SWEEPS_MAX {
        if state.sweep() {
            settled = true;
            break;
        }
    }
    let utilisation = (0..stations.len()).map(|station| state.utilisation(station)).collect();
    Solved { per_ns: state.per_ns, wait_ns: state.wait_ns, utilisation, settled }
}

struct State<'a> {
    stations: &'a [Station],
    classes: &'a [Class],
    per_ns: Vec<f64>,
    wait_ns: Vec<Vec<f64>>,
    queue: Vec<Vec<f64>>,
}

impl<'a> State<'a> {
    fn new(stations: &'a [Station], classes: &'a [Class]) -> Self {
        let still = || vec![vec![0.0; stations.len()]; classes.len()];
        let mut state = Self {
            stations,
            classes,
            per_ns: vec![0.0; classes.len()],
            wait_ns: still(),
            queue: still(),
        };
        state.per_ns = (0..classes.len()).map(|class| state.throughput(class)).collect();
        state
    }

    /// One sweep over all stations; returns whether the state is stable.
    fn sweep(&mut self) -> bool {
        for (at, station) in self.stations.iter().enumerate() {
            match &station.waiting {
                Waiting::Queue => self.wait_in_queue(at),
                Waiting::Curve { factor_ns, power } => {
                    let wait = |u: f64| factor_ns * u.powf(*power) / (1.0 - u);
                    self.wait_by_curve(at, FULL, &wait);
                }
                Waiting::Points(curves) => {
                    let reads = self.reads(at);
                    let peak = curves.peak_gbps(reads);
                    let wait = |u: f64| curves.waiting_ns(reads, u * peak);
                    self.wait_by_curve(at, FULL * Curves::BEYOND_PEAK, &wait);
                }
            }
        }
        let mut still = true;
        for class in 0..self.classes.len() {
            let new = self.throughput(class);
            still &= (new - self.per_ns[class]).abs() <= STILL * new;
            self.per_ns[class] = new;
        }
        still & self.requeue()
    }

    fn throughput(&self, class: usize) -> f64 {
        let Class { lines, think_ns, base_ns, visits, .. } = &self.classes[class];
        let waits: f64 = visits.iter().zip(&self.wait_ns[class]).map(|(v, wait)| v * wait).sum();
        lines / (think_ns + base_ns + waits)
    }

    /// Share of reads in a station's traffic.
    fn reads(&self, station: usize) -> f64 {
        let of = |lines: fn(&Class) -> &[f64]| {
            let rates = self.classes.iter().zip(&self.per_ns);
            rates.map(|(class, x)| lines(class)[station] * x).sum::<f64>()
        };
        let all = of(|class| &class.visits);
        if all > 0.0 { 1.0 - of(|class| &class.writes) / all } else { 1.0 }
    }

    /// Time of the station for a line.
    fn service_ns(&self, station: usize) -> f64 {
        match &self.stations[station].waiting {
            Waiting::Points(curves) => LINE / curves.peak_gbps(self.reads(station)),
            Waiting::Queue | Waiting::Curve { .. } => self.stations[station].service_ns,
        }
    }

    /// Share of a station's time for lines that are not waited for.
    fn unawaited(&self, station: usize) -> f64 {
        let Station { background, with_access, .. } = self.stations[station];
        self.service_ns(station) * (background + with_access * self.per_ns.iter().sum::<f64>())
    }

    fn utilisation(&self, station: usize) -> f64 {
        let lines =
            self.classes.iter().zip(&self.per_ns).map(|(class, x)| class.visits[station] * x);
        self.service_ns(station) * lines.sum::<f64>() + self.unawaited(station)
    }

    fn wait_in_queue(&mut self, station: usize) {
        let service = self.stations[station].service_ns;
        let longer = service / (1.0 - self.unawaited(station).min(UNAWAITED_MAX));
        let all: f64 = self.queue.iter().map(|queue| queue[station]).sum();
        for (class, of) in self.classes.iter().enumerate() {
            // With less than one outstanding line, own lines never meet.
            let own = self.queue[class][station] / of.lines.max(1.0);
            self.wait_ns[class][station] = longer * (all - own) + longer - service;
        }
    }

    /// Moves queues half a step towards those of the present throughputs; returns whether they are stable.
    fn requeue(&mut self) -> bool {
        let mut still = true;
        for (at, station) in self.stations.iter().enumerate() {
            if station.waiting != Waiting::Queue {
                continue;
            }
            for (class, of) in self.classes.iter().enumerate() {
                let there = of.visits[at] * (self.wait_ns[class][at] + station.service_ns);
                let step = self.per_ns[class] * there - self.queue[class][at];
                still &= step.abs() <= STILL * of.lines;
                self.queue[class][at] += 0.5 * step;
            }
        }
        still
    }

    /// Finds the wait at which the resulting traffic causes that wait, at a utilisation of up to `full`.
    fn wait_by_curve(&mut self, station: usize, full: f64, wait: &dyn Fn(f64) -> f64) {
        let Station { background, with_access, .. } = self.stations[station];
        let service_ns = self.service_ns(station);
        // Visits of each class to the station, and its time per access without this station's wait.
        let rest: Vec<(f64, f64)> = (0..self.classes.len())
            .map(|class| {
                let visits = self.classes[class].visits[station];
                let x = self.throughput(class);
                let time = if x > 0.0 { self.classes[class].lines / x } else { 1.0 };
                (visits, time - visits * self.wait_ns[class][station])
            })
            .collect();
        let caused = |wait: f64| {
            let lines = self.classes.iter().zip(&rest);
            let of = |(class, (visits, time)): (&Class, &(f64, f64))| {
                class.lines / (time + visits * wait) * (visits + with_access)
            };
            service_ns * (background + lines.map(of).sum::<f64>())
        };
        // Caused traffic falls as the wait rises, so there is one crossing; secants approach it from both sides (the
        // Illinois rule).
        let over = |u: f64| caused(wait(u)) - u;
        let (mut low, mut high) = ((0.0, over(0.0)), (full, over(full)));
        if high.1 >= 0.0 {
            low = high;
        }
        let mut last = 0.0;
        for _ in 0..STEPS_MAX {
            if high.0 - low.0 <= CLOSE || low.1 <= 0.0 || high.1 >= 0.0 {
                break;
            }
            let secant = (low.0 * high.1 - high.0 * low.1) / (high.1 - low.1);
            let inside = secant > low.0 && secant < high.0;
            let middle = if inside { secant } else { 0.5 * (low.0 + high.0) };
            let there = over(middle);
            if there > 0.0 {
                low = (middle, there);
                high.1 *= if last > 0.0 { 0.5 } else { 1.0 };
            } else {
                high = (middle, there);
                low.1 *= if last < 0.0 { 0.5 } else { 1.0 };
            }
            last = if there > 0.0 { 1.0 } else { -1.0 };
            if there.abs() <= CLOSE {
                low.0 = middle;
                break;
            }
        }
        let found = wait(low.0);
        for waits in &mut self.wait_ns {
            waits[station] = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use proptest::prelude::*;

    fn station(service_ns: f64, waiting: Waiting) -> Station {
        Station { service_ns, waiting, background: 0.0, with_access: 0.0 }
    }

    fn class(lines: f64, think_ns: f64, base_ns: f64, visits: &[f64]) -> Class {
        let writes = vec![0.0; visits.len()];
        Class { lines, think_ns, base_ns, visits: visits.to_vec(), writes }
    }

    const CURVE: Waiting = Waiting::Curve { factor_ns: 2.66, power: 2.45 };

    #[test]
    fn one_line_alone_never_waits_in_a_queue() {
        let found = solve(&[station(10.0, Waiting::Queue)], &[class(1.0, 50.0, 100.0, &[1.0])]);
        assert!(found.settled && found.wait_ns[0][0].abs() < 1e-9);
        assert!((found.per_ns[0] - 1.0 / 150.0).abs() < 1e-12);
    }

    #[test]
    fn many_lines_fill_the_one_station_they_share() {
        let found = solve(&[station(10.0, Waiting::Queue)], &[class(1000.0, 0.0, 100.0, &[1.0])]);
        assert!(found.settled && (0.99..=1.0).contains(&found.utilisation[0]), "{found:?}");
    }

    #[test]
    fn two_lines_at_one_queue_match_exact_mva() {
        // N = 2, one station, think time 90, service 10: exact MVA gives a latency of 10 + 10 * Q(1) = 11, X = 2 / 101.
        let found = solve(&[station(10.0, Waiting::Queue)], &[class(2.0, 90.0, 10.0, &[1.0])]);
        assert!((found.per_ns[0] * 101.0 / 2.0 - 1.0).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn the_wait_of_a_curve_matches_its_utilisation_at_the_solution() {
        let found = solve(&[station(64.0 / 145.0, CURVE)], &[class(794.0, 0.0, 70.0, &[1.0])]);
        let u = found.utilisation[0];
        assert!((found.wait_ns[0][0] / (2.66 * u.powf(2.45) / (1.0 - u)) - 1.0).abs() < 1e-6);
        assert!((found.per_ns[0] * (70.0 + found.wait_ns[0][0]) / 794.0 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn background_traffic_lengthens_the_wait_of_others() {
        for waiting in [Waiting::Queue, CURVE] {
            let alone = station(10.0, waiting.clone());
            let beside = Station { background: 0.05, ..alone.clone() };
            let classes = [class(4.0, 100.0, 100.0, &[1.0])];
            let wait = |station| solve(&[station], &classes).wait_ns[0][0];
            assert!(wait(beside) > wait(alone) + 1.0, "{waiting:?}");
        }
    }

    #[test]
    fn two_equally_saturated_stations_converge() {
        let of = |service, with_access| Station { with_access, ..station(service, Waiting::Queue) };
        let stations = [of(17.714_427_436, 0.013_520_595), of(8.580_274_950, 0.009_041_184)];
        let classes = [
            class(261.219_894_543, 0.0, 20.0, &[0.760_548_887, 1.480_744_278]),
            class(288.139_353_449, 0.0, 20.0, &[0.257_274_803, 0.584_778_113]),
        ];
        assert!(solve(&stations, &classes).settled);
    }

    #[test]
    fn measured_points_give_the_wait_at_the_present_bandwidth_and_mix() {
        let text = "# source: a test\nread_share,gbps,ns\n0.5,0,100\n0.5,10,120\n0.5,20,200\n\
                    1,0,100\n1,20,110\n1,40,300\n";
        let curves = Arc::new(Curves::parse(text).unwrap());
        for (lines, writes) in [(10.0, 0.0), (40.0, 0.0), (400.0, 0.0), (12.0, 0.5), (60.0, 0.25)] {
            let stations = [station(f64::NAN, Waiting::Points(Arc::clone(&curves)))];
            let class = Class { writes: vec![writes], ..class(lines, 0.0, 100.0, &[1.0]) };
            let found = solve(&stations, &[class]);
            let gbps = found.per_ns[0] * LINE;
            let wait = curves.waiting_ns(1.0 - writes, gbps);
            assert!(found.settled && (found.wait_ns[0][0] - wait).abs() < 1e-3 * (100.0 + wait));
            let most = curves.peak_gbps(1.0 - writes) * Curves::BEYOND_PEAK;
            assert!(gbps <= most && (lines < 100.0 || gbps > 0.99 * most), "{gbps} of {most}");
        }
    }

    #[test]
    fn a_class_without_lines_has_zero_throughput() {
        let found = solve(&[station(1.0, CURVE)], &[class(0.0, 0.0, 70.0, &[1.0])]);
        assert!(found.settled && found.per_ns == [0.0] && found.utilisation == [0.0]);
    }

    fn any_network() -> impl Strategy<Value = (Vec<Station>, Vec<Class>)> {
        let waiting = prop_oneof![Just(Waiting::Queue), Just(CURVE)];
        let stations = proptest::collection::vec((0.2f64..30.0, waiting, 0.0f64..0.3), 1..6);
        let class = (
            0.0f64..300.0,
            0.0f64..500.0,
            20.0f64..400.0,
            proptest::collection::vec(0.0f64..2.0, 6),
        );
        (stations, proptest::collection::vec(class, 1..5)).prop_map(|(stations, classes)| {
            let stations: Vec<Station> = stations
                .into_iter()
                .map(|(service, waiting, with_access)| Station {
                    with_access: with_access * 0.1,
                    ..station(service, waiting)
                })
                .collect();
            let all = stations.len();
            let classes = classes
                .into_iter()
                .map(|(n, z, base, visits)| class_of(n, z, base, &visits[..all]))
                .collect();
            (stations, classes)
        })
    }

    fn class_of(lines: f64, think_ns: f64, base_ns: f64, visits: &[f64]) -> Class {
        class(lines, think_ns, base_ns, visits)
    }

    proptest! {
        #[test]
        fn every_network_converges_within_its_capacity((stations, classes) in any_network()) {
            let found = solve(&stations, &classes);
            prop_assert!(found.settled);
            for (station, u) in stations.iter().zip(&found.utilisation) {
                // The utilisation of a queue is approximate if much of its traffic is not waited for.
                let most = if station.waiting == Waiting::Queue { 1.1 } else { 1.0 + 1e-6 };
                prop_assert!((0.0..=most).contains(u), "{u}");
            }
            for (class, (of, x)) in classes.iter().zip(&found.per_ns).enumerate() {
                let waits: f64 = of.visits.iter().zip(&found.wait_ns[class]).map(|(v, w)| v * w).sum();
                let little = x * (of.think_ns + of.base_ns + waits);
                prop_assert!((little - of.lines).abs() <= 1e-6 * of.lines.max(1.0), "Little's law: {little} of {}", of.lines);
            }
        }

        #[test]
        fn a_faster_station_never_slows_a_class_alone((mut stations, classes) in any_network(), faster in 0.2f64..1.0) {
            let before = solve(&stations, &classes[..1]).per_ns[0];
            stations[0].service_ns *= faster;
            let after = solve(&stations, &classes[..1]).per_ns[0];
            prop_assert!(after >= before * (1.0 - 1e-6), "{before} to {after}");
        }
    }
}
