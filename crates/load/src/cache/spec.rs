//! Specification of the workload: a directory or file of cachebench, a trace, or a synthetic one by name.
//!
//! Types that parse command-line texts (`Spec`, `ByteRange`, `Mix`), and their combination into a loaded [`Workload`].
//! Parsing reads no files; loading does, and its errors name the file. Not here: generating requests
//! (`crate::requests`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::requests::{
    Format, KEY_MAX, Layout, Parts, Picked, Popularity, Ratios, Sizes, Synthetic, VALUE_MAX, Zipf,
    cachebench,
};
use anyhow::{Context as _, bail};

use super::source::TraceFile;
use nearfar_report::words;

/// Default number of keys.
const KEYS: u64 = 1_000_000;
const KEY_BYTES: u32 = 16;
const VALUE_BYTES: u32 = 64;
/// The configuration file in a directory of cachebench.
const CONFIG: &str = "config.json";
/// The most bytes of a file of sizes or popularity.
const FILE_MAX: u64 = 64 << 20;

/// How workloads are written.
const FORMS: &str = "zipf:EXPONENT, uniform, trace:FILE, oracle-general:FILE, csv:COLUMNS:FILE or a directory of cachebench's";

/// As typed.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// `zipf:EXPONENT`.
    Zipf(f64),
    /// `uniform`.
    Uniform,
    /// `trace:FILE`.
    Trace(PathBuf),
    /// `oracle-general:FILE`.
    OracleGeneral(PathBuf),
    /// `csv:COLUMNS:FILE`.
    Table(Picked, PathBuf),
    /// A configuration of cachebench, or its directory.
    Cachebench(PathBuf),
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "uniform" {
            return Ok(Self::Uniform);
        }
        if let Some(exponent) = text.strip_prefix("zipf:") {
            let exponent = exponent.parse().map_err(|_| format!("{exponent:?} is no exponent"))?;
            Zipf::new(1, exponent).map_err(|error| error.to_string())?;
            return Ok(Self::Zipf(exponent));
        }
        if let Some(file) = text.strip_prefix("trace:") {
            return Ok(Self::Trace(named(file)?));
        }
        if let Some(file) = text.strip_prefix("oracle-general:") {
            return Ok(Self::OracleGeneral(named(file)?));
        }
        if let Some(rest) = text.strip_prefix("csv:") {
            let (columns, file) =
                rest.split_once(':').ok_or("write csv:key=COLUMN,size=COLUMN:FILE")?;
            return Ok(Self::Table(columns.parse()?, named(file)?));
        }
        if text.is_empty() || text == "zipf" {
            return Err(format!("write {FORMS}"));
        }
        Ok(Self::Cachebench(text.into()))
    }
}

fn named(file: &str) -> Result<PathBuf, String> {
    if file.is_empty() { Err(format!("it names no file; write {FORMS}")) } else { Ok(file.into()) }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
            Self::Uniform => f.write_str("uniform"),
            Self::Trace(file) => write!(f, "trace:{}", file.display()),
            Self::OracleGeneral(file) => write!(f, "oracle-general:{}", file.display()),
            Self::Table(picked, file) => write!(f, "csv:{picked}:{}", file.display()),
            Self::Cachebench(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A fixed number of bytes, or a range from which each key gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange(u32, u32);

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.parse().ok().filter(|bytes| *bytes as usize <= VALUE_MAX);
        match (number(from), number(to)) {
            (Some(from), Some(to)) if from <= to => Ok(Self(from, to)),
            _ => Err(format!("write bytes as 64 or 100-1000, up to {VALUE_MAX}")),
        }
    }
}

impl ByteRange {
    fn sizes(self) -> anyhow::Result<Sizes> {
        let Self(from, to) = self;
        if from == to {
            return Ok(Sizes::fixed(from));
        }
        let bounds = [f64::from(from), f64::from(to) + 1.0];
        Ok(Sizes::weighted("--value-bytes", &bounds, &[1.0], to.saturating_add(1))?)
    }
}

/// Proportions of reads, stores and deletes, in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix(pub(crate) Ratios);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Option<Vec<f64>> = text.split(':').map(|part| part.parse().ok()).collect();
        let ratios = match parts.as_deref() {
            Some([get, set]) => Ratios { get: *get, set: *set, ..Ratios::default() },
            Some([get, set, delete]) => {
                Ratios { get: *get, set: *set, delete: *delete, ..Ratios::default() }
            }
            _ => return Err("write GET:SET or GET:SET:DELETE, such as 90:10 or 90:9:1".into()),
        };
        let all = [ratios.get, ratios.set, ratios.delete];
        let sum: f64 = all.iter().sum();
        if all.iter().any(|part| *part < 0.0) || !sum.is_finite() || sum <= 0.0 {
            return Err("parts are at least 0 and not all 0".into());
        }
        Ok(Self(ratios))
    }
}

/// Further parameters of a workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Number of keys.
    pub keys: Option<u64>,
    /// Bytes of a key.
    pub key_bytes: Option<u32>,
    /// Bytes of a value.
    pub value_bytes: Option<ByteRange>,
    /// The mix of operations.
    pub mix: Option<Mix>,
    /// Whether a read that misses stores the key.
    pub fill: Fill,
}

/// Whether a read that misses stores the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// As the workload specifies.
    #[default]
    AsIs,
    /// It never does.
    Never,
}

/// A loaded workload.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Generated.
    Drawn(Arc<Synthetic>),
    /// Read from a file.
    Trace(Arc<TraceFile>),
}

impl Workload {
    /// Loads the workload that `spec` names.
    ///
    /// # Errors
    /// A file can't be read or parsed.
    pub fn load(spec: &Spec, shape: Shape, seed: u64) -> anyhow::Result<Self> {
        let mut parts = match spec {
            Spec::Trace(file) => return trace(file, &Layout::Recognised, shape),
            Spec::OracleGeneral(file) => return trace(file, &Layout::OracleGeneral, shape),
            Spec::Table(picked, file) => return trace(file, &Layout::Table(picked.clone()), shape),
            Spec::Cachebench(path) => configured(path, shape)?,
            Spec::Zipf(exponent) => {
                let zipf = Zipf::new(shape.keys.unwrap_or(KEYS), *exponent)?;
                synthetic(Popularity::Zipf(zipf), shape)?
            }
            Spec::Uniform => synthetic(Popularity::Uniform, shape)?,
        };
        parts.fill &= shape.fill == Fill::AsIs;
        let drawn = Synthetic::new(parts, seed).with_context(|| format!("workload {spec}"))?;
        Ok(Self::Drawn(Arc::new(drawn)))
    }

    /// Its composition, in words.
    pub(crate) fn made_of(&self) -> String {
        let parts = match self {
            Self::Trace(file) => {
                return match file.format() {
                    Format::Meta(_) => "a trace with Meta's columns",
                    Format::Twitter => "a trace with Twitter's columns",
                    Format::OracleGeneral => {
                        "a trace with libCacheSim's records, all of them reads"
                    }
                    Format::Table(_) => "a trace with the given columns",
                }
                .into();
            }
            Self::Drawn(drawn) => drawn.parts(),
        };
        let fill = if parts.fill { "; a read that finds nothing stores the key" } else { "" };
        format!(
            "{} keys of {:.0} bytes, values of {:.0} bytes on average, {}{fill}",
            words::grouped(parts.keys),
            parts.key_bytes.mean(),
            parts.value_bytes.mean(),
            mixed(parts.ratios),
        )
    }
}

/// The proportions of operations, in per cent.
fn mixed(ratios: Ratios) -> String {
    let Ratios { get, set, delete, lone_get, lone_set, update } = ratios;
    let all = [
        ("get", get),
        ("set", set),
        ("delete", delete),
        ("lone get", lone_get),
        ("lone set", lone_set),
        ("update", update),
    ];
    let sum: f64 = all.iter().map(|(_, part)| part).sum();
    let shown: Vec<_> = all
        .iter()
        .filter(|(_, part)| *part > 0.0)
        .map(|(name, part)| format!("{:.3} % {name}", 100.0 * part / sum).replace(".000", ""))
        .collect();
    shown.join(", ")
}

/// A synthetic workload given by name.
fn synthetic(popularity: Popularity, shape: Shape) -> anyhow::Result<Parts> {
    let mix = shape.mix.unwrap_or(Mix(Ratios { get: 1.0, ..Ratios::default() }));
    let bytes = shape.value_bytes.unwrap_or(ByteRange(VALUE_BYTES, VALUE_BYTES));
    Ok(Parts {
        keys: shape.keys.unwrap_or(KEYS),
        popularity,
        key_bytes: Sizes::fixed(shape.key_bytes.unwrap_or(KEY_BYTES)),
        value_bytes: bytes.sizes()?,
        ttl: None,
        ratios: mix.0,
        fill: true,
    })
}

fn refuse(shape: Shape, whose: &str, keys_too: Option<u64>) -> anyhow::Result<()> {
    let given = [
        ("--keys", keys_too.is_some()),
        ("--key-bytes", shape.key_bytes.is_some()),
        ("--value-bytes", shape.value_bytes.is_some()),
        ("--mix", shape.mix.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        bail!("{option} is for zipf and uniform: {whose} defines it itself; leave it out");
    }
    Ok(())
}

fn trace(file: &Path, layout: &Layout, shape: Shape) -> anyhow::Result<Workload> {
    refuse(shape, "a trace", shape.keys)?;
    Ok(Workload::Trace(Arc::new(TraceFile::open(file, layout, shape.fill == Fill::AsIs)?)))
}

/// A configuration of cachebench.
fn configured(path: &Path, shape: Shape) -> anyhow::Result<Parts> {
    refuse(shape, "a configuration of cachebench's", None)?;
    let file = if path.is_dir() { path.join(CONFIG) } else { path.into() };
    let dir = file.parent().unwrap_or(Path::new("."));
    let text = read(&file)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("--workload: write {FORMS}"))?;
    let mut beside = |name: &str| read(&dir.join(name));
    cachebench::parse(&text, shape.keys, &mut beside).with_context(|| file.display().to_string())
}

/// A file's text, if it is a plausible one.
fn read(file: &Path) -> Result<String, String> {
    let wrong = |why: &dyn fmt::Display| format!("{}: {why}", file.display());
    let bytes = std::fs::metadata(file).map_err(|error| wrong(&error))?.len();
    if bytes > FILE_MAX {
        return Err(wrong(&format_args!("{bytes} bytes, at most {FILE_MAX} are read")));
    }
    nearfar_kernel::fs::read_input(file, 16 << 20).map_err(|error| wrong(&error))
}

/// Parses the length of keys in bytes.
///
/// # Errors
/// Not a number in the range of valid lengths.
pub fn key_bytes(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|bytes| (1..=KEY_MAX).contains(&(*bytes as usize)));
    bytes.ok_or_else(|| format!("a key has 1 to {KEY_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_parse_and_print_as_typed() {
        for (text, spec) in [
            ("zipf:0.99", Spec::Zipf(0.99)),
            ("zipf:1", Spec::Zipf(1.0)),
            ("uniform", Spec::Uniform),
            ("trace:a.csv", Spec::Trace("a.csv".into())),
            ("trace:-", Spec::Trace("-".into())),
            ("oracle-general:a.bin", Spec::OracleGeneral("a.bin".into())),
            (
                "csv:key=5,size=4:a:b.csv",
                Spec::Table("key=5,size=4".parse().unwrap(), "a:b.csv".into()),
            ),
            ("dir/cdn", Spec::Cachebench("dir/cdn".into())),
        ] {
            assert_eq!((text.parse(), spec.to_string()), (Ok(spec), text.to_string()));
        }
        for text in [
            "",
            "zipf",
            "zipf:",
            "zipf:-1",
            "zipf:x",
            "zipf:NaN",
            "zipf:inf",
            "csv:a",
            "csv:key=1:a",
            "trace:",
            "csv:key=1,size=2:",
        ] {
            assert!(text.parse::<Spec>().is_err(), "{text}");
        }
    }

    #[test]
    fn mixes_and_sizes_parse_and_invalid_ones_are_refused() {
        let ratios = Ratios { get: 90.0, set: 9.0, delete: 1.0, ..Ratios::default() };
        assert_eq!("90:9:1".parse(), Ok(Mix(ratios)));
        for text in ["", "1", "0:0", "-1:2", "1:2:3:4", "inf:1", "NaN:1"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
        assert_eq!("64".parse(), Ok(ByteRange(64, 64)));
        assert_eq!("0-9".parse(), Ok(ByteRange(0, 9)));
        for text in ["", "-", "9-1", "x", "1-", "999999999999", "-5"] {
            assert!(text.parse::<ByteRange>().is_err(), "{text}");
        }
        assert!(key_bytes("0").is_err() && key_bytes("251").is_err());
    }

    #[test]
    fn a_workload_describes_its_keys_values_and_mix() {
        let shape = Shape { mix: "90:10".parse().ok(), ..Shape::default() };
        let load = |shape| Workload::load(&Spec::Zipf(1.0), shape, 1).unwrap().made_of();
        assert_eq!(
            load(shape),
            "1,000,000 keys of 16 bytes, values of 64 bytes on average, 90 % get, 10 % set; \
             a read that finds nothing stores the key"
        );
        let shape = Shape { fill: Fill::Never, value_bytes: "0-200".parse().ok(), ..shape };
        let said = load(shape);
        assert!(
            !said.contains("stores the key") && said.contains("100 bytes on average"),
            "{said}"
        );
    }
}
