//! Requests to change the options of running tiering: `nearfar.tier-change/1`, a file beside the journal.
//!
//! A client writes the file as a whole. The loop polls for it, adopts the options, shows them in its state, and
//! removes the file. A file for another process, or without a valid request, is removed without effect. Only one
//! client at a time may request a change ([`Turn`]).

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nearfar_kernel::lock::{self, Lock};
use nearfar_kernel::process::Identity;
use serde::{Deserialize, Serialize};

use super::options::Options;
use super::state::{self, State};

const SCHEMA: &str = "nearfar.tier-change/1";
/// A larger file is no request.
const SIZE_MAX: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    schema: String,
    of: Identity,
    options: Options,
}

fn path(dir: &Path) -> PathBuf {
    dir.join("tier-change.json")
}

/// The right to request a change. Other processes wait until it is dropped, up to a limit.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held for its lock")] Lock);

impl Turn {
    /// Waits for the lock.
    ///
    /// # Errors
    /// The lock can't be taken in time, or not without root.
    pub fn wait(dir: &Path) -> anyhow::Result<Self> {
        let taken = Lock::take(&dir.join("tier-change.lock"), lock::PATIENCE);
        taken.map(Self).context("changing options of running tiering needs root (sudo)")
    }

    /// Requests `options` from the process of `state`.
    ///
    /// # Errors
    /// The request can't be written.
    pub fn ask(&self, dir: &Path, state: &State, options: Options) -> anyhow::Result<()> {
        let change = Change { schema: SCHEMA.into(), of: state.identity, options };
        state::put(&path(dir), &change)
    }

    /// Whether the request has been taken.
    pub fn is_heard(&self, dir: &Path) -> bool {
        !path(dir).exists()
    }

    /// Withdraws the request.
    pub fn give_up(&self, dir: &Path) {
        remove(dir);
    }
}

/// The request to this process, if there is one. It is returned again until it is [removed](remove).
pub(crate) fn asked(dir: &Path, us: Identity) -> Option<Options> {
    let read = nearfar_kernel::fs::read_own(&path(dir), SIZE_MAX);
    if matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
        return None;
    }
    let change = read.ok().and_then(|bytes| serde_json::from_slice::<Change>(&bytes).ok());
    let ours = change.filter(|change| change.schema == SCHEMA && change.of == us);
    if ours.is_none() {
        remove(dir);
    }
    // Only these options can change at run time.
    let numbers = |options: Options| Options {
        headroom_percent: options.headroom_percent,
        traffic_percent: options.traffic_percent,
        cpu_percent: options.cpu_percent,
        ..Options::default()
    };
    ours.map(|change| numbers(change.options))
}

/// Removes the request.
pub(crate) fn remove(dir: &Path) {
    // If it can't be removed, the next poll adopts it once more.
    let _ = std::fs::remove_file(path(dir));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(dir: &Path, text: &[u8]) -> Option<Options> {
        std::fs::write(path(dir), text).unwrap();
        let asked = asked(dir, Identity::own());
        assert_eq!(path(dir).exists(), asked.is_some());
        asked
    }

    #[test]
    fn only_valid_requests_for_this_process_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            Options { cpu_percent: Some(7), cgroup: Some("/a".into()), ..Options::default() };
        let mut change = Change { schema: SCHEMA.into(), of: Identity::own(), options };
        let text = |change: &Change| serde_json::to_vec(change).unwrap();
        let heard = request(dir.path(), &text(&change)).unwrap();
        assert_eq!((heard.cpu_percent, heard.cgroup), (Some(7), None));
        let out_of_range = String::from_utf8(text(&change)).unwrap().replace('7', "101");
        assert_eq!(request(dir.path(), out_of_range.as_bytes()), None);
        change.of.started_ticks += 1;
        assert_eq!(request(dir.path(), &text(&change)), None);
        assert_eq!(request(dir.path(), &vec![b' '; 1 << 20]), None);
        assert_eq!(asked(dir.path(), Identity::own()), None);
    }

    proptest! {
        #[test]
        fn any_request_bytes_are_parsed_or_ignored_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let dir = tempfile::tempdir().unwrap();
            request(dir.path(), &bytes);
        }
    }
}
