//! The options of the daemon: as given in a file or on the command line, and as in force.
//!
//! # The file
//! TOML, one key per option of `nearfar daemon`, all of them optional. Unknown keys, values of another type and numbers
//! out of range are rejected with their line.
//! ```toml
//! interval_ms = 200
//! advice = "/run/nearfar/advice"
//! tierd = "/run/tierd"
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfar_kernel::advice;
use serde::Deserialize;

use crate::tier::options::{located, text_of, within};

/// The shortest interval between measurements.
pub const INTERVAL_MS_MIN: i64 = 10;
/// The longest interval between measurements.
pub const INTERVAL_MS_MAX: i64 = 60_000;
/// The default interval.
const INTERVAL_MS: u32 = 200;

/// The options given; `None` leaves an option to a source of lower precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Milliseconds between measurements.
    #[serde(deserialize_with = "within::<_, INTERVAL_MS_MIN, INTERVAL_MS_MAX>")]
    pub interval_ms: Option<u32>,
    /// The file of the advice page.
    pub advice: Option<PathBuf>,
    /// The directory of SMDK's files; `None` for no such files.
    pub tierd: Option<PathBuf>,
}

impl Options {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or the line with an invalid value, the value, and the allowed ones.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&text_of(path)?)
    }

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let options: Self =
            toml::from_str(text).map_err(|error| anyhow::anyhow!(located(text, &error)))?;
        for (key, path) in [("advice", &options.advice), ("tierd", &options.tierd)] {
            if path.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
                anyhow::bail!("{key}: an empty path; leave the key out, or name a file");
            }
        }
        Ok(options)
    }

    /// These options; those not given are taken from `under`.
    #[must_use]
    pub fn over(self, under: Self) -> Self {
        Self {
            interval_ms: self.interval_ms.or(under.interval_ms),
            advice: self.advice.or(under.advice),
            tierd: self.tierd.or(under.tierd),
        }
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.unwrap_or(INTERVAL_MS).into())
    }

    /// The file of the advice page.
    #[must_use]
    pub fn advice(&self) -> PathBuf {
        self.advice.clone().unwrap_or_else(advice::default_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documented_example_parses() {
        let head = include_str!("options.rs");
        let (_, rest) = head.split_once("```toml\n").unwrap();
        let (example, _) = rest.split_once("//! ```").unwrap();
        let options = Options::parse(&example.replace("//! ", "")).unwrap();
        assert_eq!(options.interval(), Duration::from_millis(200));
        assert_eq!(options.tierd, Some("/run/tierd".into()));
    }

    #[test]
    fn option_errors_report_the_line_and_the_allowed_values() {
        for (text, says) in [
            ("interval_ms = 9", ["line 1: `interval_ms = 9`", "from 10 to 60000"]),
            ("\ninterval_ms = \"1s\"", ["line 2", "from 10 to 60000"]),
            ("\n\ninterval = 5", ["line 3: `interval = 5`: unknown field", "`interval_ms`"]),
            ("advice = 5", ["line 1: `advice = 5`", "path"]),
            ("tierd = true", ["line 1: `tierd = true`", "path"]),
            ("advice = \"\"", ["advice", "empty path"]),
        ] {
            let error = format!("{:#}", Options::parse(text).unwrap_err());
            assert!(says.iter().all(|says| error.contains(says)), "{text}: {error}");
        }
    }

    #[test]
    fn a_command_line_option_overrides_the_file() {
        let file = Options::parse("interval_ms = 50\ntierd = \"/a\"").unwrap();
        let typed = Options { interval_ms: Some(70), ..Options::default() };
        let both = typed.over(file);
        assert_eq!((both.interval_ms, both.tierd), (Some(70), Some("/a".into())));
    }

    proptest! {
        #[test]
        fn any_text_is_options_or_an_error_in_one_line(
            text in "((interval_ms|advice|tierd|x) ?= ?([-0-9.e]{0,9}|\"[ -~]{0,6}\"?)|[ -~]{0,9}|\n){0,12}",
        ) {
            if let Err(error) = Options::parse(&text) {
                prop_assert!(!format!("{error:#}").contains('\n'), "{}", error);
            }
        }
    }
}
