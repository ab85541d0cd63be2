//! The options of tiering: as given in a file or by command, and as they are in force, each with its source.
//!
//! # The file
//! TOML, one key an option of `nearfar tier start`, all of them optional; `nearfar tier config --save` writes one with
//! each key explained. Unknown keys, values of another type and numbers out of range are refused with their line.
//! ```toml
//! headroom_percent = 2
//! near = "0"
//! keep_damon_stat = true
//! ```

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use nearfar_topology::{BasisPoints, NodeExpr};
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::plan::{Limits, Named, TierExpr};
use nearfar_command::machine::kind_override;

/// The largest headroom in percent.
pub const HEADROOM_MAX: i64 = 50;
/// The largest share in percent.
pub const SHARE_MAX: i64 = 100;
/// A larger file is rejected.
const SIZE_MAX: u64 = 64 << 10;
/// The largest number a process can have (PID_MAX_LIMIT).
pub const PID_MAX: i64 = 1 << 22;

/// The options given; `None` leaves one to a weaker source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Share of near memory kept free for new pages.
    #[serde(deserialize_with = "within::<_, 0, HEADROOM_MAX>")]
    pub headroom_percent: Option<u32>,
    /// Share of far bandwidth that migration may take.
    #[serde(deserialize_with = "within::<_, 1, SHARE_MAX>")]
    pub traffic_percent: Option<u32>,
    /// Share of one CPU that scans and migration may take.
    #[serde(deserialize_with = "within::<_, 1, SHARE_MAX>")]
    pub cpu_percent: Option<u32>,
    /// The near nodes.
    #[serde(serialize_with = "as_text", deserialize_with = "nodes")]
    pub near: Option<NodeExpr>,
    /// The far nodes.
    #[serde(serialize_with = "as_text", deserialize_with = "nodes")]
    pub far: Option<NodeExpr>,
    /// As `--tiers` takes them, in place of `near` and `far`.
    #[serde(serialize_with = "as_text", deserialize_with = "nodes")]
    pub tiers: Option<TierExpr>,
    /// Only the memory of this cgroup.
    pub cgroup: Option<String>,
    /// Only the memory of this process and its descendants.
    #[serde(deserialize_with = "within::<_, 1, PID_MAX>")]
    pub pid: Option<u32>,
    /// Refuse to start while `damon_stat` runs, instead of pausing it.
    pub keep_damon_stat: Option<bool>,
    /// Leave the kernel's NUMA balancing on.
    pub keep_numa_balancing: Option<bool>,
    /// The file for an access record.
    pub record: Option<String>,
    /// As `--kind` takes them.
    #[serde(deserialize_with = "kinds")]
    pub kind: Option<Vec<String>>,
}

/// Each key with its description in the file.
const KEYS: [(&str, &str); 12] = [
    ("headroom_percent", "Share of near memory kept free for new pages: 0 to 50."),
    ("traffic_percent", "Share of far memory's bandwidth that migration may take: 1 to 100."),
    ("cpu_percent", "Share of one CPU that scans and migration may take: 1 to 100."),
    ("near", "The near nodes, such as \"0\" or \"dram\"; left out: the fastest tier."),
    ("far", "The far nodes; left out: all others with memory."),
    ("tiers", "All tiers in place of near and far, fastest first, such as \"hbm/dram/cxl\"."),
    ("cgroup", "Only the memory of this cgroup, not that of cgroups below it."),
    ("pid", "Only the memory of this process and its descendants, in a cgroup of their own."),
    (
        "keep_damon_stat",
        "Refuse to start while the kernel's damon_stat runs, instead of pausing it.",
    ),
    ("keep_numa_balancing", "Leave the kernel's NUMA balancing on, which migrates pages too."),
    ("record", "Record residency and migrations into this file, for nearfar report."),
    ("kind", "Memory kinds of nodes, over those that the machine reports, such as [\"1=cxl\"]."),
];

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Neither a file nor an option gives it.
    Default,
    /// From the file of options.
    File,
    /// From the command line.
    Option,
    /// Set by `nearfar tier config` while it runs.
    Changed,
}

impl Origin {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Option => "option",
            Self::Changed => "changed while it runs",
        }
    }
}

/// The options in force, with their sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveOptions {
    /// The values.
    pub options: Options,
    /// By key; a missing one has its default.
    from: BTreeMap<String, Origin>,
}

impl Options {
    /// Default values.
    pub(crate) fn defaults() -> Self {
        Self {
            headroom_percent: Some(2),
            traffic_percent: Some(10),
            cpu_percent: Some(5),
            keep_damon_stat: Some(false),
            keep_numa_balancing: Some(false),
            ..Self::default()
        }
    }

    /// These options, with those that are missing from `under`.
    fn over(self, under: Self) -> Self {
        Self {
            headroom_percent: self.headroom_percent.or(under.headroom_percent),
            traffic_percent: self.traffic_percent.or(under.traffic_percent),
            cpu_percent: self.cpu_percent.or(under.cpu_percent),
            near: self.near.or(under.near),
            far: self.far.or(under.far),
            tiers: self.tiers.or(under.tiers),
            cgroup: self.cgroup.or(under.cgroup),
            pid: self.pid.or(under.pid),
            keep_damon_stat: self.keep_damon_stat.or(under.keep_damon_stat),
            keep_numa_balancing: self.keep_numa_balancing.or(under.keep_numa_balancing),
            record: self.record.or(under.record),
            kind: self.kind.or(under.kind),
        }
    }

    /// By key, as in JSON; null if not given.
    fn values(&self) -> Vec<(&'static str, serde_json::Value)> {
        let all = serde_json::to_value(self).unwrap_or_default();
        KEYS.iter().map(|(key, _)| (*key, all[*key].clone())).collect()
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// The line, its text, and the values allowed.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let options: Self =
            toml::from_str(text).map_err(|error| anyhow::anyhow!(located(text, &error)))?;
        if options.cgroup.is_some() && options.pid.is_some() {
            anyhow::bail!("cgroup and pid: name one of them");
        }
        if options.tiers.is_some() && (options.near.is_some() || options.far.is_some()) {
            anyhow::bail!("tiers and near or far: tiers names all nodes, so leave the others out");
        }
        if let Some(both) = options.near.as_ref().filter(|near| options.far.as_ref() == Some(near))
        {
            anyhow::bail!("near and far: both are {both}; name different nodes");
        }
        for (key, text) in [("cgroup", &options.cgroup), ("record", &options.record)] {
            anyhow::ensure!(
                text.as_deref() != Some(""),
                "{key}: it is empty; leave it out for none"
            );
        }
        Ok(options)
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// As `parse`, or a file that can't be read.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&text_of(path)?)
    }

    /// The file's text, with each key explained; a key without a value is a comment.
    pub fn text(&self) -> String {
        let mut text =
            String::from("# Options of nearfar tier start --config FILE (docs/tier.md).\n");
        for ((key, value), (_, says)) in self.values().into_iter().zip(KEYS) {
            let _ = match value {
                serde_json::Value::Null => write!(text, "\n# {says}\n#{key} =\n"),
                value => write!(text, "\n# {says}\n{key} = {}\n", toml_value(&value)),
            };
        }
        text
    }

    /// The nodes that the user names.
    pub fn named(&self) -> Named<'_> {
        Named { near: self.near.as_ref(), far: self.far.as_ref(), tiers: self.tiers.as_ref() }
    }

    /// The three limits, for the policy.
    pub fn limits(&self) -> Limits {
        let defaults = Self::defaults();
        let share = |given: Option<u32>, default: Option<u32>| {
            BasisPoints(given.or(default).unwrap_or(0).saturating_mul(100))
        };
        Limits {
            headroom: share(self.headroom_percent, defaults.headroom_percent),
            traffic: share(self.traffic_percent, defaults.traffic_percent),
            cpu: share(self.cpu_percent, defaults.cpu_percent),
        }
    }
}

impl EffectiveOptions {
    /// Options of a command over those of a file over the defaults. A command that names a scope, or tiers, disables
    /// those of the file.
    pub fn new(typed: Options, mut file: Options) -> Self {
        if typed.cgroup.is_some() || typed.pid.is_some() {
            (file.cgroup, file.pid) = (None, None);
        }
        if typed.tiers.is_some() {
            (file.near, file.far) = (None, None);
        } else if typed.near.is_some() || typed.far.is_some() {
            file.tiers = None;
        }
        let mut from = BTreeMap::new();
        for (options, origin) in [(&file, Origin::File), (&typed, Origin::Option)] {
            from.extend(given(options).map(|key| (key.to_owned(), origin)));
        }
        Self { options: typed.over(file).over(Options::defaults()), from }
    }

    /// Adopts the given options. Returns whether any value has changed.
    pub(crate) fn change(&mut self, changes: Options) -> bool {
        let before = self.options.clone();
        self.from.extend(given(&changes).map(|key| (key.to_owned(), Origin::Changed)));
        self.options = changes.over(std::mem::take(&mut self.options));
        self.options != before
    }

    /// Each key with its value, null if there is none, and its source.
    pub fn entries(&self) -> Vec<(&'static str, serde_json::Value, Origin)> {
        let origin = |key: &str| self.from.get(key).copied().unwrap_or(Origin::Default);
        let values = self.options.values().into_iter();
        values.map(|(key, value)| (key, value, origin(key))).collect()
    }
}

fn given(options: &Options) -> impl Iterator<Item = &'static str> {
    let values = options.values().into_iter();
    values.filter(|(_, value)| !value.is_null()).map(|(key, _)| key)
}

/// The text of a file of options, also of the daemon's.
pub(crate) fn text_of(path: &Path) -> anyhow::Result<String> {
    // A FIFO or a device may have no end.
    anyhow::ensure!(std::fs::metadata(path)?.is_file(), "not a regular file");
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(SIZE_MAX + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(
        bytes.len() as u64 <= SIZE_MAX,
        "larger than {} KiB, so no file of options",
        SIZE_MAX >> 10
    );
    String::from_utf8(bytes).context("not a text in UTF-8")
}

/// A parser's message, with the line it is about.
pub(crate) fn located(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', "; ").chars().map(plain).collect::<String>();
    let Some(at) = error.span().map(|span| span.start.min(text.len())) else { return message };
    let number = text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let shown: String = line.chars().take(80).map(plain).collect();
    format!("line {number}: `{shown}`: {message}")
}

/// Replaces control characters, which could affect a terminal.
fn plain(c: char) -> char {
    if c.is_control() { '?' } else { c }
}

/// A number, flag, text or list of texts in TOML.
fn toml_value(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => {
            let escaped = text.chars().map(|c| match c {
                '"' | '\\' => format!("\\{c}"),
                c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
                c => c.to_string(),
            });
            format!("\"{}\"", escaped.collect::<String>())
        }
        serde_json::Value::Array(all) => {
            format!("[{}]", all.iter().map(toml_value).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// A whole number within bounds.
struct Within<const MIN: i64, const MAX: i64>(u32);

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Within<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number<const MIN: i64, const MAX: i64>;
        impl<const MIN: i64, const MAX: i64> Visitor<'_> for Number<MIN, MAX> {
            type Value = u32;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<u32, E> {
                let within = u32::try_from(value).ok().filter(|_| (MIN..=MAX).contains(&value));
                within.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<u32, E> {
                match i64::try_from(value) {
                    Ok(value) => self.visit_i64(value),
                    Err(_) => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
                }
            }
        }
        from.deserialize_any(Number::<MIN, MAX>).map(Self)
    }
}

pub(crate) fn within<'de, D: Deserializer<'de>, const MIN: i64, const MAX: i64>(
    from: D,
) -> Result<Option<u32>, D::Error> {
    let number = Option::<Within<MIN, MAX>>::deserialize(from)?;
    Ok(number.map(|number| number.0))
}

fn nodes<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: fmt::Display>,
{
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

fn as_text<S: Serializer, T: fmt::Display>(nodes: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    nodes.as_ref().map(ToString::to_string).serialize(to)
}

fn kinds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let texts = Option::<Vec<String>>::deserialize(from)?;
    for text in texts.iter().flatten() {
        kind_override(text).map_err(D::Error::custom)?;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        format!("{:#}", Options::parse(text).unwrap_err())
    }

    #[test]
    fn the_documented_example_parses() {
        let head = include_str!("options.rs");
        let (_, rest) = head.split_once("```toml\n").unwrap();
        let (example, _) = rest.split_once("//! ```").unwrap();
        let options = Options::parse(&example.replace("//! ", "")).unwrap();
        assert_eq!(options.headroom_percent, Some(2));
        assert_eq!(options.near.unwrap().to_string(), "0");
        assert_eq!(options.keep_damon_stat, Some(true));
    }

    #[test]
    fn option_errors_report_the_line_and_the_allowed_values() {
        for (text, says) in [
            ("headroom_percent = 51", ["line 1: `headroom_percent = 51`", "from 0 to 50"]),
            ("\ncpu_percent = 0", ["line 2: `cpu_percent = 0`", "from 1 to 100"]),
            ("traffic_percent = \"10\"", ["line 1", "from 1 to 100"]),
            ("traffic_percent = 10.5", ["10.5", "from 1 to 100"]),
            ("traffic_percent = -1", ["-1", "from 1 to 100"]),
            ("headroom = 5", ["`headroom = 5`: unknown field", "`headroom_percent`"]),
            ("near = \"soon\"", ["line 1: `near = \"soon\"`", "soon"]),
            ("pid = 0", ["line 1", "from 1 to 4194304"]),
            ("kind = [\"1=fast\"]", ["line 1", "fast"]),
            ("cgroup = \"a\"\npid = 5", ["cgroup and pid", "one of them"]),
            ("tiers = \"0/1\"\nfar = \"1\"", ["tiers and near or far", "leave the others out"]),
            ("near = \"1\"\nfar = \"1\"", ["near and far", "both are 1"]),
            ("cgroup = \"\"", ["cgroup", "empty"]),
            ("tiers = \"0\"", ["line 1: `tiers = \"0\"`", "one tier"]),
            ("cpu_percent = 5\ncpu_percent = 6", ["line 2", "duplicate key"]),
            ("headroom_percent = 4\nnear = \"0", ["line 2: `near = \"0`", "string"]),
            ("a\u{1b}[31m = 1", ["line 1", "`a?[31m = 1`"]),
        ] {
            let error = refused(text);
            assert!(says.iter().all(|says| error.contains(says)), "{text}: {error}");
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn an_oversized_or_non_text_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tier.toml");
        for (bytes, says) in
            [(vec![b'#'; 65 << 10], "larger than 64 KiB"), (vec![b'#', 0xff], "UTF-8")]
        {
            std::fs::write(&path, bytes).unwrap();
            let error = format!("{:#}", Options::read(&path).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
        assert!(Options::read(&dir.path().join("none")).is_err());
    }

    #[test]
    fn options_override_the_file_and_the_file_overrides_defaults() {
        let file =
            Options::parse("headroom_percent = 4\ncpu_percent = 7\ncgroup = \"/a\"").unwrap();
        let typed = Options { headroom_percent: Some(6), pid: Some(3), ..Options::default() };
        let mut effective = EffectiveOptions::new(typed, file);
        let of = |effective: &EffectiveOptions, name: &str| {
            let found = effective.entries().into_iter().find(|(key, ..)| *key == name).unwrap();
            (found.1.as_u64(), found.2)
        };
        assert_eq!(of(&effective, "headroom_percent"), (Some(6), Origin::Option));
        assert_eq!(of(&effective, "cpu_percent"), (Some(7), Origin::File));
        assert_eq!(of(&effective, "traffic_percent"), (Some(10), Origin::Default));
        assert_eq!((effective.options.pid, &effective.options.cgroup), (Some(3), &None));
        let changes = Options { cpu_percent: Some(9), ..Options::default() };
        assert!(effective.change(changes.clone()) && !effective.change(changes));
        assert_eq!(of(&effective, "cpu_percent"), (Some(9), Origin::Changed));
        assert_eq!(of(&effective, "headroom_percent"), (Some(6), Origin::Option));
        assert_eq!(effective.options.limits().cpu, BasisPoints(900));
    }

    fn any_options() -> impl Strategy<Value = Options> {
        let flag = || prop::option::of(any::<bool>());
        let text = || prop::option::of("\\PC+");
        let numbers = [0..=50u32, 1..=100, 1..=100].map(prop::option::of);
        let near = prop::option::of(prop::sample::select(vec!["0", "0,2-3", "near", "tier:1"]));
        let far = prop::option::of(prop::sample::select(vec!["1", "far", "tier:2"]));
        (numbers, near, far, text(), flag(), flag(), text()).prop_map(
            |(numbers, near, far, cgroup, pause, keep, record)| Options {
                headroom_percent: numbers[0],
                traffic_percent: numbers[1],
                cpu_percent: numbers[2],
                near: near.map(|nodes| nodes.parse().unwrap()),
                far: far.map(|nodes| nodes.parse().unwrap()),
                tiers: None,
                pid: cgroup.is_none().then_some(7),
                cgroup,
                keep_damon_stat: pause,
                keep_numa_balancing: keep,
                record,
                kind: keep.map(|_| vec!["1=cxl".into(), "0=dram".into()]),
            },
        )
    }

    proptest! {
        #[test]
        fn saved_options_round_trip_and_truncated_ones_do_not_panic(
            options in any_options(), cut in any::<prop::sample::Index>(),
        ) {
            let text = options.text();
            prop_assert_eq!(&Options::parse(&text).unwrap(), &options);
            let end = cut.index(text.len());
            let end = (0..=end).rev().find(|end| text.is_char_boundary(*end)).unwrap();
            let _ = Options::parse(&text[..end]);
        }

        #[test]
        fn any_text_is_options_or_an_error_in_one_line(
            text in prop_oneof![
                any::<String>(),
                "(((headroom|traffic|cpu)_percent|near|pid|kind|record|x) ?= ?([-0-9.e]{0,9}|\"[ -~]{0,6}\"?|\\[[\"0-9=a-z]{0,8}\\])|[ -~]{0,9}|\n){0,12}",
            ],
        ) {
            if let Err(error) = Options::parse(&text) {
                prop_assert!(!format!("{error:#}").contains('\n'), "{}", error);
            }
        }
    }
}
