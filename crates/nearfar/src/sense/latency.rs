//! Timed loads of our own: what a load takes now, from each node's CPUs to each node's memory. Needs no PMU and no privilege.
//!
//! Each path is a chain of loads through a region on the node (crate kernel, `chase.rs`), of which three are timed and the one
//! in the middle counts, from a CPU of the node that asks. Paths take turns, as many at a reading as a thousandth of a CPU
//! pays for, so that on a machine with many paths each is measured less often: [`Reading::latency_age`] says how old the
//! oldest figure is, and [`Reading::latency_fresh`] which are new. Where this machine has been probed, what others use of a node is read off its curve ([`used`]).
//!
//! In a guest of the lab that waits in slow motion, figures are divided by that, as the probe's are.

use std::collections::{BTreeSet, VecDeque};

use nearfar_control::sense::{
    Cost, Grain, Nature, Reading, Scope, Sees, Sensor, Unusable, Whose, Why,
};
use nearfar_kernel::affinity;
use nearfar_kernel::chase::{self, Chase};
use nearfar_probe::report::LoadedCurve;
use nearfar_probe::{load_matching, marker, state_dir};
use nearfar_topology::{BasisPoints, BytesPerSecond, CpuId, Nanoseconds, NodeId};

use super::{Scene, not_started};

const NAME: &str = "latency";
/// Chains that are timed, of which the one in the middle counts.
const CHAINS: usize = 3;
/// One in so much of a CPU's time is spent on it,
const SHARE: i64 = 1000;
/// and so much at most at a time.
const CREDIT_MOST: i64 = 2_000_000;
/// Lines that fill caches: 64 MiB.
const WASH_LINES: usize = 1 << 20;
/// So often regions are brought back to their nodes, from which tiering may have moved them.
const SETTLE: u64 = 10_000_000_000;
/// A load from memory takes longer than this, and not as long as that.
const LEAST: Nanoseconds = Nanoseconds(10);
const MOST: Nanoseconds = Nanoseconds(1_000_000);

/// From a node's CPUs to a node's memory.
#[derive(Debug)]
struct Path {
    /// Places among the machine's nodes.
    from: usize,
    to: usize,
    /// CPUs of the first that we may use.
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
    /// The one whose turn it is first.
    paths: VecDeque<Path>,
    slow_motion: f64,
    /// Time that may be spent now; below 0 after a look that took longer than there was.
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

    /// Paths from nodes with CPUs that we may use to nodes with memory that we get.
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
    points.map(|point| (whole(point.latency_ns), point.achieved_bytes_per_s)).collect()
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

/// What is in use where a load takes so long, by a curve from idle to busy; nothing if there is no curve. Between points it is
/// on the line, beyond them at the end.
fn used(curve: &[(Nanoseconds, BytesPerSecond)], now: Nanoseconds) -> Option<BytesPerSecond> {
    let mut sorted = curve.to_vec();
    sorted.sort_unstable();
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

/// What a load takes: of a few chains the one in the middle, as one may be interrupted.
fn middle(chase: &Chase) -> Nanoseconds {
    let mut loads = [Nanoseconds(0); CHAINS];
    loads.fill_with(|| chase.measure());
    loads.sort();
    loads[CHAINS / 2]
}

/// Fills caches with other lines: regions have just been written, and where lines can't be flushed (not on x86-64, nor in the
/// lab) they would be found there.
fn wash() {
    let mut lines = vec![0_u64; WASH_LINES * 8];
    lines.iter_mut().step_by(8).for_each(|word| *word = 1);
    std::hint::black_box(&lines);
}

/// Does something on some CPUs, and comes back to where this thread may run.
fn on<T>(cpus: &[CpuId], work: impl FnOnce() -> T) -> Option<T> {
    let before = affinity::get().ok()?;
    affinity::set(cpus).ok()?;
    let done = work();
    // What was allowed before is so still, unless somebody has taken it: then it is as they want.
    let _ = affinity::set(&before);
    Some(done)
}

impl AtWork {
    /// Times the path whose turn it is.
    fn look(&mut self) {
        let Some(mut path) = self.paths.pop_front() else { return };
        if let Some(chase) = &self.chases[path.to]
            && let Some(load) = on(&path.cpus, || middle(chase))
        {
            let load = whole(load.0 as f64 / self.slow_motion);
            path.last = Some((load, chase::now()));
        }
        self.paths.push_back(path);
    }

    /// Fills the caches of each node's CPUs with other lines.
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
            // A node is as busy as the way to it that shows most of that.
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

    fn start(&mut self, _: &Whose, now: Nanoseconds) -> Result<(), Unusable> {
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
        // The first time translations are new: no figure to go by.
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
            at_work.chases.iter().flatten().for_each(Chase::settle);
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
    fn what_is_in_use_is_read_off_the_curve_and_never_beyond_its_ends() {
        let at = |ns| used(&curve(), Nanoseconds(ns)).map(|bandwidth| bandwidth.0);
        assert_eq!([90, 100, 105, 130, 300, 999].map(at), [0, 0, 10, 30, 44, 44].map(Some));
        assert_eq!(used(&[], Nanoseconds(100)), None);
    }

    #[test]
    fn a_thread_comes_back_to_where_it_may_run() {
        let before = affinity::get().unwrap();
        let one = [before[0]];
        assert_eq!(on(&one, || affinity::get().unwrap()), Some(one.to_vec()));
        assert_eq!(affinity::get().unwrap(), before);
        assert_eq!(on(&[CpuId(1023)], || ()), None);
        assert_eq!(affinity::get().unwrap(), before);
    }
}
