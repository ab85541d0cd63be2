//! Lists of all items: lru_crawler metadump and mgdump, stats cachedump.
//!
//! A list is created completely before any of it is written, and its worker does nothing else meanwhile. It is cut off
//! where it becomes too large ([`super::Settings::dump_bytes_max`]), and then ends with an error instead of the usual
//! end. Size classes are ignored: the list always has all items.

use super::connection::Step;
use super::dispatch::Dispatch;
use super::flags::{push_kept, push_key};
use super::text::{push, unsigned_32};
use nearfar_cache::store::Meta;

/// Maximum bytes of memcached's cachedump.
const CACHEDUMP_MAX: usize = 2 << 20;

/// Appends bytes escaped so that they can't end a word.
fn push_uri(bytes: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(*byte);
        } else {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            out.extend_from_slice(&[b'%', HEX[high], HEX[low]]);
        }
    }
}

fn is_class(word: &[u8]) -> bool {
    let is_number = |part: &[u8]| unsigned_32(part).is_some();
    word == b"all" || word == b"hash" || word.split(|byte| *byte == b',').all(is_number)
}

impl Dispatch<'_> {
    fn push_unix(&self, second: u32, out: &mut Vec<u8>) {
        push(out, u64::try_from(self.service.unix(second)).unwrap_or(0));
    }

    /// `key=<key> exp=<unix> la=<unix> cas=<cas> fetch=yes|no cls=1 size=<bytes> flags=<flags>`
    pub(super) fn metadump(&self, class: &[u8], out: &mut Vec<u8>) -> Step {
        self.list((class, b"ERROR metadump not allowed\r\n", b"END\r\n"), out, |item, out| {
            let (key, meta, bytes) = item;
            out.extend_from_slice(b"key=");
            push_uri(key, out);
            out.extend_from_slice(b" exp=");
            if meta.expires == 0 {
                out.extend_from_slice(b"-1");
            } else {
                self.push_unix(meta.expires, out);
            }
            out.extend_from_slice(b" la=");
            self.push_unix(meta.accessed, out);
            push_kept(meta, key.len() + bytes, out);
            out.extend_from_slice(b" flags=");
            push(out, u64::from(meta.flags));
            out.push(b'\n');
        })
    }

    /// `mg <key> [b]`
    pub(super) fn mgdump(&self, class: &[u8], out: &mut Vec<u8>) -> Step {
        self.list((class, b"ERROR key dump not allowed\r\n", b"EN\r\n"), out, |(key, ..), out| {
            out.extend_from_slice(b"mg ");
            if push_key(key, out) {
                out.extend_from_slice(b" b");
            }
            out.extend_from_slice(b"\r\n");
        })
    }

    fn list(
        &self,
        (class, forbidden, end): (&[u8], &[u8], &[u8]),
        out: &mut Vec<u8>,
        line: impl Fn((&[u8], &Meta, usize), &mut Vec<u8>),
    ) -> Step {
        if !self.settings().dump {
            out.extend_from_slice(forbidden);
            return Step::Done(0);
        }
        if !is_class(class) {
            out.extend_from_slice(b"BADCLASS invalid class id\r\n");
            return Step::Done(0);
        }
        out.extend_from_slice(b"OK\r\n");
        let most = out.len().saturating_add(self.settings().dump_bytes_max);
        let mut is_whole = true;
        self.store.each(&mut |key, meta, bytes| {
            is_whole = out.len() < most;
            if is_whole {
                line((key, meta, bytes), out);
            }
            is_whole
        });
        out.extend_from_slice(if is_whole {
            end
        } else {
            b"ERROR the list was cut off, as it is too long\r\n"
        });
        Step::Done(0)
    }

    /// `ITEM <key> [<bytes> b; <unix> s]`
    pub(super) fn cachedump(&self, items: u32, out: &mut Vec<u8>) {
        let most = out.len() + CACHEDUMP_MAX;
        let mut left = if items == 0 { u32::MAX } else { items };
        self.store.each(&mut |key, meta, bytes| {
            if out.len() >= most || left == 0 {
                return false;
            }
            left -= 1;
            out.extend_from_slice(b"ITEM ");
            out.extend_from_slice(key);
            out.extend_from_slice(b" [");
            push(out, bytes as u64);
            out.extend_from_slice(b" b; ");
            if meta.expires == 0 {
                out.push(b'0');
            } else {
                self.push_unix(meta.expires, out);
            }
            out.extend_from_slice(b" s]\r\n");
            true
        });
        out.extend_from_slice(b"END\r\n");
    }
}
