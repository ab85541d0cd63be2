//! Reads saved results (`--save`): for the benchmark that produced them, and for comparisons with others.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;

/// A result of a benchmark.
pub trait Kept: DeserializeOwned {
    /// The command of nearfar-bench.
    const BENCH: &str;
    /// The schema that this version reads and writes.
    const SCHEMA: &str;

    /// The schema of this result.
    fn schema(&self) -> &str;
}

/// Reads a result from a file.
///
/// # Errors
/// A file that can't be read, belongs to another benchmark, or has another version.
pub fn kept<Found: Kept>(file: &Path) -> anyhow::Result<Found> {
    let (at, schema) = (file.display(), Found::SCHEMA);
    let text =
        nearfar_kernel::fs::read_input(file, 64 << 20).with_context(|| format!("reading {at}"))?;
    let found: Found = serde_json::from_str(&text).with_context(|| {
        format!("{at} is no result of nearfar-bench {} ({schema})", Found::BENCH)
    })?;
    if found.schema() != schema {
        bail!("{at}: its schema is {}, this reads {schema}", found.schema());
    }
    Ok(found)
}
