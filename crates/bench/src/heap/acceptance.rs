//! Acceptance thresholds, as ratios to near memory alone in the same run.

use serde::Serialize;

use super::results::{Found, Tried};
use super::rows::{Part, Row};

/// Least ratio of an adaptive heap where near memory is saturated.
const SATURATED: f64 = 1.3;
/// Least ratio where it is not.
const UNHARMED: f64 = 0.98;
/// Least ratio with weights in far memory, where near memory has no room.
const MORE_INSTANCES: f64 = 1.5;

/// A ratio and its threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    /// The part.
    pub(crate) part: Part,
    /// The row, relative to near memory alone.
    pub(crate) row: Row,
    /// The measured ratio; `None` if a row did not run.
    pub(crate) ratio: Option<f64>,
    /// The threshold.
    pub(crate) at_least: f64,
    /// Whether it was reached.
    pub(crate) reached: bool,
}

/// All checks of the parts that were run.
pub(crate) fn checks(found: &Found) -> Vec<Check> {
    found.parts.iter().flat_map(of_part).collect()
}

fn of_part(tried: &Tried) -> Vec<Check> {
    let wanted = |row: Row| match tried.part {
        Part::Saturating if row.adapts() => Some(SATURATED),
        Part::Lookups | Part::Light if row.adapts() => Some(UNHARMED),
        Part::Instances if row == Row::WeightsFar => Some(MORE_INSTANCES),
        _ => None,
    };
    let check = |row: Row| {
        let (ratio, at_least) = (tried.to_near(row), wanted(row)?);
        let reached = ratio.is_some_and(|ratio| ratio >= at_least);
        Some(Check { part: tried.part, row, ratio, at_least, reached })
    };
    tried.rows.iter().filter_map(|ran| check(ran.row)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::found;
    use super::*;

    fn missed(found: &Found) -> Vec<(Part, Row)> {
        let missed = checks(found).into_iter().filter(|check| !check.reached);
        missed.map(|check| (check.part, check.row)).collect()
    }

    #[test]
    fn each_rule_is_checked_against_its_threshold_in_each_part() {
        let found = found();
        assert_eq!(checks(&found).len(), 3 * 3 + 1);
        assert_eq!(missed(&found), []);
    }

    #[test]
    fn each_threshold_can_fail() {
        for (part, row, rate) in [
            (0, Row::Saturation, 129.0),
            (0, Row::Weighted, 129.0),
            (1, Row::Order, 97.0),
            (2, Row::Weighted, 97.0),
            (3, Row::WeightsFar, 149.0),
        ] {
            let mut found = found();
            let rows = &mut found.parts[part].rows;
            let ran = rows.iter_mut().find(|ran| ran.row == row).unwrap();
            ran.outcome.as_mut().unwrap().tokens_per_s = rate;
            assert_eq!(missed(&found), [(Part::ALL[part], row)]);
        }
    }

    #[test]
    fn a_missing_row_fails_every_check_that_needs_it() {
        let mut found = found();
        found.parts[0].rows[0].outcome = None;
        assert_eq!(missed(&found).len(), 3);
        assert!(checks(&found)[0].ratio.is_none());
    }
}
