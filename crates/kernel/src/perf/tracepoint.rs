//! The kernel's own tracepoints: their numbers and fields, from tracefs.
//!
//! tracefs may be unmounted or hidden. A process with the right to mount then reads it from a detached mount
//! (`sys::mount`).

use std::collections::BTreeMap;
use std::io::{self, Read as _};

use rustix::fs::{Mode, OFlags};

use crate::features::Asked;
use crate::fs::Fs;
use crate::sys::mount;

/// Usual mount points.
const PLACES: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];

/// A tracepoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracepoint {
    /// Its number, for perf.
    pub id: u64,
    /// Offset and length of each field in a record.
    pub fields: BTreeMap<String, (usize, usize)>,
}

/// Reasons why a tracepoint is unavailable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracepointError {
    /// tracefs is unavailable.
    #[error(
        "tracefs is mounted neither at /sys/kernel/tracing nor below debugfs, and can't be read without: {0}"
    )]
    NoTracefs(io::Error),
    /// It does not exist.
    #[error("no tracepoint {0} in this kernel's tracefs")]
    Lacking(String),
    /// It exists, but can't be read.
    #[error("tracepoint {name}: {said}")]
    Read {
        /// Its name.
        name: String,
        /// The error.
        said: String,
    },
}

impl Tracepoint {
    /// The tracepoint `name` of `group`.
    ///
    /// # Errors
    /// [`TracepointError`].
    pub fn find(
        fs: &dyn Fs,
        asked: Asked,
        group: &str,
        name: &str,
    ) -> Result<Self, TracepointError> {
        let full = format!("{group}:{name}");
        let unread = |said: String| TracepointError::Read { name: full.clone(), said };
        for place in PLACES {
            if !matches!(fs.list(&format!("{place}/events")), Ok(Some(_))) {
                continue;
            }
            let read = |file: &str| {
                let path = format!("{place}/events/{group}/{name}/{file}");
                fs.read(&path).map_err(|error| unread(error.to_string()))
            };
            let (Some(id), Some(format)) = (read("id")?, read("format")?) else {
                return Err(TracepointError::Lacking(full));
            };
            return Self::understand(&id, &format).ok_or_else(|| unread(format!("id {id:?}")));
        }
        if asked == Asked::Recorded {
            return Err(TracepointError::NoTracefs(io::ErrorKind::NotFound.into()));
        }
        let tracefs = mount::detached(c"tracefs").map_err(TracepointError::NoTracefs)?;
        let read = |file: &str| {
            let path = format!("events/{group}/{name}/{file}");
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&tracefs, path, flags, Mode::empty());
            let mut text = String::new();
            std::fs::File::from(file?).read_to_string(&mut text).map(|_| text)
        };
        let both = read("id").and_then(|id| Ok((id, read("format")?)));
        let (id, format) = both.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => TracepointError::Lacking(full.clone()),
            _ => unread(error.to_string()),
        })?;
        Self::understand(&id, &format).ok_or_else(|| unread(format!("id {id:?}")))
    }

    /// Parses the two texts. Lines such as `field:unsigned long address; offset:8; size:8; signed:0;`
    fn understand(id: &str, format: &str) -> Option<Self> {
        let mut fields = BTreeMap::new();
        for line in format.lines() {
            let mut parts = line.trim().split(';').map(str::trim);
            let declared = parts.next().and_then(|part| part.strip_prefix("field:"));
            let Some(name) = declared.and_then(|text| text.split_whitespace().last()) else {
                continue;
            };
            let mut number =
                |key: &str| parts.find_map(|part| part.strip_prefix(key))?.parse::<usize>().ok();
            if let (Some(offset), Some(size)) = (number("offset:"), number("size:")) {
                fields.insert(name.to_owned(), (offset, size));
            }
        }
        Some(Self { id: id.trim().parse().ok()?, fields })
    }

    /// A field of a record, if it exists and is a number.
    #[must_use]
    pub fn field(&self, raw: &[u8], name: &str) -> Option<u64> {
        let (offset, size) = *self.fields.get(name)?;
        let bytes = raw.get(offset..offset.checked_add(size)?).filter(|bytes| bytes.len() <= 8)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    const FORMAT: &str = "name: page_fault_user\nID: 123\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long address;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long error_code;\toffset:24;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"address=%ps error_code=0x%lx\", (void *)REC->address, REC->error_code\n";

    fn kernel(entries: &[(&str, &str)]) -> TreeFs {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        TreeFs(tree)
    }

    #[test]
    fn tracepoint_fields_are_read_at_their_declared_offsets() {
        let dir = "sys/kernel/debug/tracing/events/exceptions/page_fault_user";
        let fs = kernel(&[(&format!("{dir}/id"), "123\n"), (&format!("{dir}/format"), FORMAT)]);
        let found =
            Tracepoint::find(&fs, Asked::Recorded, "exceptions", "page_fault_user").unwrap();
        assert_eq!((found.id, found.fields.len()), (123, 4));
        let raw: Vec<u8> = (0..32).collect();
        assert_eq!(found.field(&raw, "address"), Some(0x0f0e_0d0c_0b0a_0908));
        assert_eq!(found.field(&raw, "common_pid"), Some(0x0706_0504));
        assert_eq!(found.field(&raw[..30], "error_code"), None);
        assert_eq!(found.field(&raw, "ip"), None);
        let other = Tracepoint::find(&fs, Asked::Recorded, "exceptions", "none").unwrap_err();
        assert!(matches!(other, TracepointError::Lacking(name) if name == "exceptions:none"));
    }

    #[test]
    fn missing_tracefs_and_an_invalid_tracepoint_id_are_reported() {
        let none = Tracepoint::find(&kernel(&[]), Asked::Recorded, "a", "b").unwrap_err();
        assert!(matches!(none, TracepointError::NoTracefs(_)), "{none}");
        let dir = "sys/kernel/tracing/events/a/b";
        let odd = kernel(&[(&format!("{dir}/id"), "x"), (&format!("{dir}/format"), "")]);
        let odd = Tracepoint::find(&odd, Asked::Recorded, "a", "b").unwrap_err();
        assert!(odd.to_string().contains("a:b"), "{odd}");
    }

    proptest! {
        #[test]
        fn no_text_panics(
            id in ".*",
            format in "(field:|[a-z ;:]|offset:|size:|[0-9]{1,30}|\\n){0,40}",
            raw in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some(found) = Tracepoint::understand(&id, &format) {
                for name in found.fields.keys() {
                    let _ = found.field(&raw, name);
                }
            }
        }
    }
}
