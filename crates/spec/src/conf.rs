//! `NEARFAR_CONF`: the settings of the preload library, as text.
//!
//! ```text
//! conf = word *( " " word )
//! word = "heap=" kind            source of malloc's memory (see `spec`); default: plain memory
//!      | "from=" size            smaller objects stay where the system puts them; 0
//!      | "mmap=" ( size | "off" ) least size of anonymous private mappings placed as the kind is; 1m
//!      | "adapt=" policy         bw_saturation, bw_order or weighted: the heap adapts to memory load
//!      | "full=" ( "null" | "abort" ) when the kind is exhausted: NULL with ENOMEM, or an abort with a message
//!      | "wrong=" ( "say" | "abort" ) a checked build's action on a wrong free: a message, or an abort with one
//!      | "report=" ( "stderr" | file ) statistics of all kinds when a process ends, as JSON; %p in a name is its id
//!      | "print=smdk"            the lines that SMDK's scripts look for, on stderr
//! ```

use std::string::{String, ToString as _};

use nearfar_policy::interleave::Rule;

use crate::spec::{Spec, SpecError, size};

/// The settings' names, before the `=`.
pub(crate) const KEYS: [&str; 8] =
    ["heap", "from", "mmap", "adapt", "full", "wrong", "report", "print"];

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// The kind, as text.
    pub heap: Option<String>,
    /// Smaller objects, in bytes, stay where the system puts them.
    pub from: usize,
    /// Least size in bytes of anonymous mappings placed as the kind is.
    pub mmap: Option<usize>,
    /// The policy by which the heap adapts to memory load.
    pub adapt: Option<Rule>,
    /// The action when memory is exhausted.
    pub full: Full,
    /// The action of a checked build on a wrong free.
    pub wrong: Wrong,
    /// Destination of the exit report: a file, or "stderr".
    pub report: Option<String>,
    /// Whether SMDK's lines are printed.
    pub print_smdk: bool,
}

/// The action when a kind is exhausted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Full {
    /// The allocation fails: NULL, and ENOMEM.
    #[default]
    Null,
    /// The program ends with a message.
    Abort,
}

/// The action of a checked build when memory is freed twice, at an interior pointer, or was never allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrong {
    /// It prints a message.
    #[default]
    Say,
    /// The program ends with a message.
    Abort,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            heap: None,
            from: 0,
            mmap: Some(1 << 20),
            adapt: None,
            full: Full::default(),
            wrong: Wrong::default(),
            report: None,
            print_smdk: false,
        }
    }
}

/// Reasons why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfError {
    /// There is no such setting.
    #[error(
        "`{found}` is not a setting; there are heap=KIND, from=SIZE, mmap=SIZE, mmap=off, adapt=POLICY, full=null, full=abort, \
         wrong=say, wrong=abort, report=FILE and print=smdk, with spaces between; a kind beside others is heap=KIND"
    )]
    Word {
        /// The text given.
        found: String,
    },
    /// A setting is given twice.
    #[error("`{found}`: the setting is there twice")]
    Twice {
        /// The text given.
        found: String,
    },
    /// The value is not one of those allowed.
    #[error("`{found}`: write {allowed}")]
    Value {
        /// The text given.
        found: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The kind or a size is malformed.
    #[error(transparent)]
    Kind(#[from] SpecError),
    /// Two settings that exclude each other.
    #[error("`adapt=` chooses nodes by itself; leave out `heap=`")]
    Both,
}

impl core::str::FromStr for Conf {
    type Err = ConfError;

    fn from_str(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        let mut seen = std::vec::Vec::new();
        for word in text.split_whitespace() {
            let found = || word.to_string();
            let (key, value) =
                word.split_once('=').ok_or_else(|| ConfError::Word { found: found() })?;
            if seen.contains(&key) {
                return Err(ConfError::Twice { found: found() });
            }
            seen.push(key);
            conf.set(key, value, word)?;
        }
        if conf.adapt.is_some() && conf.heap.is_some() {
            return Err(ConfError::Both);
        }
        Ok(conf)
    }
}

fn bytes(text: &str) -> Result<usize, SpecError> {
    let found = size(text)?;
    usize::try_from(found.0).map_err(|_| SpecError::Size { found: text.to_string() })
}

impl Conf {
    fn set(&mut self, key: &str, value: &str, word: &str) -> Result<(), ConfError> {
        let wrong = |allowed| ConfError::Value { found: word.to_string(), allowed };
        match (key, value) {
            ("heap", kind) => {
                kind.parse::<Spec>()?;
                self.heap = Some(kind.to_string());
            }
            ("from", value) => self.from = bytes(value)?,
            ("mmap", "off") => self.mmap = None,
            ("mmap", value) => self.mmap = Some(bytes(value)?),
            ("adapt", value) => {
                self.adapt = Some(match value {
                    "bw_saturation" => Rule::Saturation,
                    "bw_order" => Rule::Order,
                    "weighted" => Rule::Weighted,
                    _ => {
                        return Err(wrong("adapt=bw_saturation, adapt=bw_order or adapt=weighted"));
                    }
                });
            }
            ("full", "null") => self.full = Full::Null,
            ("full", "abort") => self.full = Full::Abort,
            ("full", _) => return Err(wrong("full=null or full=abort")),
            ("wrong", "say") => self.wrong = Wrong::Say,
            ("wrong", "abort") => self.wrong = Wrong::Abort,
            ("wrong", _) => return Err(wrong("wrong=say or wrong=abort")),
            ("report", "") => return Err(wrong("report=stderr or report=FILE")),
            ("report", file) => self.report = Some(file.to_string()),
            ("print", "smdk") => self.print_smdk = true,
            ("print", _) => return Err(wrong("print=smdk")),
            _ => return Err(ConfError::Word { found: word.to_string() }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn conf(text: &str) -> Result<Conf, ConfError> {
        text.parse()
    }

    #[test]
    fn an_empty_configuration_is_plain_memory() {
        assert_eq!(conf("").unwrap(), Conf::default());
        assert_eq!(conf("  ").unwrap().mmap, Some(1 << 20));
    }

    #[test]
    fn every_key_sets_its_option() {
        let all = conf(
            "heap=far;limit=4g;spill=near from=64k mmap=off full=abort wrong=abort report=x print=smdk",
        );
        let all = all.unwrap();
        assert_eq!(all.heap.as_deref(), Some("far;limit=4g;spill=near"));
        assert_eq!((all.from, all.mmap, all.full), (64 << 10, None, Full::Abort));
        assert_eq!(all.wrong, Wrong::Abort);
        assert_eq!((all.report.as_deref(), all.print_smdk), (Some("x"), true));
        assert_eq!(conf("adapt=weighted").unwrap().adapt, Some(Rule::Weighted));
    }

    #[test]
    fn invalid_values_are_named() {
        for (text, named) in [
            ("far", "`far`"),
            ("heap=nowhere", "`nowhere`"),
            ("heap=", "``"),
            ("from=big", "`big`"),
            ("mmap=", "``"),
            ("full=maybe", "full=null or full=abort"),
            ("wrong=maybe", "wrong=say or wrong=abort"),
            ("print=all", "print=smdk"),
            ("report=", "report=FILE"),
            ("adapt=much", "bw_saturation"),
            ("heap=far heap=near", "twice"),
            ("colour=red", "`colour=red`"),
            ("heap=far adapt=weighted", "leave out"),
        ] {
            let said = conf(text).unwrap_err().to_string();
            assert!(said.contains(named), "{text}: {said}");
        }
    }

    #[test]
    fn each_key_is_accepted() {
        for key in KEYS {
            assert!(!matches!(conf(&format!("{key}=")), Err(ConfError::Word { .. })), "{key}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = conf(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn random_bytes_in_a_valid_configuration_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..4),
            at in 0_usize..100,
        ) {
            let mut text = b"heap=weighted:0=3,1=1;limit=4g;spill=near;huge=no from=64k mmap=off full=abort".to_vec();
            let at = at.min(text.len());
            text.splice(at..(at + 2).min(text.len()), bytes);
            let _ = conf(&String::from_utf8_lossy(&text));
        }

        #[test]
        fn no_text_panics(text in "((heap|from|mmap|full|report|print|adapt)?=?[0-9a-z:;=,]{0,9} ?){0,5}") {
            let _ = conf(&text);
        }
    }
}
