//! Finds the current users of DAMON without writing to it.
//!
//! DAMON has effectively one user at a time: kdamonds of the sysfs interface belong to the process that created them
//! (the kernel records no owner), and while one of the kernel's modules runs, nothing else can start. `damon_stat` runs
//! from boot on some kernels (Debian's 7.2). A configured kdamond that is off belongs to another user too: replacing it
//! would discard its settings.

use std::fmt;

use super::{KDAMONDS, kdamond_path, numbered};
use crate::fs::{Fs, FsError};
use crate::process;

/// Kernel modules that use DAMON.
pub const MODULES: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

/// A user of DAMON.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Holder {
    /// An enabled kernel module.
    Module {
        /// Its name.
        name: String,
        /// The id of its thread, if reported.
        pid: Option<u32>,
    },
    /// A kdamond of the sysfs interface.
    Kdamond {
        /// Its number.
        index: usize,
        /// Its thread, if it is on.
        thread: Option<Thread>,
        /// The actions of its configured schemes, in the kernel's words.
        actions: Vec<String>,
    },
    /// A DAMON thread of neither a module nor the sysfs interface.
    Thread(Thread),
}

/// A kernel thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thread {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
}

impl Holder {
    /// The parameter file that stops it; `None` unless it is a module.
    #[must_use]
    pub fn switch(&self) -> Option<String> {
        match self {
            Self::Module { name, .. } => Some(switch(name)),
            _ => None,
        }
    }

    /// A short name for display.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Module { name, .. } => name.clone(),
            Self::Kdamond { index, .. } => format!("kdamond {index}"),
            Self::Thread(Thread { comm, .. }) => comm.clone(),
        }
    }

    /// Advice for releasing DAMON, for display.
    #[must_use]
    pub fn way_out(&self) -> String {
        match self {
            Self::Module { name, .. } => format!("echo N > /{}", switch(name)),
            Self::Kdamond { thread: None, .. } => {
                format!("if nobody needs its settings, echo 0 > /{KDAMONDS}/nr_kdamonds")
            }
            Self::Kdamond { index, .. } => {
                let state = kdamond_path(*index, "state");
                format!(
                    "stop its owner; or end its work: echo off > /{state} and echo 0 > /{KDAMONDS}/nr_kdamonds"
                )
            }
            Self::Thread(_) => "stop the program that started it".into(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Module { name, pid: Some(pid) } => {
                write!(f, "the kernel's {name} (its thread is {pid})")
            }
            Self::Module { name, pid: None } => write!(f, "the kernel's {name}"),
            Self::Kdamond { index, thread, actions } => {
                write!(f, "kdamond {index} of some user of the sysfs interface")?;
                match thread {
                    Some(Thread { pid, comm }) => write!(f, " ({comm}, thread {pid}")?,
                    None => write!(f, " (off, configured")?,
                }
                if actions.is_empty() {
                    return write!(f, ")");
                }
                write!(f, ", for {})", actions.join(", "))
            }
            Self::Thread(Thread { pid, comm }) => write!(f, "the kernel thread {comm} ({pid})"),
        }
    }
}

fn switch(module: &str) -> String {
    format!("sys/module/{module}/parameters/enabled")
}

/// All current users of DAMON; empty without DAMON.
///
/// # Errors
/// [`FsError`] if an existing file cannot be read.
pub fn holders(fs: &dyn Fs) -> Result<Vec<Holder>, FsError> {
    let mut holders = Vec::new();
    let mut known = Vec::new();
    for name in MODULES {
        let on = fs.read(&switch(name))?.is_some_and(|text| matches!(text.trim(), "Y" | "1"));
        if on {
            let pid = pid(fs, &format!("sys/module/{name}/parameters/kdamond_pid"))?;
            known.extend(pid);
            holders.push(Holder::Module { name: name.into(), pid });
        }
    }
    for index in numbered(fs, KDAMONDS)? {
        let on = fs.read(&kdamond_path(index, "state"))?.is_some_and(|text| text.trim() == "on");
        let pid = if on { pid(fs, &kdamond_path(index, "pid"))? } else { None };
        known.extend(pid);
        let unnamed = || format!("kdamond.{index}");
        let thread = on.then(|| Thread {
            pid: pid.unwrap_or(0),
            comm: pid.and_then(|pid| comm(fs, pid)).unwrap_or_else(unnamed),
        });
        holders.push(Holder::Kdamond { index, thread, actions: actions(fs, index)? });
    }
    // A module that does not report its thread may own any of the remaining ones.
    let silent = |holder: &Holder| matches!(holder, Holder::Module { pid: None, .. });
    if !holders.iter().any(silent) {
        holders.extend(threads(fs, &known)?.into_iter().map(Holder::Thread));
    }
    Ok(holders)
}

fn pid(fs: &dyn Fs, path: &str) -> Result<Option<u32>, FsError> {
    Ok(fs.read(path)?.and_then(|text| text.trim().parse().ok()))
}

fn comm(fs: &dyn Fs, pid: u32) -> Option<String> {
    Some(fs.read(&format!("proc/{pid}/comm")).ok()??.trim().to_string())
}

fn actions(fs: &dyn Fs, index: usize) -> Result<Vec<String>, FsError> {
    let schemes = kdamond_path(index, "contexts/0/schemes");
    let mut actions = Vec::new();
    for scheme in numbered(fs, &schemes)? {
        let text = fs.read(&format!("{schemes}/{scheme}/action"))?;
        actions.extend(text.map(|text| text.trim().to_string()));
    }
    Ok(actions)
}

/// Kernel threads with a DAMON name, except the `known` ones. Any process may take such a name, but only kernel threads
/// have process 2 (kthreadd) as their parent.
fn threads(fs: &dyn Fs, known: &[u32]) -> Result<Vec<Thread>, FsError> {
    let mut threads = Vec::new();
    for entry in fs.list("proc")?.unwrap_or_default() {
        let Ok(pid) = entry.name.parse::<u32>() else { continue };
        if known.contains(&pid) {
            continue;
        }
        let named = comm(fs, pid).filter(|comm| comm.starts_with("kdamond."));
        let Some(comm) = named else { continue };
        let stat = fs.read(&format!("proc/{pid}/stat")).ok().flatten().unwrap_or_default();
        let parent = process::stat_fields(&stat).nth(1);
        if parent == Some("2") {
            threads.push(Thread { pid, comm });
        }
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;

    fn held(entries: &[(&str, &str)]) -> Vec<Holder> {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        holders(&TreeFs(tree)).unwrap()
    }

    const NR: (&str, &str) = ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0");
    const STAT: (&str, &str) = ("sys/module/damon_stat/parameters/enabled", "Y");

    #[test]
    fn an_unused_damon_has_no_holder() {
        assert_eq!(held(&[]), []);
        assert_eq!(held(&[NR, ("sys/module/damon_stat/parameters/enabled", "N")]), []);
    }

    #[test]
    fn a_damon_module_is_reported_once_with_its_thread_and_switch() {
        let found = held(&[
            NR,
            STAT,
            ("sys/module/damon_stat/parameters/kdamond_pid", "84"),
            ("proc/84/comm", "kdamond.0"),
            ("proc/84/stat", "84 (kdamond.0) S 2 0"),
        ]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "the kernel's damon_stat (its thread is 84)");
        assert_eq!(found[0].way_out(), "echo N > /sys/module/damon_stat/parameters/enabled");
    }

    #[test]
    fn a_module_that_hides_its_thread_is_one_holder_all_the_same() {
        let found =
            held(&[STAT, ("proc/84/comm", "kdamond.0"), ("proc/84/stat", "84 (kdamond.0) S 2 0")]);
        assert_eq!(found, [Holder::Module { name: "damon_stat".into(), pid: None }]);
    }

    #[test]
    fn configured_kdamonds_are_holders_and_report_their_state_and_action() {
        let at = |path: &str| format!("{KDAMONDS}/{path}");
        let found = held(&[
            (&at("nr_kdamonds"), "2"),
            (&at("0/state"), "on"),
            (&at("0/pid"), "300"),
            (&at("0/contexts/0/schemes/0/action"), "pageout"),
            (&at("1/state"), "off"),
            (&at("1/pid"), "-1"),
            ("proc/300/comm", "kdamond.7"),
        ]);
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "kdamond 0 of some user of the sysfs interface (kdamond.7, thread 300, for pageout)",
                "kdamond 1 of some user of the sysfs interface (off, configured)",
            ]
        );
        assert!(found[1].way_out().contains("nr_kdamonds"), "{}", found[1].way_out());
    }

    #[test]
    fn unlisted_kdamond_threads_are_found_and_processes_of_that_name_ignored() {
        let found = held(&[
            ("proc/55/comm", "kdamond.3"),
            ("proc/55/stat", "55 (kdamond.3) S 2 0"),
            ("proc/56/comm", "kdamond.3"),
            ("proc/56/stat", "56 (kdamond.3) S 1 0"),
        ]);
        assert_eq!(found, [Holder::Thread(Thread { pid: 55, comm: "kdamond.3".into() })]);
    }
}
