//! Optional features of this kernel's DAMON.
//!
//! Most of them show in no file until a kdamond, a scheme and a goal exist. There are two ways to find out: [`detect`]
//! searches the kernel's type information for the names, which changes nothing and works while DAMON is in use;
//! [`trial`], for kernels without that information, creates a kdamond that is never turned on, tries each word, and
//! removes it again, all through the journal, and only if there are no kdamonds. Regardless of either result,
//! [`super::Session::start`] checks each setting and refuses those that the kernel lacks.

use super::spec::Operations;
use super::{BY, DamonError, Holder, KDAMONDS, holders, kdamond_path, lock};
use crate::features::{Asked, Feature, Features, State};
use crate::fs::Fs;
use crate::journal::{Change, Journal, OnConflict};

/// The features that belong to DAMON.
pub const FEATURES: &[Feature] = &[
    Feature::Damon,
    Feature::DamonVaddr,
    Feature::DamonMigrate,
    Feature::DamonDests,
    Feature::DamonIntervalsGoal,
    Feature::DamonFilterLayers,
    Feature::DamonNodeGoals,
    Feature::DamonMemcgGoals,
    Feature::DamonEligibleGoals,
    Feature::DamonGoalTuner,
    Feature::DamonRefresh,
    Feature::DamonAddrUnit,
    Feature::DamonPause,
];

/// Features detected without a write.
#[must_use]
pub fn detect(fs: &dyn Fs, asked: Asked) -> Features {
    Features::detect_some(fs, asked, FEATURES)
}

/// The evidence of a feature below a kdamond with a scheme and a goal.
enum Shows {
    File(&'static str),
    /// The file accepts this word.
    Word(&'static str, &'static str),
    /// The file lists this word.
    Listed(&'static str, &'static str),
}

/// The kinds of memory that DAMON can watch, a word each (Linux 5.19).
const OFFERED: &str = "contexts/0/avail_operations";

/// Checks that a kdamond with a context can watch this kind of memory. The kernel itself accepts the word, and refuses to
/// turn the kdamond on.
///
/// # Errors
/// [`DamonError::Unwatched`], [`DamonError::Read`].
pub(super) fn check_watched(
    fs: &dyn Fs,
    index: usize,
    operations: Operations,
) -> Result<(), DamonError> {
    let offered = fs.read(&kdamond_path(index, OFFERED))?;
    let is_offered = offered.is_none_or(|text| lists(&text, operations.word()));
    if is_offered { Ok(()) } else { Err(DamonError::Unwatched { operations }) }
}

fn lists(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|one| one == word)
}

const GOAL: &str = "contexts/0/schemes/0/quotas/goals/0/target_metric";

const TRIALS: &[(Feature, Shows)] = &[
    (Feature::DamonVaddr, Shows::Listed(OFFERED, "vaddr")),
    (Feature::DamonMigrate, Shows::Word("contexts/0/schemes/0/action", "migrate_hot")),
    (Feature::DamonDests, Shows::File("contexts/0/schemes/0/dests/nr_dests")),
    (
        Feature::DamonIntervalsGoal,
        Shows::File("contexts/0/monitoring_attrs/intervals/intervals_goal/access_bp"),
    ),
    (Feature::DamonFilterLayers, Shows::File("contexts/0/schemes/0/core_filters/nr_filters")),
    (Feature::DamonNodeGoals, Shows::Word(GOAL, "node_mem_used_bp")),
    (Feature::DamonMemcgGoals, Shows::Word(GOAL, "node_memcg_used_bp")),
    (Feature::DamonEligibleGoals, Shows::Word(GOAL, "node_eligible_mem_bp")),
    (Feature::DamonGoalTuner, Shows::File("contexts/0/schemes/0/quotas/goal_tuner")),
    (Feature::DamonRefresh, Shows::File("refresh_ms")),
    (Feature::DamonAddrUnit, Shows::File("contexts/0/addr_unit")),
    (Feature::DamonPause, Shows::File("contexts/0/pause")),
];

/// Features detected by trial, if there are no kdamonds; the former state is restored afterwards.
///
/// # Errors
/// [`DamonError::Absent`], [`DamonError::Held`], [`DamonError::InUse`], and errors of writing.
pub fn trial(fs: &dyn Fs, journal: &Journal<'_>) -> Result<Features, DamonError> {
    if !fs.exists(KDAMONDS)? {
        return Err(DamonError::Absent);
    }
    let _lock = lock(journal)?;
    journal.restore(BY, OnConflict::Refuse)?;
    let mut held = holders(fs)?;
    // Modules are not affected by a kdamond that is never on.
    held.retain(|holder| matches!(holder, Holder::Kdamond { .. }));
    if !held.is_empty() {
        return Err(DamonError::Held(held));
    }
    let room = Change { path: format!("{KDAMONDS}/nr_kdamonds"), new: "1".into() };
    journal.change(BY, &[room])?;
    let tried = tried(fs);
    journal.restore(BY, OnConflict::Refuse)?;
    tried
}

fn tried(fs: &dyn Fs) -> Result<Features, DamonError> {
    let file = |file: &str| kdamond_path(0, file);
    let directories = [
        "contexts/nr_contexts",
        "contexts/0/schemes/nr_schemes",
        "contexts/0/schemes/0/quotas/goals/nr_goals",
    ];
    for path in directories {
        // Goals exist since Linux 6.8; older kernels have none to try.
        if fs.exists(&file(path))? {
            fs.write(&file(path), "1").map_err(DamonError::Refused)?;
        }
    }
    let mut states = vec![(Feature::Damon, State::Present)];
    for (feature, shows) in TRIALS {
        let present = match shows {
            Shows::File(path) => fs.exists(&file(path))?,
            Shows::Word(path, word) => {
                fs.exists(&file(path))? && fs.write(&file(path), word).is_ok()
            }
            Shows::Listed(path, word) => {
                fs.read(&file(path))?.is_some_and(|text| lists(&text, word))
            }
        };
        states.push((*feature, if present { State::Present } else { State::Lacking }));
    }
    Ok(Features::of(states))
}
