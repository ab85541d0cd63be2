//! A connection, and what is under way on it: requests in the order they were sent, which is that of their answers.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};

use nearfar_cache::workload::Request;

use super::super::tally::{Kind, Outcome};
use super::super::values::Values;
use super::address::Connection;
use super::reply::{self, Asked, Parsed, Reply};

/// Room for what arrives, at first.
const INPUT: usize = 64 << 10;
/// memcached takes a larger number of seconds for a date.
const TTL_MAX: u32 = 60 * 60 * 24 * 30;

/// A request that was sent.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// What was asked for.
    pub(super) request: Request,
    /// As what it is counted; `None` is what its operation says.
    pub(super) fills: bool,
    /// When it began, or was due.
    pub(super) from: u64,
    /// What its first answer was, if it has two.
    pub(super) before: Outcome,
    /// Which answer is due.
    pub(super) asked: Option<Asked>,
}

impl Pending {
    /// As what it is counted.
    pub(super) fn kind(&self) -> Kind {
        if self.fills { Kind::Fill } else { self.request.op.into() }
    }
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
    /// Requests that have no answer yet.
    pub(super) waiting: VecDeque<Pending>,
}

/// An answer to the request that has waited longest.
#[derive(Debug)]
pub(super) struct Answer {
    /// The request.
    pub(super) pending: Pending,
    /// What was answered; ranges are of [`Lane::input`].
    pub(super) reply: Reply,
    at: usize,
}

impl Lane {
    /// Over a connection that does not wait.
    pub(super) fn new(connection: Connection) -> Self {
        let (out, input) = (Vec::new(), vec![0; INPUT]);
        let waiting = VecDeque::new();
        Self { connection, out, sent: 0, input, filled: 0, parsed: 0, needed: 1, waiting }
    }

    /// The connection.
    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends a request with the next [`Lane::flush`].
    pub(super) fn ask(&mut self, mut pending: Pending, asked: Asked, values: &mut Values) {
        let Request { key, value_bytes, ttl, .. } = &pending.request;
        let out = &mut self.out;
        match asked {
            Asked::Get => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(key);
            }
            Asked::Delete => {
                out.extend_from_slice(b"delete ");
                out.extend_from_slice(key);
            }
            Asked::Set => {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(key);
                out.extend_from_slice(b" 0 ");
                push_number(u64::from((*ttl).min(TTL_MAX)), out);
                out.push(b' ');
                push_number(*value_bytes as u64, out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(values.make(key, *value_bytes));
            }
        }
        out.extend_from_slice(b"\r\n");
        pending.asked = Some(asked);
        self.waiting.push_back(pending);
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

    /// Takes in what has arrived. Whether there may be more at once.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        self.make_room();
        let room = self.input.len() - self.filled;
        match self.connection.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.filled += read;
                Ok(read == room)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
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

    /// The next answer, if it has arrived whole; an error if what has arrived is none.
    pub(super) fn answer(&mut self) -> io::Result<Option<Answer>> {
        if self.filled - self.parsed < self.needed {
            return Ok(None);
        }
        let unasked = || io::Error::new(io::ErrorKind::InvalidData, "an answer that was not asked for");
        let pending = self.waiting.front().ok_or_else(unasked)?;
        let asked = pending.asked.unwrap_or(Asked::Get);
        let arrived = &self.input[self.parsed..self.filled];
        match reply::parse(asked, &pending.request.key, arrived) {
            Parsed::More(needed) => {
                self.needed = needed;
                Ok(None)
            }
            Parsed::Broken => {
                let shown = String::from_utf8_lossy(&arrived[..arrived.len().min(60)]);
                let why = format!("{shown:?} is no answer of memcached's to a {asked:?}");
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
            Parsed::Whole(bytes, reply) => {
                let at = self.parsed;
                self.parsed += bytes;
                self.needed = 1;
                if self.parsed == self.filled {
                    (self.parsed, self.filled) = (0, 0);
                }
                let pending = self.waiting.pop_front().ok_or_else(unasked)?;
                Ok(Some(Answer { pending, reply, at }))
            }
        }
    }

    /// What a range of an answer's means; to be looked at before more is received.
    pub(super) fn bytes(&self, answer: &Answer, range: std::ops::Range<usize>) -> &[u8] {
        &self.input[answer.at + range.start..answer.at + range.end]
    }
}

fn push_number(number: u64, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = write!(out, "{number}");
}
