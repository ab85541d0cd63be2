//! The last state of a service that has ended, kept until the next one ends: for `nearfar why`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfar_kernel::fs::read_own;
use serde::Deserialize;

use crate::history::History;

/// A larger file is not a state.
const SIZE_MAX: u64 = 1 << 20;

/// The part of a state that explains decisions.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Last {
    /// How long the service ran.
    pub running_s: u64,
    /// Its decisions.
    pub history: History,
}

/// The file of the last state, beside that of a running service.
fn kept(state: &Path) -> PathBuf {
    state.with_extension("last.json")
}

/// Keeps the state, in this file, of a service that has ended. Returns whether there was one.
pub fn retire(state: &Path) -> bool {
    std::fs::rename(state, kept(state)).is_ok()
}

/// The last state of a service with this state file, and the time since it was written; `None` without one.
pub fn read(state: &Path) -> Option<(Last, Duration)> {
    let path = kept(state);
    let last = serde_json::from_slice(&read_own(&path, SIZE_MAX).ok()?).ok()?;
    let written = std::fs::metadata(path).and_then(|file| file.modified()).ok()?;
    Some((last, written.elapsed().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_service_that_ended_is_kept_until_the_next_ends() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("balance.json");
        assert!(!retire(&state) && read(&state).is_none());
        for running_s in [5, 7] {
            std::fs::write(&state, format!(r#"{{"running_s": {running_s}, "pages": {{}}}}"#))
                .unwrap();
            assert!(retire(&state) && !state.exists());
            assert_eq!(read(&state).map(|(last, _)| last.running_s), Some(running_s));
        }
        std::fs::write(kept(&state), "damaged").unwrap();
        assert!(read(&state).is_none());
    }
}
