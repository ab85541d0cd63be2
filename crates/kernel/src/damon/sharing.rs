//! Shares hot memory between nodes by DAMON alone, with shares chosen by a policy.
//!
//! Two mechanisms, depending on the kernel:
//! - [`between`]: two schemes of one kdamond over the physical memory of two nodes, which migrate hot pages in both
//!   directions until each node has its target share of the hot memory (goals `node_eligible_mem_bp`, Linux 7.2). Both
//!   are needed: one direction alone would never correct the tuner's overshoot. The tuner is `temporal`: full quota
//!   until the share is reached, then none.
//! - [`spread`]: a process's pages by weight over several nodes (`dests`, Linux 6.17). A page's node is its index
//!   modulo the sum of weights, so another sum would migrate nearly all pages: the sum must be [`PARTS`], and a change
//!   of weights migrates only the difference.
//!
//! DAMON ignores cpusets and memory policies: a cgroup filter restricts the pages to migrate.

use nearfar_policy::traffic::place::PARTS;
use nearfar_topology::{BasisPoints, Bytes, NodeId};

use super::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Goal, GoalTuner,
    Kdamond, Metric, Quotas, Scheme,
};
use crate::features::{Feature, Features};

/// Reason why the kernel cannot share by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharingError {
    /// This kernel lacks the feature.
    #[error(
        "sharing hot memory between nodes by DAMON: this kernel lacks {name} (Linux {since}); pages can be moved one by one"
    )]
    Unsupported {
        /// Its name in `nearfar doctor`.
        name: &'static str,
        /// The first release that has it.
        since: &'static str,
    },
    /// Weights with a wrong sum.
    #[error(
        "weights of {sum} in all: they have to add up to {PARTS}, or nearly all pages would move"
    )]
    Sum {
        /// Their sum.
        sum: u32,
    },
    /// A share above 100 %.
    #[error("a share of {} basis points is more than all", .0.0)]
    Share(BasisPoints),
}

/// Limits of the migration, and the memory it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes migrated at most in each direction,
    pub bytes: Bytes,
    /// in an interval of this many milliseconds.
    pub interval_ms: u64,
    /// The access pattern of hot memory.
    pub hot: AccessPattern,
    /// Only pages of this cgroup, given by its path below the mount point with a leading `/`; `None` for all pages.
    pub cgroup: Option<String>,
}

impl Limits {
    fn scheme(&self, to: Destination, goals: Vec<Goal>) -> Scheme {
        let ours = self.cgroup.iter().map(|path| Filter {
            what: FilterType::Memcg(path.clone()),
            matching: false,
            allow: false,
        });
        Scheme {
            destination: to,
            access_pattern: self.hot,
            quotas: Quotas {
                bytes: self.bytes.0,
                reset_interval_ms: self.interval_ms,
                goal_tuner: if goals.is_empty() { GoalTuner::Consist } else { GoalTuner::Temporal },
                goals,
                ..Quotas::default()
            },
            filters: ours.collect(),
            ..Scheme::new(Action::MigrateHot)
        }
    }
}

/// Keeps `share` of the hot memory on the first of two nodes with memory in `ranges`, and the rest on the second.
///
/// # Errors
/// [`SharingError`].
pub fn between(
    features: &Features,
    (first, second): (NodeId, NodeId),
    ranges: &[AddrRange],
    share: BasisPoints,
    limits: &Limits,
) -> Result<Kdamond, SharingError> {
    let needs = [
        (Feature::DamonEligibleGoals, "damon_eligible_goals", "7.2"),
        (Feature::DamonGoalTuner, "damon_goal_tuner", "7.1"),
    ];
    if let Some((_, name, since)) = needs.into_iter().find(|(feature, ..)| !features.has(*feature))
    {
        return Err(SharingError::Unsupported { name, since });
    }
    let rest = 10_000_u32.checked_sub(share.0).ok_or(SharingError::Share(share))?;
    let scheme = |node: NodeId, share: u32| {
        let goal = Goal {
            metric: Metric::NodeEligibleMemBp(node),
            target_value: u64::from(share),
            current_value: 0,
        };
        limits.scheme(Destination::Node(node), vec![goal])
    };
    let mut kdamond = Kdamond::physical(ranges);
    kdamond.context.nr_regions = Bounds { min: 100, max: 1000 };
    kdamond.context.schemes = vec![scheme(first, share.0), scheme(second, rest)];
    Ok(kdamond)
}

/// Spreads the hot memory of a process over nodes by weight.
///
/// # Errors
/// [`SharingError`].
pub fn spread(
    features: &Features,
    pid: u32,
    weights: &[(NodeId, u8)],
    limits: &Limits,
) -> Result<Kdamond, SharingError> {
    if !features.has(Feature::DamonDests) {
        return Err(SharingError::Unsupported { name: "damon_dests", since: "6.17" });
    }
    let sum: u32 = weights.iter().map(|(_, weight)| u32::from(*weight)).sum();
    if sum != u32::from(PARTS) {
        return Err(SharingError::Sum { sum });
    }
    // A node of weight 0 is no destination.
    let weights = weights.iter().filter(|(_, weight)| *weight > 0);
    let weights = weights.map(|(node, weight)| (*node, u32::from(*weight))).collect();
    let mut kdamond = Kdamond::process(pid);
    kdamond.context.schemes = vec![limits.scheme(Destination::Weighted(weights), Vec::new())];
    Ok(kdamond)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        let hot = AccessPattern { nr_accesses: Bounds::from(1), ..AccessPattern::default() };
        Limits { bytes: Bytes(1 << 20), interval_ms: 100, hot, cgroup: Some("/app".into()) }
    }

    const NODES: (NodeId, NodeId) = (NodeId(0), NodeId(1));
    const RANGE: AddrRange = AddrRange { start: 0, end: 1 << 30 };

    #[test]
    fn what_is_pushed_to_one_node_is_pulled_to_the_other_until_shares_are_right() {
        let able = Features::only(&[Feature::DamonEligibleGoals, Feature::DamonGoalTuner]);
        let made = between(&able, NODES, &[RANGE], BasisPoints(7_000), &limits()).unwrap();
        let schemes = &made.context.schemes;
        let shares = schemes.iter().map(|scheme| {
            let goal = &scheme.quotas.goals[0];
            assert_eq!(scheme.quotas.goal_tuner, GoalTuner::Temporal);
            assert_eq!(scheme.filters[0].what, FilterType::Memcg("/app".into()));
            let Destination::Node(to) = scheme.destination else { panic!("{scheme:?}") };
            assert_eq!(goal.metric, Metric::NodeEligibleMemBp(to));
            (to.0, goal.target_value)
        });
        assert_eq!(shares.collect::<Vec<_>>(), [(0, 7_000), (1, 3_000)]);
        let all = BasisPoints(10_001);
        let refused = between(&able, NODES, &[RANGE], all, &limits()).unwrap_err();
        assert_eq!(refused, SharingError::Share(all));
    }

    #[test]
    fn weights_keep_their_sum_and_none_is_no_destination() {
        let able = Features::only(&[Feature::DamonDests]);
        let weights = |third| [(NodeId(0), 40), (NodeId(1), 24), (NodeId(2), third)];
        let made = spread(&able, 7, &weights(0), &limits()).unwrap();
        let right = Destination::Weighted(vec![(NodeId(0), 40), (NodeId(1), 24)]);
        assert_eq!(made.context.schemes[0].destination, right);
        let refused = spread(&able, 7, &weights(1), &limits()).unwrap_err();
        assert!(refused.to_string().contains("65 in all"), "{refused}");
    }

    #[test]
    fn a_kernel_that_can_not_is_told_with_the_release_that_can() {
        let some = Features::only(&[Feature::DamonEligibleGoals]);
        for (lacks, since) in [(Features::only(&[]), "7.2"), (some, "7.1")] {
            let half = BasisPoints(5_000);
            let refused = between(&lacks, NODES, &[RANGE], half, &limits()).unwrap_err();
            assert!(refused.to_string().contains(since), "{refused}");
            let refused = spread(&lacks, 7, &[(NodeId(0), 64)], &limits()).unwrap_err();
            assert!(refused.to_string().contains("6.17"), "{refused}");
        }
    }
}
