//! A connection, and what is under way on it: requests in the order they were sent, which is that of their answers.
//!
//! Several reads may have gone as one command (a multiget). Its answer has the values that were found, in the order asked for,
//! and leaves the others out; so a value tells that those before it were not found, and the end that those after it were not.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;

use nearfar_cache::workload::{Op, Request};

use super::super::tally::{Kind, Outcome};
use super::super::values::Values;
use super::address::Connection;
use super::reply::{self, Parsed, Reply};

/// Room for what arrives, at first.
const INPUT: usize = 64 << 10;
/// memcached takes a larger number of seconds for a date.
const TTL_MAX: u32 = 60 * 60 * 24 * 30;

/// Which command a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Asked {
    /// A key's value.
    #[default]
    Get,
    /// To store.
    Set,
    /// To remove.
    Delete,
}

impl Asked {
    /// What is asked first.
    pub(super) const fn first(op: Op) -> Self {
        match op {
            Op::Get | Op::LoneGet | Op::Update => Self::Get,
            Op::Set | Op::LoneSet => Self::Set,
            Op::Delete => Self::Delete,
        }
    }
}

/// A request that is sent.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// What was asked for.
    pub(super) request: Request,
    /// It stores what a read did not find.
    pub(super) fills: bool,
    /// When it began, or was due.
    pub(super) from: u64,
    /// What its first answer was, if it has two.
    pub(super) before: Outcome,
    /// Which answer is due.
    pub(super) asked: Asked,
    /// It is the last of its command.
    last: bool,
}

impl Pending {
    /// As what it is counted.
    pub(super) fn kind(&self) -> Kind {
        if self.fills { Kind::Fill } else { self.request.op.into() }
    }
}

/// What the answer to a request says; ranges are for [`Lane::bytes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// This value.
    Value(Range<usize>),
    /// Another key's value.
    Foreign,
    /// No value; nothing to remove.
    Missing,
    /// Stored, or removed.
    Done,
    /// Not stored.
    Refused(Range<usize>),
    /// Not understood by the server, or out of order.
    Error(Range<usize>),
}

/// What was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// There was nothing.
    Nothing,
    /// All there was, but perhaps for the end.
    Some,
    /// As much as there was room for.
    Full,
}

/// What a piece of an answer means for the requests that wait.
enum Means {
    /// An answer to the first of them. Whether it was the last piece of its command's answer.
    Answer(Said, bool),
    /// So many of them are answered so.
    Rest(usize, Said, bool),
    /// No more than that a command's answer is whole.
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
    /// Commands that have no whole answer yet.
    commands: usize,
    /// The last value of a command has come; its end has not.
    ending: bool,
    /// The next requests that wait are answered so.
    rest: (usize, Said),
}

impl Lane {
    /// Over a connection that does not wait.
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
            rest: (0, Said::Missing),
        }
    }

    /// Commands under way.
    pub(super) const fn commands(&self) -> usize {
        self.commands
    }

    /// Gives back all that has no answer.
    pub(super) fn into_waiting(self) -> VecDeque<Pending> {
        self.waiting
    }

    /// Sends a request with the next [`Lane::flush`].
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

    /// Sends several reads as one command.
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

    /// Sends as much as goes.
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

    /// Takes in what has arrived.
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

    /// The next request that is answered by what has arrived, and how; an error if what has arrived is no answer. To be called
    /// until there is none.
    pub(super) fn answer(&mut self) -> io::Result<Option<(Pending, Said)>> {
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
            // A value that is not the first key's is looked at again after those before it.
            if !matches!(means, Means::Rest(_, _, false)) {
                self.take(bytes);
            }
            match means {
                Means::Answer(said, whole) => {
                    self.commands -= usize::from(whole);
                    let pending = self.waiting.pop_front();
                    self.ending = !whole && pending.as_ref().is_some_and(|pending| pending.last);
                    return Ok(pending.map(|pending| (pending, said)));
                }
                Means::Rest(count, said, whole) => {
                    self.commands -= usize::from(whole);
                    self.rest = (count, said);
                }
                Means::Nothing => {
                    self.commands -= 1;
                    self.ending = false;
                }
            }
        }
    }

    fn means(&self, reply: Reply) -> Option<Means> {
        if self.ending {
            return (reply == Reply::End).then_some(Means::Nothing);
        }
        let here = |range: Range<usize>| range.start + self.parsed..range.end + self.parsed;
        let command = || self.waiting.iter().position(|pending| pending.last).map(|last| last + 1);
        let asked = self.waiting.front()?.asked;
        Some(match (asked, reply) {
            (Asked::Get, Reply::Value { key, value }) => {
                let key = &self.input[here(key)];
                let mut those = self.waiting.iter().take(command()?);
                match those.position(|pending| pending.request.key == key) {
                    Some(0) => Means::Answer(Said::Value(here(value)), false),
                    Some(before) => Means::Rest(before, Said::Missing, false),
                    None => Means::Answer(Said::Foreign, false),
                }
            }
            (Asked::Get, Reply::End) => Means::Rest(command()?, Said::Missing, true),
            (Asked::Set, Reply::Stored) | (Asked::Delete, Reply::Deleted) => {
                Means::Answer(Said::Done, true)
            }
            (Asked::Set, Reply::NotStored(why) | Reply::ServerError(why)) => {
                Means::Answer(Said::Refused(here(why)), true)
            }
            (Asked::Delete, Reply::NotFound) => Means::Answer(Said::Missing, true),
            (_, Reply::Error(why) | Reply::ServerError(why)) => {
                Means::Rest(command()?, Said::Error(here(why)), true)
            }
            _ => return None,
        })
    }

    fn take(&mut self, bytes: usize) {
        self.parsed += bytes;
        self.needed = 1;
        // What it holds stays until more is received.
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

    /// What a range of an answer's means; to be looked at before more is received.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.input[range]
    }
}

#[cfg(test)]
mod tests;
