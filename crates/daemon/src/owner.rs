//! Exclusive ownership of page migration: at most one service runs, and can be stopped.
//!
//! Two services move pages, `nearfar tier` and `nearfar balance`, and they would undo each other's work. So one of them
//! runs at a time. The record of it is a claim (`nearfar_kernel::claim`) in the journal's directory:
//! `moves-pages.claim` is locked by the running service and names its process and which of the two it is.
//!
//! - `start` takes the claim before it looks at anything else, and hands it to the process that does the work. So from
//!   the first moment of a start until the last setting is put back there is a process that `stop` can end.
//! - `stop` ends the holder, takes the claim itself, under a purpose of its own, and restores settings while it has the
//!   claim. A start and a stop at the same time therefore end in one of two ways: nothing runs, or the start came after
//!   the stop. Of two stops the second waits for the first, and does not end it.
//! - State files beside the claim hold what `status` shows, and decide nothing. One that is missing, cut off or of
//!   another version keeps nobody from stopping, starting or restoring.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::Context as _;
use nearfar_kernel::claim::{Claim, ClaimError, Holder};
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::Journal;
use nearfar_kernel::lock;
use nearfar_kernel::process::{self, Identity};

use crate::tier::service::NAP;
use crate::{balance, budget, tier};
use nearfar_kernel::clock::{Stopwatch, sleep};

/// How long starting and stopping may take: sensors test themselves first.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);
/// The file that the claim is about; there is none of this name.
const CLAIMED: &str = "moves-pages";

/// The purpose of the claim while settings are restored.
const STOPPING: &str = "stop";

/// A service that moves pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `nearfar tier`.
    Tier,
    /// `nearfar balance`.
    Balance,
}

impl Service {
    /// Its command.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tier => "tier",
            Self::Balance => "balance",
        }
    }

    fn is(self, holder: &Holder) -> bool {
        holder.of.as_deref() == Some(self.word())
    }

    /// Takes the claim.
    ///
    /// # Errors
    /// Another process has it; it is named.
    pub fn claim(self, fs: &dyn Fs, journal: &Journal<'_>) -> anyhow::Result<Claim> {
        journal.make_dir()?;
        let taken = Claim::take_for(&journal.dir().join(CLAIMED), Some(self.word()));
        taken.map_err(|error| match error {
            ClaimError::Held { holder, .. } => self.refused(fs, &holder),
            other => other.into(),
        })
    }

    /// The claim for the process that does the work: the parent's, if that has `handed` it over.
    ///
    /// # Errors
    /// As [`Self::claim`] and `inherit`.
    pub fn begin(self, handed: bool) -> anyhow::Result<Claim> {
        let fs = RootFs::live()?;
        let journal = Journal::new(Journal::default_dir(), &fs, "/");
        if handed { self.inherit(&journal) } else { self.claim(&fs, &journal) }
    }

    /// Fails as [`Self::claim`] would, without taking the claim.
    ///
    /// # Errors
    /// Another process has the claim; it is named.
    pub fn check_free(self, fs: &dyn Fs) -> anyhow::Result<()> {
        holder(&Journal::default_dir()).map_or(Ok(()), |holder| Err(self.refused(fs, &holder)))
    }

    fn refused(self, fs: &dyn Fs, holder: &Holder) -> anyhow::Error {
        let pid = holder.identity.pid;
        if !holder.is_recorded() {
            return anyhow::anyhow!(
                "process {pid} ({}) has the claim on moving pages and has not written which service it is; try again, or end it",
                process::command(fs, pid)
            );
        }
        if is_stopping(holder) {
            return anyhow::anyhow!(
                "process {pid} is restoring the settings of a service; try again when it has ended"
            );
        }
        if self.is(holder) {
            return anyhow::anyhow!(
                "{} is already running as process {pid}; stop it first: nearfar {} stop",
                self.doing(),
                self.word()
            );
        }
        let of = holder.of.as_deref().unwrap_or("tier");
        anyhow::anyhow!(
            "process {pid} ({}, nearfar {of}) already moves pages, and two would undo each other's work; stop it first: nearfar \
             {of} stop",
            process::command(fs, pid)
        )
    }

    fn doing(self) -> &'static str {
        match self {
            Self::Tier => "tiering",
            Self::Balance => "balancing",
        }
    }

    /// Takes over the claim that the parent has passed as standard input.
    ///
    /// # Errors
    /// It is none.
    fn inherit(self, journal: &Journal<'_>) -> anyhow::Result<Claim> {
        let file = std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
        let claim = Claim::inherit(file.into(), &journal.dir().join(CLAIMED), Some(self.word()))?;
        // No process that this one starts should have it, too.
        let null = std::fs::File::open("/dev/null").context("opening /dev/null")?;
        rustix::stdio::dup2_stdin(&null).context("closing standard input")?;
        Ok(claim)
    }

    /// The process that runs this service, or starts to.
    #[must_use]
    pub fn running(self) -> Option<Identity> {
        let holder = holder(&Journal::default_dir())?;
        self.is(&holder).then_some(holder.identity)
    }

    /// The process that runs this service, or starts to, with the state that it has written, if that can be read.
    pub fn described<S>(
        self,
        read: impl FnOnce(&Path) -> anyhow::Result<Option<S>>,
        identity: impl Fn(&S) -> Identity,
    ) -> Option<(Identity, anyhow::Result<S>)> {
        let process = self.running()?;
        let state = read(&Journal::default_dir()).and_then(|state| {
            state.filter(|state| identity(state) == process).context("it has not begun yet")
        });
        Some((process, state))
    }

    /// Ends this service if it runs. Settings can be restored while the result is kept.
    ///
    /// # Errors
    /// The process does not end, or the claim can't be taken.
    pub fn end(self, journal: &Journal<'_>, whom: Whom) -> anyhow::Result<Ended> {
        journal.make_dir()?;
        let (waited, mut ended) = (Stopwatch::start(), None::<Identity>);
        loop {
            let holder = match Claim::take_for(&journal.dir().join(CLAIMED), Some(STOPPING)) {
                Ok(claim) => {
                    // The claim may go before the process has: one that was only starting another, for example.
                    while ended.is_some_and(Identity::is_running) && waited.elapsed() < PATIENCE {
                        sleep(NAP);
                    }
                    return Ok(Ended { pid: ended.map(|ended| ended.pid), claim: Some(claim) });
                }
                Err(ClaimError::Held { holder, .. }) => holder,
                Err(other) => return Err(other.into()),
            };
            // Another stop is waited for, and a process that is just taking the claim.
            let is_recorded = holder.is_recorded();
            let is_known = is_recorded && holder.identity.is_running() && !is_stopping(&holder);
            let is_ours = self.is(&holder) && whom.is(holder.identity);
            if is_known && !is_ours {
                return Ok(Ended { pid: ended.map(|ended| ended.pid), claim: None });
            }
            let pid = holder.identity.pid;
            if is_known && ended != Some(holder.identity) {
                let ending = || format!("ending process {pid}");
                holder.identity.terminate().with_context(ending)?;
                ended = Some(holder.identity);
            }
            anyhow::ensure!(
                is_recorded || waited.elapsed() < lock::PATIENCE,
                "process {pid} keeps {}.claim locked and has not written which service it is; end it, then run nearfar {} stop again",
                journal.dir().join(CLAIMED).display(),
                self.word()
            );
            anyhow::ensure!(
                waited.elapsed() < PATIENCE,
                "process {pid} did not end within {} s ({}); end it with SIGKILL, then run nearfar {} stop again",
                PATIENCE.as_secs(),
                holder.identity.doing(),
                self.word()
            );
            sleep(NAP);
        }
    }
}

/// The process that has the claim. Only root may read the claim; to other users the states of the services, which all may
/// read, show a service that has begun.
fn holder(dir: &Path) -> Option<Holder> {
    let claim = std::fs::File::open(dir.join(CLAIMED).with_added_extension("claim"));
    if !claim.is_err_and(|why| why.kind() == ErrorKind::PermissionDenied) {
        return Claim::holder(&dir.join(CLAIMED));
    }
    let tiering = || Some(tier::state::read(dir).ok()??.identity);
    let budgets = || Some(budget::state::read(dir).ok()??.identity);
    let balancing = || Some(balance::state::read(dir).ok()??.identity);
    let running = |service: Service, identity: Option<Identity>| {
        let identity = identity.filter(|identity| identity.is_running())?;
        Some(Holder::new(identity, Some(service.word())))
    };
    running(Service::Tier, tiering())
        .or_else(|| running(Service::Tier, budgets()))
        .or_else(|| running(Service::Balance, balancing()))
}

/// The processes that [`Service::end`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Any process of the service.
    Any,
    /// One process; a later one is left alone.
    Only(Identity),
    /// None: settings are restored if their process is dead.
    Nobody,
}

impl Whom {
    fn is(self, process: Identity) -> bool {
        match self {
            Self::Any => true,
            Self::Only(only) => only == process,
            Self::Nobody => false,
        }
    }
}

fn is_stopping(holder: &Holder) -> bool {
    holder.of.as_deref() == Some(STOPPING)
}

/// A service that was ended, or did not run.
#[derive(Debug)]
pub struct Ended {
    /// The process that was ended.
    pub pid: Option<u32>,
    /// Held until settings are back. `None` while another process moves pages, which then is not this service.
    pub claim: Option<Claim>,
}

/// The claim for a child's standard input.
///
/// # Errors
/// The file can't be shared.
pub fn for_child(claim: &Claim) -> anyhow::Result<Stdio> {
    Ok(claim.hand_over()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    #[test]
    fn a_lock_without_a_record_times_out_and_its_holder_is_reported() {
        let (dir, fs) = (tempfile::tempdir().unwrap(), TreeFs(Tree::new()));
        let journal = Journal::new(dir.path(), &fs, "/");
        let file = dir.path().join("moves-pages.claim");
        let own = format!("process {}", std::process::id());
        let is_named = |error: anyhow::Error| {
            let error = error.to_string();
            assert!(error.contains(&own) && error.contains("not written"), "{error}");
        };
        let kept = std::fs::File::create(&file).unwrap();
        kept.lock().unwrap();
        for text in ["", "{\"schema\":\"nearfar.claim/1\",\"pi", "{}\n"] {
            std::fs::write(&file, text).unwrap();
            is_named(Service::Tier.claim(&fs, &journal).unwrap_err());
        }
        is_named(Service::Tier.end(&journal, Whom::Any).unwrap_err());
    }

    #[test]
    fn a_second_service_is_refused_with_the_name_of_the_first_and_runs_after_it() {
        let (dir, fs) = (tempfile::tempdir().unwrap(), TreeFs(Tree::new()));
        let journal = Journal::new(dir.path(), &fs, "/");
        let first = Service::Tier.claim(&fs, &journal).unwrap();
        for (second, way_out) in
            [(Service::Tier, "already running"), (Service::Balance, "two would undo")]
        {
            let error = second.claim(&fs, &journal).unwrap_err().to_string();
            assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
            assert!(error.contains(way_out) && error.contains("nearfar tier stop"), "{error}");
        }
        drop(first);
        Service::Balance.claim(&fs, &journal).unwrap();
    }

    #[test]
    fn ending_one_service_leaves_the_other_alone() {
        let (dir, fs) = (tempfile::tempdir().unwrap(), TreeFs(Tree::new()));
        let journal = Journal::new(dir.path(), &fs, "/");
        let ended = Service::Tier.end(&journal, Whom::Any).unwrap();
        assert!(ended.pid.is_none() && ended.claim.is_some());
        drop(ended);
        let _balance = Service::Balance.claim(&fs, &journal).unwrap();
        let ended = Service::Tier.end(&journal, Whom::Any).unwrap();
        assert!(ended.pid.is_none() && ended.claim.is_none(), "{ended:?}");
        for whom in [Whom::Only(Identity { pid: 1, started_ticks: 1 }), Whom::Nobody] {
            let ended = Service::Balance.end(&journal, whom).unwrap();
            assert!(ended.claim.is_none(), "{whom:?}: this process is not ended");
        }
    }

    #[test]
    fn a_stop_waits_for_another_and_does_not_end_it() {
        let (dir, fs) = (tempfile::tempdir().unwrap(), TreeFs(Tree::new()));
        let path = dir.path().to_path_buf();
        let journal = Journal::new(&path, &fs, "/");
        // This process would be ended by SIGTERM.
        let first = Service::Tier.end(&journal, Whom::Any).unwrap();
        let error = Service::Tier.claim(&fs, &journal).unwrap_err().to_string();
        assert!(error.contains("is restoring the settings"), "{error}");
        let holder = Claim::holder(&path.join(CLAIMED)).unwrap();
        assert!(!Service::Tier.is(&holder) && !Service::Balance.is(&holder), "{holder:?}");
        let second = std::thread::spawn(move || {
            let fs = TreeFs(Tree::new());
            Service::Balance.end(&Journal::new(path, &fs, "/"), Whom::Any).unwrap()
        });
        sleep(NAP * 3);
        assert!(!second.is_finished());
        drop(first);
        let second = second.join().unwrap();
        assert!(second.pid.is_none() && second.claim.is_some());
    }
}
