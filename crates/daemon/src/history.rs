//! The last decisions of a service, for `nearfar why`: one for each change of the reason, the oldest first.

use serde::{Deserialize, Serialize};

/// Decisions that are kept.
const KEPT: usize = 40;

/// A decision, and its figures when it was made first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decision {
    /// Seconds from the start of the service.
    pub at_s: u64,
    /// The nodes it is about; empty for all.
    pub about: String,
    /// The reason, as a word.
    pub reason: String,
    /// The reason, as a sentence.
    pub why: String,
    /// The figures behind it, as text.
    pub figures: String,
}

/// The last decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History(Vec<Decision>);

impl History {
    /// Adds a decision, unless the last one about the same nodes had the same reason.
    pub(crate) fn note(&mut self, decision: Decision) {
        let last = self.0.iter().rev().find(|one| one.about == decision.about);
        if last.is_some_and(|last| last.reason == decision.reason) {
            return;
        }
        self.0.push(decision);
        let over = self.0.len().saturating_sub(KEPT);
        self.0.drain(..over);
    }

    /// The decisions, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Decision> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(at_s: u64, about: &str, reason: &str) -> Decision {
        let [about, reason] = [about, reason].map(String::from);
        Decision { at_s, about, reason, ..Decision::default() }
    }

    #[test]
    fn history_records_each_change_of_reason_and_drops_the_oldest() {
        let mut history = History::default();
        for (at_s, about, reason) in [
            (1, "0 over 1", "seeks"),
            (1, "1 over 2", "seeks"),
            (2, "0 over 1", "seeks"),
            (3, "0 over 1", "exchange"),
            (4, "1 over 2", "seeks"),
            (5, "0 over 1", "seeks"),
        ] {
            history.note(decision(at_s, about, reason));
        }
        let times: Vec<u64> = history.iter().map(|one| one.at_s).collect();
        assert_eq!(times, [1, 1, 3, 5]);
        (0..100).for_each(|at_s| history.note(decision(at_s, "", &at_s.to_string())));
        assert_eq!(history.iter().count(), KEPT);
        assert_eq!(history.iter().next_back().map(|last| last.at_s), Some(99));
    }
}
