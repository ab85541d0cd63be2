//! Timed loads: the current load latency from each node's CPUs to each node's memory. Needs no PMU and no privilege.
//!
//! Each path is a pointer chase through a region on the node (crate kernel, `chase.rs`), run three times on a CPU of
//! the requesting node, of which the median counts. Paths are measured in rotation, at most a thousandth of a CPU's
//! time per reading, so that on a machine with many paths each is measured less often: [`Reading::latency_age`] is the
//! age of the oldest value, and [`Reading::latency_fresh`] marks the new ones. If this machine has been probed, the
//! bandwidth in use on a node is derived from its loaded-latency curve ([`used`]).
//!
//! In a guest of the lab that waits in slow motion, values are divided by that factor, as the probe's are.

use std::collections::{BTreeSet, VecDeque};

use nearfar_kernel::affinity;
use nearfar_kernel::chase::{self, Chase};
use nearfar_policy::ports::{
    Cost, Grain, Nature, Reading, Scope, Sees, Sensor, Targets, Unusable, Why,
};
use nearfar_probe::report::LoadedCurve;
use nearfar_probe::{load_matching, marker, state_dir};
use nearfar_topology::{BasisPoints, BytesPerSecond, CpuId, Nanoseconds, NodeId};

use super::{Scene, not_started};

pub(crate) const NAME: &str = "latency";
/// Chases per measurement, of which the median counts.
const CHAINS: usize = 3;
/// The sensor uses one part in this many of a CPU's time,
const SHARE: i64 = 1000;
/// and at most this much at once.
const CREDIT_MOST: i64 = 2_000_000;
/// Lines needed to replace the caches' content: 64 MiB.
const WASH_LINES: usize = 1 << 20;
/// Interval at which regions are moved back to their nodes, because tiering may have migrated them.
const SETTLE: u64 = 10_000_000_000;
/// Range of plausible latencies of a load from memory.
const LEAST: Nanoseconds = Nanoseconds(10);
const MOST: Nanoseconds = Nanoseconds(1_000_000);
/// Error of a latency, in per cent: the variation of repeated measurements on an idle machine.
const ERROR: u64 = 5;

/// The path from a node's CPUs to a node's memory.
#[derive(Debug)]
struct Path {
    /// Indices of the machine's nodes.
    from: usize,
    to: usize,
    /// CPUs of the first that this process may use.
    cpus: Vec<CpuId>,
    last: Option<(Nanoseconds, Nanoseconds)>,
    curve: Vec<(Nanoseconds, BytesPerSecond)>,
}

/// The sensor.
#[derive(Debug)]
pub(crate) struct Latency<'a> {
    scene: Scene<'a>,
    nodes: Vec<NodeId>,
    at_work: Option<AtWork>,
    cost: Cost,
}

#[derive(Debug)]
struct AtWork {
    chases: Vec<Option<Chase>>,
    /// The next path to measure comes first.
    paths: VecDeque<Path>,
    slow_motion: f64,
    /// Time that may be spent now; below 0 after a measurement that took longer than allowed.
    credit: i64,
    read: Nanoseconds,
    settled: Nanoseconds,
}

impl<'a> Latency<'a> {
    pub(crate) fn new(scene: Scene<'a>) -> Self {
        Self { scene, nodes: scene.nodes(), at_work: None, cost: Cost::default() }
    }

    fn slow_motion() -> Result<f64, Unusable> {
        let said = marker::read().map_err(|odd| Unusable::new(Why::Failed, odd))?;
        Ok(said.map_or(1.0, |lab| lab.slow_motion))
    }

    /// Paths from nodes with CPUs that we may use to nodes on which we have a region.
    fn paths(&self, chases: &[Option<Chase>]) -> VecDeque<Path> {
        let allowed = affinity::get().unwrap_or_default();
        let probed = state_dir()
            .ok()
            .and_then(|dir| load_matching(&dir, &self.scene.machine.fingerprint()).ok().flatten());
        let mut paths = VecDeque::new();
        for (from, (id, node)) in self.scene.machine.nodes.iter().enumerate() {
            let cpus: Vec<CpuId> =
                node.cpus.iter().copied().filter(|cpu| allowed.contains(cpu)).collect();
            if cpus.is_empty() {
                continue;
            }
            for (to, memory) in self.nodes.iter().enumerate() {
                if chases[to].is_none() {
                    continue;
                }
                let pair = probed.as_ref().and_then(|report| report.pair(*id, *memory));
                let curve = pair.map(|pair| points(&pair.loaded));
                let (cpus, curve) = (cpus.clone(), curve.unwrap_or_default());
                paths.push_back(Path { from, to, cpus, last: None, curve });
            }
        }
        paths
    }
}

/// A curve's points as whole numbers.
fn points(curve: &LoadedCurve) -> Vec<(Nanoseconds, BytesPerSecond)> {
    let points = curve.points.iter();
    points.map(|point| (whole(point.latency_ns), point.achieved_bytes_per_second)).collect()
}

fn whole(ns: f64) -> Nanoseconds {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped, far below 2^53"
    )]
    let whole = ns.round().clamp(0.0, 1e12) as u64;
    Nanoseconds(whole)
}

/// The bandwidth in use at this load latency, by a curve from idle to busy; `None` without a curve, or where it is too
/// flat: where an error of [`ERROR`] in the latency could mean a quarter of all bandwidth more or less.
fn used(curve: &[(Nanoseconds, BytesPerSecond)], now: Nanoseconds) -> Option<BytesPerSecond> {
    let mut sorted = curve.to_vec();
    sorted.sort_unstable();
    let error = now.0 * ERROR / 100;
    let [low, high] = [now.0.saturating_sub(error), now.0 + error]
        .map(|at| inverse(&sorted, Nanoseconds(at)).unwrap_or_default());
    let all = sorted.iter().map(|(_, bandwidth)| bandwidth.0).max()?;
    (high.0.saturating_sub(low.0) <= all / 4).then(|| inverse(&sorted, now))?
}

/// The bandwidth at this latency: linear between points, constant beyond them.
fn inverse(sorted: &[(Nanoseconds, BytesPerSecond)], now: Nanoseconds) -> Option<BytesPerSecond> {
    let above = sorted.iter().position(|(latency, _)| *latency >= now);
    let Some(above) = above else { return sorted.last().map(|(_, bandwidth)| *bandwidth) };
    let (high_ns, high) = sorted[above];
    let Some((low_ns, low)) = above.checked_sub(1).map(|below| sorted[below]) else {
        return Some(BytesPerSecond(0));
    };
    let (part, whole) = (u128::from(now.0 - low_ns.0), u128::from((high_ns.0 - low_ns.0).max(1)));
    let rise = u128::from(high.0.saturating_sub(low.0)) * part / whole;
    Some(BytesPerSecond(low.0 + u64::try_from(rise).unwrap_or(0)))
}

/// Latency of a load: the median of a few chases, because one may be interrupted.
fn middle(chase: &Chase) -> Nanoseconds {
    let mut loads = [Nanoseconds(0); CHAINS];
    loads.fill_with(|| chase.measure());
    loads.sort();
    loads[CHAINS / 2]
}

/// Replaces the caches' content: regions have just been written, and where lines can't be flushed (not on x86-64, nor
/// in the lab) they would be found in the caches.
fn wash() {
    let mut lines = vec![0_u64; WASH_LINES * 8];
    lines.iter_mut().step_by(8).for_each(|word| *word = 1);
    std::hint::black_box(&lines);
}

/// Runs `work` on some CPUs, then restores the thread's affinity.
fn on<T>(cpus: &[CpuId], work: impl FnOnce() -> T) -> Option<T> {
    let before = affinity::get().ok()?;
    affinity::set(cpus).ok()?;
    let done = work();
    // Restoring fails only if the allowed CPUs were changed meanwhile: then the new setting stays.
    let _ = affinity::set(&before);
    Some(done)
}

impl AtWork {
    /// Measures the next path.
    fn look(&mut self) {
        let Some(mut path) = self.paths.pop_front() else { return };
        if let Some(chase) = &self.chases[path.to]
            && let Some(load) = on(&path.cpus, || middle(chase))
        {
            let load = whole(load.0 as f64 / self.slow_motion);
            // An implausible value is no measurement: the clock stood still, or the thread did.
            if (LEAST..=MOST).contains(&load) {
                path.last = Some((load, chase::now()));
            }
        }
        self.paths.push_back(path);
    }

    /// Replaces the content of the caches of each node's CPUs.
    fn wash(&self) {
        let mut washed = BTreeSet::new();
        for path in &self.paths {
            if washed.insert(path.from) {
                let _ = on(&path.cpus, wash);
            }
        }
    }

    fn reading(&self, nodes: usize, now: Nanoseconds, elapsed: Nanoseconds) -> Reading {
        let mut latency = vec![vec![None; nodes]; nodes];
        let mut in_use = vec![None; nodes];
        let mut oldest = now;
        let mut latency_fresh = vec![vec![false; nodes]; nodes];
        for path in &self.paths {
            let Some((load, at)) = path.last else { continue };
            latency[path.from][path.to] = Some(load);
            // A node's load is that of its most loaded path.
            in_use[path.to] = in_use[path.to].max(used(&path.curve, load));
            oldest = oldest.min(at);
            latency_fresh[path.from][path.to] = now.0.saturating_sub(at.0) <= elapsed.0;
        }
        let latency_age = Nanoseconds(now.0.saturating_sub(oldest.0));
        let coverage = BasisPoints(10_000);
        Reading {
            elapsed,
            coverage,
            latency,
            latency_age,
            latency_fresh,
            used: in_use,
            ..Reading::default()
        }
    }
}

impl Sensor for Latency<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::None,
            writes: false,
            cpu: true,
            traffic: false,
            latency: true,
            scope: Scope::Own,
            nature: Nature::Measured,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        let slow_motion = Self::slow_motion()?;
        let chase = self.nodes.iter().find_map(|node| Chase::new(*node)).ok_or_else(|| {
            let found =
                "no node gives this process memory (Mems_allowed_list in /proc/self/status)";
            Unusable::new(Why::Forbidden, found).but("allow it a node")
        })?;
        let load = whole(middle(&chase).0 as f64 / slow_motion);
        if !(LEAST..=MOST).contains(&load) {
            let found = format!("a load from memory seems to take {load}, which can't be");
            return Err(Unusable::new(Why::Mute, found));
        }
        Ok(())
    }

    fn start(&mut self, _: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        if self.at_work.is_some() {
            return Ok(());
        }
        self.check()?;
        let slow_motion = Self::slow_motion()?;
        let chases: Vec<Option<Chase>> = self.nodes.iter().map(|node| Chase::new(*node)).collect();
        let paths = self.paths(&chases);
        if paths.is_empty() {
            let found = "no CPU of a node may be used (Cpus_allowed_list in /proc/self/status)";
            return Err(Unusable::new(Why::Forbidden, found).but("allow it a CPU of each node"));
        }
        let all = paths.len();
        let mut at_work = AtWork { chases, paths, slow_motion, credit: 0, read: now, settled: now };
        // At the first run translations are cold: the result does not count.
        (0..all).for_each(|_| at_work.look());
        at_work.wash();
        (0..all).for_each(|_| at_work.look());
        self.cost = Cost::default();
        self.at_work = Some(at_work);
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        let Some(at_work) = &mut self.at_work else { return Err(not_started(NAME)) };
        let elapsed = Nanoseconds(now.0.saturating_sub(at_work.read.0));
        at_work.read = now;
        if now.0.saturating_sub(at_work.settled.0) >= SETTLE {
            for chase in at_work.chases.iter().flatten() {
                let _ = chase.settle();
            }
            at_work.settled = now;
        }
        let earned = i64::try_from(elapsed.0).unwrap_or(i64::MAX) / SHARE;
        at_work.credit = CREDIT_MOST.min(at_work.credit.saturating_add(earned));
        for _ in 0..at_work.paths.len() {
            if at_work.credit <= 0 {
                break;
            }
            let begun = chase::now();
            at_work.look();
            let took = chase::now().0.saturating_sub(begun.0);
            at_work.credit = at_work.credit.saturating_sub(i64::try_from(took).unwrap_or(i64::MAX));
            self.cost.cpu.0 += took;
        }
        Ok(at_work.reading(self.nodes.len(), chase::now(), elapsed))
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        self.at_work = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Vec<(Nanoseconds, BytesPerSecond)> {
        [(100, 0), (110, 20), (150, 40), (300, 44)]
            .map(|(ns, gb)| (Nanoseconds(ns), BytesPerSecond(gb)))
            .into()
    }

    #[test]
    fn utilisation_is_interpolated_on_the_curve_within_its_ends() {
        let at = |ns| inverse(&curve(), Nanoseconds(ns)).map(|bandwidth| bandwidth.0);
        assert_eq!([90, 100, 105, 130, 300, 999].map(at), [0, 0, 10, 30, 44, 44].map(Some));
        let at = |ns| used(&curve(), Nanoseconds(ns)).map(|bandwidth| bandwidth.0);
        assert_eq!([150, 200, 300, 999].map(at), [40, 41, 44, 44].map(Some));
        assert_eq!(used(&[], Nanoseconds(100)), None);
    }

    #[test]
    fn a_flat_curve_gives_no_utilisation() {
        let at = |ns| used(&curve(), Nanoseconds(ns));
        assert_eq!([103, 105, 108].map(at), [None; 3], "2 ns more are 4 GB/s more");
    }

    #[test]
    fn a_threads_affinity_is_restored() {
        let before = affinity::get().unwrap();
        let one = [before[0]];
        assert_eq!(on(&one, || affinity::get().unwrap()), Some(one.to_vec()));
        assert_eq!(affinity::get().unwrap(), before);
        assert_eq!(on(&[CpuId(1023)], || ()), None);
        assert_eq!(affinity::get().unwrap(), before);
    }
}
