//! The meta commands mg, md, ma and me.
//!
//! An mg that changes nothing is a read of the store and takes no lock. It becomes an edit if something changes: the
//! time to live (T), an item created on a miss (N), a won right to recreate an item (R, or an outdated item), or if a
//! read must leave no trace (u). Its reply shows the item's state before it, so a read that turns into an edit passes
//! on the state it saw.

use super::counters::Event;
use super::deferred::{Ask, Deferred, Gap};
use super::dispatch::{BAD_FORMAT, Dispatch, NOT_A_NUMBER, Way, stepped};
use super::flags::{Flags, Key, OPAQUE_TOO_LONG, push_flag, push_kept, push_left};
use super::pending_reads;
use super::text::{push, words};
use nearfar_cache::store::{Edit, Meta};

/// An item, for a reply.
struct Seen {
    meta: Meta,
    /// Its metadata before this command: last access and whether it was read.
    before: Meta,
    bytes: usize,
    is_new: bool,
}

impl Flags<'_> {
    /// Whether the value goes into the reply.
    fn shows(&self, meta: &Meta) -> bool {
        self.has(b'v') && self.cas != Some(meta.cas)
    }

    /// Whether this client is chosen to recreate the item.
    fn wins(&self, meta: &Meta) -> bool {
        let soon = |until| meta.expires != 0 && meta.expires < until;
        !meta.won && (meta.stale || self.recache.is_some_and(soon))
    }

    /// Appends the line of a reply to mg. Returns the item's new metadata.
    fn answer(&self, now: u32, seen: &Seen, out: &mut Vec<u8>) -> Meta {
        let mut meta = seen.meta;
        if self.shows(&meta) {
            out.extend_from_slice(b"VA ");
            push(out, seen.bytes as u64);
        } else {
            out.extend_from_slice(b"HD");
        }
        let mut wins = seen.is_new;
        // In the order of the flags: t before T shows the old time to live, t after T the new one.
        for (flag, word) in self.each() {
            match flag {
                b'T' => meta.expires = self.ttl.unwrap_or(0),
                b'N' if seen.is_new => meta.expires = self.vivify.unwrap_or(0),
                b'R' => wins |= !seen.is_new && self.wins(&Meta { stale: false, ..meta }),
                b's' => push_flag(b's', seen.bytes as u64, out),
                b't' => push_left(meta.expires, now, out),
                b'c' => push_flag(b'c', meta.cas, out),
                b'f' => push_flag(b'f', u64::from(meta.flags), out),
                b'l' => {
                    push_flag(b'l', u64::from(now.saturating_sub(seen.before.accessed)), out);
                }
                b'h' => push_flag(b'h', u64::from(seen.before.fetched), out),
                _ => self.repeat(flag, word, out),
            }
        }
        if meta.won {
            out.extend_from_slice(b" Z");
        }
        if meta.stale {
            out.extend_from_slice(b" X");
            wins |= !meta.won;
        }
        if wins {
            out.extend_from_slice(b" W");
            meta.won = true;
        }
        out.extend_from_slice(b"\r\n");
        meta
    }
}

/// The result of an edit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    No,
    /// With a value of so many bytes.
    Yes(usize),
    Made,
}

impl Found {
    /// Bytes of the value that was found.
    const fn bytes(self) -> Option<usize> {
        match self {
            Self::Yes(bytes) => Some(bytes),
            Self::No | Self::Made => None,
        }
    }
}

/// The result of a read.
enum Read {
    Done(Found),
    /// The item must be changed or created; this was its state.
    Change(Option<Meta>),
    /// The result follows, with this token; the item has about this many bytes.
    Later(u64, usize),
}

impl Dispatch<'_> {
    fn parse<'a>(&self, args: &'a [u8]) -> Result<Flags<'a>, &'static [u8]> {
        let mut words = words(args);
        let key = words.next().unwrap_or_default();
        Flags::parse(self, key, words.rest(), 2)
    }

    fn flags<'a>(&self, args: &'a [u8]) -> Result<Flags<'a>, &'static [u8]> {
        self.counts.cmd_meta.one();
        self.parse(args)
    }

    /// Replies, or leaves a gap. False if gaps must be filled first; then nothing was done.
    pub(super) fn mget(
        &self,
        args: &[u8],
        room: &mut Vec<u8>,
        out: &mut Vec<u8>,
        deferred: &mut Deferred,
    ) -> bool {
        let flags = match self.parse(args) {
            Ok(flags) => flags,
            Err(error) => {
                self.counts.cmd_meta.one();
                out.extend_from_slice(error);
                return true;
            }
        };
        let reads = flags.ttl.is_none() && !flags.has(b'u');
        let may_begin = reads && flags.vivify.is_none() && deferred.admits(flags.key.bytes());
        if !deferred.is_empty() && !may_begin {
            return false;
        }
        self.counts.cmd_meta.one();
        let read = if reads { self.mget_read(&flags, out) } else { Read::Change(None) };
        let found = match read {
            Read::Done(found) => found,
            Read::Change(before) => self.mget_edit(&flags, before, room, out),
            Read::Later(token, bytes) => {
                let (key, at) = (flags.key.bytes().to_vec(), out.len());
                let ask = Ask::Meta(args.to_vec());
                deferred.add(Gap { token, at, key, ask, reply: None }, args.len() + bytes);
                if flags.vivify.is_some() {
                    deferred.close();
                }
                return true;
            }
        };
        self.mget_end(&flags, found, out);
        true
    }

    /// Appends the reply for the item of an asynchronous read.
    pub(super) fn fill_meta(&self, args: &[u8], item: Option<(&Meta, &[u8])>, out: &mut Vec<u8>) {
        // It was parsed before.
        let Ok(flags) = self.parse(args) else { return };
        let mut room = Vec::new();
        let found = match item {
            Some((meta, value)) if !flags.wins(meta) => {
                let seen = Seen { meta: *meta, before: *meta, bytes: value.len(), is_new: false };
                flags.answer(self.now, &seen, out);
                if flags.shows(meta) {
                    out.extend_from_slice(value);
                    out.extend_from_slice(b"\r\n");
                }
                Found::Yes(value.len())
            }
            None if flags.vivify.is_none() => Found::No,
            item => self.mget_edit(&flags, item.map(|(meta, _)| *meta), &mut room, out),
        };
        self.mget_end(&flags, found, out);
    }

    fn mget_end(&self, flags: &Flags<'_>, found: Found, out: &mut Vec<u8>) {
        let (key, bytes) = (flags.key.bytes(), found.bytes());
        if flags.ttl.is_some() {
            self.count_touch(key, bytes);
        } else {
            self.count_get(key, bytes);
        }
        if found == Found::No && !flags.has(b'q') {
            out.extend_from_slice(b"EN");
            flags.repeat_all(out);
        }
    }

    /// Reads, and appends the reply; appends nothing if the item must change, and returns its state.
    fn mget_read(&self, flags: &Flags<'_>, out: &mut Vec<u8>) -> Read {
        let mark = out.len();
        let (mut end, mut before, mut size) = (mark, None, 0);
        let found =
            self.find(flags.key.bytes(), out, &mut |meta: &Meta, bytes, out: &mut Vec<u8>| {
                let seen = Seen { meta: *meta, before: *meta, bytes, is_new: false };
                flags.answer(self.now, &seen, out);
                end = out.len();
                (before, size) = (Some(*meta), bytes);
            });
        match (found, before) {
            (pending_reads::Found::Later(token, bytes), _) => {
                out.truncate(mark);
                Read::Later(token, bytes)
            }
            (pending_reads::Found::Yes(_), Some(meta)) if flags.wins(&meta) => {
                out.truncate(mark);
                Read::Change(Some(meta))
            }
            (pending_reads::Found::Yes(_), Some(meta)) => {
                if flags.shows(&meta) {
                    out.extend_from_slice(b"\r\n");
                } else {
                    out.truncate(end);
                }
                Read::Done(Found::Yes(size))
            }
            _ => {
                out.truncate(mark);
                if flags.vivify.is_none() { Read::Done(Found::No) } else { Read::Change(None) }
            }
        }
    }

    fn mget_edit(
        &self,
        flags: &Flags<'_>,
        before: Option<Meta>,
        room: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Found {
        let mark = out.len();
        let mut found = Found::No;
        room.clear();
        let done = self.store.edit(flags.key.bytes(), room, &mut |old, _| {
            let Some(old) = old else {
                if flags.vivify.is_none() {
                    return Edit::Keep;
                }
                found = Found::Made;
                let cas = flags.new_cas.unwrap_or_else(|| self.service.next_cas());
                let meta = Meta { cas, accessed: self.now, ..Meta::default() };
                let seen = Seen { meta, before: meta, bytes: 0, is_new: true };
                let made = flags.answer(self.now, &seen, out);
                if flags.shows(&meta) {
                    out.extend_from_slice(b"\r\n");
                }
                return Edit::Put(made);
            };
            found = Found::Yes(old.len());
            let meta = old.meta();
            let seen =
                Seen { meta, before: before.unwrap_or(meta), bytes: old.len(), is_new: false };
            let after = flags.answer(self.now, &seen, out);
            if flags.shows(&meta) {
                old.read(out);
                out.extend_from_slice(b"\r\n");
            }
            match flags.has(b'u') {
                true if after == meta => Edit::Keep,
                true => Edit::Set(after),
                false => Edit::Set(Meta { accessed: self.now, fetched: true, ..after }),
            }
        });
        if done.is_err() {
            out.truncate(mark);
            found = Found::No;
        }
        found
    }

    pub(super) fn mdelete(&self, args: &[u8], room: &mut Vec<u8>, out: &mut Vec<u8>) {
        let flags = match self.flags(args) {
            Ok(flags) => flags,
            Err(error) => return out.extend_from_slice(error),
        };
        let (mut code, mut bytes) = (b"NF", 0);
        room.clear();
        let done = self.store.edit(flags.key.bytes(), room, &mut |old, _| {
            let Some(old) = old else { return Edit::Keep };
            let was = old.meta();
            bytes = old.len();
            if flags.cas.is_some_and(|cas| cas != was.cas) {
                code = b"EX";
                return Edit::Keep;
            }
            code = b"HD";
            let emptied = Meta {
                flags: flags.client,
                expires: flags.ttl.unwrap_or(0),
                cas: flags.new_cas.unwrap_or(was.cas),
                accessed: self.now,
                ..Meta::default()
            };
            let mut meta = if flags.has(b'x') { emptied } else { was };
            if flags.has(b'I') {
                meta.expires = flags.ttl.unwrap_or(meta.expires);
                meta.cas = flags.new_cas.unwrap_or_else(|| self.service.next_cas());
                (meta.stale, meta.won) = (true, false);
            }
            match (flags.has(b'x'), flags.has(b'I')) {
                // The buffer for a value is empty.
                (true, _) => Edit::Put(meta),
                (false, true) => Edit::Set(meta),
                (false, false) => Edit::Remove,
            }
        });
        match code {
            b"HD" if !flags.has(b'I') => {
                self.counts.delete_hits.one();
                self.count_of_class(Event::DeleteHit, flags.key.bytes(), bytes);
            }
            b"HD" => (),
            _ => self.counts.delete_misses.one(),
        }
        if let Err(refused) = done {
            out.extend_from_slice(self.refused(refused));
        } else if code != b"HD" || !flags.has(b'q') {
            out.extend_from_slice(code);
            flags.repeat_all(out);
        }
    }

    pub(super) fn marith(&self, args: &[u8], room: &mut Vec<u8>, out: &mut Vec<u8>) {
        let flags = match self.flags(args) {
            Ok(flags) => flags,
            Err(OPAQUE_TOO_LONG) => return out.extend_from_slice(OPAQUE_TOO_LONG),
            Err(_) if words(args).next().is_none() => return out.extend_from_slice(BAD_FORMAT),
            // memcached's reply to any other wrong flag, and to a key that is too long.
            Err(_) => {
                return out.extend_from_slice(b"CLIENT_ERROR invalid or duplicate flag\r\n");
            }
        };
        let way = match flags.mode {
            None | Some(b'I' | b'+') => Way::Up,
            Some(b'D' | b'-') => Way::Down,
            Some(_) => {
                return out.extend_from_slice(b"CLIENT_ERROR invalid mode for ma M token\r\n");
            }
        };
        let (mut came, mut bytes) = (Came::NotFound, 0);
        room.clear();
        let done = self.store.edit(flags.key.bytes(), room, &mut |old, value| {
            let cas = || flags.new_cas.unwrap_or_else(|| self.service.next_cas());
            let Some(old) = old else {
                let Some(expires) = flags.vivify else { return Edit::Keep };
                push(value, flags.initial);
                let meta = Meta { cas: cas(), expires, accessed: self.now, ..Meta::default() };
                came = Came::Made(meta, flags.initial);
                return Edit::Put(Meta { expires: flags.ttl.unwrap_or(expires), ..meta });
            };
            let was = old.meta();
            bytes = old.len();
            if flags.cas.is_some_and(|cas| cas != 0 && cas != was.cas) {
                came = Came::OtherCas;
                return Edit::Keep;
            }
            let Some(number) = stepped(old, (way, flags.delta), value) else {
                came = Came::NoNumber;
                return Edit::Keep;
            };
            let was = Meta { cas: cas(), accessed: self.now, fetched: true, ..was };
            came = Came::Stepped(was, number);
            Edit::Put(Meta { expires: flags.ttl.unwrap_or(was.expires), ..was })
        });
        let code = match came {
            _ if done.is_err() => return out.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
            Came::NoNumber => return out.extend_from_slice(NOT_A_NUMBER),
            Came::Made(was, number) | Came::Stepped(was, number) => {
                if let Came::Made(..) = came {
                    self.count_arith_miss(way);
                } else {
                    self.count_arith_hit(way, flags.key.bytes(), bytes);
                }
                if !flags.has(b'q') {
                    flags.answer_number(self.now, &was, number, out);
                }
                return;
            }
            Came::NotFound => b"NF",
            Came::OtherCas => b"EX",
        };
        if let Came::NotFound = came {
            self.count_arith_miss(way);
        }
        out.extend_from_slice(code);
        flags.repeat_all(out);
    }

    /// `me <key> [b]`
    pub(super) fn mdebug(&self, args: &[u8], out: &mut Vec<u8>) {
        let flags = match self.flags(args) {
            Ok(flags) => flags,
            Err(error) => return out.extend_from_slice(error),
        };
        let mut found = false;
        let mut line = |key: &Key<'_>, meta: &Meta, bytes: usize| {
            out.extend_from_slice(b"ME ");
            key.push(out);
            out.extend_from_slice(b" exp=");
            if meta.expires == 0 {
                out.extend_from_slice(b"-1");
            } else {
                push(out, u64::from(meta.expires.saturating_sub(self.now)));
            }
            out.extend_from_slice(b" la=");
            push(out, u64::from(self.now.saturating_sub(meta.accessed)));
            push_kept(meta, key.bytes().len() + bytes, out);
            out.extend_from_slice(b"\r\n");
        };
        // Nothing is stored, so it can't be refused.
        let _ = self.store.edit(flags.key.bytes(), &mut Vec::new(), &mut |old, _| {
            if let Some(old) = old {
                found = true;
                line(&flags.key, &old.meta(), old.len());
            }
            Edit::Keep
        });
        if !found {
            out.extend_from_slice(b"EN\r\n");
        }
    }
}

/// The result of ma.
#[derive(Clone, Copy)]
enum Came {
    NotFound,
    OtherCas,
    NoNumber,
    /// A new item, with its metadata before T, and its number.
    Made(Meta, u64),
    /// A changed number; its item's metadata before T.
    Stepped(Meta, u64),
}

impl Flags<'_> {
    /// Appends the reply to a successful ma.
    fn answer_number(&self, now: u32, was: &Meta, number: u64, out: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        let mut expires = was.expires;
        if self.has(b'v') {
            out.extend_from_slice(b"VA ");
            push(out, digits.len() as u64);
        } else {
            out.extend_from_slice(b"HD");
        }
        for (flag, word) in self.each() {
            match flag {
                b'T' => expires = self.ttl.unwrap_or(0),
                b't' => push_left(expires, now, out),
                b'c' => push_flag(b'c', was.cas, out),
                _ => self.repeat(flag, word, out),
            }
        }
        out.extend_from_slice(b"\r\n");
        if self.has(b'v') {
            out.extend_from_slice(digits);
            out.extend_from_slice(b"\r\n");
        }
    }
}
