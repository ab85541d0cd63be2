//! Room for a session: the changes with which it begins, if nobody else uses DAMON.

use std::fs::File;

use super::holder::{Holder, MODULES, holders};
use super::{BY, DamonError, KDAMONDS, LOCK};
use crate::fs::Fs;
use crate::journal::{Change, Journal, OnConflict};
use crate::lock::holder_of;

/// Whether the kernel's own statistics, which occupy DAMON from boot on some kernels, may be paused for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamonStat {
    /// They are not paused: a session cannot start while they run.
    Keep,
    /// They are off during the session, and on again after it.
    Pause,
}

fn number() -> String {
    format!("{KDAMONDS}/nr_kdamonds")
}

/// The changes with which a session of `kdamonds` kdamonds begins.
pub(super) fn make_room(
    fs: &dyn Fs,
    kdamonds: usize,
    damon_stat: DamonStat,
) -> Result<Vec<Change>, DamonError> {
    among(holders(fs)?, kdamonds, damon_stat)
}

/// The changes with which a session would begin, once the remains of a killed one are restored. Nothing is changed.
///
/// # Errors
/// Those of [`Session::start`](super::Session::start) before its first write.
pub fn planned(
    journal: &Journal<'_>,
    fs: &dyn Fs,
    kdamonds: usize,
    damon_stat: DamonStat,
) -> Result<Vec<Change>, DamonError> {
    among(users(journal, fs)?, kdamonds, damon_stat)
}

/// The users of DAMON that a session would find, once the remains of a killed one are restored. Nothing is changed.
///
/// # Errors
/// [`DamonError::Absent`], [`DamonError::InUse`] while a session of this journal runs, and those of reading.
pub fn users(journal: &Journal<'_>, fs: &dyn Fs) -> Result<Vec<Holder>, DamonError> {
    if !fs.exists(KDAMONDS)? {
        return Err(DamonError::Absent);
    }
    let lock = File::open(journal.dir().join(LOCK)).ok();
    if let Some(pid) = lock.as_ref().and_then(holder_of) {
        return Err(DamonError::InUse { pid: Some(pid) });
    }
    let left = journal.planned(BY, OnConflict::Refuse)?.put_back;
    let is_left = |path: &str| left.iter().any(|change| change.path == path);
    let mut holders = holders(fs)?;
    if is_left(&number()) {
        holders.retain(|holder| !matches!(holder, Holder::Kdamond { .. }));
    }
    let modules = MODULES.map(|name| Holder::Module { name: name.into(), pid: None });
    let is_paused = |module: &Holder| module.switch().is_some_and(|path| is_left(&path));
    holders.extend(modules.into_iter().filter(is_paused));
    Ok(holders)
}

fn among(
    holders: Vec<Holder>,
    kdamonds: usize,
    damon_stat: DamonStat,
) -> Result<Vec<Change>, DamonError> {
    let mut changes = Vec::new();
    let mut others = Vec::new();
    for holder in holders {
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
    changes.push(Change { path: number(), new: kdamonds.to_string() });
    Ok(changes)
}
