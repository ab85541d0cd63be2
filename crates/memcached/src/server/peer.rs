//! A worker's connection: its socket, incomplete requests, and replies not yet sent.
//!
//! An idle connection has no buffers. Input is read into its worker's buffer and replies are written from its worker's;
//! only unused input and unsent replies are kept here. While replies wait, or a read from the store is pending, nothing
//! is read.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::latency::EVERY;
use super::shared::{Seen, Shared};
use super::socket::Got;
use super::stream::Stream;
use crate::proto::{Connection, Counters, Dispatch, PendingReads, Stop};
use nearfar_cache::store::Meta;

/// Remaining bytes of a value from which on they are read directly to their destination.
const STRAIGHT_FROM: usize = 16 << 10;
/// Maximum bytes of such a read.
const STRAIGHT_MAX: usize = 1 << 20;
/// Reads after which a connection with endless input yields.
const READS: u32 = 8;
/// Maximum bytes of buffers kept by an idle connection.
const KEPT: usize = 4 << 10;

/// The next state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It waits for its socket.
    Wait,
    /// It has more to do, after others.
    Again,
    /// It must be closed.
    Gone,
}

/// Buffers of a worker.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// Number of reads, to time one of many.
    pub(super) reads: u32,
}

impl Buffers {
    /// Whether the present read is to be timed.
    fn is_timed(&mut self) -> bool {
        self.reads = self.reads.wrapping_add(1);
        self.reads.is_multiple_of(EVERY)
    }
}

/// The environment of a turn.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) shared: &'a Shared,
    /// The number of the worker.
    pub(super) worker: usize,
    /// Seconds since the server started.
    pub(super) second: u32,
    /// Asynchronous reads, and the connection's number there.
    pub(super) pending: Option<(&'a PendingReads, u32)>,
}

impl Work<'_> {
    /// The dispatcher, with the current time; created again whenever that may have changed.
    pub(super) fn dispatch(&self) -> Dispatch<'_> {
        let dispatch = Dispatch::new(&self.shared.service, self.worker, &*self.shared.store);
        match self.pending {
            Some((pending, connection)) => dispatch.with_pending_reads(pending, connection),
            None => dispatch,
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
    /// Unused input,
    rest: Vec<u8>,
    /// and whether it should be processed without more.
    owes: bool,
    /// Unsent replies, from `sent` on.
    pending: Vec<u8>,
    sent: usize,
    is_leaving: bool,
    /// When the requests under way were read, in nanoseconds since the start; `None` if they are not timed.
    began: Option<u64>,
    /// The peer has closed its side: reads continue to the end.
    pub(super) is_ending: bool,
    /// Whether it is polled for writing.
    pub(super) is_watched: bool,
    /// Whether a turn is due, independent of its socket.
    pub(super) is_queued: bool,
    /// The second of its last read or write.
    pub(super) second: u32,
    /// Bytes accounted as held.
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
            began: None,
            is_ending: false,
            is_watched: false,
            is_queued: false,
            second,
            held: 0,
        }
    }

    /// Whether replies wait, or the rest of a handshake is awaited.
    pub(super) fn is_stalled(&self) -> bool {
        self.sent < self.pending.len() || self.stream.holds() || !self.stream.is_open()
    }

    /// Whether it waits for the store, not for its socket.
    pub(super) fn waits(&self) -> bool {
        self.connection.waits()
    }

    /// Takes the result of a read. Returns whether it can continue.
    pub(super) fn land(
        &mut self,
        work: &Work<'_>,
        token: u64,
        item: Option<(&Meta, &[u8])>,
    ) -> bool {
        self.second = work.second;
        self.connection.land(&work.dispatch(), token, item)
    }

    /// Whether no request is incomplete.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_stalled() && self.rest.is_empty() && self.connection.is_idle()
    }

    /// Bytes of memory held.
    pub(super) fn memory(&self) -> usize {
        let connection = self.connection.memory() + self.stream.memory();
        self.rest.capacity() + self.pending.capacity() + connection
    }

    /// Frees unused memory.
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

    /// Writes pending replies. Returns whether none is left.
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

    /// Writes replies, and keeps the unsent rest.
    fn send(&mut self, out: &[u8], counts: &Counters) -> io::Result<()> {
        let bytes = self.stream.write(out)?;
        counts.bytes_written.add(bytes as u64);
        self.pending.extend_from_slice(&out[bytes..]);
        Ok(())
    }

    /// Reads into `buffer` after the `have` bytes it contains, or a long value to its destination; returns the bytes in
    /// the buffer.
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

    /// Reads, executes requests, and replies, until its socket has no more input or others have their turn.
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
        let state = &work.shared.state;
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
            let is_timed = !self.owes && buffers.is_timed();
            let Buffers { input, output, .. } = &mut *buffers;
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
                self.began = is_timed.then(|| state.clock.nanos());
            }
            self.seen.asks(second);
            output.clear();
            let fed = self.connection.feed(&work.dispatch(), &input[..have], output);
            self.rest.extend_from_slice(&input[fed.consumed..have]);
            self.owes = matches!(fed.stop, Stop::Output | Stop::Turn | Stop::Later);
            self.is_leaving = fed.stop == Stop::Close;
            if !output.is_empty() {
                self.send(output, counts)?;
            }
            if fed.stop != Stop::Later
                && let Some(began) = self.began.take()
                && !output.is_empty()
            {
                state.latencies.add(state.clock.nanos().saturating_sub(began));
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

    /// Updates its state in `stats conns`.
    pub(super) fn show(&self) {
        self.seen.rests(self.connection.doing(), self.is_stalled());
    }
}
