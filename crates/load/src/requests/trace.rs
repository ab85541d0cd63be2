//! Parser of the public traces of cache requests: Meta's key-value caches and Twitter's cache clusters, as CSV, line by
//! line; others are in `listed.rs`.
//!
//! ```text
//! Meta     a head that names columns: key, op, size, and if there are any op_time, key_size, op_count, cache_hits, ttl, ...
//!          op: GET, GET_LEASE, SET, SET_LEASE, DELETE; a line stands for op_count requests (1 if empty)
//! Twitter  no head: timestamp, key, key size, value size, client, operation, TTL; the key may have commas in it
//!          operation: get, gets; set, add, replace, cas, append, prepend, incr, decr (all of them stores); delete
//! ```
//!
//! These two are recognised by the first line. A line of Meta's may lack the last column if that is the ttl, and may end
//! with a comma, as CacheLib has it.
//!
//! A key is padded with dots to its key size, up to the limit of keys. A read that misses stores the key if the trace
//! has its size: a miss in the trace itself has size 0. Timestamps are ignored: requests are read as fast as they are
//! consumed. A malformed line is an error with its number, and ends the trace. Only the current line is in memory.
//! Sources: CacheLib's documentation of its key-value trace replay; github.com/twitter/cache-trace.

use std::io::{self, BufRead, Read as _};

use super::synthetic::FILLER;
use super::{KEY_MAX, Op, Request, VALUE_MAX};

mod listed;

pub use listed::{Picked, Table};

/// The most bytes of a line.
const LINE_MAX: usize = 1 << 16;

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Meta's, with the columns of its head.
    Meta(Columns),
    /// Twitter's.
    Twitter,
    /// libCacheSim's records.
    OracleGeneral,
    /// A table with these columns.
    Table(Table),
}

/// What must be known about a trace before it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Meta's or Twitter's: the first line tells.
    #[default]
    Recognised,
    /// libCacheSim's records.
    OracleGeneral,
    /// A table with these columns.
    Table(Picked),
}

/// Positions of Meta's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    all: usize,
    key: usize,
    op: usize,
    size: usize,
    key_size: Option<usize>,
    op_count: Option<usize>,
    ttl: Option<usize>,
}

/// A line that is malformed, or could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{} {line}: {reason}", if *binary { "record" } else { "line" })]
pub struct TraceError {
    /// Whether the trace has records instead of lines.
    pub binary: bool,
    /// Its number, from 1.
    pub line: u64,
    /// The error.
    pub reason: Reason,
}

/// Errors of a line.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// It could not be read.
    #[error("reading it: {0}")]
    Read(#[from] io::Error),
    /// The trace is empty.
    #[error("the trace is empty; {KNOWN}")]
    Empty,
    /// The first line is of no known format.
    #[error("{0}, so it is not Twitter's; {KNOWN}")]
    Unknown(Box<Reason>),
    /// A record is incomplete.
    #[error("{0} of {size} bytes; the trace is cut off, or not libCacheSim's oracleGeneral", size = listed::RECORD)]
    Cut(usize),
    /// The head lacks a column.
    #[error("no column is called {0:?}; the first line names columns, or give their numbers")]
    NoColumn(String),
    /// The line is too long.
    #[error("longer than {LINE_MAX} bytes; is that a trace as text?")]
    Long,
    /// The head has a column twice, or lacks it.
    #[error("the head names column {0} {1} times; once is expected")]
    Head(&'static str, usize),
    /// The number of columns is wrong.
    #[error("{found} columns, {expected} are expected")]
    Columns {
        /// Columns of the line.
        found: usize,
        /// Columns of the head, or the format.
        expected: usize,
    },
    /// A field is no number.
    #[error("{column} is {found:?}; a whole number up to {max} is expected")]
    Number {
        /// The column.
        column: &'static str,
        /// The content of the field.
        found: String,
        /// The largest valid number.
        max: u64,
    },
    /// An unknown operation.
    #[error("operation {found:?}; known are {known}")]
    Operation {
        /// The content of the field.
        found: String,
        /// The known operations.
        known: &'static str,
    },
    /// The key is empty or invalid.
    #[error("key {0:?}; a key has 1 to {KEY_MAX} bytes and no spaces or control characters")]
    Key(String),
}

const KNOWN: &str = "known are a head with key, op and size (Meta) and seven columns without a head (Twitter); name \
    others: oracle-general:FILE (libCacheSim), csv:key=COLUMN,size=COLUMN:FILE";
const META_OPS: &str = "GET, GET_LEASE, SET, SET_LEASE, DELETE";
const TWITTER_OPS: &str = "get, gets, set, add, replace, cas, append, prepend, incr, decr, delete";
const TWITTER_COLUMNS: usize = 7;

/// A trace being read.
#[derive(Debug)]
pub struct Trace<R> {
    reader: R,
    format: Format,
    text: Vec<u8>,
    line: u64,
    /// Whether the line in `text` is still to be parsed: it was read to detect the format.
    unread: bool,
    current: Request,
    repeats: u64,
    fill: bool,
}

impl<R: BufRead> Trace<R> {
    /// Reads the first line, which determines the format or its columns. Without `fill` no read that misses stores.
    ///
    /// # Errors
    /// It can't be read, or has none of the known formats, or not the columns of `layout`.
    pub fn new(reader: R, layout: &Layout, fill: bool) -> Result<Self, TraceError> {
        let (text, current) = (Vec::new(), Request::default());
        let (format, unread) = (Format::Twitter, true);
        let mut trace = Self { reader, format, text, line: 0, unread, current, repeats: 0, fill };
        if *layout == Layout::OracleGeneral {
            trace.format = Format::OracleGeneral;
            return Ok(trace);
        }
        let wrong = |reason| TraceError { binary: false, line: 1, reason };
        if !trace.read_line()? {
            return Err(wrong(Reason::Empty));
        }
        if let Layout::Table(picked) = layout {
            let (table, is_head) = Table::of(picked, &trace.text).map_err(wrong)?;
            trace.format = Format::Table(table);
            trace.unread = !is_head;
            return Ok(trace);
        }
        let fields = || trace.text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        if fields().any(|name| name == b"key") && fields().any(|name| name == b"op") {
            trace.format = Format::Meta(Columns::of(&fields()).map_err(wrong)?);
            trace.unread = false;
        } else if !trace.text.is_empty() {
            let unknown = |reason| wrong(Reason::Unknown(Box::new(reason)));
            twitter(&trace.text, &mut trace.current).map_err(unknown)?;
        }
        Ok(trace)
    }

    /// Format of the trace.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Makes `request` the next one; returns false at the end.
    ///
    /// # Errors
    /// The next line can't be read or is malformed.
    pub fn next(&mut self, request: &mut Request) -> Result<bool, TraceError> {
        while self.repeats == 0 {
            if self.format == Format::OracleGeneral {
                self.line += 1;
                let wrong = |reason| TraceError { binary: true, line: self.line, reason };
                if !listed::record(&mut self.reader, &mut self.current).map_err(wrong)? {
                    return Ok(false);
                }
                self.repeats = 1;
                break;
            }
            if !std::mem::take(&mut self.unread) && !self.read_line()? {
                return Ok(false);
            }
            if self.text.is_empty() {
                continue;
            }
            let parsed = match self.format {
                Format::Meta(columns) => columns.parse(&self.text, &mut self.current),
                Format::Table(table) => table.parse(&self.text, &mut self.current),
                Format::Twitter | Format::OracleGeneral => twitter(&self.text, &mut self.current),
            };
            let wrong = |reason| TraceError { binary: false, line: self.line, reason };
            self.repeats = parsed.map_err(wrong)?;
        }
        self.repeats -= 1;
        request.clone_from(&self.current);
        request.fill &= self.fill;
        Ok(true)
    }

    /// Reads the next line without its end; returns false if there is none.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.line += 1;
        self.text.clear();
        let wrong = |line, reason| TraceError { binary: false, line, reason };
        let mut limited = self.reader.by_ref().take(LINE_MAX as u64 + 1);
        let read = limited.read_until(b'\n', &mut self.text);
        let read = read.map_err(|error| wrong(self.line, error.into()))?;
        if read > LINE_MAX {
            return Err(wrong(self.line, Reason::Long));
        }
        for end in [b'\n', b'\r'] {
            self.text.pop_if(|last| *last == end);
        }
        Ok(read > 0)
    }
}

impl Columns {
    fn of<'a>(names: &(impl Iterator<Item = &'a [u8]> + Clone)) -> Result<Self, Reason> {
        let maybe = |name: &'static str| {
            let mut found =
                names.clone().enumerate().filter(|(_, column)| *column == name.as_bytes());
            let first = found.next().map(|(at, _)| at);
            let more = found.count();
            if more > 0 { Err(Reason::Head(name, more + 1)) } else { Ok(first) }
        };
        let must = |name| maybe(name)?.ok_or(Reason::Head(name, 0));
        Ok(Self {
            all: names.clone().count(),
            key: must("key")?,
            op: must("op")?,
            size: must("size")?,
            key_size: maybe("key_size")?,
            op_count: maybe("op_count")?,
            ttl: maybe("ttl")?,
        })
    }

    /// Parses a line into `request`; returns the number of repetitions.
    fn parse(&self, line: &[u8], request: &mut Request) -> Result<u64, Reason> {
        let (mut key, mut op, mut size): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        let (mut key_size, mut op_count, mut ttl): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        let mut found = 0;
        for (at, field) in line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).enumerate() {
            found = at + 1;
            match at {
                _ if at == self.key => key = field,
                _ if at == self.op => op = field,
                _ if at == self.size => size = field,
                _ if Some(at) == self.key_size => key_size = field,
                _ if Some(at) == self.op_count => op_count = field,
                _ if Some(at) == self.ttl => ttl = field,
                _ if at >= self.all && !field.is_empty() => {
                    return Err(Reason::Columns { found, expected: self.all });
                }
                _ => {}
            }
        }
        let least = if self.ttl == Some(self.all - 1) { self.all - 1 } else { self.all };
        if found < least {
            return Err(Reason::Columns { found, expected: self.all });
        }
        request.op = match op {
            b"GET" | b"GET_LEASE" => Op::Get,
            b"SET" | b"SET_LEASE" => Op::Set,
            b"DELETE" => Op::Delete,
            _ => return Err(Reason::Operation { found: shown(op), known: META_OPS }),
        };
        fill_in(request, key, number("key_size", key_size, u64::MAX)?, size)?;
        request.ttl = seconds(number("ttl", ttl, u64::MAX)?);
        if op_count.is_empty() { Ok(1) } else { number("op_count", op_count, u64::MAX) }
    }
}

/// Parses a line of Twitter's into `request`; that is one request.
fn twitter(line: &[u8], request: &mut Request) -> Result<u64, Reason> {
    let columns = || Reason::Columns {
        found: line.split(|byte| *byte == b',').count(),
        expected: TWITTER_COLUMNS,
    };
    // The key is the text between the first comma and the fifth from the end.
    let mut fields =
        line.rsplitn(TWITTER_COLUMNS - 1, |byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut next = || fields.next().ok_or_else(columns);
    let [ttl, op, _client, size, key_size, rest] =
        [next()?, next()?, next()?, next()?, next()?, next()?];
    let comma = rest.iter().position(|byte| *byte == b',').ok_or_else(columns)?;
    number("timestamp", &rest[..comma], u64::MAX)?;
    request.op = match op {
        b"get" | b"gets" => Op::Get,
        b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => {
            Op::Set
        }
        b"delete" => Op::Delete,
        _ => return Err(Reason::Operation { found: shown(op), known: TWITTER_OPS }),
    };
    fill_in(request, &rest[comma + 1..], number("key size", key_size, u64::MAX)?, size)?;
    request.ttl = seconds(number("TTL", ttl, u64::MAX)?);
    Ok(1)
}

/// Sets key and size of `request`, whose operation is already set.
fn fill_in(request: &mut Request, key: &[u8], key_size: u64, size: &[u8]) -> Result<(), Reason> {
    if key.is_empty() || key.len() > KEY_MAX || key.iter().any(|byte| *byte <= b' ' || *byte == 127)
    {
        return Err(Reason::Key(shown(key)));
    }
    let bytes = usize::try_from(key_size).unwrap_or(KEY_MAX).min(KEY_MAX);
    request.key.clear();
    request.key.extend_from_slice(key);
    request.key.extend_from_slice(&FILLER[..bytes.saturating_sub(key.len())]);
    let size = number("size", size, VALUE_MAX as u64)?;
    request.value_bytes = usize::try_from(size).unwrap_or(VALUE_MAX);
    request.fill = request.op == Op::Get && size > 0;
    Ok(())
}

/// Parses a whole number; an empty field is 0.
fn number(column: &'static str, field: &[u8], max: u64) -> Result<u64, Reason> {
    if field.is_empty() {
        return Ok(0);
    }
    let digits = field.iter().all(u8::is_ascii_digit);
    let number =
        std::str::from_utf8(field).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    number.filter(|number| *number <= max).ok_or_else(|| Reason::Number {
        column,
        found: shown(field),
        max,
    })
}

fn seconds(ttl: u64) -> u32 {
    u32::try_from(ttl).unwrap_or(u32::MAX)
}

/// The beginning of a field, as text.
fn shown(field: &[u8]) -> String {
    String::from_utf8_lossy(&field[..field.len().min(40)]).into_owned()
}

#[cfg(test)]
mod tests;
