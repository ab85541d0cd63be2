//! A connection as a machine of states: bytes in, bytes out, and a store. It reads and writes nothing itself.
//!
//! What it could not use yet it leaves to the caller, who gives it again with what came after; so a value that is all there is
//! stored from where it was read. Only a value that is longer than what is there is gathered here. What is answered hangs on
//! the bytes alone and not on how they were parted: a line is short if its end is within [`LINE_MAX`] bytes, however many are
//! there.
//!
//! Reads of several keys stop between two of them when replies have become too many, and go on when those are written. Where an
//! item has to be fetched its reply is left out, and put in later (`gaps.rs`).

use memchr::{memchr, memchr2};

use super::desk::{BAD_FORMAT, Desk};
use super::gaps::Gaps;
use super::keys::{Keys, Named};
use super::service::{KEY_MAX, LINE_MAX};
use super::storage::{Data, Storage};
use super::text::cut;
use crate::store::Meta;

/// Room that is made for a value before its bytes are there.
const VALUE_ROOM: usize = 64 << 10;

/// Why [`Connection::feed`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing can be done without more input.
    Input,
    /// There are enough replies to write them first.
    Output,
    /// It is others' turn.
    Turn,
    /// What was asked for is told later: [`Connection::land`], then once more with the same input.
    Later,
    /// The connection is to be closed once the replies are written.
    Close,
}

/// What [`Connection::feed`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// So many bytes of the input are done with; the rest is to be given again.
    pub consumed: usize,
    /// Why it came back.
    pub stop: Stop,
}

/// What a connection is in the midst of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing, or a line without an end yet.
    Line,
    /// Reading items, key by key.
    Keys(Keys),
    /// Gathering a value and its end, so many bytes in all.
    Value(usize),
    /// Dropping so many bytes of a value that can't be stored.
    Swallow(usize),
    /// Dropping the rest of a line.
    Skip,
}

/// What a connection does, as `stats conns` calls it.
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

/// What came of one step; bytes that it took of what it was given.
pub(super) enum Step {
    /// A request is done.
    Done(usize),
    /// There is another state.
    Part(usize),
    /// More input is needed.
    Short(usize),
    /// Replies are to be written.
    Full(usize),
    /// Gaps in replies are to be filled.
    Later(usize),
    /// The connection is to be closed.
    Close,
}

/// What is known of a connection between two pieces of its input.
#[derive(Debug)]
pub struct Connection {
    state: State,
    /// The line whose value is being gathered.
    line: Vec<u8>,
    /// What was gathered; else, room for values that are being made.
    value: Vec<u8>,
    gaps: Gaps,
}

impl Default for Connection {
    fn default() -> Self {
        Self { state: State::Line, line: Vec::new(), value: Vec::new(), gaps: Gaps::default() }
    }
}

impl Connection {
    /// Does what `input` asks, and appends the replies to `out`.
    pub fn feed(&mut self, desk: &Desk<'_>, input: &[u8], out: &mut Vec<u8>) -> Fed {
        if self.waits() {
            return Fed { consumed: 0, stop: Stop::Later };
        }
        if !self.gaps.is_empty() {
            self.gaps.put(out);
            if out.len() >= desk.settings().reply_bytes_max {
                return Fed { consumed: 0, stop: Stop::Output };
            }
        }
        let fed = self.go(desk, input, out);
        if self.gaps.is_empty() {
            return fed;
        }
        self.gaps.keep(out);
        Fed { stop: Stop::Later, ..fed }
    }

    fn go(&mut self, desk: &Desk<'_>, input: &[u8], out: &mut Vec<u8>) -> Fed {
        let mut consumed = 0;
        let mut left = desk.settings().requests_per_turn.max(1);
        loop {
            let rest = &input[consumed..];
            let step = match self.state {
                State::Line => self.line(desk, rest, out),
                State::Keys(keys) => self.keys(desk, keys, rest, out),
                State::Value(bytes) => self.gather(desk, bytes, rest, out),
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
                    } else if self.is_full(desk, out) {
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

    /// Whether the store is to tell something before it can go on.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.gaps.open > 0
    }

    /// Takes what the store has told of one of its reads. Whether it waits for nothing more now.
    pub fn land(&mut self, desk: &Desk<'_>, token: u64, item: Option<(&Meta, &[u8])>) -> bool {
        let Some(gap) = self.gaps.find(token) else { return false };
        gap.reply = Some(desk.fill(gap, item));
        self.gaps.open -= 1;
        self.gaps.open == 0
    }

    /// Whether replies are enough, with those to come.
    fn is_full(&self, desk: &Desk<'_>, out: &[u8]) -> bool {
        out.len() + self.gaps.promised() >= desk.settings().reply_bytes_max
    }

    /// Where to put what comes next, and how much of it: the rest of a long value, which need not pass through a buffer. After
    /// that, [`Connection::feed`] goes on with no input.
    pub fn wants(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        match self.state {
            State::Value(bytes) if bytes > self.value.len() => {
                let more = bytes - self.value.len();
                Some((&mut self.value, more))
            }
            _ => None,
        }
    }

    /// What it is in the midst of.
    #[must_use]
    pub fn doing(&self) -> Doing {
        match self.state {
            _ if self.waits() => Doing::Fetching,
            State::Line | State::Keys(_) => Doing::Waiting,
            State::Value(_) => Doing::Reading,
            State::Swallow(_) | State::Skip => Doing::Swallowing,
        }
    }

    /// Whether nothing was begun that is not finished; a line without an end is with the caller.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == State::Line && self.gaps.is_empty()
    }

    /// Bytes that are held.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.line.capacity() + self.value.capacity() + self.gaps.memory()
    }

    /// Gives back memory that is not in use.
    pub fn shrink(&mut self) {
        if self.is_idle() {
            *self = Self::default();
        }
    }

    fn line(&mut self, desk: &Desk<'_>, rest: &[u8], out: &mut Vec<u8>) -> Step {
        let window = &rest[..rest.len().min(LINE_MAX)];
        let Some(end) = memchr(b'\n', window) else { return self.unended(desk, window, out) };
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
        if !self.gaps.is_empty() && (self.gaps.is_closed() || !may_begin) {
            return Step::Later(0);
        }
        if let Some(keys) = named {
            return match desk.begin(keys, args) {
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
            self.storage(desk, line, after, out)
        } else if verb == b"mg" {
            let is_done = desk.mget(args, &mut self.value, out, &mut self.gaps);
            if is_done { Step::Done(0) } else { return Step::Later(0) }
        } else {
            desk.command(line, &mut self.value, out)
        };
        match step {
            Step::Done(bytes) => Step::Done(end + 1 + bytes),
            Step::Part(bytes) => Step::Part(end + 1 + bytes),
            Step::Full(bytes) => Step::Full(end + 1 + bytes),
            other => other,
        }
    }

    /// A line that has no end within what a line may have.
    fn unended(&mut self, desk: &Desk<'_>, window: &[u8], out: &mut Vec<u8>) -> Step {
        if window.len() < LINE_MAX {
            return Step::Short(0);
        }
        if !self.gaps.is_empty() {
            return Step::Later(0);
        }
        let (verb, args) = cut(window);
        let Some(keys) = Keys::named(verb) else { return Step::Close };
        match desk.begin_long(keys, args) {
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

    /// Reads items until the line ends, the input ends, or replies are too many.
    fn keys(&mut self, desk: &Desk<'_>, keys: Keys, rest: &[u8], out: &mut Vec<u8>) -> Step {
        let mut at = 0;
        loop {
            at += rest[at..].iter().take_while(|byte| **byte == b' ').count();
            // A key, a carriage return, and what ends it.
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
                if !self.gaps.admits(key) {
                    return Step::Later(at);
                }
                desk.read(keys, key, out, &mut self.gaps);
            }
            at += end;
            if is_last {
                out.extend_from_slice(b"END\r\n");
                self.state = State::Line;
                return Step::Done(at + 1);
            }
            if self.is_full(desk, out) {
                return Step::Full(at);
            }
        }
    }

    fn storage(&mut self, desk: &Desk<'_>, line: &[u8], after: &[u8], out: &mut Vec<u8>) -> Step {
        match Storage::parse(desk, line) {
            Ok(storage) => {
                let bytes = storage.bytes + 2;
                if let Some(data) = after.get(..bytes) {
                    desk.store(&storage, Data::Lent(data, &mut self.value), out);
                    return Step::Done(bytes);
                }
                self.line.clear();
                self.line.extend_from_slice(line);
                self.value.clear();
                self.value.reserve(bytes.min(VALUE_ROOM));
                self.state = State::Value(bytes);
                Step::Part(0)
            }
            Err(unfit) => match desk.refuse(&unfit, out) {
                None => Step::Done(0),
                Some(bytes) => {
                    self.state = State::Swallow(bytes);
                    Step::Part(0)
                }
            },
        }
    }

    fn gather(&mut self, desk: &Desk<'_>, bytes: usize, rest: &[u8], out: &mut Vec<u8>) -> Step {
        let taken = (bytes - self.value.len()).min(rest.len());
        self.value.extend_from_slice(&rest[..taken]);
        if self.value.len() < bytes {
            return Step::Short(taken);
        }
        self.state = State::Line;
        // It was read before, and nothing has changed that could refuse it now.
        if let Ok(storage) = Storage::parse(desk, &self.line) {
            desk.store(&storage, Data::Own(&mut self.value), out);
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
