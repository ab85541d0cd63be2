//! One part: a Parquet file under a temporary name until it is complete.
//!
//! The temporary name begins with a dot and ends in `.partial`, which engines skip. A killed writer leaves such a file
//! behind; its rows are in the record, and a later conversion writes the part.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{BoolType, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::TypePtr;
use tempfile::NamedTempFile;

use crate::Error;
use crate::columns::{Column, Value};

/// A part being written.
#[derive(Debug)]
pub(crate) struct Part {
    writer: SerializedFileWriter<NamedTempFile>,
    path: PathBuf,
    /// Time of its first row.
    pub(crate) first_us: i64,
    /// Number of its rows.
    pub(crate) rows: u64,
}

/// A finished part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// It was written, with this number of bytes.
    New(u64),
    /// It existed, with the same contents.
    Kept,
}

impl Part {
    /// Starts the part that will have this path, and creates its directory.
    pub(crate) fn create(
        path: PathBuf,
        first_us: i64,
        schema: TypePtr,
        properties: WriterPropertiesPtr,
    ) -> Result<Self, Error> {
        let written = |source| Error::Write { path: path.clone(), source };
        let dir = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir).map_err(written)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let file = tempfile::Builder::new()
            .prefix(&format!(".{stem}."))
            .suffix(".partial")
            .tempfile_in(dir)
            .map_err(written)?;
        let writer = SerializedFileWriter::new(file, schema, properties)
            .map_err(|source| Error::Encode { path: path.clone(), source })?;
        Ok(Self { writer, path, first_us, rows: 0 })
    }

    /// Appends a row group.
    pub(crate) fn group<R>(&mut self, columns: &[Column<R>], rows: &[R]) -> Result<(), Error> {
        let done = self.try_group(columns, rows);
        done.map_err(|source| Error::Encode { path: self.path.clone(), source })?;
        self.rows += u64::try_from(rows.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    fn try_group<R>(&mut self, columns: &[Column<R>], rows: &[R]) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for column in columns {
            let Some(mut into) = group.next_column()? else { break };
            write(&mut into, &column.value, rows)?;
            into.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Completes the file, waits until it is on the disk, and gives it its name.
    pub(crate) fn finish(self) -> Result<Finished, Error> {
        let Self { writer, path, .. } = self;
        let file = match writer.into_inner() {
            Ok(file) => file,
            Err(source) => return Err(Error::Encode { path, source }),
        };
        let size = file.as_file().sync_all().and_then(|()| file.as_file().metadata());
        let bytes = match size {
            Ok(found) => found.len(),
            Err(source) => return Err(Error::Write { path, source }),
        };
        match file.persist_noclobber(&path) {
            Ok(_) => Ok(Finished::New(bytes)),
            Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => {
                match same(failed.file.path(), &path) {
                    Ok(true) => Ok(Finished::Kept),
                    Ok(false) => Err(Error::Exists(path)),
                    Err(source) => Err(Error::Write { path, source }),
                }
            }
            Err(failed) => Err(Error::Write { path, source: failed.error }),
        }
    }
}

fn write<R>(
    into: &mut SerializedColumnWriter<'_>,
    value: &Value<R>,
    rows: &[R],
) -> Result<(), ParquetError> {
    match value {
        Value::Time(of) | Value::Wide(of) => all(into.typed::<Int64Type>(), rows.iter().map(of)),
        Value::MaybeWide(of) => some(into.typed::<Int64Type>(), rows.iter().map(of)),
        Value::Narrow(of) => all(into.typed::<Int32Type>(), rows.iter().map(of)),
        Value::MaybeNarrow(of) => some(into.typed::<Int32Type>(), rows.iter().map(of)),
        Value::Flag(of) => all(into.typed::<BoolType>(), rows.iter().map(of)),
        Value::Text(of) => {
            all(into.typed::<ByteArrayType>(), rows.iter().map(|row| of(row).clone()))
        }
        Value::MaybeText(of) => {
            some(into.typed::<ByteArrayType>(), rows.iter().map(|row| of(row).cloned()))
        }
    }
}

fn all<T: DataType>(
    into: &mut ColumnWriterImpl<'_, T>,
    values: impl Iterator<Item = T::T>,
) -> Result<(), ParquetError> {
    let values: Vec<T::T> = values.collect();
    into.write_batch(&values, None, None)?;
    Ok(())
}

fn some<T: DataType>(
    into: &mut ColumnWriterImpl<'_, T>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let mut levels = Vec::new();
    let mut present = Vec::new();
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    into.write_batch(&present, Some(&levels), None)?;
    Ok(())
}

/// Whether two files have the same bytes.
fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let [one, other] = [File::open(one)?, File::open(other)?];
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let mut pairs = BufReader::new(one).bytes().zip(BufReader::new(other).bytes());
    pairs.try_fold(true, |same, (a, b)| Ok(same && a? == b?))
}
