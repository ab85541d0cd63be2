//! probe: measures memory latency and bandwidth.
//!
//! Here: the plan of measurements ([`plan`]), their execution ([`measure`](mod@measure)), the report and queries on it
//! ([`report`]), the directory of saved reports ([`store`]), detection of the lab ([`marker`]); and, separately, the
//! bandwidth of memory placed by a policy ([`inherited`]). Not here: the machine's topology (crate topology), decisions
//! (crate policy), and the output of results. Read next: `measure.rs`, `gauge.rs`, then `team.rs` and `windows.rs` for
//! counting threads and `loops/` for the measured loops.

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
