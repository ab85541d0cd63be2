//! A connection with its outstanding requests, in the order they were sent, which is the order of their answers.
//!
//! Several reads may have been sent as one command (a multiget). Its answer has the values that were found, in the
//! order of the keys, and leaves the others out; so a value shows that the keys before it were not found, and the end
//! of the answer that the keys after it were not.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;

use crate::reply::{self, Parsed, Reply};
use crate::requests::{Op, Request};

use super::super::tally::{Kind, Outcome};
use super::super::values::Values;
use super::address::Connection;

/// Initial size of the input buffer.
const INPUT: usize = 64 << 10;
/// memcached interprets a larger number of seconds as a date.
const TTL_MAX: u32 = 60 * 60 * 24 * 30;

/// Command of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Asked {
    /// Reads a key.
    #[default]
    Get,
    /// Stores.
    Set,
    /// Removes.
    Delete,
}

impl Asked {
    /// The first command of an operation.
    pub(super) const fn first(op: Op) -> Self {
        match op {
            Op::Get | Op::LoneGet | Op::Update => Self::Get,
            Op::Set | Op::LoneSet => Self::Set,
            Op::Delete => Self::Delete,
        }
    }
}

/// An outstanding request.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The request.
    pub(super) request: Request,
    /// Whether it stores a key that a read did not find.
    pub(super) fills: bool,
    /// Its start or due time.
    pub(super) from: u64,
    /// Result of its first answer, if it has two.
    pub(super) before: Outcome,
    /// The command whose answer is due.
    pub(super) asked: Asked,
    /// Whether it is the last of its command.
    last: bool,
}

impl Pending {
    /// The kind under which it is counted.
    pub(super) fn kind(&self) -> Kind {
        if self.fills { Kind::Fill } else { self.request.op.into() }
    }
}

/// Meaning of the answer to a request; ranges are for [`Lane::bytes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// This value.
    Value(Range<usize>),
    /// The value of another key.
    Foreign,
    /// No value; nothing to remove.
    Missing,
    /// Stored, or removed.
    Done,
    /// Not stored.
    Refused(Range<usize>),
    /// The server did not understand it, or is out of order.
    Error(Range<usize>),
}

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// There was nothing.
    Nothing,
    /// All available input, perhaps except for the end of the stream.
    Some,
    /// As much as the buffer could take.
    Full,
}

/// Meaning of a piece of an answer for the outstanding requests.
enum Piece {
    /// An answer to the first of them, and whether it was the last piece of its command's answer.
    Answer(Meaning, bool),
    /// The same answer to this many of them.
    Rest(usize, Meaning, bool),
    /// Only that a command's answer is complete.
    Nothing,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Lane {
    connection: Connection,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    filled: usize,
    parsed: usize,
    needed: usize,
    waiting: VecDeque<Pending>,
    /// Commands whose answers are not complete.
    commands: usize,
    /// The last value of a command has been received; its end has not.
    ending: bool,
    /// Number of the next outstanding requests with this answer.
    rest: (usize, Meaning),
}

impl Lane {
    /// Over a non-blocking connection.
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            out: Vec::new(),
            sent: 0,
            input: vec![0; INPUT],
            filled: 0,
            parsed: 0,
            needed: 1,
            waiting: VecDeque::new(),
            commands: 0,
            ending: false,
            rest: (0, Meaning::Missing),
        }
    }

    /// Outstanding commands.
    pub(super) const fn commands(&self) -> usize {
        self.commands
    }

    /// Returns all requests without an answer.
    pub(super) fn into_waiting(self) -> VecDeque<Pending> {
        self.waiting
    }

    /// Queues a request for the next [`Lane::flush`].
    pub(super) fn ask(&mut self, mut pending: Pending, values: &mut Values) {
        let Request { key, value_bytes, ttl, .. } = &pending.request;
        let out = &mut self.out;
        out.extend_from_slice(match pending.asked {
            Asked::Get => b"get ",
            Asked::Delete => b"delete ",
            Asked::Set => b"set ",
        });
        out.extend_from_slice(key);
        if pending.asked == Asked::Set {
            // Writing to memory does not fail.
            let _ = write!(out, " 0 {} {value_bytes}\r\n", (*ttl).min(TTL_MAX));
            out.extend_from_slice(values.make(key, *value_bytes));
        }
        out.extend_from_slice(b"\r\n");
        pending.last = true;
        self.waiting.push_back(pending);
        self.commands += 1;
    }

    /// Queues several reads as one command.
    pub(super) fn ask_together(&mut self, pending: impl Iterator<Item = Pending>) {
        let before = self.waiting.len();
        for (at, mut one) in pending.enumerate() {
            self.out.extend_from_slice(if at == 0 { b"get " } else { b" " });
            self.out.extend_from_slice(&one.request.key);
            one.last = false;
            self.waiting.push_back(one);
        }
        if self.waiting.len() > before
            && let Some(last) = self.waiting.back_mut()
        {
            last.last = true;
            self.out.extend_from_slice(b"\r\n");
            self.commands += 1;
        }
    }

    /// Sends as much as the connection accepts.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.connection.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives available input.
    pub(super) fn receive(&mut self) -> io::Result<Arrived> {
        self.make_room();
        let room = self.input.len() - self.filled;
        match self.connection.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.filled += read;
                Ok(if read == room { Arrived::Full } else { Arrived::Some })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Arrived::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Arrived::Full),
            Err(error) => Err(error),
        }
    }

    fn make_room(&mut self) {
        if self.parsed > 0 && self.parsed + self.needed > self.input.len() / 2 {
            self.input.copy_within(self.parsed..self.filled, 0);
            self.filled -= self.parsed;
            self.parsed = 0;
        }
        let wanted = (self.parsed + self.needed).max(self.filled + 1);
        if wanted > self.input.len() {
            self.input.resize(wanted.next_power_of_two(), 0);
        }
    }

    /// The next request answered by the received input, with its answer; an error if the input is no valid answer. To
    /// be called until it returns `None`.
    pub(super) fn answer(&mut self) -> io::Result<Option<(Pending, Meaning)>> {
        loop {
            if let (1.., said) = &self.rest {
                let said = said.clone();
                self.rest.0 -= 1;
                return Ok(self.waiting.pop_front().map(|pending| (pending, said)));
            }
            if self.filled - self.parsed < self.needed {
                return Ok(None);
            }
            let (bytes, reply) = match reply::parse(&self.input[self.parsed..self.filled]) {
                Parsed::Whole(bytes, reply) => (bytes, reply),
                Parsed::Broken => return Err(self.no_answer()),
                Parsed::More(needed) => {
                    self.needed = needed;
                    return Ok(None);
                }
            };
            let means = self.means(reply).ok_or_else(|| self.no_answer())?;
            // A value that is not the first key's is examined again after the keys before it.
            if !matches!(means, Piece::Rest(_, _, false)) {
                self.take(bytes);
            }
            match means {
                Piece::Answer(said, whole) => {
                    self.commands -= usize::from(whole);
                    let pending = self.waiting.pop_front();
                    self.ending = !whole && pending.as_ref().is_some_and(|pending| pending.last);
                    return Ok(pending.map(|pending| (pending, said)));
                }
                Piece::Rest(count, said, whole) => {
                    self.commands -= usize::from(whole);
                    self.rest = (count, said);
                }
                Piece::Nothing => {
                    self.commands -= 1;
                    self.ending = false;
                }
            }
        }
    }

    fn means(&self, reply: Reply) -> Option<Piece> {
        if self.ending {
            return (reply == Reply::End).then_some(Piece::Nothing);
        }
        let here = |range: Range<usize>| range.start + self.parsed..range.end + self.parsed;
        let command = || self.waiting.iter().position(|pending| pending.last).map(|last| last + 1);
        let asked = self.waiting.front()?.asked;
        Some(match (asked, reply) {
            (Asked::Get, Reply::Value { key, value }) => {
                let key = &self.input[here(key)];
                let mut those = self.waiting.iter().take(command()?);
                match those.position(|pending| pending.request.key == key) {
                    Some(0) => Piece::Answer(Meaning::Value(here(value)), false),
                    Some(before) => Piece::Rest(before, Meaning::Missing, false),
                    None => Piece::Answer(Meaning::Foreign, false),
                }
            }
            (Asked::Get, Reply::End) => Piece::Rest(command()?, Meaning::Missing, true),
            (Asked::Set, Reply::Stored) | (Asked::Delete, Reply::Deleted) => {
                Piece::Answer(Meaning::Done, true)
            }
            (Asked::Set, Reply::NotStored(why) | Reply::ServerError(why)) => {
                Piece::Answer(Meaning::Refused(here(why)), true)
            }
            (Asked::Delete, Reply::NotFound) => Piece::Answer(Meaning::Missing, true),
            (_, Reply::Error(why) | Reply::ServerError(why)) => {
                Piece::Rest(command()?, Meaning::Error(here(why)), true)
            }
            _ => return None,
        })
    }

    fn take(&mut self, bytes: usize) {
        self.parsed += bytes;
        self.needed = 1;
        // The buffer's content stays until more is received.
        if self.parsed == self.filled {
            (self.parsed, self.filled) = (0, 0);
        }
    }

    fn no_answer(&self) -> io::Error {
        let arrived = &self.input[self.parsed..self.filled];
        let shown = String::from_utf8_lossy(&arrived[..arrived.len().min(60)]);
        let to = match self.waiting.front() {
            Some(pending) => format!("a {:?}", pending.asked).to_lowercase(),
            None => "nothing that was asked".into(),
        };
        let why = format!("{shown:?} is no answer of memcached's to {to}");
        io::Error::new(io::ErrorKind::InvalidData, why)
    }

    /// The bytes of a range of an answer; valid until more is received.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.input[range]
    }
}

#[cfg(test)]
mod tests;
