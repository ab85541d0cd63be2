//! DAMON: access frequency of memory regions, by accessed bits; without CPUs, without reads and writes apart, without
//! traffic.
//!
//! For the whole machine it monitors physical memory; for processes, the virtual memory of each, at most sixteen. The
//! kernel has one user of DAMON at a time: a conflicting user is reported by name, and its session stays. A session
//! goes through the journal. Reading regions waits for the kernel's next result, so it is done once a second; readings
//! in between have none.

use nearfar_kernel::damon::spec::{Action, AddrRange, Kdamond, Scheme};
use nearfar_kernel::damon::{DamonError, DamonStat, KDAMONDS, Region, Session, holders};
use nearfar_kernel::fs::Fs as _;
use nearfar_kernel::{chase, process, ranges};
use nearfar_policy::ports::{
    Cost, Grain, Heat, Nature, Reading, Scope, Sees, Sensor, Targets, Unusable, Why,
};
use nearfar_policy::traffic::Process;
use nearfar_topology::{BasisPoints, Nanoseconds};

use super::{Scene, not_started};

pub(crate) const NAME: &str = "damon";
/// The most processes monitored at once.
const PROCESSES_MAX: usize = 16;
/// Interval between results.
const EVERY: u64 = 1_000_000_000;
/// This many results without any region mean that monitoring does not work.
const MUTE: u32 = 3;

/// The sensor.
#[derive(Debug)]
pub(crate) struct Regions<'a> {
    scene: Scene<'a>,
    at_work: Option<AtWork<'a>>,
    cost: Cost,
}

#[derive(Debug)]
struct AtWork<'a> {
    session: Session<'a>,
    /// The process monitored by each kdamond.
    watched: Vec<Option<Process>>,
    since: Nanoseconds,
    asked: Nanoseconds,
    empty: u32,
}

impl<'a> Regions<'a> {
    pub(crate) fn new(scene: Scene<'a>) -> Self {
        Self { scene, at_work: None, cost: Cost::default() }
    }

    fn kdamonds(&self, targets: &Targets) -> Result<Vec<(Option<Process>, Kdamond)>, Unusable> {
        let mut kdamonds = match targets {
            Targets::Processes(these) => {
                let these = these.iter().filter(|process| process::lives(self.scene.fs, process.0));
                let these = these.take(PROCESSES_MAX);
                these.map(|process| (Some(*process), Kdamond::process(process.0))).collect()
            }
            Targets::Machine => {
                let nodes = ranges::of_nodes(self.scene.fs)
                    .map_err(|error| Unusable::new(Why::Absent, error.to_string()))?;
                let all: Vec<AddrRange> = nodes.into_values().flatten().collect();
                vec![(None, Kdamond::physical(&all))]
            }
        };
        for (_, kdamond) in &mut kdamonds {
            kdamond.context.schemes = vec![Scheme::new(Action::Stat)];
        }
        Ok(kdamonds)
    }
}

fn refused(error: &DamonError) -> Unusable {
    let why = match error {
        DamonError::Absent | DamonError::Unsupported { .. } | DamonError::Unwatched { .. } => {
            Why::Absent
        }
        DamonError::Held(_) | DamonError::InUse { .. } => Why::Taken,
        DamonError::Gone { .. } => Why::Failed,
        _ => Why::Forbidden,
    };
    Unusable::new(why, error.to_string())
}

/// A region as the share of samples, out of `looks`, that found it accessed.
fn heat(process: Option<Process>, region: &Region, looks: u64) -> Heat {
    let share = region.nr_accesses.min(looks).saturating_mul(10_000) / looks.max(1);
    let (start, end) = (region.range.start, region.range.end);
    Heat { process, start, end, used: BasisPoints(u32::try_from(share).unwrap_or(10_000)) }
}

impl Sensor for Regions<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::Regions,
            writes: false,
            cpu: false,
            traffic: false,
            latency: false,
            scope: Scope::Processes,
            nature: Nature::Measured,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        if !matches!(self.scene.fs.exists(KDAMONDS), Ok(true)) {
            return Err(refused(&DamonError::Absent));
        }
        let held = holders(self.scene.fs).map_err(|error| {
            Unusable::new(Why::Forbidden, format!("DAMON can't be read: {error}"))
                .but("sudo nearfar sense")
        })?;
        if !held.is_empty() && self.at_work.is_none() {
            return Err(refused(&DamonError::Held(held)));
        }
        if !rustix::process::geteuid().is_root() {
            let found = format!("/{KDAMONDS} is root's");
            return Err(Unusable::new(Why::Forbidden, found).but("sudo nearfar sense"));
        }
        Ok(())
    }

    fn start(&mut self, targets: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        // The target can't be changed without a restart.
        self.stop()?;
        self.check()?;
        let (watched, specs): (Vec<_>, Vec<_>) = self.kdamonds(targets)?.into_iter().unzip();
        if specs.is_empty() {
            return Err(Unusable::new(Why::Failed, "none of the processes is there any more"));
        }
        let session = Session::start(self.scene.fs, self.scene.journal, &specs, DamonStat::Keep);
        let session = session.map_err(|error| refused(&error))?;
        self.cost = Cost::default();
        self.at_work = Some(AtWork { session, watched, since: now, asked: now, empty: 0 });
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        let Some(at_work) = &mut self.at_work else { return Err(not_started(NAME)) };
        let elapsed = Nanoseconds(now.0.saturating_sub(at_work.since.0));
        at_work.since = now;
        let coverage = BasisPoints(10_000);
        let mut reading = Reading { elapsed, coverage, ..Reading::default() };
        if now.0.saturating_sub(at_work.asked.0) < EVERY {
            return Ok(reading);
        }
        at_work.asked = now;
        let begun = chase::own_cpu();
        let mut gone = None;
        for (index, process) in at_work.watched.iter().enumerate() {
            let looks = at_work
                .session
                .spec(index)
                .map_or(1, |spec| spec.context.intervals.nr_accesses_max());
            match at_work.session.regions(index, 0) {
                Ok(found) => {
                    reading.heat.extend(found.iter().map(|region| heat(*process, region, looks)));
                }
                Err(error @ DamonError::Gone { .. }) => gone = Some(refused(&error)),
                Err(error) => return Err(refused(&error)),
            }
        }
        self.cost.cpu.0 += chase::own_cpu().0.saturating_sub(begun.0);
        at_work.empty = if reading.heat.is_empty() { at_work.empty + 1 } else { 0 };
        match gone {
            Some(gone) if reading.heat.is_empty() => Err(gone),
            _ if at_work.empty >= MUTE => Err(Unusable::new(
                Why::Mute,
                format!("DAMON runs, and {MUTE} results had no region"),
            )),
            _ => Ok(reading),
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        match self.at_work.take() {
            Some(at_work) => at_work.session.stop().map(drop).map_err(|error| refused(&error)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_is_the_share_of_samples_with_an_access() {
        let range = AddrRange { start: 4096, end: 8192 };
        let region = |nr_accesses| Region { range, nr_accesses, age: 3, sz_filter_passed: None };
        let of = |accesses, looks| heat(Some(Process(7)), &region(accesses), looks).used.0;
        assert_eq!(
            [of(0, 20), of(5, 20), of(20, 20), of(25, 20), of(1, 0)],
            [0, 2500, 10_000, 10_000, 0]
        );
        let whole = heat(None, &region(1), 4);
        assert_eq!((whole.start, whole.end, whole.process), (4096, 8192, None));
    }

    #[test]
    fn a_held_damon_is_reported_as_taken() {
        assert_eq!(refused(&DamonError::Held(Vec::new())).why, Why::Taken);
        assert_eq!(refused(&DamonError::Absent).why, Why::Absent);
        assert_eq!(refused(&DamonError::Gone { index: 0 }).why, Why::Failed);
    }
}
