//! A connection as a worker has it: its socket, what it was asked, and what it has not taken yet.
//!
//! A connection at rest holds no buffers. It is read into its worker's buffer and answered from its worker's; only what could
//! not be used yet, or could not be written yet, is kept here. While replies wait, or the store is to tell something, nothing is
//! read.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::shared::{Seen, Shared};
use super::stream::{Got, Stream};
use crate::proto::{Ahead, Connection, Counters, Desk, Stop};
use crate::store::Meta;

/// From so many bytes that are left of a value on, they are read to where they belong.
const STRAIGHT_FROM: usize = 16 << 10;
/// And at most so many at a time.
const STRAIGHT_MAX: usize = 1 << 20;
/// A connection that is never out of input gives way after so many reads.
const READS: u32 = 8;
/// Buffers of at most so many bytes are kept by who is at rest.
const KEPT: usize = 4 << 10;

/// What is next for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It waits for its socket.
    Wait,
    /// It has more to do, after others.
    Again,
    /// It is to be closed.
    Gone,
}

/// Buffers of a worker.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
}

/// What a connection is served with.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) shared: &'a Shared,
    /// The number of the worker.
    pub(super) worker: usize,
    /// Seconds since the server started.
    pub(super) second: u32,
    /// What reads without waiting for the store, and the connection's number there.
    pub(super) ahead: Option<(&'a Ahead, u32)>,
}

impl Work<'_> {
    /// Knows what time it is, and is made anew where it may be another.
    pub(super) fn desk(&self) -> Desk<'_> {
        let desk = Desk::new(&self.shared.service, self.worker, &*self.shared.store);
        match self.ahead {
            Some((ahead, connection)) => desk.with_ahead(ahead, connection),
            None => desk,
        }
    }

    pub(super) fn counts(&self) -> &Counters {
        self.shared.service.counters(self.worker)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: Stream,
    pub(super) seen: Arc<Seen>,
    connection: Connection,
    /// Input that could not be used yet,
    rest: Vec<u8>,
    /// and whether it is to be looked at without more.
    owes: bool,
    /// Replies that could not be written yet, from `sent` on.
    pending: Vec<u8>,
    sent: usize,
    is_leaving: bool,
    /// Its other side has closed: reads go on to the end.
    pub(super) is_ending: bool,
    /// It is told when it can be written.
    pub(super) is_watched: bool,
    /// It is to have a turn, whatever its socket does.
    pub(super) is_queued: bool,
    /// When it last read or wrote.
    pub(super) second: u32,
    /// Bytes that were counted as held.
    pub(super) held: usize,
}

impl Peer {
    pub(super) fn new(stream: Stream, seen: Arc<Seen>, second: u32) -> Self {
        Self {
            stream,
            seen,
            connection: Connection::default(),
            rest: Vec::new(),
            owes: false,
            pending: Vec::new(),
            sent: 0,
            is_leaving: false,
            is_ending: false,
            is_watched: false,
            is_queued: false,
            second,
            held: 0,
        }
    }

    /// Whether replies wait.
    pub(super) fn is_stalled(&self) -> bool {
        self.sent < self.pending.len() || self.stream.holds()
    }

    /// Whether it waits for the store, and not for its socket.
    pub(super) fn waits(&self) -> bool {
        self.connection.waits()
    }

    /// Takes what the store has told. Whether it can go on now.
    pub(super) fn land(
        &mut self,
        work: &Work<'_>,
        token: u64,
        item: Option<(&Meta, &[u8])>,
    ) -> bool {
        self.second = work.second;
        self.connection.land(&work.desk(), token, item)
    }

    /// Whether nothing is begun that is not finished.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_stalled() && self.rest.is_empty() && self.connection.is_idle()
    }

    /// Bytes that are held.
    pub(super) fn memory(&self) -> usize {
        let connection = self.connection.memory() + self.stream.memory();
        self.rest.capacity() + self.pending.capacity() + connection
    }

    /// Gives back memory that is not in use.
    pub(super) fn shrink(&mut self) {
        if self.memory() <= KEPT {
            return;
        }
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        self.rest.shrink_to_fit();
        self.connection.shrink();
    }

    /// Writes what waits. Whether nothing does any more.
    fn flush(&mut self, counts: &Counters, second: u32) -> io::Result<bool> {
        if self.stream.flush()? {
            self.second = second;
        }
        while self.sent < self.pending.len() {
            let bytes = self.stream.write(&self.pending[self.sent..])?;
            if bytes == 0 {
                return Ok(false);
            }
            counts.bytes_written.add(bytes as u64);
            self.sent += bytes;
            self.second = second;
        }
        self.pending.clear();
        self.sent = 0;
        Ok(!self.stream.holds())
    }

    /// Writes replies, and keeps what could not be written.
    fn send(&mut self, out: &[u8], counts: &Counters) -> io::Result<()> {
        let bytes = self.stream.write(out)?;
        counts.bytes_written.add(bytes as u64);
        self.pending.extend_from_slice(&out[bytes..]);
        Ok(())
    }

    /// Reads to `buffer` after the `have` bytes it has, or a long value to where it belongs; and how many bytes the buffer has
    /// then.
    fn read(&mut self, buffer: &mut [u8], have: usize) -> io::Result<(Got, usize)> {
        if have == 0
            && let Some((room, more)) = self.connection.wants()
            && more >= STRAIGHT_FROM
            && let Some(got) = self.stream.read_straight(room, more.min(STRAIGHT_MAX))
        {
            return got.map(|got| (got, 0));
        }
        let got = self.stream.read(&mut buffer[have..])?;
        Ok((got, have + got.bytes()))
    }

    /// Reads, does what is asked, and answers, until its socket has nothing more or others are to have their turn.
    pub(super) fn turn(&mut self, work: &Work<'_>, buffers: &mut Buffers) -> Next {
        self.try_turn(work, buffers).unwrap_or_else(|error| {
            if error.kind() == ErrorKind::InvalidData {
                self.stream.count_error(work.counts());
            }
            Next::Gone
        })
    }

    fn try_turn(&mut self, work: &Work<'_>, buffers: &mut Buffers) -> io::Result<Next> {
        let (counts, second) = (work.counts(), work.second);
        let Buffers { input, output } = buffers;
        for _ in 0..READS {
            if self.is_stalled() && !self.flush(counts, second)? {
                return Ok(Next::Wait);
            }
            if self.is_leaving {
                return Ok(Next::Gone);
            }
            if self.waits() {
                return Ok(Next::Wait);
            }
            let mut have = self.rest.len();
            input[..have].copy_from_slice(&self.rest);
            self.rest.clear();
            let mut is_last = false;
            if !self.owes {
                let (got, filled) = self.read(input, have)?;
                match got {
                    Got::End => return Ok(Next::Gone),
                    Got::Nothing => {
                        self.rest.extend_from_slice(&input[..have]);
                        return Ok(Next::Wait);
                    }
                    Got::Bytes(_) => (),
                    Got::Last(_) => is_last = !self.is_ending,
                }
                counts.bytes_read.add(got.bytes() as u64);
                self.second = second;
                have = filled;
            }
            self.seen.asks(second);
            output.clear();
            let fed = self.connection.feed(&work.desk(), &input[..have], output);
            self.rest.extend_from_slice(&input[fed.consumed..have]);
            self.owes = matches!(fed.stop, Stop::Output | Stop::Turn | Stop::Later);
            self.is_leaving = fed.stop == Stop::Close;
            if !output.is_empty() {
                self.send(output, counts)?;
            }
            match fed.stop {
                Stop::Input if is_last => return Ok(Next::Wait),
                Stop::Later => return Ok(Next::Wait),
                Stop::Turn => {
                    counts.conn_yields.one();
                    return Ok(Next::Again);
                }
                Stop::Input | Stop::Output | Stop::Close => (),
            }
        }
        Ok(Next::Again)
    }

    /// Tells `stats conns` what it does.
    pub(super) fn show(&self) {
        self.seen.rests(self.connection.doing(), self.is_stalled());
    }
}
