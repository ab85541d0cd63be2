//! The flags of meta commands: one letter each, some with a token after it.
//!
//! All commands share one set, as in memcached: a flag without meaning for a command is ignored; an unknown one is an
//! error, and so is a repeated one. All errors are found before anything is done.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::dispatch::{BAD_FORMAT, Dispatch};
use super::service::KEY_MAX;
use super::text::{push, signed_32, unsigned, unsigned_32, words};
use nearfar_cache::store::Meta;

/// Maximum number of words in a line, its command and key included.
const WORDS_MAX: usize = 20;
/// Maximum bytes of an opaque token, its letter included.
const OPAQUE_MAX: usize = 32;

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
pub(super) const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";

/// A key as it was written, and its decoded bytes.
#[derive(Debug)]
pub(super) enum Key<'a> {
    Plain(&'a [u8]),
    Binary { text: &'a [u8], bytes: Vec<u8> },
}

impl<'a> Key<'a> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain(text) => text,
            Self::Binary { bytes, .. } => bytes,
        }
    }

    /// A key in base64.
    pub(super) fn decode(text: &'a [u8]) -> Option<Self> {
        let bytes = STANDARD.decode(text).ok().filter(|bytes| !bytes.is_empty())?;
        Some(Self::Binary { text, bytes })
    }

    /// Appends it as it was written.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        match self {
            Self::Plain(text) | Self::Binary { text, .. } => out.extend_from_slice(text),
        }
    }
}

/// Appends a key in a form that can be read back, in base64 if necessary; returns whether it is.
pub(super) fn push_key(key: &[u8], out: &mut Vec<u8>) -> bool {
    let is_binary = key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f);
    if is_binary {
        out.extend_from_slice(STANDARD.encode(key).as_bytes());
    } else {
        out.extend_from_slice(key);
    }
    is_binary
}

/// The flags of a meta command, and its key.
#[derive(Debug)]
pub(super) struct Flags<'a> {
    pub(super) key: Key<'a>,
    /// The flags as they were written.
    text: &'a [u8],
    seen: u128,
    /// T: seconds of the store, as in N and R.
    pub(super) ttl: Option<u32>,
    /// N.
    pub(super) vivify: Option<u32>,
    /// R.
    pub(super) recache: Option<u32>,
    /// F.
    pub(super) client: u32,
    /// C.
    pub(super) cas: Option<u64>,
    /// E.
    pub(super) new_cas: Option<u64>,
    /// M.
    pub(super) mode: Option<u8>,
    /// J.
    pub(super) initial: u64,
    /// D.
    pub(super) delta: u64,
}

impl<'a> Flags<'a> {
    /// Parses a key's flags from `text`, after `before` words.
    pub(super) fn parse(
        dispatch: &Dispatch<'_>,
        key: &'a [u8],
        text: &'a [u8],
        before: usize,
    ) -> Result<Self, &'static [u8]> {
        let mut flags = Self {
            key: Key::Plain(key),
            text,
            seen: 0,
            ttl: None,
            vivify: None,
            recache: None,
            client: 0,
            cas: None,
            new_cas: None,
            mode: None,
            initial: 0,
            delta: 1,
        };
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(BAD_FORMAT);
        }
        for (count, word) in words(text).enumerate() {
            if before + count >= WORDS_MAX {
                return Err(b"CLIENT_ERROR options flags are too long\r\n");
            }
            let bit = 1u128.checked_shl(u32::from(word[0])).unwrap_or(0);
            if bit == 0 || flags.seen & bit != 0 {
                return Err(b"CLIENT_ERROR duplicate flag\r\n");
            }
            flags.seen |= bit;
            flags.take(dispatch, word[0], &word[1..])?;
        }
        Ok(flags)
    }

    fn take(
        &mut self,
        dispatch: &Dispatch<'_>,
        flag: u8,
        token: &'a [u8],
    ) -> Result<(), &'static [u8]> {
        let second = |token| {
            let expires = signed_32(token).ok_or(BAD_TOKEN)?;
            Ok(dispatch.service.second(expires, dispatch.now))
        };
        match flag {
            b'b' => {
                let Key::Plain(text) = self.key else { return Ok(()) };
                self.key = Key::decode(text).ok_or(&b"CLIENT_ERROR error decoding key\r\n"[..])?;
            }
            b'T' => self.ttl = Some(second(token)?),
            b'N' => self.vivify = Some(second(token)?),
            b'R' => self.recache = Some(second(token)?),
            b'F' => self.client = unsigned_32(token).ok_or(BAD_FORMAT)?,
            b'C' => self.cas = Some(unsigned(token).ok_or(BAD_TOKEN)?),
            b'E' => self.new_cas = Some(unsigned(token).ok_or(BAD_TOKEN)?),
            b'M' => self.mode = Some(token.first().copied().unwrap_or(0)),
            b'J' => {
                let wrong = &b"CLIENT_ERROR invalid numeric initial value\r\n"[..];
                self.initial = unsigned(token).ok_or(wrong)?;
            }
            b'D' => {
                let wrong = &b"CLIENT_ERROR invalid numeric delta value\r\n"[..];
                self.delta = unsigned(token).ok_or(wrong)?;
            }
            b'O' if token.len() >= OPAQUE_MAX => return Err(OPAQUE_TOO_LONG),
            b'c' | b'f' | b'h' | b'k' | b'l' | b'q' | b's' | b't' | b'u' | b'v' | b'x' => (),
            b'I' | b'L' | b'O' | b'P' => (),
            _ => return Err(b"CLIENT_ERROR invalid flag\r\n"),
        }
        Ok(())
    }

    #[inline]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.seen & 1u128.checked_shl(u32::from(flag)).unwrap_or(0) != 0
    }

    /// The letters of the flags, each with its word, in their order.
    pub(super) fn each(&self) -> impl Iterator<Item = (u8, &'a [u8])> {
        words(self.text).map(|word| (word[0], word))
    }

    /// Appends a part of the request that the reply repeats: the key, or an opaque token.
    #[inline]
    pub(super) fn repeat(&self, flag: u8, word: &[u8], out: &mut Vec<u8>) {
        match flag {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => {
                out.extend_from_slice(b" k");
                self.key.push(out);
                if let Key::Binary { .. } = self.key {
                    out.extend_from_slice(b" b");
                }
            }
            _ => (),
        }
    }

    /// Appends all repeated parts, and ends the line.
    pub(super) fn repeat_all(&self, out: &mut Vec<u8>) {
        for (flag, word) in self.each() {
            self.repeat(flag, word, out);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a flag of a reply with a number.
#[inline]
pub(super) fn push_flag(flag: u8, number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', flag]);
    push(out, number);
}

/// Appends the fields shared by lists of items and me: ` cas=<cas> fetch=yes|no cls=1 size=<bytes>`.
pub(super) fn push_kept(meta: &Meta, bytes: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(b" cas=");
    push(out, meta.cas);
    out.extend_from_slice(if meta.fetched { b" fetch=yes" } else { b" fetch=no" });
    out.extend_from_slice(b" cls=1 size=");
    push(out, bytes as u64);
}

/// Appends the remaining seconds of an item, -1 if it never expires.
pub(super) fn push_left(expires: u32, now: u32, out: &mut Vec<u8>) {
    if expires == 0 {
        out.extend_from_slice(b" t-1");
    } else {
        push_flag(b't', u64::from(expires.saturating_sub(now)), out);
    }
}
