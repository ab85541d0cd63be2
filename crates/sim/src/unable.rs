//! The reasons why a simulation gives no result.

use crate::live::Failed;
use crate::machine::Refusal;
use crate::workload::Unsuited;

/// The reason why a simulation gives no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unable {
    /// The machine.
    #[error(transparent)]
    Machine(#[from] Refusal),
    /// The workload.
    #[error(transparent)]
    Workload(#[from] Unsuited),
    /// The controller.
    #[error(transparent)]
    Controller(#[from] Failed),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_displays_the_message_of_its_cause() {
        let refusal = Refusal {
            machine: "m".into(),
            what: "nodes".into(),
            value: 0.0,
            allowed: "at least one",
        };
        let unsuited = Unsuited::Unknown("w".into());
        let failed = Failed::Mismatch { policy: "p" };
        let texts = [refusal.to_string(), unsuited.to_string(), failed.to_string()];
        let all = [Unable::from(refusal), Unable::from(unsuited), Unable::from(failed)];
        assert_eq!(all.map(|of| of.to_string()), texts);
        assert!(texts[0].contains("machine m: nodes = 0: at least one"), "{}", texts[0]);
        assert!(texts[1].contains("nearfar sim list"), "the way out: {}", texts[1]);
    }
}
