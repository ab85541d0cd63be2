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
