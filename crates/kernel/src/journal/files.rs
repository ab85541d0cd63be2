//! The journal's directory: one file per batch, each created atomically. The format is in the head of the journal.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{JournalError, Recorded};
use crate::fs::read_own;
use crate::whole;

pub(super) const SCHEMA: &str = "nearfar.journal/1";
/// Larger files are no batches.
const SIZE_MAX: u64 = 16 << 20;
/// Files with larger numbers are not the journal's.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// A batch on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) schema: String,
    pub(super) by: String,
    pub(super) pid: u32,
    pub(super) root: PathBuf,
    pub(super) boot_id: Option<String>,
    pub(super) changes: Vec<Recorded>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) witnesses: Vec<Witness>,
    #[serde(skip)]
    pub(super) number: u64,
    /// The file's last change.
    #[serde(skip)]
    pub(super) since: Option<SystemTime>,
}

/// Changes made together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Their owner.
    pub by: String,
    /// The process that made them.
    pub pid: u32,
    /// The time at which they were recorded, where it is known.
    pub since: Option<SystemTime>,
    /// The changes.
    pub changes: Vec<Recorded>,
}

/// All that the journal has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Batches that are not restored, oldest first.
    pub batches: Vec<Batch>,
    /// Files that are not batches of this version.
    pub unreadable: Vec<Unreadable>,
}

impl From<Entry> for Batch {
    fn from(Entry { by, pid, since, changes, .. }: Entry) -> Self {
        Self { by, pid, since, changes }
    }
}

/// A file that shows whether a batch is still in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Witness {
    pub(super) path: String,
    pub(super) reads: String,
}

/// A file in the journal that is not a batch of this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// The error in it.
    pub found: String,
    /// The files that it changes, as far as they can be read.
    names: BTreeSet<String>,
}

impl Unreadable {
    fn new(path: PathBuf, found: String, text: &str) -> Self {
        // A batch of another version may have the same layout.
        let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        let changes = value["changes"].as_array().into_iter().flatten();
        let names = changes.filter_map(|change| change["path"].as_str().map(str::to_owned));
        Self { path, found, names: names.collect() }
    }

    /// Whether it changes this file.
    pub(super) fn names(&self, path: &str) -> bool {
        self.names.contains(path)
    }
}

/// All files of the journal.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Batches, oldest first.
    pub(super) entries: Vec<Entry>,
    pub(super) unreadable: Vec<Unreadable>,
    /// The largest number in use.
    pub(super) newest: u64,
}

/// Lists all files; none if there is no directory.
pub(super) fn list(dir: &Path) -> Result<Listed, JournalError> {
    let items = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Listed::default()),
        items => items.map_err(failed("list", dir))?,
    };
    let mut listed = Listed::default();
    for item in items {
        let path = item.map_err(failed("list", dir))?.path();
        let Some(number) = path.file_name().and_then(|name| number(name.to_str()?)) else {
            continue;
        };
        listed.newest = listed.newest.max(number);
        let bytes = match read_own(&path, SIZE_MAX) {
            // Restored by another process since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(failed("read", &path)(error));
            }
            Err(error) => {
                listed.unreadable.push(Unreadable::new(path, error.to_string(), ""));
                continue;
            }
            Ok(bytes) => bytes,
        };
        let text = String::from_utf8_lossy(&bytes);
        match parse(number, &text) {
            Ok(entry) => {
                let since = fs::metadata(&path).and_then(|file| file.modified()).ok();
                listed.entries.push(Entry { since, ..entry });
            }
            Err(found) => listed.unreadable.push(Unreadable::new(path, found, &text)),
        }
    }
    listed.entries.sort_by_key(|entry| entry.number);
    listed.unreadable.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(listed)
}

/// The number of the next batch.
pub(super) fn next(dir: &Path) -> Result<u64, JournalError> {
    let newest = list(dir)?.newest;
    if newest < NUMBER_MAX {
        return Ok(newest + 1);
    }
    let last = io::Error::other("no larger number is a batch; move this file away");
    Err(failed("number the batch after", &dir.join(file_name(newest)))(last))
}

/// Writes a batch's file atomically and durably.
pub(super) fn save(dir: &Path, entry: &Entry) -> Result<(), JournalError> {
    let name = file_name(entry.number);
    let write = || {
        let mut text = serde_json::to_vec(entry)?;
        text.push(b'\n');
        whole::write(dir, "new", &name, &text)
    };
    write().map_err(failed("write", &dir.join(&name)))
}

/// Removes it.
pub(super) fn forget(dir: &Path, entry: &Entry) -> Result<(), JournalError> {
    let name = file_name(entry.number);
    whole::remove(dir, &name).map_err(failed("delete", &dir.join(&name)))
}

pub(super) fn failed(
    call: &'static str,
    path: &Path,
) -> impl Fn(io::Error) -> JournalError + use<> {
    let path = path.to_path_buf();
    move |source| JournalError::Directory { call, path: path.clone(), source }
}

/// Arbitrary bytes as a batch: a readable one is written back as it was, and it names nothing outside.
#[cfg(any(fuzzing, test))]
pub(super) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(entry) = parse(1, &text) else {
        let _ = Unreadable::new(PathBuf::new(), String::new(), &text).names("sys/a");
        return;
    };
    assert!(entry.changes.iter().all(|change| check_path(&change.path).is_ok()));
    let written = serde_json::to_string(&entry).unwrap_or_default();
    assert_eq!(parse(1, &written).as_ref(), Ok(&entry));
}

/// The number of a batch's file: exactly in the form used here, and far below the maximum.
fn number(name: &str) -> Option<u64> {
    let number: u64 = name.strip_suffix(".json")?.parse().ok()?;
    (number <= NUMBER_MAX && file_name(number) == name).then_some(number)
}

fn file_name(number: u64) -> String {
    format!("{number:010}.json")
}

/// The batch, or the error in it.
fn parse(number: u64, text: &str) -> Result<Entry, String> {
    let entry: Entry = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if entry.schema != SCHEMA {
        return Err(format!("its schema is {}, not {SCHEMA}", entry.schema.escape_debug()));
    }
    let witnesses = entry.witnesses.iter().map(|witness| &witness.path);
    for path in entry.changes.iter().map(|change| &change.path).chain(witnesses) {
        check_path(path).map_err(|error| error.to_string())?;
    }
    Ok(Entry { number, ..entry })
}

pub(super) fn check_path(path: &str) -> Result<(), JournalError> {
    let below = path.starts_with("sys/") || path.starts_with("proc/sys/");
    if below && !path.split('/').any(|part| part == "..") {
        return Ok(());
    }
    Err(JournalError::Outside { path: path.into() })
}
