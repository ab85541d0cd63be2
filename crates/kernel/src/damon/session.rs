//! A run of DAMON: kdamonds are created, turned on, changed while on, queried, and removed.
//!
//! [`Session::start`] is atomic. A lock marks a live session to other processes of this project; a killed process loses
//! the lock, and the next start, or [`super::recover`], restores the journaled values. A control loop calls
//! [`Session::stats`], [`Session::regions`], [`Session::effective_quotas`] and [`Session::commit`] once per tick.
//!
//! Three properties of the kernel matter here. A query for regions blocks until schemes are next applied, up to an
//! apply interval. On older kernels (6.12) a commit restarts the aggregation interval, so commits at shorter intervals
//! would keep it from ever ending; [`Session::commit`] writes nothing if nothing has changed.
//!
//! On 6.12 a quota takes effect at the end of its first interval; until then schemes run without limit. A caller that
//! needs the limit starts with the quota and a pattern that matches no region
//! ([`super::spec::AccessPattern::NOTHING`]), and commits the real pattern once [`Session::effective_quotas`] returns a
//! number.

use nearfar_topology::Bytes;
use rustix::io::Errno;

use super::counters::{self, Region, SchemeStats};
use super::room::{DamonStat, make_room};
use super::settings::{self, Filters, Setting};
use super::spec::{GoalTuner, Intervals, Kdamond, Scheme};
use super::{BY, DamonError, KDAMONDS, kdamond_path, lock, offers};
use crate::fs::{Fs, FsError};
use crate::journal::{Change, Journal, JournalError, OnConflict, Restored};
use crate::lock::Lock;

/// Our run of DAMON. Dropping it stops it as [`Session::stop`] does, and ignores errors.
pub struct Session<'a> {
    fs: &'a dyn Fs,
    journal: &'a Journal<'a>,
    kdamonds: Vec<Running>,
    /// Number of kdamonds that the kernel has created; those beyond `kdamonds` have never been on.
    room: usize,
    stopped: bool,
    /// Held for the lifetime of the session.
    _lock: Lock,
}

/// The specification last written to one of our kdamonds.
#[derive(Debug)]
struct Running {
    spec: Kdamond,
    settings: Vec<Setting>,
    filters: Filters,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("journal", &self.journal)
            .field("kdamonds", &self.kdamonds)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// Creates the kdamonds `specs`, in order, and turns them on.
    ///
    /// The remains of a killed session are restored first. If another user holds DAMON, running or merely configured,
    /// nothing is changed.
    ///
    /// # Errors
    /// [`DamonError`]; the former state is restored then, except after [`DamonError::Undo`].
    pub fn start(
        fs: &'a dyn Fs,
        journal: &'a Journal<'a>,
        specs: &[Kdamond],
        damon_stat: DamonStat,
    ) -> Result<Self, DamonError> {
        Self::start_with_room(fs, journal, specs, specs.len(), damon_stat)
    }

    /// Like [`Session::start`], but creates `room` kdamonds, so that [`Session::add`] can use the others later. The
    /// kernel cannot create more while one is on.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_with_room(
        fs: &'a dyn Fs,
        journal: &'a Journal<'a>,
        specs: &[Kdamond],
        room: usize,
        damon_stat: DamonStat,
    ) -> Result<Self, DamonError> {
        for (index, spec) in specs.iter().enumerate() {
            spec.check().map_err(|what| DamonError::Spec { index, what })?;
        }
        if !fs.exists(KDAMONDS)? {
            return Err(DamonError::Absent);
        }
        let lock = lock(journal)?;
        journal.restore(BY, OnConflict::Refuse)?;
        let room = room.max(specs.len());
        let changes = make_room(fs, room, damon_stat)?;
        let mut session =
            Self { fs, journal, kdamonds: Vec::new(), room, stopped: false, _lock: lock };
        journal.change(BY, &changes)?;
        match session.fill(specs) {
            Ok(()) => Ok(session),
            Err(first) => Err(match session.undo() {
                Ok(_) => first,
                Err(then) => DamonError::Undo { first: Box::new(first), then: Box::new(then) },
            }),
        }
    }

    /// Writes all settings, then turns all kdamonds on.
    fn fill(&mut self, specs: &[Kdamond]) -> Result<(), DamonError> {
        for (index, spec) in specs.iter().enumerate() {
            let told = self.tell(index, spec)?;
            self.kdamonds.push(told);
        }
        let changes: Vec<Change> = (0..specs.len()).map(on).collect();
        self.journal.change(BY, &changes).map_err(DamonError::NotStarted)?;
        self.attest()
    }

    /// Records the ids of our threads, so that after a kill another user's kdamonds are not mistaken for ours.
    fn attest(&self) -> Result<(), DamonError> {
        let threads: Vec<_> = (0..self.kdamonds.len()).map(|at| kdamond_path(at, "pid")).collect();
        Ok(self.journal.attest(BY, &threads)?)
    }

    /// Writes all settings of a kdamond that is off.
    fn tell(&self, index: usize, spec: &Kdamond) -> Result<Running, DamonError> {
        let filters = self.skeleton(index, spec)?;
        let settings = settings::of(spec, filters);
        self.write(index, settings.iter())?;
        offers::check_watched(self.fs, index, spec.context.operations)?;
        Ok(Running { spec: spec.clone(), settings, filters })
    }

    /// Turns on one more kdamond: in the place of one that has ended, else in an unused place. Returns its index, or
    /// `None` if there is no place.
    ///
    /// # Errors
    /// [`DamonError`]; the other kdamonds keep running, and the place can be used again.
    pub fn add(&mut self, spec: &Kdamond) -> Result<Option<usize>, DamonError> {
        let mut index = 0;
        while index < self.kdamonds.len() && self.thread(index)?.is_some() {
            index += 1;
        }
        if index >= self.room {
            return Ok(None);
        }
        spec.check().map_err(|what| DamonError::Spec { index, what })?;
        let told = self.tell(index, spec)?;
        let Change { path, new } = on(index);
        match self.kdamonds.get_mut(index) {
            // The journal has its former state since it was first turned on.
            Some(ended) => {
                *ended = told;
                let turned_on = self.fs.write(&path, &new).map_err(JournalError::Write);
                turned_on.map_err(DamonError::NotStarted)?;
            }
            None => {
                let change = [Change { path, new }];
                self.journal.change(BY, &change).map_err(DamonError::NotStarted)?;
                self.kdamonds.push(told);
            }
        }
        self.attest()?;
        Ok(Some(index))
    }

    /// Creates the directories that show how this kernel arranges filters.
    fn skeleton(&self, index: usize, spec: &Kdamond) -> Result<Filters, DamonError> {
        if spec.context.schemes.is_empty() {
            return Ok(Filters::Together);
        }
        let file = |file| kdamond_path(index, file);
        for path in ["contexts/nr_contexts", "contexts/0/schemes/nr_schemes"] {
            self.fs.write(&file(path), "1").map_err(DamonError::Refused)?;
        }
        let layered = self.fs.exists(&file("contexts/0/schemes/0/core_filters"))?;
        Ok(if layered { Filters::Layered } else { Filters::Together })
    }

    /// Writes settings and reads each back.
    fn write<'s>(
        &self,
        index: usize,
        settings: impl Iterator<Item = &'s Setting>,
    ) -> Result<(), DamonError> {
        for setting in settings {
            let path = kdamond_path(index, &setting.path);
            // An empty text is the content of a fresh file; an empty write would not reach the kernel.
            let written = match setting.text.as_str() {
                "" if self.fs.read(&path)?.is_none_or(|text| text.trim().is_empty()) => Ok(()),
                "" => self.fs.write(&path, "\n"),
                text => self.fs.write(&path, text),
            };
            let absent = |error: &FsError| error.errno() == Some(Errno::NOENT.raw_os_error());
            let reads = match written {
                Err(error) if absent(&error) => None,
                Err(error) => return Err(DamonError::Refused(error)),
                Ok(()) => self.fs.read(&path)?,
            };
            match reads {
                None if setting.is_as_if_absent() => {}
                None => {
                    return Err(DamonError::Unsupported {
                        path: setting.path.clone(),
                        text: setting.text.clone(),
                        since: setting.lacking.map(|(_, since)| since),
                    });
                }
                Some(reads) if reads.trim() == setting.text => {}
                Some(reads) => {
                    let (wrote, reads) = (setting.text.clone(), reads.trim().into());
                    return Err(DamonError::Mistaken { path, wrote, reads });
                }
            }
        }
        Ok(())
    }

    /// Number of kdamonds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kdamonds.len()
    }

    /// Whether there are no kdamonds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kdamonds.is_empty()
    }

    /// The specification last written to kdamond `index`.
    #[must_use]
    pub fn spec(&self, index: usize) -> Option<&Kdamond> {
        Some(&self.kdamonds.get(index)?.spec)
    }

    /// The thread of kdamond `index`; `None` once it has ended.
    ///
    /// # Errors
    /// [`DamonError::Read`].
    pub fn thread(&self, index: usize) -> Result<Option<u32>, DamonError> {
        let on = self.fs.read(&kdamond_path(index, "state"))?;
        if on.is_none_or(|text| text.trim() != "on") {
            return Ok(None);
        }
        let pid = self.fs.read(&kdamond_path(index, "pid"))?;
        Ok(pid.and_then(|pid| pid.trim().parse().ok()))
    }

    /// Changes kdamond `index` to `spec`; returns whether anything changed. Its monitoring results are kept.
    ///
    /// # Errors
    /// [`DamonError`]; the kdamond keeps its former settings then.
    pub fn commit(&mut self, index: usize, spec: &Kdamond) -> Result<bool, DamonError> {
        spec.check().map_err(|what| DamonError::Spec { index, what })?;
        let mut filters = self.kdamond(index)?.filters;
        let now = &self.kdamond(index)?.spec.context.schemes;
        if now.is_empty() && !spec.context.schemes.is_empty() {
            filters = self.skeleton(index, spec)?;
        }
        let wanted = settings::of(spec, filters);
        let changes = changes(&self.kdamond(index)?.settings, &wanted);
        if changes.is_empty() {
            return Ok(false);
        }
        let told =
            self.write(index, changes.into_iter()).and_then(|()| self.command(index, "commit"));
        if let Err(first) = told {
            // Files take effect only on commit; still, they should show the settings in force.
            let settings = &self.kdamond(index)?.settings;
            return Err(match self.write(index, settings.iter()) {
                Ok(()) => first,
                Err(_) if matches!(first, DamonError::Gone { .. }) => first,
                Err(then) => DamonError::Undo { first: Box::new(first), then: Box::new(then) },
            });
        }
        self.kdamonds[index] = Running { spec: spec.clone(), settings: wanted, filters };
        Ok(true)
    }

    /// Commits the last specification of kdamond `index`, modified by `change`.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub fn adjust(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut Kdamond),
    ) -> Result<bool, DamonError> {
        let mut spec = self.kdamond(index)?.spec.clone();
        change(&mut spec);
        self.commit(index, &spec)
    }

    /// Counters of each scheme of kdamond `index` since its start.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn stats(&self, index: usize) -> Result<Vec<SchemeStats>, DamonError> {
        self.command(index, "update_schemes_stats")?;
        self.schemes(index)?.map(|scheme| counters::stats(self.fs, &scheme)).collect()
    }

    /// The regions that scheme `scheme` of kdamond `index` applies to now, in order of address: all regions, for a
    /// scheme with the default pattern. Blocks until schemes are next applied.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn regions(&self, index: usize, scheme: usize) -> Result<Vec<Region>, DamonError> {
        let base = self.schemes(index)?.nth(scheme);
        let base = base.ok_or(DamonError::NoSuch { what: "scheme", index: scheme })?;
        self.command(index, "update_schemes_tried_regions")?;
        let regions = counters::regions(self.fs, &base)?;
        // They occupy kernel memory until cleared.
        self.command(index, "clear_schemes_tried_regions")?;
        Ok(regions)
    }

    /// Effective quota of each scheme of kdamond `index` per quota interval, as the kernel derives it from bytes, time
    /// and goals; `None` for no limit, which is also the answer of 6.12 until the first interval has passed.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn effective_quotas(&self, index: usize) -> Result<Vec<Option<Bytes>>, DamonError> {
        self.command(index, "update_schemes_effective_quotas")?;
        let schemes = &self.kdamond(index)?.spec.context.schemes;
        let quota = |(path, scheme): (String, &Scheme)| {
            let bytes = counters::number(self.fs, &format!("{path}/quotas/effective_bytes"))?;
            // To one tuner 0 means that the goal is reached; otherwise 0 is no limit.
            let quotas = &scheme.quotas;
            let reached = quotas.goal_tuner == GoalTuner::Temporal && !quotas.goals.is_empty();
            Ok(bytes.filter(|of| (*of != 0 || reached) && *of != u64::MAX).map(Bytes))
        };
        self.schemes(index)?.zip(schemes).map(quota).collect()
    }

    /// The intervals of kdamond `index`, as tuned by the kernel.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn intervals(&self, index: usize) -> Result<Intervals, DamonError> {
        let given = self.kdamond(index)?.spec.context.intervals;
        if self.kdamond(index)?.spec.context.intervals_goal.is_none() {
            return Ok(given);
        }
        self.command(index, "update_tuned_intervals")?;
        let part = |file: &str| {
            let path = format!("contexts/0/monitoring_attrs/intervals/{file}");
            counters::number(self.fs, &kdamond_path(index, &path))
        };
        Ok(Intervals {
            sample_us: part("sample_us")?.unwrap_or(given.sample_us),
            aggr_us: part("aggr_us")?.unwrap_or(given.aggr_us),
            update_us: given.update_us,
        })
    }

    /// Writes the current value of goal `goal` of scheme `scheme` of kdamond `index`, for metrics that the kernel does
    /// not measure. Unlike a commit, this does not restart intervals.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn tell_goal(
        &mut self,
        index: usize,
        [scheme, goal]: [usize; 2],
        current_value: u64,
    ) -> Result<(), DamonError> {
        let running = self.kdamond(index)?;
        let mut spec = running.spec.clone();
        let schemes = &mut spec.context.schemes;
        let goals = schemes.get_mut(scheme).map(|scheme| &mut scheme.quotas.goals);
        let goals = goals.ok_or(DamonError::NoSuch { what: "scheme", index: scheme })?;
        let told = goals.get_mut(goal).ok_or(DamonError::NoSuch { what: "goal", index: goal })?;
        told.current_value = current_value;
        let settings = settings::of(&spec, running.filters);
        self.write(index, changes(&running.settings, &settings).into_iter())?;
        self.command(index, "commit_schemes_quota_goals")?;
        self.kdamonds[index].spec = spec;
        self.kdamonds[index].settings = settings;
        Ok(())
    }

    /// Turns all kdamonds off and restores the former state.
    ///
    /// # Errors
    /// [`DamonError::Journal`]; values not restored are still recorded, and [`super::recover`] continues.
    pub fn stop(mut self) -> Result<Restored, DamonError> {
        self.undo()
    }

    fn undo(&mut self) -> Result<Restored, DamonError> {
        self.stopped = true;
        // Kdamonds may end by themselves between the check and the write; the next attempt finds them off.
        let mut restored = self.journal.restore(BY, OnConflict::Refuse);
        for _ in 0..self.kdamonds.len() {
            restored = restored.or_else(|_| self.journal.restore(BY, OnConflict::Refuse));
        }
        Ok(restored?)
    }

    fn kdamond(&self, index: usize) -> Result<&Running, DamonError> {
        self.kdamonds.get(index).ok_or(DamonError::NoSuch { what: "kdamond", index })
    }

    /// The directories of its schemes.
    fn schemes(&self, index: usize) -> Result<impl Iterator<Item = String> + use<>, DamonError> {
        let schemes = self.kdamond(index)?.spec.context.schemes.len();
        let path = move |scheme| kdamond_path(index, &format!("contexts/0/schemes/{scheme}"));
        Ok((0..schemes).map(path))
    }

    fn command(&self, index: usize, word: &str) -> Result<(), DamonError> {
        self.kdamond(index)?;
        let Err(error) = self.fs.write(&kdamond_path(index, "state"), word) else {
            return Ok(());
        };
        match self.thread(index)? {
            None => Err(DamonError::Gone { index }),
            Some(_) => Err(DamonError::Refused(error)),
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.stopped {
            // Errors cannot be reported here; values not restored are still in the journal.
            let _ = self.undo();
        }
    }
}

/// Turns a kdamond on.
fn on(index: usize) -> Change {
    Change { path: kdamond_path(index, "state"), new: "on".into() }
}

/// The settings of `wanted` to be written over `now`: all, if directories are created or removed, since that clears
/// others.
fn changes<'s>(now: &[Setting], wanted: &'s [Setting]) -> Vec<&'s Setting> {
    let directories = |settings: &'s [Setting]| settings.iter().filter(|s| s.makes_directories());
    if !now.iter().filter(|setting| setting.makes_directories()).eq(directories(wanted)) {
        return wanted.iter().collect();
    }
    // Nearly all are unchanged, at the same index; only the others are searched for.
    let stands =
        |(at, setting): &(usize, &Setting)| now.get(*at) == Some(setting) || now.contains(setting);
    wanted.iter().enumerate().filter(|one| !stands(one)).map(|(_, setting)| setting).collect()
}
