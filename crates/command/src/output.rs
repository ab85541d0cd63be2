//! Output of the commands: text and JSON on standard output, messages on standard error.
//!
//! Control characters are replaced before anything is written, because names of cgroups, processes and files may contain
//! escape sequences. Paragraphs are wrapped at the terminal's width.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context as _;
use nearfar_kernel::damon::{DamonStat, Holder, holders};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::{Restored, Unreadable};

use crate::exit::Exit;
use crate::json;
use crate::terminal;

/// Prints `text` on standard output. A closed pipe (`nearfar topo | head -1`) is not an error.
///
/// # Errors
/// Any other error of write(2).
pub fn print(text: &str) -> anyhow::Result<()> {
    write_out(&plain(text))
}

/// Prints the lines of a dry run.
///
/// # Errors
/// As [`print()`].
pub fn dry_run(lines: &str) -> anyhow::Result<ExitCode> {
    print(lines)?;
    remark("nothing was changed");
    Ok(Exit::Done.into())
}

/// As [`print()`], for text whose backgrounds have colours (`ESC[48;5;Nm`, `ESC[0m`).
///
/// # Errors
/// As [`print()`].
pub fn print_coloured(text: &str) -> anyhow::Result<()> {
    write_out(&plain_but_colours(text))
}

fn write_out(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            UNREAD.store(true, Ordering::Relaxed);
            Ok(())
        }
        written => written.context("can't write to standard output"),
    }
}

/// Whether the reader of standard output has closed it.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Whether nobody reads standard output any more: a command that prints again and again ends then.
#[must_use]
pub fn is_unread() -> bool {
    UNREAD.load(Ordering::Relaxed)
}

/// Prints `value` as JSON ([`json::text`]) with a newline.
///
/// # Errors
/// As [`print()`]; a value that has no JSON form.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = json::text(value).context("can't write JSON")?;
    print(&(text + "\n"))
}

/// Prints `text` on standard error.
pub fn print_error(text: &str) {
    // Nothing can be done, or should stop, if standard error is closed.
    let _ = io::stderr().lock().write_all(plain(text).as_bytes());
}

/// The name at the start of messages, unless [`set_program`] is called.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the program name that starts each message; the first call counts.
pub fn set_program(name: &'static str) {
    let _ = PROGRAM.set(name);
}

/// Prints a message on standard error, after the name of the program, unless output is quiet: for information that
/// a script can do without, such as the name of a written file.
pub fn remark(message: impl std::fmt::Display) {
    if !terminal::get().quiet {
        note(message);
    }
}

/// Prints a warning or an error on standard error, after the name of the program.
pub fn note(message: impl std::fmt::Display) {
    let program = PROGRAM.get().unwrap_or(&"nearfar");
    print_error(&format!("{program}: {message}\n"));
}

/// Replaces control characters, except newline and tab, by `?`.
fn plain(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    // Nearly all text is of ASCII alone, which bytes tell sooner; some has a hundred megabytes.
    let is_plain_ascii = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    if text.as_bytes().iter().all(is_plain_ascii) || text.chars().all(is_plain) {
        return text.into();
    }
    text.chars().map(|c| if is_plain(c) { c } else { '?' }).collect()
}

/// As [`plain`], but keeps the sequences that set or reset a background colour.
fn plain_but_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut out = plain(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let colour = part.strip_prefix("[48;5;").and_then(|rest| rest.split_once('m'));
        let is_colour = colour.is_some_and(|(number, _)| number.parse::<u8>().is_ok());
        out.push(if is_colour || part.starts_with("[0m") { '\u{1b}' } else { '?' });
        out.push_str(&plain(part));
    }
    out
}

/// Stands for a space at which [`wrapped`] does not break a line.
const TIE: char = '\u{a0}';

/// Joins words so that [`wrapped`] keeps them on one line.
#[must_use]
pub fn tied(words: std::fmt::Arguments<'_>) -> String {
    words.to_string().replace(' ', &TIE.to_string())
}

/// Appends one paragraph to `out`, wrapped at spaces; lines after the first are indented by `indent`, at most by half of
/// the width. Control characters are replaced by `?`.
pub fn wrapped(out: &mut String, first: &str, text: &str, indent: usize) {
    wrapped_to(terminal::get().paragraph(), out, first, text, indent);
}

/// As [`wrapped`], to a given width.
pub fn wrapped_to(columns: usize, out: &mut String, first: &str, text: &str, indent: usize) {
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let mut line = String::from(first);
    let mut fresh = true;
    for word in text.split(' ') {
        if !fresh && line.chars().count() + 1 + word.chars().count() > columns {
            let _ = writeln!(out, "{}", line.trim_end().replace(TIE, " "));
            line = " ".repeat(indent.min(columns / 2));
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    let _ = writeln!(out, "{}", line.trim_end().replace(TIE, " "));
}

/// The service is not running, so there is no status to show; the text gives the reason and the command that starts it.
#[derive(Debug)]
pub struct NotRunning(
    /// The message.
    pub String,
);

impl std::fmt::Display for NotRunning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotRunning {}

/// The error that `nearfar {command}` is not running: its process was killed, stopped by itself with a reason, or was never
/// started.
#[must_use]
pub fn not_running(command: &str, was_killed: bool, ended: Option<&str>) -> anyhow::Error {
    let why = match (was_killed, ended) {
        (true, _) => format!(
            ": its process was killed, and its settings may still be in force; restore them with: nearfar {command} stop"
        ),
        (false, Some(why)) => {
            format!("; it ended by itself: {why}; start it with: nearfar {command} start")
        }
        (false, None) => format!("; start it with: nearfar {command} start"),
    };
    let name = if command == "tier" { "tiering" } else { "balancing" };
    NotRunning(format!("{name} is not running{why}")).into()
}

/// Shows a status. With `--json`, [`NotRunning`] becomes a document of this schema on standard output; the exit status is the
/// same as without.
///
/// # Errors
/// Any other error of `found`, and those of `show`.
pub fn status<T>(
    found: anyhow::Result<T>,
    schema: &str,
    is_json: bool,
    show: impl FnOnce(&T) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    match found {
        Ok(found) => show(&found).map(|()| Exit::Done.into()),
        Err(error) if is_json && error.is::<NotRunning>() => {
            let why = error.to_string();
            print_json(&serde_json::json!({"schema": schema, "running": false, "why": why}))?;
            Ok(Exit::Failed.into())
        }
        Err(error) => Err(error),
    }
}

/// Reports each setting that was restored.
pub fn note_restored(restored: &Restored) {
    for recorded in &restored.put_back {
        remark(format_args!("put back /{} to {}", recorded.path, recorded.old));
    }
}

/// Refuses the action `what` to users other than root.
///
/// # Errors
/// The effective user is not root.
pub fn need_root(what: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "{what} needs root: run it with sudo; nothing was changed"
    );
    Ok(())
}

/// The error that the kernel does not let this process access another one, for which it lacks these capabilities.
#[must_use]
pub fn forbidden(pid: u32, capabilities: &str) -> anyhow::Error {
    match rustix::process::geteuid().is_root() {
        true => anyhow::anyhow!(
            "process {pid}: the kernel refuses access, also to root: {capabilities} may be missing in a container, or the \
             process is the system's first"
        ),
        false => anyhow::anyhow!(
            "process {pid} is another user's: run it as that user or as root ({capabilities})"
        ),
    }
}

/// Reports that the kernel's `damon_stat` is paused, if it runs and is to be paused.
pub fn note_paused(fs: &dyn Fs, damon_stat: DamonStat) {
    let is_stat =
        |holder: &Holder| matches!(holder, Holder::Module { name, .. } if name == "damon_stat");
    if damon_stat == DamonStat::Pause && holders(fs).is_ok_and(|held| held.iter().any(is_stat)) {
        remark("the kernel's damon_stat is paused while this runs, and resumes afterwards");
    }
}

/// The reason why a journal file can't be read, and the remedy.
#[must_use]
pub fn unreadable(file: &Unreadable) -> String {
    format!(
        "it is not a journal file of this version ({}); if no other version of nearfar wrote it, inspect and delete it",
        file.found
    )
}

/// Names journal files that can't be read, each once.
pub fn note_unreadable(files: &[Unreadable]) {
    static SAID: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    for file in files.iter().filter(|file| said.insert(file.path.clone())) {
        note(format_args!("{} was left unchanged: {}", file.path.display(), unreadable(file)));
    }
}

/// Fails if a restore left settings alone because another process had changed them since.
///
/// `left` describes the consequence; `overwrite` is the command that restores them regardless.
///
/// # Errors
/// The first conflict, or that a journal file can't be read.
pub fn refuse_conflicts(report: &Restored, left: &str, overwrite: &str) -> anyhow::Result<()> {
    note_unreadable(&report.unreadable);
    let Some(conflict) = report.conflicts.first() else {
        anyhow::ensure!(
            report.unreadable.is_empty(),
            "settings in the journal files named above were not restored; all others were"
        );
        return Ok(());
    };
    anyhow::bail!(
        "/{} reads {}, not the {} that nearfar wrote: another process has changed it since, so {left}; {overwrite} restores {} regardless",
        conflict.recorded.path,
        conflict.found,
        conflict.recorded.new,
        conflict.recorded.old
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_removed_from_output() {
        let title = "cgroup /a\u{1b}]0;mine\u{7}, \u{9b}2J";
        assert_eq!(plain(title), "cgroup /a?]0;mine?, ?2J");
        assert_eq!(plain("two\nlines\tand a tab"), "two\nlines\tand a tab");
        assert_eq!(plain_but_colours(title), "cgroup /a?]0;mine?, ?2J");
    }

    #[test]
    fn only_background_colour_sequences_reach_a_terminal() {
        let row = "a\u{1b}[48;5;236m  \u{1b}[0mb\n";
        assert_eq!(plain_but_colours(row), row);
        for other in ["[48;5;256m", "[48;5;1", "[2J", "[31m", "]0;t\u{7}", ""] {
            let shown = plain_but_colours(&format!("\u{1b}{other}"));
            assert!(!shown.contains('\u{1b}'), "{other}: {shown}");
        }
    }
}
