//! memcached, by its text protocol: a record is one item.
//!
//! memcached stops reading from a connection whose answers are not read. To avoid a deadlock, no more than [`AHEAD`]
//! bytes are sent before answers are read.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use super::{Request, Store, StoreError};
use crate::reply::{self, LINE_MAX, Parsed, Reply};

/// Less than the receive buffer of a socket.
const AHEAD: usize = 32 << 10;

/// A connection.
#[derive(Debug)]
pub struct Memcached {
    answers: BufReader<TcpStream>,
    outgoing: Vec<u8>,
    answer: Vec<u8>,
}

impl Memcached {
    /// Connects to HOST:PORT.
    ///
    /// # Errors
    /// There is no server at the address.
    pub fn connect(address: &str) -> Result<Self, StoreError> {
        let unreachable = |source: std::io::Error| StoreError::Unreachable {
            store: "memcached",
            address: address.into(),
            source: source.into(),
        };
        let stream = TcpStream::connect(address).map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        Ok(Self { answers: BufReader::new(stream), outgoing: Vec::new(), answer: Vec::new() })
    }

    /// Sends requests and reads their answers; returns the number of reads that missed.
    fn exchange(&mut self, asked: &[Request<'_>]) -> Result<u64, StoreError> {
        let sent = self.answers.get_mut().write_all(&self.outgoing);
        self.outgoing.clear();
        sent?;
        let mut missed = 0;
        for request in asked {
            missed += u64::from(self.answered(request)?);
        }
        Ok(missed)
    }

    fn ask(&mut self, request: &Request<'_>) -> Result<(), StoreError> {
        match request {
            Request::Read { key } => write!(self.outgoing, "get {key}\r\n")?,
            Request::Write { key, pieces, .. } => {
                let bytes = payload(request);
                write!(self.outgoing, "set {key} 0 0 {bytes}\r\n")?;
                for (_, piece) in pieces {
                    self.outgoing.extend_from_slice(piece);
                }
                self.outgoing.extend_from_slice(b"\r\n");
            }
            Request::Scan { .. } => return Err(StoreError::NoScans { store: "memcached" }),
        }
        Ok(())
    }

    /// Reads the answer to one request; returns whether a read missed.
    fn answered(&mut self, request: &Request<'_>) -> Result<bool, StoreError> {
        match (request, self.reply()?) {
            (Request::Write { .. }, Reply::Stored) => Ok(false),
            (Request::Read { .. }, Reply::End) => Ok(true),
            (Request::Read { .. }, Reply::Value { .. }) if self.reply()? == Reply::End => Ok(false),
            (Request::Read { .. }, _) => Err(self.refused("a get")),
            (Request::Write { .. } | Request::Scan { .. }, _) => Err(self.refused("a set")),
        }
    }

    /// Reads a piece of an answer.
    fn reply(&mut self) -> Result<Reply, StoreError> {
        self.answer.clear();
        self.answers.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut self.answer)?;
        let line = self.answer.len();
        let mut parsed = reply::parse(&self.answer);
        if let Parsed::More(whole) = parsed
            && self.answer.ends_with(b"\n")
        {
            self.answer.resize(whole, 0);
            self.answers.read_exact(&mut self.answer[line..])?;
            parsed = reply::parse(&self.answer);
        }
        match parsed {
            Parsed::Whole(_, reply) => Ok(reply),
            _ => Err(self.refused("a request (the connection ended, or that is not memcached)")),
        }
    }

    fn refused(&self, to: &str) -> StoreError {
        let said = String::from_utf8_lossy(&self.answer);
        let said = said.lines().next().unwrap_or_default().to_owned();
        let hint = if said.contains("too large") {
            "; start it with a larger -I"
        } else if said.contains("out of memory") {
            "; start it with a larger -m"
        } else {
            ""
        };
        StoreError::Refused { to: to.into(), said, hint }
    }
}

/// Bytes of the values a request sends.
fn payload(request: &Request<'_>) -> usize {
    match request {
        Request::Write { pieces, .. } => pieces.iter().map(|(_, piece)| piece.len()).sum(),
        Request::Read { .. } | Request::Scan { .. } => 0,
    }
}

impl Store for Memcached {
    fn send(&mut self, requests: &[Request<'_>]) -> Result<u64, StoreError> {
        let (mut missed, mut from) = (0, 0);
        for (at, request) in requests.iter().enumerate() {
            if self.outgoing.len() + payload(request) > AHEAD {
                missed += self.exchange(&requests[from..at])?;
                from = at;
            }
            self.ask(request)?;
        }
        Ok(missed + self.exchange(&requests[from..])?)
    }
}
