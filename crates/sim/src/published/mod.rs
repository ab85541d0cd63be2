//! Published figures compared with the model's, with the parameters fitted to them.
//!
//! A figure is *fitted* if a parameter of the model was chosen to reproduce it, *implied* if it follows from an input or
//! from the way it is computed and the model could not fail it, and only otherwise *predicted*. All must lie within the
//! tolerance: a fit that no longer holds is as wrong as a prediction that fails. [`mod@parameters`] lists the free
//! parameters. For each fitted figure of a study with more figures than parameters, the parameters are refitted without it
//! ([`Row::left_out`]).
//!
//! Three studies: [`mod@carrefour`] (four nodes and links), [`mod@colloid`] (two tiers, one contended), [`mod@duplex`]
//! (weighted interleave over half- and full-duplex memory). Apart from them, [`mod@expansion`] predicts gains from measured
//! curves, with nothing fitted.

use crate::machine::Machine;
use crate::unable::Unable;

pub mod carrefour;
pub mod colloid;
pub mod duplex;
pub mod even;
pub mod expansion;
mod fit;
pub mod parameters;

/// Origin of the model's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A parameter was chosen to reproduce it.
    Fitted,
    /// It follows from an input of the model, or from the way it is computed.
    Implied,
    /// No parameter was chosen for it, and the model could have failed it.
    Predicted,
    /// The published figure is an upper limit.
    Limit,
}

impl How {
    /// The word for display.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Implied => "implied",
            Self::Predicted => "predicted",
            Self::Limit => "limit",
        }
    }
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Processor cycles.
    Cycles,
    /// A share, 1 being all of it.
    Share,
    /// Relative increase; 1 is twice as much.
    Gain,
    /// One figure over another.
    Ratio,
}

impl Unit {
    /// The word for display.
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
    /// The publication.
    pub table: &'static str,
    /// The quantity.
    pub what: String,
    /// Its unit.
    pub unit: Unit,
    /// The published figure.
    pub paper: f64,
    /// The simulated figure.
    pub model: f64,
    /// Allowed deviation as a share of the published figure.
    pub tolerance: f64,
    /// Origin of the model's figure.
    pub how: How,
    /// The reason why it is implied; empty otherwise.
    pub because: &'static str,
    /// The model's deviation once its parameters are refitted to the study's other figures; only for fitted figures,
    /// `None` where the others do not determine the parameters: then nothing is left to predict.
    pub left_out: Option<f64>,
}

impl Row {
    /// The model's deviation as a share of the published figure.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.model / self.paper - 1.0
    }

    /// Whether the deviation is within the tolerance; false for NaN.
    #[must_use]
    pub fn within(&self) -> bool {
        let difference = self.difference();
        let off = if self.how == How::Limit { difference } else { difference.abs() };
        off <= self.tolerance
    }
}

/// All rows; `four_nodes` is the machine of the traffic management studies.
///
/// # Errors
/// A machine that the studies' programs do not support.
pub fn rows(four_nodes: &Machine) -> Result<Vec<Row>, Unable> {
    let mut rows = carrefour::rows(four_nodes)?;
    even::Fitted::of(four_nodes).left_out(&mut rows);
    let mut tiers = colloid::rows();
    colloid::left_out(&mut tiers);
    rows.extend(tiers);
    rows.extend(duplex::rows());
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_within_bounds_only_within_its_tolerance() {
        let row = |model| Row {
            table: "t",
            what: String::new(),
            unit: Unit::Ratio,
            paper: 2.0,
            model,
            tolerance: 0.05,
            how: How::Predicted,
            because: "",
            left_out: None,
        };
        assert!(row(2.09).within() && row(1.91).within());
        assert!(!row(2.11).within() && !row(1.89).within() && !row(f64::NAN).within());
        let limit = |model| Row { how: How::Limit, ..row(model) };
        assert!(limit(0.1).within() && !limit(2.11).within() && !limit(f64::NAN).within());
    }
}
