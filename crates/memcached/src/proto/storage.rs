//! set, add, replace, append, prepend, cas and ms: a line, and a value after it.
//!
//! An invalid line is refused before its value arrives. If at least its length is valid the value is dropped, so that
//! it is not parsed as commands; else the bytes that follow are parsed as lines, as memcached does. Too large values
//! are refused here and, by its own limit, by the store.

use super::counters::Event;
use super::detail::Did;
use super::dispatch::{BAD_FORMAT, Dispatch, TOO_LARGE, is_quiet};
use super::flags::{Flags, Key, push_flag};
use super::service::{ITEM_OVERHEAD, KEY_MAX};
use super::text::{cut, signed_32, unsigned, unsigned_32, words};
use nearfar_cache::store::{Edit, Meta, Old, Refused};

/// The largest length that can be expressed, as each value has a line end.
const BYTES_MAX: u32 = 0x7fff_ffff - 2;

/// The condition for storing a value, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// A storage command.
#[derive(Debug)]
pub(super) struct Storage<'a> {
    mode: Mode,
    key: &'a [u8],
    /// Bytes of the value.
    pub(super) bytes: usize,
    /// The item's metadata; its CAS is chosen when it is stored.
    meta: Meta,
    /// The expected CAS; 0 is any, except in cas.
    cas: u64,
    /// Whether the reply to success is suppressed,
    is_quiet: bool,
    /// and the reply to failure.
    quiets_errors: bool,
    flags: Option<Flags<'a>>,
}

/// A refused storage command.
#[derive(Debug)]
pub(super) struct Unfit<'a> {
    error: &'static [u8],
    /// Bytes of its value and line end, if known.
    swallow: Option<usize>,
    is_quiet: bool,
    /// The key whose item is removed, as it is not the one the client expects.
    remove: Option<Key<'a>>,
}

impl Unfit<'_> {
    fn malformed() -> Self {
        Self { error: BAD_FORMAT, swallow: None, is_quiet: false, remove: None }
    }
}

/// A value and its end.
pub(super) enum Data<'a> {
    /// In a buffer of the caller's; with a scratch buffer.
    Lent(&'a [u8], &'a mut Vec<u8>),
    /// In the scratch buffer itself.
    Own(&'a mut Vec<u8>),
}

impl<'a> Data<'a> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes, _) => bytes,
            Self::Own(bytes) => bytes,
        }
    }

    /// The value alone, as edits take it.
    fn into_room(self) -> &'a mut Vec<u8> {
        match self {
            Self::Lent(bytes, room) => {
                room.clear();
                room.extend_from_slice(&bytes[..bytes.len() - 2]);
                room
            }
            Self::Own(room) => {
                room.truncate(room.len() - 2);
                room
            }
        }
    }
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Stored { cas: u64, bytes: usize },
    NotStored,
    Exists,
    NotFound,
}

fn length(word: &[u8]) -> Option<usize> {
    let bytes = unsigned_32(word).filter(|bytes| *bytes <= BYTES_MAX)?;
    usize::try_from(bytes).ok()
}

impl<'a> Storage<'a> {
    #[inline]
    pub(super) fn is_named(verb: &[u8]) -> bool {
        verb == b"ms" || Self::mode(verb).is_some()
    }

    #[inline]
    fn mode(verb: &[u8]) -> Option<Mode> {
        match verb {
            b"set" => Some(Mode::Set),
            b"add" => Some(Mode::Add),
            b"replace" => Some(Mode::Replace),
            b"append" => Some(Mode::Append),
            b"prepend" => Some(Mode::Prepend),
            b"cas" => Some(Mode::Cas),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn parse(dispatch: &Dispatch<'_>, line: &'a [u8]) -> Result<Self, Unfit<'a>> {
        let (verb, args) = cut(line);
        let storage = match Self::mode(verb) {
            Some(mode) => Self::parse_classic(dispatch, mode, args)?,
            None => Self::parse_meta(dispatch, args)?,
        };
        let all = storage.key.len() + storage.bytes + ITEM_OVERHEAD;
        if all > dispatch.settings().item_bytes_max {
            let remove = match storage.flags {
                Some(flags) => Some(flags.key),
                None => (storage.mode == Mode::Set).then_some(Key::Plain(storage.key)),
            };
            let (swallow, is_quiet) = (Some(storage.bytes + 2), storage.quiets_errors);
            return Err(Unfit { error: TOO_LARGE, swallow, is_quiet, remove });
        }
        Ok(storage)
    }

    /// `<key> <flags> <exptime> <bytes> [<cas unique>] [noreply]`
    #[inline]
    fn parse_classic(
        dispatch: &Dispatch<'_>,
        mode: Mode,
        args: &'a [u8],
    ) -> Result<Self, Unfit<'a>> {
        let mut words = words(args);
        let mut next = || words.next().ok_or_else(Unfit::malformed);
        let (key, flags, expires, bytes) = (next()?, next()?, next()?, next()?);
        let bytes = length(bytes).ok_or_else(Unfit::malformed)?;
        let is_quiet = is_quiet(words.rest());
        let unfit =
            || Unfit { error: BAD_FORMAT, swallow: Some(bytes + 2), is_quiet, remove: None };
        if key.len() > KEY_MAX {
            return Err(unfit());
        }
        let client = unsigned_32(flags).ok_or_else(unfit)?;
        let expires = signed_32(expires).ok_or_else(unfit)?;
        let cas = match mode {
            Mode::Cas => words.next().and_then(unsigned).ok_or_else(unfit)?,
            _ => 0,
        };
        let expires = dispatch.service.second(expires, dispatch.now);
        let meta = Meta { flags: client, expires, accessed: dispatch.now, ..Meta::default() };
        Ok(Self { mode, key, bytes, meta, cas, is_quiet, quiets_errors: is_quiet, flags: None })
    }

    /// `<key> <datalen> <flags>*`
    fn parse_meta(dispatch: &Dispatch<'_>, args: &'a [u8]) -> Result<Self, Unfit<'a>> {
        let mut words = words(args);
        let (Some(key), Some(bytes)) = (words.next(), words.next()) else {
            return Err(Unfit::malformed());
        };
        let bytes = length(bytes).ok_or_else(Unfit::malformed)?;
        let unfit =
            |error| Unfit { error, swallow: Some(bytes + 2), is_quiet: false, remove: None };
        let flags = Flags::parse(dispatch, key, words.rest(), 3).map_err(unfit)?;
        let mut expires = flags.ttl.unwrap_or(0);
        let mut mode = match flags.mode {
            None | Some(b'S') => Mode::Set,
            Some(b'E') => Mode::Add,
            Some(b'A') => Mode::Append,
            Some(b'P') => Mode::Prepend,
            Some(b'R') => Mode::Replace,
            Some(_) => return Err(unfit(b"CLIENT_ERROR invalid mode for ms M token\r\n")),
        };
        if let Mode::Append | Mode::Prepend = mode {
            expires = flags.vivify.unwrap_or(expires);
        }
        if flags.cas.is_some() && matches!(mode, Mode::Set | Mode::Replace) {
            mode = Mode::Cas;
        }
        let (cas, is_quiet) = (flags.cas.unwrap_or(0), flags.has(b'q'));
        let meta = Meta { flags: flags.client, expires, accessed: dispatch.now, ..Meta::default() };
        let flags = Some(flags);
        Ok(Self { mode, key, bytes, meta, cas, is_quiet, quiets_errors: false, flags })
    }

    fn key(&self) -> &[u8] {
        self.flags.as_ref().map_or(self.key, |flags| flags.key.bytes())
    }

    /// Whether an append to a missing item creates it.
    fn vivifies(&self) -> bool {
        self.flags.as_ref().is_some_and(|flags| flags.vivify.is_some())
    }

    /// Whether a CAS older than the item's replaces its value, leaving the item outdated.
    fn stores_stale(&self) -> bool {
        self.flags.as_ref().is_some_and(|flags| flags.has(b'I'))
    }
}

impl Dispatch<'_> {
    /// Replies to a refused storage command; returns the bytes of value to drop, if known.
    pub(super) fn refuse(&self, unfit: &Unfit<'_>, out: &mut Vec<u8>) -> Option<usize> {
        if unfit.error == TOO_LARGE {
            self.counts.store_too_large.one();
        }
        if let Some(key) = &unfit.remove {
            self.remove(key.bytes());
        }
        if !unfit.is_quiet {
            out.extend_from_slice(unfit.error);
        }
        unfit.swallow
    }

    /// Stores a value, if its condition holds.
    pub(super) fn store(&self, storage: &Storage<'_>, data: Data<'_>, out: &mut Vec<u8>) {
        self.counts.cmd_set.one();
        self.count_of_class(Event::Set, storage.key(), storage.bytes);
        if storage.flags.is_some() {
            self.counts.cmd_meta.one();
        } else {
            self.service.detail.note(storage.key, Did::Set);
        }
        if !data.bytes().ends_with(b"\r\n") {
            if !storage.quiets_errors {
                out.extend_from_slice(b"CLIENT_ERROR bad data chunk\r\n");
            }
            return;
        }
        let new_cas = storage.flags.as_ref().and_then(|flags| flags.new_cas);
        let cas = new_cas.unwrap_or_else(|| self.service.next_cas());
        let meta = Meta { cas, ..storage.meta };
        let outcome = if storage.mode == Mode::Set {
            let value = data.bytes();
            let stored = self.store.set(storage.key(), &value[..storage.bytes], &meta);
            stored.map(|()| Outcome::Stored { cas, bytes: storage.bytes })
        } else {
            self.store_if(storage, &meta, data.into_room())
        };
        match outcome {
            Err(refused) => {
                // As memcached: ms removes an item that it could not replace, others leave it; for set, the store
                // decides.
                if let Some(flags) = &storage.flags {
                    self.remove(flags.key.bytes());
                }
                let error = self.refused(refused);
                if !storage.quiets_errors {
                    out.extend_from_slice(error);
                }
            }
            Ok(outcome) => storage.answer(outcome, out),
        }
    }

    fn store_if(
        &self,
        storage: &Storage<'_>,
        meta: &Meta,
        value: &mut Vec<u8>,
    ) -> Result<Outcome, Refused> {
        let (mut outcome, mut is_longer, mut was) = (Outcome::NotStored, false, 0);
        let stored = |bytes| Outcome::Stored { cas: meta.cas, bytes };
        let done = self.store.edit(storage.key(), value, &mut |old, value| {
            is_longer = old.is_some() && matches!(storage.mode, Mode::Append | Mode::Prepend);
            let Some(old) = old else {
                outcome = match storage.mode {
                    Mode::Set | Mode::Add => stored(value.len()),
                    Mode::Append | Mode::Prepend if storage.vivifies() => stored(value.len()),
                    Mode::Cas => Outcome::NotFound,
                    Mode::Append | Mode::Prepend | Mode::Replace => Outcome::NotStored,
                };
                return if let Outcome::Stored { .. } = outcome {
                    Edit::Put(*meta)
                } else {
                    Edit::Keep
                };
            };
            was = old.len();
            let edit = self.decide(storage, meta, old, value);
            match edit {
                Ok(new) => {
                    outcome = stored(value.len());
                    Edit::Put(new)
                }
                Err(why) => {
                    outcome = why;
                    Edit::Keep
                }
            }
        });
        match done {
            // An item without room for the appended bytes is unchanged.
            Err(_) if is_longer => return Ok(Outcome::NotStored),
            done => done?,
        }
        if storage.mode == Mode::Cas {
            match outcome {
                Outcome::Stored { .. } => {
                    self.counts.cas_hits.one();
                    self.count_of_class(Event::CasHit, storage.key(), was);
                }
                Outcome::NotFound => self.counts.cas_misses.one(),
                Outcome::Exists | Outcome::NotStored => {
                    self.counts.cas_badval.one();
                    self.count_of_class(Event::CasBadValue, storage.key(), was);
                }
            }
        }
        Ok(outcome)
    }

    /// The change of a present item; or the reason for none.
    fn decide(
        &self,
        storage: &Storage<'_>,
        meta: &Meta,
        old: &dyn Old,
        value: &mut Vec<u8>,
    ) -> Result<Meta, Outcome> {
        let was = old.meta();
        let is_same = storage.cas == was.cas;
        match storage.mode {
            Mode::Add => Err(Outcome::NotStored),
            Mode::Set | Mode::Replace => Ok(*meta),
            Mode::Cas if storage.cas == 0 => Err(Outcome::Exists),
            Mode::Cas if is_same => Ok(*meta),
            Mode::Cas if storage.stores_stale() && storage.cas < was.cas => {
                Ok(Meta { expires: was.expires, stale: true, won: was.won, ..*meta })
            }
            Mode::Cas => Err(Outcome::Exists),
            Mode::Append | Mode::Prepend if storage.cas != 0 && !is_same => Err(Outcome::Exists),
            Mode::Append | Mode::Prepend => {
                let all = storage.key().len() + old.len() + value.len() + ITEM_OVERHEAD;
                if all > self.settings().item_bytes_max {
                    return Err(Outcome::NotStored);
                }
                let added = value.len();
                old.read(value);
                if storage.mode == Mode::Append {
                    value.rotate_left(added);
                }
                Ok(Meta { flags: was.flags, expires: was.expires, ..*meta })
            }
        }
    }
}

impl Storage<'_> {
    fn answer(&self, outcome: Outcome, out: &mut Vec<u8>) {
        let Some(flags) = &self.flags else {
            if !self.is_quiet {
                out.extend_from_slice(match outcome {
                    Outcome::Stored { .. } => b"STORED\r\n",
                    Outcome::NotStored => b"NOT_STORED\r\n",
                    Outcome::Exists => b"EXISTS\r\n",
                    Outcome::NotFound => b"NOT_FOUND\r\n",
                });
            }
            return;
        };
        let (code, cas, bytes) = match outcome {
            Outcome::Stored { .. } if self.is_quiet => return,
            Outcome::Stored { cas, bytes } => (b"HD", cas, bytes),
            Outcome::NotStored => (b"NS", 0, self.bytes),
            Outcome::Exists => (b"EX", 0, self.bytes),
            Outcome::NotFound => (b"NF", 0, self.bytes),
        };
        out.extend_from_slice(code);
        for (flag, word) in flags.each() {
            match flag {
                b'c' => push_flag(b'c', cas, out),
                b's' => push_flag(b's', bytes as u64, out),
                _ => flags.repeat(flag, word, out),
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}
