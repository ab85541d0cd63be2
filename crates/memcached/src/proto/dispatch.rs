//! Command dispatch: a store, the state shared by all connections, and the counters of the calling worker.
//!
//! This file maps command names to functions, and implements the short commands: delete, incr, decr, touch. Replies are
//! appended to `out`; `noreply` truncates it afterwards.

use super::connection::Step;
use super::counters::{Counters, Event};
use super::deferred::{Ask, Gap};
use super::detail::Did;
use super::pending_reads::{Found, PendingReads};
use super::service::{KEY_MAX, Service, Settings};
use super::text::{counted, cut, push, signed_32, words};
use nearfar_cache::store::{Edit, Head, Meta, Old, Refused, Store};

pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(super) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(super) const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
pub(super) const NOT_A_NUMBER: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const OK: &[u8] = b"OK\r\n";

/// Values of at most this many bytes may be numbers.
const DIGITS_MAX: usize = 1024;

/// Dispatcher of commands. Created for each turn of a connection, as it contains the current time.
#[derive(Clone, Copy)]
pub struct Dispatch<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) service: &'a Service,
    pub(super) counts: &'a Counters,
    pub(super) now: u32,
    /// Asynchronous reads, and the number of the connection.
    pending: Option<(&'a PendingReads, u32)>,
}

impl core::fmt::Debug for Dispatch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Dispatch").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Direction of a change of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Up,
    Down,
}

impl<'a> Dispatch<'a> {
    /// For a worker of `service`, by its number. Two threads must not use the same number at a time.
    #[must_use]
    pub fn new(service: &'a Service, worker: usize, store: &'a dyn Store) -> Self {
        Self { store, service, counts: service.counters(worker), now: store.now(), pending: None }
    }

    /// The same for a connection that does not wait for the store, but continues when [`PendingReads::take`] reports a
    /// result.
    #[must_use]
    pub fn with_pending_reads(self, pending: &'a PendingReads, connection: u32) -> Self {
        Self { pending: Some((pending, connection)), ..self }
    }

    /// Reads an item, or starts the read.
    #[inline]
    pub(super) fn find(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Found {
        match self.pending {
            None => self.store.get(key, out, head).into(),
            Some((pending, connection)) => pending.get(connection, key, out, head),
        }
    }

    /// The reply that fills a gap.
    pub(super) fn fill(&self, gap: &Gap, item: Option<(&Meta, &[u8])>) -> Vec<u8> {
        let mut out = Vec::with_capacity(item.map_or(0, |(_, value)| gap.key.len() + value.len()));
        match &gap.ask {
            Ask::Item(shows) => self.fill_item(*shows, &gap.key, item, &mut out),
            Ask::Meta(args) => self.fill_meta(args, item, &mut out),
        }
        out
    }

    pub(super) fn settings(&self) -> &'a Settings {
        &self.service.settings
    }

    /// Executes a line that has no value after it and is not a read.
    pub(super) fn command(&self, line: &[u8], room: &mut Vec<u8>, out: &mut Vec<u8>) -> Step {
        let mark = out.len();
        let (verb, args) = cut(line);
        match verb {
            b"md" => self.mdelete(args, room, out),
            b"ma" => self.marith(args, room, out),
            b"mn" => out.extend_from_slice(b"MN\r\n"),
            b"me" => self.mdebug(args, out),
            b"delete" => self.delete(args, out),
            b"incr" => self.arith(Way::Up, args, room, out),
            b"decr" => self.arith(Way::Down, args, room, out),
            b"touch" => self.touch(args, out),
            _ => return self.admin(line, out),
        }
        // As in memcached, a `noreply` in place of a required word does not suppress the error.
        let least = usize::from(verb != b"delete");
        if verb[0] != b'm' && is_quiet(args) && words(args).nth(least).is_some() {
            out.truncate(mark);
        }
        Step::Done(0)
    }

    fn delete(&self, args: &[u8], out: &mut Vec<u8>) {
        let mut words = words(args);
        let Some(key) = words.next().filter(|key| key.len() <= KEY_MAX) else {
            return out.extend_from_slice(BAD_FORMAT);
        };
        // The obsolete time argument is accepted if it is 0.
        let is_fit = matches!(
            (words.next(), words.next(), words.next()),
            (None | Some(b"0" | b"noreply"), None, None) | (Some(b"0"), Some(b"noreply"), None)
        );
        if !is_fit {
            return out.extend_from_slice(BAD_DELETE);
        }
        self.service.detail.note(key, Did::Delete);
        let found = self.remove(key);
        match found {
            Some(bytes) => {
                self.counts.delete_hits.one();
                self.count_of_class(Event::DeleteHit, key, bytes);
            }
            None => self.counts.delete_misses.one(),
        }
        let reply: &[u8] = if found.is_some() { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" };
        out.extend_from_slice(reply);
    }

    /// Removes an item. Returns the bytes of its value, if there was one.
    pub(super) fn remove(&self, key: &[u8]) -> Option<usize> {
        let mut found = None;
        // A removal stores nothing, so it can't be refused.
        let _ = self.store.edit(key, &mut Vec::new(), &mut |old, _| {
            found = old.map(Old::len);
            if found.is_some() { Edit::Remove } else { Edit::Keep }
        });
        found
    }

    fn touch(&self, args: &[u8], out: &mut Vec<u8>) {
        let mut words = words(args);
        let (Some(key), Some(expires)) = (words.next(), words.next()) else {
            return out.extend_from_slice(BAD_FORMAT);
        };
        if key.len() > KEY_MAX {
            return out.extend_from_slice(BAD_FORMAT);
        }
        let Some(expires) = signed_32(expires) else {
            return out.extend_from_slice(BAD_EXPTIME);
        };
        let expires = self.service.second(expires, self.now);
        let mut found = None;
        let done = self.store.edit(key, &mut Vec::new(), &mut |old, _| {
            let Some(old) = old else { return Edit::Keep };
            found = Some(old.len());
            Edit::Set(Meta { expires, accessed: self.now, fetched: true, ..old.meta() })
        });
        self.count_touch(key, found);
        out.extend_from_slice(match done {
            Err(refused) => self.refused(refused),
            Ok(()) if found.is_some() => b"TOUCHED\r\n",
            Ok(()) => b"NOT_FOUND\r\n",
        });
    }

    fn arith(&self, way: Way, args: &[u8], room: &mut Vec<u8>, out: &mut Vec<u8>) {
        let mut words = words(args);
        let (Some(key), Some(delta)) = (words.next(), words.next()) else {
            return out.extend_from_slice(BAD_FORMAT);
        };
        if key.len() > KEY_MAX {
            return out.extend_from_slice(BAD_FORMAT);
        }
        let Some(delta) = counted(delta) else {
            return out.extend_from_slice(BAD_DELTA);
        };
        let (mut sum, mut bytes) = (Err(&b"NOT_FOUND\r\n"[..]), 0);
        room.clear();
        let done = self.store.edit(key, room, &mut |old, value| {
            let Some(old) = old else { return Edit::Keep };
            bytes = old.len();
            sum = stepped(old, (way, delta), value).ok_or(NOT_A_NUMBER);
            let Ok(_) = sum else { return Edit::Keep };
            let cas = self.service.next_cas();
            Edit::Put(Meta { cas, accessed: self.now, fetched: true, ..old.meta() })
        });
        match (done, sum) {
            (Err(_), _) => out.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
            (Ok(()), Err(error)) => {
                if error != NOT_A_NUMBER {
                    self.count_arith_miss(way);
                }
                out.extend_from_slice(error);
            }
            (Ok(()), Ok(sum)) => {
                self.count_arith_hit(way, key, bytes);
                push(out, sum);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Counts an event of an item, by its key and the bytes of its value, in its size class.
    #[inline]
    pub(super) fn count_of_class(&self, event: Event, key: &[u8], bytes: usize) {
        self.counts.by_class.one(self.store.class_of(key.len(), bytes), event);
    }

    /// Counts a touch; `found` has the bytes of the item's value.
    pub(super) fn count_touch(&self, key: &[u8], found: Option<usize>) {
        self.counts.cmd_touch.one();
        match found {
            Some(bytes) => {
                self.counts.touch_hits.one();
                self.count_of_class(Event::TouchHit, key, bytes);
            }
            None => self.counts.touch_misses.one(),
        }
    }

    pub(super) fn count_arith_hit(&self, way: Way, key: &[u8], bytes: usize) {
        let event = match way {
            Way::Up => {
                self.counts.incr_hits.one();
                Event::IncrHit
            }
            Way::Down => {
                self.counts.decr_hits.one();
                Event::DecrHit
            }
        };
        self.count_of_class(event, key, bytes);
    }

    pub(super) fn count_arith_miss(&self, way: Way) {
        match way {
            Way::Up => self.counts.incr_misses.one(),
            Way::Down => self.counts.decr_misses.one(),
        }
    }

    /// Counts a refusal; returns the reply.
    pub(super) fn refused(&self, refused: Refused) -> &'static [u8] {
        match refused {
            Refused::TooLarge { .. } => {
                self.counts.store_too_large.one();
                TOO_LARGE
            }
            Refused::NoMemory { bytes } => {
                self.counts.store_no_memory.one();
                self.count_of_class(Event::OutOfMemory, b"", bytes);
                NO_MEMORY
            }
        }
    }
}

/// Writes to `value` the number of an item changed by `delta`, padded with spaces to its previous length, as in
/// memcached. Increments wrap around, decrements stop at 0. `None` if it has no number.
pub(super) fn stepped(old: &dyn Old, (way, delta): (Way, u64), value: &mut Vec<u8>) -> Option<u64> {
    if old.len() > DIGITS_MAX {
        return None;
    }
    value.clear();
    old.read(value);
    let number = counted(value);
    value.clear();
    let sum = match way {
        Way::Up => number?.wrapping_add(delta),
        Way::Down => number?.saturating_sub(delta),
    };
    push(value, sum);
    if value.len() < old.len() {
        value.resize(old.len(), b' ');
    }
    Some(sum)
}

/// Whether the last word is `noreply`.
#[inline]
pub(super) fn is_quiet(args: &[u8]) -> bool {
    let args = args.trim_ascii_end();
    args.strip_suffix(b"noreply").is_some_and(|before| before.ends_with(b" "))
}
