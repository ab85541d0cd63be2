//! `nearfar off`: ends the services that move pages and restores every setting that nearfar has changed.
//!
//! Services are ended as their own `stop` does it; then the journal is emptied. A setting stays, and is named, if another
//! process has changed it since, or if the process that has changed it still runs and restores it itself. What can't be
//! restored keeps nothing else from being restored.

use std::collections::BTreeSet;
use std::process::ExitCode;

use nearfar_command::exit::Exit;
use nearfar_command::output;
use nearfar_command::weighing::set::Setter;
use nearfar_daemon::advice::service;
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::{Batch, Journal, OnConflict, Pending};
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
    if args.dry_run {
        return dry(&journal.all_pending()?);
    }
    output::need_root("restoring settings")?;
    let before = journal.all_pending()?.batches;
    let on_conflict = if args.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse };
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
    let (restored, left) = compared(&before, &after.batches);
    for change in &restored {
        output::print(&format!("restored {change}\n"))?;
    }
    for change in &left {
        output::note(format_args!("not restored: {change}"));
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

fn lines(batches: &[Batch]) -> Vec<String> {
    let of = |batch: &Batch| {
        let by = batch.by.clone();
        let line = move |change: &nearfar_kernel::journal::Recorded| {
            format!("/{}: {} to {} (changed by {by})", change.path, change.new, change.old)
        };
        batch.changes.iter().map(line).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of).collect()
}

/// The changes that were restored, and those that were not.
fn compared(before: &[Batch], after: &[Batch]) -> (Vec<String>, Vec<String>) {
    let left = lines(after);
    let restored = lines(before).into_iter().filter(|line| !left.contains(line)).collect();
    (restored, left)
}

fn dry(pending: &Pending) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    for (what, pid) in [("tiering", tier::pid()), ("balancing", balance::pid())] {
        if let Some(pid) = pid {
            text += &format!("would end {what} (process {pid})\n");
        }
    }
    for line in lines(&pending.batches) {
        text += &format!("would restore {line}\n");
    }
    let is_known = pending.unreadable.is_empty();
    if text.is_empty() && is_known {
        text += "nearfar moves no pages and has changed no settings.\n";
    }
    output::print(&text)?;
    for one in &pending.unreadable {
        output::note(format_args!("would not restore {}: {}", one.path.display(), one.found));
    }
    Ok(if is_known { Exit::Done } else { Exit::Failed }.into())
}
