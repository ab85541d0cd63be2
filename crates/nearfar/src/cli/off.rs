//! `nearfar off`: ends the services that move pages and restores every setting that nearfar has changed.
//!
//! Services are ended as their own `stop` does it; then the journal is emptied. A setting stays, and is named, if another
//! process has changed it since, or if the process that has changed it still runs and restores it itself. What can't be
//! restored keeps nothing else from being restored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::process::ExitCode;

use nearfar_command::exit::Exit;
use nearfar_command::output;
use nearfar_command::weighing::set::Setter;
use nearfar_daemon::advice::service;
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::{Batch, Journal, OnConflict, Recorded};
use nearfar_kernel::{advice, process};

use super::{balance, tier};

/// Arguments of `nearfar off`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only print what would be ended and restored
    #[arg(long)]
    dry_run: bool,
    /// Also restore settings that another process has changed since
    #[arg(long)]
    overwrite: bool,
}

/// Ends and restores; exit status 1 if something stays.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = RootFs::live()?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    let on_conflict = if args.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse };
    if args.dry_run {
        return dry(&journal, on_conflict);
    }
    output::need_root("restoring settings")?;
    let before = merged(&journal.all_pending()?.batches);
    let mut failed = Vec::new();
    let mut ended = 0;
    for (what, stopped) in
        [("tiering", tier::end_any(on_conflict)), ("balancing", balance::end_any(on_conflict))]
    {
        match stopped {
            Ok(Some(pid)) => {
                ended += 1;
                output::print(&format!("ended {what} (process {pid})\n"))?;
            }
            Ok(None) => {}
            Err(error) => failed.push(error),
        }
    }
    failed.extend(Setter::new(&fs, "/".into()).restore(on_conflict).err());
    failed.extend(others(&journal, &fs, on_conflict));
    // Files of a killed daemon; a running one keeps its own, and changes no setting.
    if let Ok(removed) = service::recover(&advice::default_path()) {
        service::say_removed(&removed);
    }
    let after = journal.all_pending()?;
    let (left, foreign) = (merged(&after.batches), journal.foreign(on_conflict)?);
    let restored: Vec<_> =
        before.iter().filter(|one| left.iter().all(|other| other.path != one.path)).collect();
    for change in &restored {
        output::print(&format!("restored {change}\n"))?;
    }
    for change in &left {
        output::note(format_args!("not restored: {change}{}", change.why(&foreign)));
    }
    output::note_unreadable(&after.unreadable);
    if restored.is_empty() && left.is_empty() && ended == 0 && failed.is_empty() {
        output::print("nearfar moves no pages and has changed no settings.\n")?;
    }
    // Several parts may have failed for one reason.
    let failed: BTreeSet<String> = failed.iter().map(|error| format!("{error:#}")).collect();
    failed.iter().for_each(output::note);
    let is_done = left.is_empty() && after.unreadable.is_empty() && failed.is_empty();
    Ok(if is_done { Exit::Done } else { Exit::Failed }.into())
}

/// Restores the batches of all other owners whose process has ended.
fn others(journal: &Journal<'_>, fs: &dyn Fs, on_conflict: OnConflict) -> Vec<anyhow::Error> {
    let batches = match journal.all_pending() {
        Ok(pending) => pending.batches,
        Err(error) => return vec![error.into()],
    };
    let running: BTreeSet<&str> = batches
        .iter()
        .filter(|batch| process::lives(fs, batch.pid))
        .map(|batch| batch.by.as_str())
        .collect();
    let owners: BTreeSet<&str> = batches.iter().map(|batch| batch.by.as_str()).collect();
    let ended = owners.difference(&running);
    ended.filter_map(|by| journal.restore(by, on_conflict).err().map(Into::into)).collect()
}

/// A file with all its changes: the value before the first, and the last one.
#[derive(Debug, PartialEq, Eq)]
struct Changed {
    path: String,
    old: String,
    new: String,
    by: String,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, old, new, by } = self;
        write!(f, "/{path}: {new} to {old} (changed by {by})")
    }
}

impl Changed {
    /// The reason why it stays, if it has a `foreign` value.
    fn why(&self, foreign: &BTreeMap<String, String>) -> String {
        let Some(found) = foreign.get(&self.path) else { return String::new() };
        format!(
            "; it reads {found}, which another process has set: --overwrite restores {} regardless",
            self.old
        )
    }
}

/// The changes of batches, oldest first, by file.
fn merged(batches: &[Batch]) -> Vec<Changed> {
    let mut all: Vec<Changed> = Vec::new();
    for batch in batches {
        for Recorded { path, old, new } in &batch.changes {
            match all.iter_mut().find(|one| one.path == *path) {
                Some(one) => (one.new, one.by) = (new.clone(), batch.by.clone()),
                None => all.push(Changed {
                    path: path.clone(),
                    old: old.clone(),
                    new: new.clone(),
                    by: batch.by.clone(),
                }),
            }
        }
    }
    all
}

fn dry(journal: &Journal<'_>, on_conflict: OnConflict) -> anyhow::Result<ExitCode> {
    let pending = journal.all_pending()?;
    let mut text = String::new();
    for (what, pid) in [("tiering", tier::pid()), ("balancing", balance::pid())] {
        if let Some(pid) = pid {
            text += &format!("would end {what} (process {pid})\n");
        }
    }
    let foreign = journal.foreign(on_conflict)?;
    let (left, back): (Vec<_>, Vec<_>) =
        merged(&pending.batches).into_iter().partition(|one| foreign.contains_key(&one.path));
    for change in back {
        text += &format!("would restore {change}\n");
    }
    let is_known = pending.unreadable.is_empty();
    if text.is_empty() && is_known && left.is_empty() {
        text += "nearfar moves no pages and has changed no settings.\n";
    }
    output::print(&text)?;
    for change in &left {
        output::note(format_args!("would not restore {change}{}", change.why(&foreign)));
    }
    for one in &pending.unreadable {
        output::note(format_args!(
            "would not restore the settings in {}: {}",
            one.path.display(),
            output::unreadable(one)
        ));
    }
    Ok(if is_known && left.is_empty() { Exit::Done } else { Exit::Failed }.into())
}
