//! probe: measuring memory.
//!
//! Here: what will be measured ([`plan`]), measuring it ([`measure`](mod@measure)), the report and the questions asked
//! of it ([`report`]), where reports are kept ([`store`]), how the lab is recognised ([`marker`]); and, apart from all
//! that, the bandwidth of memory that a policy placed ([`inherited`]).
//! Not here: what a machine is (crate topology), what to do about it (crate policy). Does not know who asked or how
//! results are shown. Read next: `measure.rs`, `gauge.rs`, then `team.rs` and `windows.rs` for how threads are counted and `loops/` for what runs.

mod budget;
mod clock;
mod cpus;
mod cycle;
mod gauge;
pub mod inherited;
mod loops;
pub mod marker;
pub mod measure;
mod pacer;
pub mod plan;
pub mod report;
pub mod stats;
pub mod store;
mod team;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod warnings;
mod windows;
mod work;

pub use measure::{Identity, Progress, measure};
pub use plan::{Plan, PlanError, Request};
pub use report::{ProbeReport, ReportError, SCHEMA, Source};
pub use store::{StoreError, load_file, load_matching, save, save_file, state_dir};
