//! A verdict on a command, and checks that several verdicts share.

use nearfar_kernel::damon::{Holder, holders, room};
use nearfar_kernel::journal::Journal;
use serde::Serialize;

use super::Scene;
use super::state::Privilege;

/// Whether a command can work here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    Yes,
    Partly,
    No,
    /// The evidence could not be read.
    Unknown,
}

impl Answer {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Partly => "partly",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// The verdict on one command.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    /// The command, or the task of it that is judged.
    pub(super) command: &'static str,
    pub(super) answer: Answer,
    /// The command's effect here, or the reason it can't work.
    pub(super) why: String,
    /// The step that enables more.
    pub(super) next: Option<String>,
}

pub(super) fn verdict(command: &'static str, answer: Answer, why: impl Into<String>) -> Verdict {
    Verdict { command, answer, why: why.into(), next: None }
}

impl Verdict {
    pub(super) fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }
}

pub(super) const LAB: &str = "nearfar lab shell gives an emulated machine with two kinds of memory";

/// Whether this user has a privilege.
pub(super) fn held(privileges: &[Privilege], name: &str) -> bool {
    privileges.iter().any(|privilege| privilege.name == name && privilege.held)
}

/// The user of DAMON, which has one at a time. Not one that nearfar removes by itself: the kernel's `damon_stat`, and the
/// session of a nearfar that was killed.
pub(super) fn damon_holder(scene: &Scene<'_>) -> Option<Holder> {
    if !scene.live {
        return None;
    }
    let journal = Journal::new(Journal::default_dir(), scene.fs, "/");
    // Besides errors of reading, a session of nearfar that runs: its kdamonds are the users then.
    let users = room::users(&journal, scene.fs).or_else(|_| holders(scene.fs));
    users.unwrap_or_default().into_iter().find(|holder| holder.name() != "damon_stat")
}

/// The verdict that DAMON is in use.
pub(super) fn in_use(command: &'static str, holder: &Holder) -> Verdict {
    verdict(command, Answer::No, format!("DAMON is in use by {holder}")).next(holder.way_out())
}

/// Whether a program can be run by its name.
pub(super) fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
