//! parquet: access records as partitioned Parquet, for the query engines of a fleet.
//!
//! A [`Dataset`] is a directory with two tables, `accesses` and `residency`, each partitioned as Hive does it:
//!
//! ```text
//! DIR/accesses/host=H/date=YYYY-MM-DD/workload=W/part-START-N.parquet
//! DIR/residency/host=H/date=YYYY-MM-DD/workload=W/part-START-N.parquet
//! ```
//!
//! START is the start of the record in microseconds since 1970, N the number of the part within the record and table,
//! from 0000. Dates are UTC. The values of `host` and `workload` are percent-encoded ([`Labels`]). `columns.rs` defines
//! the schema; `docs/fleet.md` describes it for readers of the data.
//!
//! A part is written under a hidden temporary name and gets its name when it is complete, so a crash loses at most the
//! open part of each table. The limits of a part depend on the record alone: a record converted later gives the same
//! bytes as one written meanwhile. A part that exists is kept if it has the same bytes; it is never overwritten.
//!
//! Not here: reading of records (crate record), queries, migrations and notes. Read next: `dataset.rs`.
#![forbid(unsafe_code)]

mod columns;
mod dataset;
mod day;
mod labels;
mod part;
mod table;

pub use dataset::{Dataset, Summary, check};
pub use labels::{Labels, workload};

use std::io;
use std::path::PathBuf;

/// Reasons why a dataset could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A partition value that can't name a directory.
    #[error("{label} {value:?} {why}")]
    Label {
        /// The partition: `host` or `workload`.
        label: &'static str,
        /// Its value.
        value: String,
        /// The rule that it violates.
        why: &'static str,
    },
    /// The record does not contain the time of its start.
    #[error("the record does not contain the time of its start, and rows are partitioned by date")]
    NoStart,
    /// A part exists with other contents.
    #[error(
        "{} exists with other contents, and a part is never overwritten; move it away, or name another directory",
        .0.display()
    )]
    Exists(PathBuf),
    /// A file could not be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Parquet could not be encoded, or written.
    #[error("writing {}: {source}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// The error of the encoder.
        source: parquet::errors::ParquetError,
    },
}
