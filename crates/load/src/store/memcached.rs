//! memcached, by its text protocol (doc/protocol.txt of memcached): a record is one item.
//!
//! The protocol's `set` and `get` are a dozen lines; the client crates that are kept bring TLS and pools for the same.
//!
//! memcached stops reading from a connection whose answers are not taken. So that neither side waits for the other for
//! ever, no more than [`AHEAD`] bytes are sent before answers are read.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use super::{Request, Store, StoreError};

/// Less than a socket takes at its receiving end.
const AHEAD: usize = 32 << 10;

/// A connection.
#[derive(Debug)]
pub struct Memcached {
    answers: BufReader<TcpStream>,
    outgoing: Vec<u8>,
    value: Vec<u8>,
    line: Vec<u8>,
}

impl Memcached {
    /// Connects to HOST:PORT.
    ///
    /// # Errors
    /// Nobody answers there.
    pub fn connect(address: &str) -> Result<Self, StoreError> {
        let unreachable = |source: std::io::Error| StoreError::Unreachable {
            store: "memcached",
            address: address.into(),
            source: source.into(),
        };
        let stream = TcpStream::connect(address).map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        Ok(Self {
            answers: BufReader::new(stream),
            outgoing: Vec::new(),
            value: Vec::new(),
            line: Vec::new(),
        })
    }

    /// Sends what was asked and reads the answers; returns how many reads found nothing.
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

    /// The answer to one request: whether a read found nothing.
    fn answered(&mut self, request: &Request<'_>) -> Result<bool, StoreError> {
        self.read_line()?;
        match request {
            Request::Write { .. } if self.line == b"STORED" => Ok(false),
            Request::Read { .. } if self.line == b"END" => Ok(true),
            Request::Read { .. } => {
                let bytes = self.value_bytes().ok_or_else(|| self.refused("a get"))?;
                // The value, and the end of its line.
                self.value.resize(bytes + 2, 0);
                self.answers.read_exact(&mut self.value)?;
                self.read_line()?;
                if self.line == b"END" { Ok(false) } else { Err(self.refused("a get")) }
            }
            Request::Write { .. } | Request::Scan { .. } => Err(self.refused("a set")),
        }
    }

    /// From `VALUE key flags bytes`.
    fn value_bytes(&self) -> Option<usize> {
        let mut words = std::str::from_utf8(&self.line).ok()?.split(' ');
        words.next().filter(|word| *word == "VALUE")?;
        // The protocol has items of up to 1 GiB.
        words.nth(2)?.parse().ok().filter(|bytes| *bytes <= 1 << 30)
    }

    /// A line without its end. An answer that has none for long is not one of memcached's.
    fn read_line(&mut self) -> Result<(), StoreError> {
        self.line.clear();
        let read = self.answers.by_ref().take(2048).read_until(b'\n', &mut self.line)?;
        if read == 0 || self.line.pop() != Some(b'\n') || self.line.pop() != Some(b'\r') {
            return Err(self.refused("a request (the connection ended, or that is not memcached)"));
        }
        Ok(())
    }

    fn refused(&self, to: &str) -> StoreError {
        let said = String::from_utf8_lossy(&self.line).into_owned();
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
