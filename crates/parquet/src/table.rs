//! One table of a dataset: rows in the order of time, in row groups, in parts.
//!
//! A part ends at the end of its UTC day, after an hour, or with [`PART_ROWS`] rows, always between two points in time:
//! limits that depend on the record alone, not on the clock. The times of two row groups of a part do not overlap.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding as Encoded, GzipLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

use crate::columns::{self, Column, Encoding};
use crate::labels::Labels;
use crate::part::{Finished, Part};
use crate::{Error, Summary, day};

/// Rows after which a row group is written; 72 bytes of memory each.
const GROUP_ROWS: usize = 1 << 17;
/// Rows after which a part ends.
const PART_ROWS: u64 = 1 << 22;
/// Time after which a part ends.
const PART_US: i64 = 3_600_000_000;

/// A table being written.
#[derive(Debug)]
pub(crate) struct Table<R: 'static> {
    /// `DIR/NAME`.
    dir: PathBuf,
    labels: Labels,
    start_us: i64,
    columns: &'static [Column<R>],
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    rows: Vec<R>,
    part: Option<Part>,
    /// Number of parts begun.
    begun: u32,
    summary: Summary,
}

impl<R> Table<R> {
    /// A table without rows; creates nothing.
    pub(crate) fn new(
        dir: &Path,
        name: &str,
        columns: &'static [Column<R>],
        (labels, start_us): (&Labels, i64),
        facts: &[(&str, &str)],
    ) -> Result<Self, ParquetError> {
        let schema = Arc::new(parse_message_type(&columns::message(name, columns))?);
        let mut keys = vec![KeyValue::new("nearfar.schema".into(), format!("nearfar.{name}/1"))];
        let fact = |(key, value): &(&str, &str)| {
            KeyValue::new(format!("nearfar.{key}"), (*value).to_owned())
        };
        keys.extend(facts.iter().map(fact));
        let by_time = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::GZIP(GzipLevel::default()))
            .set_sorting_columns(Some(vec![by_time]))
            .set_key_value_metadata(Some(keys));
        for column in columns.iter().filter(|of| of.encoding == Encoding::Differences) {
            let path = ColumnPath::from(column.name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoded::DELTA_BINARY_PACKED);
        }
        Ok(Self {
            dir: dir.join(name),
            labels: labels.clone(),
            start_us,
            columns,
            schema,
            properties: Arc::new(properties.build()),
            rows: Vec::new(),
            part: None,
            begun: 0,
            summary: Summary::default(),
        })
    }

    /// Appends all rows of one point in time, not before the last one.
    pub(crate) fn append(
        &mut self,
        ts_us: i64,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<(), Error> {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let buffered = u64::try_from(self.rows.len()).unwrap_or(u64::MAX);
        let is_full = |part: &Part| {
            day::of_us(part.first_us) != day::of_us(ts_us)
                || ts_us.saturating_sub(part.first_us) >= PART_US
                || part.rows.saturating_add(buffered) >= PART_ROWS
        };
        if self.part.as_ref().is_some_and(is_full) {
            self.close()?;
        }
        if self.part.is_none() {
            self.open(ts_us)?;
        }
        self.rows.extend(rows);
        if self.rows.len() >= GROUP_ROWS { self.flush() } else { Ok(()) }
    }

    /// Completes the last part.
    pub(crate) fn end(mut self) -> Result<Summary, Error> {
        self.close()?;
        Ok(self.summary)
    }

    fn open(&mut self, ts_us: i64) -> Result<(), Error> {
        let path = self
            .dir
            .join(self.labels.host())
            .join(format!("date={}", day::date(day::of_us(ts_us))))
            .join(self.labels.workload())
            .join(format!("part-{}-{:04}.parquet", self.start_us, self.begun));
        self.begun += 1;
        let (schema, properties) = (Arc::clone(&self.schema), Arc::clone(&self.properties));
        self.part = Some(Part::create(path, ts_us, schema, properties)?);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        if let Some(part) = self.part.as_mut().filter(|_| !self.rows.is_empty()) {
            part.group(self.columns, &self.rows)?;
            self.rows.clear();
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.flush()?;
        let Some(part) = self.part.take() else { return Ok(()) };
        let rows = part.rows;
        match part.finish()? {
            Finished::New(bytes) => {
                self.summary.parts += 1;
                self.summary.rows += rows;
                self.summary.bytes += bytes;
            }
            Finished::Kept => self.summary.kept += 1,
        }
        Ok(())
    }
}
