//! What this kernel's DAMON offers, beyond what every one does.
//!
//! Most of it shows in no file until a kdamond, a scheme and a goal are made. Two ways to know: [`detect`] looks the
//! names up in the kernel's type information, which changes nothing and works while others use DAMON; [`trial`], for
//! kernels built without it, makes a kdamond that is never turned on, tries each word, and takes it away again, all
//! through the journal, and only where nobody has a kdamond. Whatever either said, [`super::Session::start`] finds out
//! for itself and refuses what is not there.

use super::lock::lock;
use super::{BY, DamonError, Holder, KDAMONDS, holders, kdamond_path};
use crate::features::{Asked, Feature, Features, State};
use crate::fs::Fs;
use crate::journal::{Change, Journal, OnConflict};

/// The features that are DAMON's.
pub const FEATURES: &[Feature] = &[
    Feature::Damon,
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

/// What can be known without a write.
#[must_use]
pub fn detect(fs: &dyn Fs, asked: Asked) -> Features {
    Features::detect_some(fs, asked, FEATURES)
}

/// How a feature shows below a kdamond with a scheme and a goal.
enum Shows {
    File(&'static str),
    /// A file takes this word.
    Word(&'static str, &'static str),
}

const GOAL: &str = "contexts/0/schemes/0/quotas/goals/0/target_metric";

const TRIALS: &[(Feature, Shows)] = &[
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

/// What can be known by trying, where nobody has a kdamond; everything is as before afterwards.
///
/// # Errors
/// [`DamonError::Absent`], [`DamonError::Held`], [`DamonError::InUse`] and what writing may give.
pub fn trial(fs: &dyn Fs, journal: &Journal<'_>) -> Result<Features, DamonError> {
    if !fs.exists(KDAMONDS)? {
        return Err(DamonError::Absent);
    }
    let _lock = lock(journal)?;
    journal.restore(BY, OnConflict::Refuse)?;
    let mut held = holders(fs)?;
    // Modules do not mind a kdamond that is never on.
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
        // Goals came with Linux 6.8; without them there is none to try.
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
        };
        states.push((*feature, if present { State::Present } else { State::Lacking }));
    }
    Ok(Features::of(states))
}
