//! Traces whose format must be named: libCacheSim's binary `oracleGeneral`, and tables with a request a line.
//!
//! ```text
//! oracleGeneral   records of 24 bytes, little-endian, without padding: time u32, object u64, size u32, next access i64;
//!                 each is a read, whose miss stores the object. Files are often compressed with zstd
//! table           one request a line; key, size and if there are any op and ttl are columns by number or name
//! ```
//!
//! Source: github.com/1a1a11a/libCacheSim, its list of trace formats.

use std::fmt;
use std::io::{BufRead, Read as _, Write as _};
use std::str::FromStr;

use super::{Reason, number, seconds, shown};
use crate::requests::{Op, Request, VALUE_MAX};

/// Bytes of a record of `oracleGeneral`.
pub(super) const RECORD: usize = 24;

/// Reads the next record; returns false at the end.
pub(super) fn record(reader: &mut impl BufRead, request: &mut Request) -> Result<bool, Reason> {
    let mut bytes = Vec::with_capacity(RECORD);
    reader.take(RECORD as u64).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(false);
    }
    let (Some(object), Some(size), RECORD) = (bytes.get(4..12), bytes.get(12..16), bytes.len())
    else {
        return Err(Reason::Cut(bytes.len()));
    };
    let object = object.try_into().map_or(0, u64::from_le_bytes);
    let size = size.try_into().map_or(0, u32::from_le_bytes);
    if size as usize > VALUE_MAX {
        let found = size.to_string();
        return Err(Reason::Number { column: "size", found, max: VALUE_MAX as u64 });
    }
    request.op = Op::Get;
    request.key.clear();
    write!(request.key, "{object}")?;
    request.value_bytes = size as usize;
    request.ttl = 0;
    request.fill = size > 0;
    Ok(true)
}

/// A column, by its number from 1, or by its name in the first line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Column {
    Number(usize),
    Name(String),
}

/// The columns of a table that make a request: `key=5,size=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    key: Column,
    size: Column,
    op: Option<Column>,
    ttl: Option<Column>,
}

impl FromStr for Picked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?}: write key=COLUMN,size=COLUMN and if there are any op=COLUMN,ttl=COLUMN; a column is its \
                 number from 1, or its name in the first line"
            )
        };
        let (mut key, mut size, mut op, mut ttl) = (None, None, None, None);
        for pair in text.split(',') {
            let (name, column) = pair.split_once('=').ok_or_else(wrong)?;
            let column = match column.trim().parse() {
                Ok(0) => return Err(wrong()),
                Ok(number) => Column::Number(number),
                Err(_) if column.trim().is_empty() => return Err(wrong()),
                Err(_) => Column::Name(column.trim().to_owned()),
            };
            let place = match name.trim() {
                "key" => &mut key,
                "size" => &mut size,
                "op" => &mut op,
                "ttl" => &mut ttl,
                _ => return Err(wrong()),
            };
            if place.replace(column).is_some() {
                return Err(wrong());
            }
        }
        let (Some(key), Some(size)) = (key, size) else { return Err(wrong()) };
        Ok(Self { key, size, op, ttl })
    }
}

impl fmt::Display for Picked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            ("key", Some(&self.key)),
            ("size", Some(&self.size)),
            ("op", self.op.as_ref()),
            ("ttl", self.ttl.as_ref()),
        ];
        let mut between = "";
        for (name, column) in columns {
            match column {
                Some(Column::Number(number)) => write!(f, "{between}{name}={number}")?,
                Some(Column::Name(column)) => write!(f, "{between}{name}={column}")?,
                None => {}
            }
            between = ",";
        }
        Ok(())
    }
}

/// Positions of the columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    delimiter: u8,
    key: usize,
    size: usize,
    op: Option<usize>,
    ttl: Option<usize>,
}

/// Delimiters, in the order in which they are tried.
const DELIMITERS: [u8; 5] = *b",\t;| ";
/// Words for operations, in lower case.
const READS: &[&str] = &["get", "gets", "get_lease", "read", "r"];
const STORES: &[&str] = &[
    "set",
    "set_lease",
    "put",
    "add",
    "replace",
    "cas",
    "append",
    "prepend",
    "incr",
    "decr",
    "write",
    "w",
];
const REMOVALS: &[&str] = &["delete", "del", "remove"];
const KNOWN: &str =
    "get, read, set, put, write, delete and the like; leave out op=, and all are reads";

impl Table {
    /// Finds the columns by a table's first line; also returns whether that is a head.
    pub(super) fn of(picked: &Picked, line: &[u8]) -> Result<(Self, bool), Reason> {
        let is_comment = line.first() == Some(&b'#');
        let names = line.trim_ascii_start().strip_prefix(b"#").unwrap_or(line);
        let mut missing = Reason::Columns { found: 1, expected: 2 };
        for delimiter in DELIMITERS {
            let fields: Vec<&[u8]> =
                names.split(|byte| *byte == delimiter).map(<[u8]>::trim_ascii).collect();
            let find = |column: &Column| match column {
                Column::Number(number) if *number <= fields.len() => Ok(number - 1),
                Column::Number(number) => {
                    Err(Reason::Columns { found: fields.len(), expected: *number })
                }
                Column::Name(name) => fields
                    .iter()
                    .position(|field| *field == name.as_bytes())
                    .ok_or_else(|| Reason::NoColumn(name.clone())),
            };
            let maybe = |column: &Option<Column>| column.as_ref().map(find).transpose();
            let table = || {
                let (key, size) = (find(&picked.key)?, find(&picked.size)?);
                Ok(Self { delimiter, key, size, op: maybe(&picked.op)?, ttl: maybe(&picked.ttl)? })
            };
            match table() {
                Ok(table) => {
                    let is_head = is_comment
                        || picked.is_named()
                        || number("size", fields[table.size], u64::MAX).is_err();
                    return Ok((table, is_head));
                }
                Err(reason) if delimiter == DELIMITERS[0] => missing = reason,
                Err(_) => {}
            }
        }
        Err(missing)
    }

    /// Parses a line into `request`; that is one request.
    pub(super) fn parse(&self, line: &[u8], request: &mut Request) -> Result<u64, Reason> {
        let (mut key, mut size, mut op, mut ttl): (&[u8], &[u8], &[u8], &[u8]) =
            (b"", b"", b"get", b"");
        let mut found = 0;
        for (at, field) in
            line.split(|byte| *byte == self.delimiter).map(<[u8]>::trim_ascii).enumerate()
        {
            found = at + 1;
            // A column may have two uses.
            if at == self.key {
                key = field;
            }
            if at == self.size {
                size = field;
            }
            if Some(at) == self.op {
                op = field;
            }
            if Some(at) == self.ttl {
                ttl = field;
            }
        }
        let columns = [Some(self.key), Some(self.size), self.op, self.ttl];
        let expected = columns.into_iter().flatten().max().unwrap_or(0) + 1;
        if found < expected {
            return Err(Reason::Columns { found, expected });
        }
        let word = String::from_utf8_lossy(op).to_ascii_lowercase();
        let among = |words: &[&str]| words.contains(&word.as_str());
        request.op = if among(READS) {
            Op::Get
        } else if among(STORES) {
            Op::Set
        } else if among(REMOVALS) {
            Op::Delete
        } else {
            return Err(Reason::Operation { found: shown(op), known: KNOWN });
        };
        super::fill_in(request, key, 0, size)?;
        request.ttl = seconds(number("ttl", ttl, u64::MAX)?);
        Ok(1)
    }
}

impl Picked {
    fn is_named(&self) -> bool {
        [Some(&self.key), Some(&self.size), self.op.as_ref(), self.ttl.as_ref()]
            .into_iter()
            .flatten()
            .any(|column| matches!(column, Column::Name(_)))
    }
}
