//! A connection as a state machine: bytes in, bytes out, and a store. It performs no I/O.
//!
//! The caller keeps unused input and passes it again together with later input; so a complete value is stored directly
//! from the input buffer. Only a value longer than the available input is gathered here. Replies depend on the bytes
//! alone, not on how they were split: a line is short if it ends within [`LINE_MAX`] bytes, however many are available.
//!
//! Reads of several keys stop between two of them when the replies have become too long, and continue when those are
//! written. The reply of an item that has to be fetched is left out, and inserted later (`deferred.rs`).

use memchr::{memchr, memchr2};

use super::deferred::Deferred;
use super::dispatch::{BAD_FORMAT, Dispatch};
use super::keys::{Keys, Named};
use super::service::{KEY_MAX, LINE_MAX};
use super::storage::{Data, Storage};
use super::text::cut;
use nearfar_cache::store::Meta;

/// Bytes reserved for a value before its bytes arrive.
const VALUE_ROOM: usize = 64 << 10;
/// The first byte of a request of memcached's binary protocol; no command begins with it.
const BINARY: u8 = 0x80;
const NOT_BINARY: &[u8] = b"ERROR this server speaks the text protocol only\r\n";

/// Reasons why [`Connection::feed`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// More input is needed.
    Input,
    /// Enough replies have accumulated to be written first.
    Output,
    /// Other connections have their turn.
    Turn,
    /// A read is pending: [`Connection::land`], then once more with the same input.
    Later,
    /// The connection is to be closed once the replies are written.
    Close,
}

/// The result of [`Connection::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// Bytes of the input that were consumed; the rest must be passed again.
    pub consumed: usize,
    /// The reason for returning.
    pub stop: Stop,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Idle, or in an incomplete line.
    Line,
    /// Reading items, key by key.
    Keys(Keys),
    /// Gathering a value and its line end, of this many bytes in total.
    Value(usize),
    /// Dropping this many bytes of a value that can't be stored.
    Swallow(usize),
    /// Dropping the rest of a line.
    Skip,
}

/// Activity of a connection, as in `stats conns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Waits for a line.
    Waiting,
    /// Waits for a value.
    Reading,
    /// Drops input.
    Swallowing,
    /// Waits for the store.
    Fetching,
}

/// The result of one step, with the bytes it consumed.
pub(super) enum Step {
    /// A request is complete.
    Done(usize),
    /// The state has changed.
    Part(usize),
    /// More input is needed.
    Short(usize),
    /// Replies must be written.
    Full(usize),
    /// Gaps in replies must be filled.
    Later(usize),
    /// The connection must be closed.
    Close,
}

/// State of a connection between two pieces of its input.
#[derive(Debug)]
pub struct Connection {
    state: State,
    /// The line of the value that is being gathered.
    line: Vec<u8>,
    /// The gathered bytes; else a scratch buffer for values.
    value: Vec<u8>,
    deferred: Deferred,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            state: State::Line,
            line: Vec::new(),
            value: Vec::new(),
            deferred: Deferred::default(),
        }
    }
}

impl Connection {
    /// Executes the requests in `input`, and appends the replies to `out`.
    pub fn feed(&mut self, dispatch: &Dispatch<'_>, input: &[u8], out: &mut Vec<u8>) -> Fed {
        if self.waits() {
            return Fed { consumed: 0, stop: Stop::Later };
        }
        if !self.deferred.is_empty() {
            self.deferred.put(out);
            if out.len() >= dispatch.settings().reply_bytes_max {
                return Fed { consumed: 0, stop: Stop::Output };
            }
        }
        let fed = self.go(dispatch, input, out);
        if self.deferred.is_empty() {
            return fed;
        }
        self.deferred.keep(out);
        Fed { stop: Stop::Later, ..fed }
    }

    fn go(&mut self, dispatch: &Dispatch<'_>, input: &[u8], out: &mut Vec<u8>) -> Fed {
        let mut consumed = 0;
        let mut left = dispatch.settings().requests_per_turn.max(1);
        loop {
            let rest = &input[consumed..];
            let step = match self.state {
                State::Line => self.line(dispatch, rest, out),
                State::Keys(keys) => self.keys(dispatch, keys, rest, out),
                State::Value(bytes) => self.gather(dispatch, bytes, rest, out),
                State::Swallow(bytes) => self.swallow(bytes, rest),
                State::Skip => self.skip(rest),
            };
            let stop = match step {
                Step::Part(bytes) => {
                    consumed += bytes;
                    continue;
                }
                Step::Done(bytes) => {
                    consumed += bytes;
                    left -= 1;
                    if consumed == input.len() {
                        Stop::Input
                    } else if self.is_full(dispatch, out) {
                        Stop::Output
                    } else if left == 0 {
                        Stop::Turn
                    } else {
                        continue;
                    }
                }
                Step::Short(bytes) => {
                    consumed += bytes;
                    Stop::Input
                }
                Step::Full(bytes) => {
                    consumed += bytes;
                    Stop::Output
                }
                Step::Later(bytes) => {
                    consumed += bytes;
                    Stop::Later
                }
                Step::Close => Stop::Close,
            };
            return Fed { consumed, stop };
        }
    }

    /// Whether it waits for the store.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.deferred.open > 0
    }

    /// Takes the result of one of its reads. Returns whether it waits for no other now.
    pub fn land(
        &mut self,
        dispatch: &Dispatch<'_>,
        token: u64,
        item: Option<(&Meta, &[u8])>,
    ) -> bool {
        let Some(gap) = self.deferred.find(token) else { return false };
        gap.reply = Some(dispatch.fill(gap, item));
        self.deferred.open -= 1;
        self.deferred.open == 0
    }

    /// Whether the replies, with pending ones, are long enough to be written.
    fn is_full(&self, dispatch: &Dispatch<'_>, out: &[u8]) -> bool {
        out.len() + self.deferred.promised() >= dispatch.settings().reply_bytes_max
    }

    /// The destination of the next input, and its length: the rest of a long value, which can bypass the input buffer.
    /// After that, [`Connection::feed`] continues with no input.
    pub fn wants(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        match self.state {
            State::Value(bytes) if bytes > self.value.len() => {
                let more = bytes - self.value.len();
                Some((&mut self.value, more))
            }
            _ => None,
        }
    }

    /// Its activity.
    #[must_use]
    pub fn doing(&self) -> Doing {
        match self.state {
            _ if self.waits() => Doing::Fetching,
            State::Line | State::Keys(_) => Doing::Waiting,
            State::Value(_) => Doing::Reading,
            State::Swallow(_) | State::Skip => Doing::Swallowing,
        }
    }

    /// Whether no request is incomplete; a line without an end is the caller's.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == State::Line && self.deferred.is_empty()
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.line.capacity() + self.value.capacity() + self.deferred.memory()
    }

    /// Frees unused memory.
    pub fn shrink(&mut self) {
        if self.is_idle() {
            *self = Self::default();
        }
    }

    fn line(&mut self, dispatch: &Dispatch<'_>, rest: &[u8], out: &mut Vec<u8>) -> Step {
        if rest.first() == Some(&BINARY) {
            return self.binary(dispatch, out);
        }
        let window = &rest[..rest.len().min(LINE_MAX)];
        let Some(end) = memchr(b'\n', window) else { return self.unended(dispatch, window, out) };
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // The shortest command has two letters, a carriage return and a line feed.
        if end < 3 {
            out.extend_from_slice(BAD_FORMAT);
            return Step::Done(end + 1);
        }
        let (verb, args) = cut(line);
        let named = Keys::named(verb);
        let may_begin = verb == b"mg" || named.is_some_and(Named::only_reads);
        if !self.deferred.is_empty() && (self.deferred.is_closed() || !may_begin) {
            return Step::Later(0);
        }
        if let Some(keys) = named {
            return match dispatch.begin(keys, args) {
                Ok((keys, args)) => {
                    self.state = State::Keys(keys);
                    Step::Part(line.len() - args.len())
                }
                Err(error) => {
                    out.extend_from_slice(error);
                    Step::Done(end + 1)
                }
            };
        }
        let step = if Storage::is_named(verb) {
            self.storage(dispatch, line, after, out)
        } else if verb == b"mg" {
            let is_done = dispatch.mget(args, &mut self.value, out, &mut self.deferred);
            if is_done { Step::Done(0) } else { return Step::Later(0) }
        } else {
            dispatch.command(line, &mut self.value, out)
        };
        match step {
            Step::Done(bytes) => Step::Done(end + 1 + bytes),
            Step::Part(bytes) => Step::Part(end + 1 + bytes),
            Step::Full(bytes) => Step::Full(end + 1 + bytes),
            other => other,
        }
    }

    /// Replies to a client of the binary protocol that it is not supported: it would wait without end.
    #[cold]
    fn binary(&self, dispatch: &Dispatch<'_>, out: &mut Vec<u8>) -> Step {
        if !self.deferred.is_empty() {
            return Step::Later(0);
        }
        dispatch.counts.binary_refused.one();
        out.extend_from_slice(NOT_BINARY);
        Step::Close
    }

    /// Handles a line without an end within the maximum length.
    fn unended(&mut self, dispatch: &Dispatch<'_>, window: &[u8], out: &mut Vec<u8>) -> Step {
        if window.len() < LINE_MAX {
            return Step::Short(0);
        }
        if !self.deferred.is_empty() {
            return Step::Later(0);
        }
        let (verb, args) = cut(window);
        let Some(keys) = Keys::named(verb) else { return Step::Close };
        match dispatch.begin_long(keys, args) {
            Ok((keys, args)) => {
                self.state = State::Keys(keys);
                Step::Part(window.len() - args.len())
            }
            Err(error) => {
                out.extend_from_slice(error);
                self.state = State::Skip;
                Step::Part(0)
            }
        }
    }

    /// Reads items until the line ends, the input ends, or the replies are too long.
    fn keys(
        &mut self,
        dispatch: &Dispatch<'_>,
        keys: Keys,
        rest: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        let mut at = 0;
        loop {
            at += rest[at..].iter().take_while(|byte| **byte == b' ').count();
            // A key, a carriage return, and the byte that ends it.
            let scan = &rest[at..rest.len().min(at + KEY_MAX + 2)];
            let Some(end) = memchr2(b' ', b'\n', scan) else {
                if scan.len() < KEY_MAX + 2 {
                    return Step::Short(at);
                }
                out.extend_from_slice(BAD_FORMAT);
                self.state = State::Skip;
                return Step::Part(at);
            };
            let is_last = scan[end] == b'\n';
            let key = &scan[..end];
            let key = if is_last { key.strip_suffix(b"\r").unwrap_or(key) } else { key };
            if key.len() > KEY_MAX {
                out.extend_from_slice(BAD_FORMAT);
                self.state = State::Skip;
                return Step::Part(at);
            }
            if !key.is_empty() {
                if !self.deferred.admits(key) {
                    return Step::Later(at);
                }
                dispatch.read(keys, key, out, &mut self.deferred);
            }
            at += end;
            if is_last {
                out.extend_from_slice(b"END\r\n");
                self.state = State::Line;
                return Step::Done(at + 1);
            }
            if self.is_full(dispatch, out) {
                return Step::Full(at);
            }
        }
    }

    fn storage(
        &mut self,
        dispatch: &Dispatch<'_>,
        line: &[u8],
        after: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        match Storage::parse(dispatch, line) {
            Ok(storage) => {
                let bytes = storage.bytes + 2;
                if let Some(data) = after.get(..bytes) {
                    dispatch.store(&storage, Data::Lent(data, &mut self.value), out);
                    return Step::Done(bytes);
                }
                self.line.clear();
                self.line.extend_from_slice(line);
                self.value.clear();
                self.value.reserve(bytes.min(VALUE_ROOM));
                self.state = State::Value(bytes);
                Step::Part(0)
            }
            Err(unfit) => match dispatch.refuse(&unfit, out) {
                None => Step::Done(0),
                Some(bytes) => {
                    self.state = State::Swallow(bytes);
                    Step::Part(0)
                }
            },
        }
    }

    fn gather(
        &mut self,
        dispatch: &Dispatch<'_>,
        bytes: usize,
        rest: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        let taken = (bytes - self.value.len()).min(rest.len());
        self.value.extend_from_slice(&rest[..taken]);
        if self.value.len() < bytes {
            return Step::Short(taken);
        }
        self.state = State::Line;
        // It was parsed before, and nothing has changed since that could make it fail.
        if let Ok(storage) = Storage::parse(dispatch, &self.line) {
            dispatch.store(&storage, Data::Own(&mut self.value), out);
        }
        Step::Done(taken)
    }

    fn swallow(&mut self, bytes: usize, rest: &[u8]) -> Step {
        let taken = bytes.min(rest.len());
        if taken < bytes {
            self.state = State::Swallow(bytes - taken);
            return Step::Short(taken);
        }
        self.state = State::Line;
        Step::Done(taken)
    }

    fn skip(&mut self, rest: &[u8]) -> Step {
        let Some(end) = memchr(b'\n', rest) else { return Step::Short(rest.len()) };
        self.state = State::Line;
        Step::Done(end + 1)
    }
}
