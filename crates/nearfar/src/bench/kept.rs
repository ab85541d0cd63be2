//! Results that were kept (`--save`), read again: by the benchmark that found them, and by who compares them with something else.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;

/// What a benchmark found.
pub(crate) trait Kept: DeserializeOwned {
    /// `nearfar bench` what.
    const BENCH: &str;
    /// The schema that this version writes and reads.
    const SCHEMA: &str;

    /// The schema it was written by.
    fn schema(&self) -> &str;
}

/// A result from a file.
///
/// # Errors
/// A file that can't be read, is none of that benchmark's, or of another version.
pub(crate) fn kept<Found: Kept>(file: &Path) -> anyhow::Result<Found> {
    let (at, schema) = (file.display(), Found::SCHEMA);
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {at}"))?;
    let found: Found = serde_json::from_str(&text).with_context(|| {
        format!("{at} is no result of nearfar bench {} ({schema})", Found::BENCH)
    })?;
    if found.schema() != schema {
        bail!("{at}: its schema is {}, this reads {schema}", found.schema());
    }
    Ok(found)
}
