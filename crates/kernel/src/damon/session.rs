//! One run of DAMON: kdamonds made, turned on, changed while on, asked, and taken away again.
//!
//! [`Session::start`] does all or nothing. While it lives, a lock tells others of this project so; whoever is killed
//! loses it, and the next start, or [`recover`], puts back what the journal has. For a loop that looks and adjusts:
//! [`Session::stats`], [`Session::regions`], [`Session::effective_quotas`] and [`Session::commit`] once a tick.
//!
//! Two habits of the kernel: asking for regions waits until schemes are next applied, up to an apply interval; and a
//! commit on older kernels (6.12) begins the aggregation interval anew, so commits closer together than that would keep
//! it from ever ending. [`Session::commit`] writes nothing where nothing has changed.
//!
//! A third one, of 6.12: a quota is in force from the end of its first interval on. Until then everything is done at once,
//! whatever the quota says. Who needs the limit begins with the quota and a pattern that nothing fits
//! ([`super::spec::AccessPattern::NOTHING`]), and commits the true one when [`Session::effective_quotas`] gives a number.

use nearfar_topology::Bytes;
use rustix::io::Errno;

use super::counters::{self, Region, SchemeStats};
use super::holder::{Holder, holders};
use super::lock::{Lock, lock};
use super::settings::{self, Filters, Setting};
use super::spec::{GoalTuner, Intervals, Kdamond, Scheme};
use super::{BY, DamonError, KDAMONDS, kdamond_path};
use crate::fs::{Fs, FsError};
use crate::journal::{Change, Journal, JournalError, OnConflict, Restored};

/// Whether the kernel's own statistics, which hold DAMON from boot on some kernels, may be paused for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamonStat {
    /// They stay: a session can't start while they run.
    Keep,
    /// They are off while the session lasts, and on again after it.
    Pause,
}

/// A run of DAMON that is ours. Dropping it stops it as [`Session::stop`] does, without a word about errors.
pub struct Session<'a> {
    fs: &'a dyn Fs,
    journal: &'a Journal<'a>,
    kdamonds: Vec<Running>,
    /// How many kdamonds the kernel has made; those above `kdamonds` have never been on.
    room: usize,
    stopped: bool,
    /// Held as long as we live.
    _lock: Lock,
}

/// What one of our kdamonds was told last.
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

/// Puts back what a session that was killed has left; nothing if there is nothing.
///
/// # Errors
/// [`DamonError::InUse`] while a session lives, [`DamonError::Journal`].
pub fn recover(journal: &Journal<'_>, on_conflict: OnConflict) -> Result<Restored, DamonError> {
    if !journal.dir().exists() {
        return Ok(Restored::default());
    }
    let _lock = lock(journal)?;
    Ok(journal.restore(BY, on_conflict)?)
}

impl<'a> Session<'a> {
    /// Makes the kdamonds `specs`, in order, and turns them on.
    ///
    /// What a killed session left is put back first. If anybody else holds DAMON, running or merely configured, nothing
    /// is changed.
    ///
    /// # Errors
    /// [`DamonError`]; everything is as before then, except as [`DamonError::Undo`] says.
    pub fn start(
        fs: &'a dyn Fs,
        journal: &'a Journal<'a>,
        specs: &[Kdamond],
        damon_stat: DamonStat,
    ) -> Result<Self, DamonError> {
        Self::start_with_room(fs, journal, specs, specs.len(), damon_stat)
    }

    /// The same with room for `room` kdamonds, so that [`Session::add`] can make more of them later. The kernel can't make
    /// room while one is on.
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

    /// Writes all settings, then turns all on.
    fn fill(&mut self, specs: &[Kdamond]) -> Result<(), DamonError> {
        for (index, spec) in specs.iter().enumerate() {
            let told = self.tell(index, spec)?;
            self.kdamonds.push(told);
        }
        let changes: Vec<Change> = (0..specs.len()).map(on).collect();
        self.journal.change(BY, &changes).map_err(DamonError::NotStarted)?;
        Ok(())
    }

    /// Writes all settings of a kdamond that is off.
    fn tell(&self, index: usize, spec: &Kdamond) -> Result<Running, DamonError> {
        let filters = self.skeleton(index, spec)?;
        let settings = settings::of(spec, filters);
        self.write(index, settings.iter())?;
        Ok(Running { spec: spec.clone(), settings, filters })
    }

    /// Makes one kdamond more and turns it on: in the place of one that has ended, else where room was left. Gives its
    /// index; nothing if there is neither.
    ///
    /// # Errors
    /// [`DamonError`]; the others go on, and the place can be used again.
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
            // The journal has had its state from when it was first turned on.
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
        Ok(Some(index))
    }

    /// Makes the directories that show how this kernel lays filters out.
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
            // An empty text is what a fresh file has; a write of nothing at all would not reach the kernel.
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

    /// How many kdamonds there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kdamonds.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kdamonds.is_empty()
    }

    /// What kdamond `index` was told last.
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

    /// Has kdamond `index` go on as `spec` says; gives whether that is anything new. What it found so far stays.
    ///
    /// # Errors
    /// [`DamonError`]; the kdamond goes on as before then.
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
            // What the files say counts only when committed; still, they should say what is so.
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

    /// [`Session::commit`] of what kdamond `index` was told last, as `change` changes it.
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

    /// What each scheme of kdamond `index` has done since it began.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn stats(&self, index: usize) -> Result<Vec<SchemeStats>, DamonError> {
        self.command(index, "update_schemes_stats")?;
        self.schemes(index)?.map(|scheme| counters::stats(self.fs, &scheme)).collect()
    }

    /// The regions that scheme `scheme` of kdamond `index` is for now, in order of address: all there are, for one that
    /// counts everything. Waits until schemes are next applied.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn regions(&self, index: usize, scheme: usize) -> Result<Vec<Region>, DamonError> {
        let base = self.schemes(index)?.nth(scheme);
        let base = base.ok_or(DamonError::NoSuch { what: "scheme", index: scheme })?;
        self.command(index, "update_schemes_tried_regions")?;
        let regions = counters::regions(self.fs, &base)?;
        // They are kernel memory until then.
        self.command(index, "clear_schemes_tried_regions")?;
        Ok(regions)
    }

    /// How much each scheme of kdamond `index` may do per quota interval now, as the kernel has worked it out of bytes,
    /// time and goals; `None` for no limit, which is so on 6.12 until the first interval has passed.
    ///
    /// # Errors
    /// [`DamonError::Gone`] once it has ended, and [`DamonError`].
    pub fn effective_quotas(&self, index: usize) -> Result<Vec<Option<Bytes>>, DamonError> {
        self.command(index, "update_schemes_effective_quotas")?;
        let schemes = &self.kdamond(index)?.spec.context.schemes;
        let quota = |(path, scheme): (String, &Scheme)| {
            let bytes = counters::number(self.fs, &format!("{path}/quotas/effective_bytes"))?;
            // Nothing more is what a reached goal means to one tuner; to all else 0 is no limit.
            let quotas = &scheme.quotas;
            let reached = quotas.goal_tuner == GoalTuner::Temporal && !quotas.goals.is_empty();
            Ok(bytes.filter(|of| (*of != 0 || reached) && *of != u64::MAX).map(Bytes))
        };
        self.schemes(index)?.zip(schemes).map(quota).collect()
    }

    /// The intervals that kdamond `index` goes by now, as the kernel has tuned them.
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

    /// Tells scheme `scheme` of kdamond `index` what the value of its goal `goal` is now, where the kernel does not
    /// measure it itself. Unlike a commit, this disturbs nothing.
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

    /// Turns all kdamonds off and puts everything back.
    ///
    /// # Errors
    /// [`DamonError::Journal`]; what was not put back is still recorded, and [`recover`] carries on.
    pub fn stop(mut self) -> Result<Restored, DamonError> {
        self.undo()
    }

    fn undo(&mut self) -> Result<Restored, DamonError> {
        self.stopped = true;
        // Kdamonds may end by themselves between being looked at and being turned off; the next look finds them off.
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
            // Nobody is left to be told; what fails here is still in the journal.
            let _ = self.undo();
        }
    }
}

/// Turns a kdamond on.
fn on(index: usize) -> Change {
    Change { path: kdamond_path(index, "state"), new: "on".into() }
}

/// What makes room for `kdamonds` kdamonds.
fn make_room(
    fs: &dyn Fs,
    kdamonds: usize,
    damon_stat: DamonStat,
) -> Result<Vec<Change>, DamonError> {
    let mut changes = Vec::new();
    let mut others = Vec::new();
    for holder in holders(fs)? {
        match (&holder, holder.switch()) {
            (Holder::Module { name, .. }, Some(switch))
                if name == "damon_stat" && damon_stat == DamonStat::Pause =>
            {
                changes.push(Change { path: switch, new: "N".into() });
            }
            _ => others.push(holder),
        }
    }
    if !others.is_empty() {
        return Err(DamonError::Held(others));
    }
    let path = format!("{KDAMONDS}/nr_kdamonds");
    changes.push(Change { path, new: kdamonds.to_string() });
    Ok(changes)
}

/// What of `wanted` has to be written where `now` stands: all, if directories come or go, for that empties others.
fn changes<'s>(now: &[Setting], wanted: &'s [Setting]) -> Vec<&'s Setting> {
    let directories = |settings: &'s [Setting]| settings.iter().filter(|s| s.makes_directories());
    if !now.iter().filter(|setting| setting.makes_directories()).eq(directories(wanted)) {
        return wanted.iter().collect();
    }
    // Nearly all are as they were, in the same place: only for the others is it worth to search.
    let stands =
        |(at, setting): &(usize, &Setting)| now.get(*at) == Some(setting) || now.contains(setting);
    wanted.iter().enumerate().filter(|one| !stands(one)).map(|(_, setting)| setting).collect()
}
