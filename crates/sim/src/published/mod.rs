//! Published figures beside the model's: what was fitted to them, and what the model says of itself.
//!
//! A figure is *fitted* where some number of the model was chosen to give it, and *predicted* where none was. Both must lie
//! within the tolerance: a fit that no longer fits is as wrong as a prediction that fails.
//!
//! Three studies: [`mod@carrefour`] (four nodes and links), [`mod@colloid`] (two tiers, one contended), [`mod@duplex`]
//! (weighted interleave over half- and full-duplex memory).

use crate::machine::Machine;

pub mod carrefour;
pub mod colloid;
pub mod duplex;

/// How the model came to a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A number of the model was chosen for it.
    Fitted,
    /// None was.
    Predicted,
    /// What was published is a limit: the model's may be less.
    Limit,
}

impl How {
    /// As a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
            Self::Limit => "limit",
        }
    }
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Processor cycles.
    Cycles,
    /// A share, 1 being all of it.
    Share,
    /// How much more, 1 being twice as much.
    Gain,
    /// One figure over another.
    Ratio,
}

impl Unit {
    /// As a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Share => "share",
            Self::Gain => "gain",
            Self::Ratio => "ratio",
        }
    }
}

/// One published figure and the model's.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Where it was published.
    pub table: &'static str,
    /// What it is.
    pub what: String,
    /// What it counts.
    pub unit: Unit,
    /// As published.
    pub paper: f64,
    /// As simulated.
    pub model: f64,
    /// How far they may be apart, as a share of what was published.
    pub tolerance: f64,
    /// Fitted or predicted.
    pub how: How,
}

impl Row {
    /// How far the model is off, as a share of what was published.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.model / self.paper - 1.0
    }

    /// Whether that is within bounds; what is no number is not.
    #[must_use]
    pub fn within(&self) -> bool {
        let difference = self.difference();
        let off = if self.how == How::Limit { difference } else { difference.abs() };
        off <= self.tolerance
    }
}

/// All rows; `four_nodes` is the machine of the traffic management studies.
#[must_use]
pub fn rows(four_nodes: &Machine) -> Vec<Row> {
    let mut rows = carrefour::rows(four_nodes);
    rows.extend(colloid::rows());
    rows.extend(duplex::rows());
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_within_bounds_or_it_is_not() {
        let row = |model| Row {
            table: "t",
            what: String::new(),
            unit: Unit::Ratio,
            paper: 2.0,
            model,
            tolerance: 0.05,
            how: How::Predicted,
        };
        assert!(row(2.09).within() && row(1.91).within());
        assert!(!row(2.11).within() && !row(1.89).within() && !row(f64::NAN).within());
        let limit = |model| Row { how: How::Limit, ..row(model) };
        assert!(limit(0.1).within() && !limit(2.11).within() && !limit(f64::NAN).within());
    }
}
