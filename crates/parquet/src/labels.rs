//! Partition values: the host and the workload of a record.
//!
//! A value becomes part of a directory's name, `host=VALUE`. All bytes but letters, digits, `.`, `_` and `-` are
//! percent-encoded, as Hive and Spark do for the characters that they reserve; Spark, DuckDB and DataFusion decode them.

use nearfar_record::Target;

use crate::Error;

/// Longest name of a directory.
const NAME_BYTES_MAX: usize = 255;

/// The host and the workload of a record, checked and encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    host: String,
    workload: String,
}

impl Labels {
    /// Checks and encodes both values.
    ///
    /// # Errors
    /// One is empty, has a control character, or is too long for the name of a directory.
    pub fn new(host: &str, workload: &str) -> Result<Self, Error> {
        Ok(Self { host: directory("host", host)?, workload: directory("workload", workload)? })
    }

    /// `host=VALUE`, encoded.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// `workload=VALUE`, encoded.
    #[must_use]
    pub fn workload(&self) -> &str {
        &self.workload
    }
}

/// The workload of a target that was given no other: `machine`, the path of the cgroup, or the name of the command.
#[must_use]
pub fn workload(target: &Target) -> String {
    match target {
        Target::Machine => "machine".into(),
        Target::Cgroup(path) => match path.trim_matches('/') {
            "" => "cgroup-root".into(),
            path => path.into(),
        },
        Target::Process { pid, command } => {
            match command.trim_end_matches('/').rsplit('/').next() {
                None | Some("") => format!("pid-{pid}"),
                Some(name) => name.into(),
            }
        }
        Target::Unknown => "unknown".into(),
    }
}

fn directory(label: &'static str, value: &str) -> Result<String, Error> {
    let refused = |why| Err(Error::Label { label, value: value.into(), why });
    if value.trim().is_empty() {
        return refused("is empty; give a name");
    }
    if value.chars().any(char::is_control) {
        return refused("has a control character; give another name");
    }
    let name = format!("{label}={}", encoded(value));
    if name.len() > NAME_BYTES_MAX {
        return refused("is too long for the name of a directory; give a shorter one");
    }
    Ok(name)
}

fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(text: &str) -> String {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            if *first == b'%' {
                let hex = std::str::from_utf8(&tail[..2]).unwrap();
                bytes.push(u8::from_str_radix(hex, 16).unwrap());
                rest = &tail[2..];
            } else {
                bytes.push(*first);
                rest = tail;
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_slash_creates_no_directory() {
        let labels = Labels::new("web=1", "a/b c").unwrap();
        assert_eq!((labels.host(), labels.workload()), ("host=web%3D1", "workload=a%2Fb%20c"));
    }

    #[test]
    fn values_unusable_as_a_directory_are_refused_with_the_remedy() {
        let long = "x".repeat(247);
        for (value, says) in [
            ("", "is empty; give a name"),
            (" ", "is empty"),
            ("a\nb", "control"),
            (&long, "shorter"),
        ] {
            let error = Labels::new("h", value).unwrap_err().to_string();
            assert!(error.starts_with("workload") && error.contains(says), "{error}");
        }
        assert!(Labels::new(&long, "w").is_ok(), "host=, shorter by four");
    }

    #[test]
    fn each_target_has_a_workload_of_its_own() {
        let process = |command: &str| Target::Process { pid: 7, command: command.into() };
        for (target, name) in [
            (Target::Machine, "machine"),
            (Target::Cgroup("/kubepods.slice/web".into()), "kubepods.slice/web"),
            (Target::Cgroup("/".into()), "cgroup-root"),
            (process("/usr/bin/redis-server"), "redis-server"),
            (process(""), "pid-7"),
            (process("/"), "pid-7"),
            (Target::Unknown, "unknown"),
        ] {
            assert_eq!(workload(&target), name);
            assert!(Labels::new("h", &workload(&target)).is_ok());
        }
    }

    proptest! {
        #[test]
        fn any_accepted_value_is_one_directory_and_decodes_to_itself(value: String) {
            if let Ok(labels) = Labels::new(&value, "w") {
                let name = labels.host();
                prop_assert!(!name.contains('/') && name.len() <= NAME_BYTES_MAX);
                prop_assert_eq!(decoded(name.strip_prefix("host=").unwrap()), value);
            }
        }
    }
}
