//! `NEARFAR_CONF`: what the preload library does with a program's memory, in words.
//!
//! ```text
//! conf = word *( " " word )
//! word = "heap=" kind            where memory of malloc and its like goes (see `spec`); default
//!      | "from=" size            objects smaller than this stay where the system puts them; 0
//!      | "mmap=" ( size | "off" ) anonymous private mappings from this size on go to the kind, too; 1m
//!      | "adapt=" policy         bw_saturation, bw_order or weighted: the heap follows how busy memory is
//!      | "full=" ( "null" | "abort" ) what happens when the kind has no more: NULL with ENOMEM, or an end with a message
//!      | "wrong=" ( "say" | "abort" ) what a checked build does when memory is given back wrongly: a line, or an end with one
//!      | "report=" ( "stderr" | file ) figures of all kinds when a process ends, as JSON; %p in a name is its number
//!      | "print=smdk"            the lines that SMDK's scripts look for, on stderr
//! ```

use std::string::{String, ToString as _};

use nearfar_policy::interleave::Rule;

use crate::spec::{Spec, SpecError, size};

/// The words there are, before their `=`.
pub(crate) const KEYS: [&str; 8] =
    ["heap", "from", "mmap", "adapt", "full", "wrong", "report", "print"];

/// What is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// The kind, in words.
    pub heap: Option<String>,
    /// Bytes below which objects stay where the system puts them.
    pub from: usize,
    /// Bytes from which anonymous mappings go to the kind.
    pub mmap: Option<usize>,
    /// How the heap follows how busy memory is.
    pub adapt: Option<Rule>,
    /// What happens when there is no more.
    pub full: Full,
    /// What a checked build does when memory is given back wrongly.
    pub wrong: Wrong,
    /// Where figures go at the end: a file, or "stderr".
    pub report: Option<String>,
    /// Whether SMDK's lines are printed.
    pub print_smdk: bool,
}

/// What happens when a kind has no more memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Full {
    /// The program is told: NULL, and ENOMEM.
    #[default]
    Null,
    /// The program ends with a message.
    Abort,
}

/// What a checked build does when memory is given back twice, in the middle, or was never allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrong {
    /// It says so.
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

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfError {
    /// Not a word there is.
    #[error(
        "`{found}` is not a setting; there are heap=KIND, from=SIZE, mmap=SIZE, mmap=off, adapt=POLICY, full=null, full=abort, \
         wrong=say, wrong=abort, report=FILE and print=smdk, with spaces between"
    )]
    Word {
        /// What was written.
        found: String,
    },
    /// A word that is there twice.
    #[error("`{found}`: the setting is there twice")]
    Twice {
        /// What was written.
        found: String,
    },
    /// The value is not one of those allowed.
    #[error("`{found}`: write {allowed}")]
    Value {
        /// What was written.
        found: String,
        /// What may be.
        allowed: &'static str,
    },
    /// The kind or a size is not written as those are.
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
    fn nothing_is_plain_memory() {
        assert_eq!(conf("").unwrap(), Conf::default());
        assert_eq!(conf("  ").unwrap().mmap, Some(1 << 20));
    }

    #[test]
    fn words_say_what_is_to_be() {
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
    fn what_is_wrong_is_named() {
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
    fn each_key_is_understood() {
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
        fn bytes_among_what_is_right_do_not_panic(
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
