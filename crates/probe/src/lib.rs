//! probe: measuring memory.
//!
//! Here: the report and the questions asked of it ([`report`]), where reports are kept ([`store`]), median and spread
//! ([`stats`]). Not here: what a machine is (crate topology), what to do about it (crate policy). Does not know who
//! asked or how results are shown. Read next: `report.rs`.

pub mod report;
pub mod stats;
pub mod store;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

pub use report::{ProbeReport, ReportError, SCHEMA, Source};
pub use store::{StoreError, load_file, load_matching, save, save_file, state_dir};
