//! The schema: rows, and the columns of each table with their types and encodings.
//!
//! The table of columns is the only definition of the schema: the Parquet schema is composed from it. A column may be
//! added at the end of a table; another change to names, types or meaning is another version (`nearfar.accesses/2`).
//! Integers are signed, because not all engines have others: a value above 2^63 - 1 is stored as 2^63 - 1.

use std::sync::Arc;

use parquet::data_type::ByteArray;

/// A monitored target.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) target: i64,
    pub(crate) pid: Option<i64>,
    pub(crate) command: Option<ByteArray>,
    pub(crate) cgroup: Option<ByteArray>,
    /// Type of the addresses.
    pub(crate) addresses: ByteArray,
    pub(crate) emulated: bool,
}

/// A node of the machine.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) node: i32,
    /// Type of its memory.
    pub(crate) kind: Option<ByteArray>,
    /// `near` or `far`.
    pub(crate) tier: Option<ByteArray>,
}

/// A region on one node at one point in time.
#[derive(Debug)]
pub(crate) struct AccessRow {
    pub(crate) ts_us: i64,
    pub(crate) source: Arc<Source>,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) bytes: i64,
    pub(crate) accesses: i64,
    pub(crate) rate_permille: i32,
    pub(crate) age_us: i64,
    pub(crate) place: Option<Arc<Place>>,
}

/// Bytes of the record's target on one node at one point in time.
#[derive(Debug)]
pub(crate) struct ResidencyRow {
    pub(crate) ts_us: i64,
    pub(crate) source: Arc<Source>,
    pub(crate) place: Arc<Place>,
    pub(crate) bytes: i64,
}

/// The type of a column, and its value in a row.
#[derive(Debug)]
pub(crate) enum Value<R> {
    Time(fn(&R) -> i64),
    Wide(fn(&R) -> i64),
    MaybeWide(fn(&R) -> Option<i64>),
    Narrow(fn(&R) -> i32),
    MaybeNarrow(fn(&R) -> Option<i32>),
    Flag(fn(&R) -> bool),
    Text(fn(&R) -> &ByteArray),
    MaybeText(fn(&R) -> Option<&ByteArray>),
}

/// Encoding of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Few values, or long runs of the same one: a dictionary.
    Few,
    /// Numbers near the one before: differences.
    Differences,
}

/// A column.
#[derive(Debug)]
pub(crate) struct Column<R> {
    pub(crate) name: &'static str,
    pub(crate) value: Value<R>,
    pub(crate) encoding: Encoding,
}

const fn column<R>(name: &'static str, value: Value<R>) -> Column<R> {
    Column { name, value, encoding: Encoding::Few }
}

const fn differences<R>(name: &'static str, value: Value<R>) -> Column<R> {
    Column { name, value, encoding: Encoding::Differences }
}

/// The columns of the table `accesses`.
pub(crate) const ACCESSES: &[Column<AccessRow>] = &[
    column("ts", Value::Time(|row| row.ts_us)),
    column("target", Value::Wide(|row| row.source.target)),
    column("pid", Value::MaybeWide(|row| row.source.pid)),
    column("command", Value::MaybeText(|row| row.source.command.as_ref())),
    column("cgroup", Value::MaybeText(|row| row.source.cgroup.as_ref())),
    column("addresses", Value::Text(|row| &row.source.addresses)),
    differences("start_address", Value::Wide(|row| row.start)),
    differences("end_address", Value::Wide(|row| row.end)),
    column("bytes", Value::Wide(|row| row.bytes)),
    column("accesses", Value::Wide(|row| row.accesses)),
    column("rate_permille", Value::Narrow(|row| row.rate_permille)),
    column("age_us", Value::Wide(|row| row.age_us)),
    column("node", Value::MaybeNarrow(|row| row.place.as_ref().map(|place| place.node))),
    column("kind", Value::MaybeText(|row| row.place.as_ref()?.kind.as_ref())),
    column("tier", Value::MaybeText(|row| row.place.as_ref()?.tier.as_ref())),
    column("emulated", Value::Flag(|row| row.source.emulated)),
];

/// The columns of the table `residency`.
pub(crate) const RESIDENCY: &[Column<ResidencyRow>] = &[
    column("ts", Value::Time(|row| row.ts_us)),
    column("pid", Value::MaybeWide(|row| row.source.pid)),
    column("command", Value::MaybeText(|row| row.source.command.as_ref())),
    column("cgroup", Value::MaybeText(|row| row.source.cgroup.as_ref())),
    column("node", Value::Narrow(|row| row.place.node)),
    column("kind", Value::MaybeText(|row| row.place.kind.as_ref())),
    column("tier", Value::MaybeText(|row| row.place.tier.as_ref())),
    column("bytes", Value::Wide(|row| row.bytes)),
    column("emulated", Value::Flag(|row| row.source.emulated)),
];

impl<R> Value<R> {
    /// The type, as Parquet's schema language writes it: before and after the name.
    const fn types(&self) -> (&'static str, &'static str) {
        match self {
            Self::Time(_) => ("required int64", " (TIMESTAMP(MICROS,true))"),
            Self::Wide(_) => ("required int64", ""),
            Self::MaybeWide(_) => ("optional int64", ""),
            Self::Narrow(_) => ("required int32", ""),
            Self::MaybeNarrow(_) => ("optional int32", ""),
            Self::Flag(_) => ("required boolean", ""),
            Self::Text(_) => ("required binary", " (STRING)"),
            Self::MaybeText(_) => ("optional binary", " (STRING)"),
        }
    }
}

/// The schema in Parquet's schema language.
pub(crate) fn message<R>(name: &str, columns: &[Column<R>]) -> String {
    let fields = columns.iter().map(|column| {
        let (before, after) = column.value.types();
        format!("  {before} {}{after};\n", column.name)
    });
    format!("message {name} {{\n{}}}", fields.collect::<String>())
}
