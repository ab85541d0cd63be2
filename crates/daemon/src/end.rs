//! The end of a service from outside (`stop`, `off`): ends its process, and restores its settings even if it was killed.

use anyhow::Context as _;
use nearfar_command::output;
use nearfar_kernel::cgroup::own::Turn;
use nearfar_kernel::damon;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict, Restored};

use crate::owner::{Service, Whom};
use crate::tier::service::{refuse_conflicts, say_removed};
use crate::{balance, budget, last, tier};

/// Ends tiering, or the process named. Returns the process that was ended, and whether a killed one had left
/// settings changed.
///
/// # Errors
/// A process that does not end, or settings that can't be restored.
pub fn tiering(
    whom: Whom,
    on_conflict: OnConflict,
    note: fn(&Restored),
) -> anyhow::Result<(Option<u32>, bool)> {
    let (dir, fs) = (Journal::default_dir(), RootFs::live()?);
    let journal = Journal::new(dir.clone(), &fs, "/");
    let ended = Service::Tier.end(&journal, whom)?;
    if ended.claim.is_none() && whom != Whom::Any {
        return Ok((ended.pid, false));
    }
    let recovered = damon::recover(&journal, on_conflict).map_err(anyhow::Error::from);
    // An error with one setting does not keep the others from being restored.
    let mut failed = Vec::new();
    let mut restored = Restored::default();
    for part in
        [recovered, journal.restore(tier::service::BY, on_conflict).map_err(anyhow::Error::from)]
    {
        match part.context("restoring the settings of tiering") {
            Ok(part) => restored.add(part),
            Err(error) => failed.push(error),
        }
    }
    let removed = Turn::take(&dir).and_then(|turn| turn.recover(&fs));
    let removed = removed.context("removing the cgroup of a program that was run");
    let removed = removed.unwrap_or_else(|error| {
        failed.push(error);
        None
    });
    removed.iter().for_each(say_removed);
    let mut left = removed.is_some() || !restored.put_back.is_empty();
    left |= last::retire(&tier::state::path(&dir));
    for gone in [tier::state::ended_path(&dir), budget::state::path(&dir)] {
        left |= std::fs::remove_file(gone).is_ok();
    }
    note(&restored);
    if let Some(first) = failed.pop() {
        failed.iter().for_each(|error| output::note(format_args!("{error:#}")));
        return Err(first);
    }
    refuse_conflicts(&restored)?;
    Ok((ended.pid, left))
}

/// Ends balancing, or the process named. Returns the process that was ended, and whether a killed one had left
/// settings changed.
///
/// # Errors
/// A process that does not end, or settings that can't be restored.
pub fn balancing(
    whom: Whom,
    on_conflict: OnConflict,
    note: fn(&Restored),
) -> anyhow::Result<(Option<u32>, bool)> {
    let (dir, fs) = (Journal::default_dir(), RootFs::live()?);
    let journal = Journal::new(dir.clone(), &fs, "/");
    let ended = Service::Balance.end(&journal, whom)?;
    if ended.claim.is_none() && whom != Whom::Any {
        return Ok((ended.pid, false));
    }
    let restored = balance::service::put_back(&journal, on_conflict)
        .context("restoring the settings of balancing")?;
    let mut left = !restored.put_back.is_empty();
    left |= last::retire(&balance::state::path(&dir));
    left |= std::fs::remove_file(balance::state::ended_path(&dir)).is_ok();
    note(&restored);
    refuse_conflicts(&restored)?;
    Ok((ended.pid, left))
}
