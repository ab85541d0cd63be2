//! get, gets, gat and gats: items by key, any number of them per line.

use super::counters::Event;
use super::deferred::{Ask, Deferred, Gap};
use super::detail::Did;
use super::dispatch::{BAD_EXPTIME, BAD_FORMAT, Dispatch};
use super::pending_reads::Found;
use super::service::KEY_MAX;
use super::text::{push, signed_32, words};
use nearfar_cache::store::{Edit, Meta};

/// The operation on each key of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    shows: Shows,
    /// New expiry of the items.
    touch: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    Value,
    ValueAndCas,
}

/// The command name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Get,
    Gets,
    Gat,
    Gats,
}

impl Named {
    /// Whether items are unchanged.
    pub(super) const fn only_reads(self) -> bool {
        matches!(self, Self::Get | Self::Gets)
    }
}

impl Keys {
    #[inline]
    pub(super) fn named(verb: &[u8]) -> Option<Named> {
        match verb {
            b"get" => Some(Named::Get),
            b"gets" => Some(Named::Gets),
            b"gat" => Some(Named::Gat),
            b"gats" => Some(Named::Gats),
            _ => None,
        }
    }
}

impl Dispatch<'_> {
    /// Starts to read items. Returns the operation and the part of the line with the keys.
    #[inline]
    pub(super) fn begin<'a>(
        &self,
        named: Named,
        args: &'a [u8],
    ) -> Result<(Keys, &'a [u8]), &'static [u8]> {
        let (keys, args) = self.begin_long(named, args)?;
        let mut count = 0;
        for key in words(args) {
            if key.len() > KEY_MAX {
                return Err(BAD_FORMAT);
            }
            count += 1;
        }
        if count == 0 { Err(BAD_FORMAT) } else { Ok((keys, args)) }
    }

    /// Starts to read items of an incomplete line, whose keys can't all be checked in advance.
    pub(super) fn begin_long<'a>(
        &self,
        named: Named,
        args: &'a [u8],
    ) -> Result<(Keys, &'a [u8]), &'static [u8]> {
        let shows = match named {
            Named::Get | Named::Gat => Shows::Value,
            Named::Gets | Named::Gats => Shows::ValueAndCas,
        };
        if let Named::Get | Named::Gets = named {
            return Ok((Keys { shows, touch: None }, args));
        }
        let mut words = words(args);
        let expires = words.next().ok_or(BAD_FORMAT)?;
        let args = words.rest();
        if words.next().is_none() {
            return Err(BAD_FORMAT);
        }
        let expires = signed_32(expires).ok_or(BAD_EXPTIME)?;
        let touch = Some(self.service.second(expires, self.now));
        Ok((Keys { shows, touch }, args))
    }

    /// Appends the item, if there is one, or leaves a gap for it.
    #[inline]
    pub(super) fn read(&self, keys: Keys, key: &[u8], out: &mut Vec<u8>, deferred: &mut Deferred) {
        let found = match keys.touch {
            None => self.read_item(keys.shows, key, out, deferred),
            Some(expires) => Some(self.touch_item((keys.shows, expires), key, out)),
        };
        if let Some(found) = found {
            self.service.detail.note(key, if found { Did::Hit } else { Did::Miss });
        }
    }

    /// Whether there is an item, if that is known.
    #[inline]
    fn read_item(
        &self,
        shows: Shows,
        key: &[u8],
        out: &mut Vec<u8>,
        deferred: &mut Deferred,
    ) -> Option<bool> {
        let mut size = 0;
        let mut head = |meta: &Meta, bytes: usize, out: &mut Vec<u8>| {
            size = bytes;
            push_head(key, (meta, shows), bytes, out);
        };
        let found = match self.find(key, out, &mut head) {
            Found::Later(token, bytes) => {
                let (key, at) = (key.to_vec(), out.len());
                deferred.add(Gap { token, at, key, ask: Ask::Item(shows), reply: None }, bytes);
                return None;
            }
            Found::Yes(_) => true,
            Found::No => false,
        };
        if found {
            out.extend_from_slice(b"\r\n");
        }
        self.count_get(key, found.then_some(size));
        Some(found)
    }

    /// Appends the item of an asynchronous read, if there is one.
    pub(super) fn fill_item(
        &self,
        shows: Shows,
        key: &[u8],
        item: Option<(&Meta, &[u8])>,
        out: &mut Vec<u8>,
    ) {
        if let Some((meta, value)) = item {
            push_head(key, (meta, shows), value.len(), out);
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        self.count_get(key, item.map(|(_, value)| value.len()));
        self.service.detail.note(key, if item.is_some() { Did::Hit } else { Did::Miss });
    }

    /// Counts a read; `found` has the bytes of the item's value.
    #[inline]
    pub(super) fn count_get(&self, key: &[u8], found: Option<usize>) {
        self.counts.cmd_get.one();
        match found {
            Some(bytes) => {
                self.counts.get_hits.one();
                self.count_of_class(Event::GetHit, key, bytes);
            }
            None => self.counts.get_misses.one(),
        }
    }

    fn touch_item(&self, (shows, expires): (Shows, u32), key: &[u8], out: &mut Vec<u8>) -> bool {
        let mut found = None;
        let mark = out.len();
        let done = self.store.edit(key, &mut Vec::new(), &mut |old, _| {
            let Some(old) = old else { return Edit::Keep };
            found = Some(old.len());
            let meta = old.meta();
            push_head(key, (&meta, shows), old.len(), out);
            old.read(out);
            out.extend_from_slice(b"\r\n");
            Edit::Set(Meta { expires, accessed: self.now, fetched: true, ..meta })
        });
        if done.is_err() {
            out.truncate(mark);
            found = None;
        }
        self.count_touch(key, found);
        found.is_some()
    }
}

/// `VALUE <key> <flags> <bytes> [<cas unique>]`
#[inline]
fn push_head(key: &[u8], (meta, shows): (&Meta, Shows), bytes: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push(out, u64::from(meta.flags));
    out.push(b' ');
    push(out, bytes as u64);
    if shows == Shows::ValueAndCas {
        out.push(b' ');
        push(out, meta.cas);
    }
    out.extend_from_slice(b"\r\n");
}
