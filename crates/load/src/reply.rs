//! Parses memcached's answers piece by piece, from the bytes received so far (its doc/protocol.txt), for all clients
//! here. Maintained client crates bring TLS and pools besides.
//!
//! ```text
//! get     any number of VALUE key flags bytes[ cas]\r\n value \r\n, then END\r\n
//! set     STORED\r\n | NOT_STORED\r\n
//! delete  DELETED\r\n | NOT_FOUND\r\n
//! any     ERROR\r\n | CLIENT_ERROR why\r\n | SERVER_ERROR why\r\n
//! ```
//!
//! The meaning of a piece depends on the command; the client determines it.

use std::ops::Range;

/// The most bytes of a line of an answer.
pub(crate) const LINE_MAX: usize = 2048;
/// The most bytes of a value: memcached's items may have up to 1 GiB.
const VALUE_MAX: usize = 1 << 30;

/// A piece of an answer; ranges refer to the parsed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A key's value.
    Value {
        /// The key.
        key: Range<usize>,
        /// Its value.
        value: Range<usize>,
    },
    /// No more values.
    End,
    /// It is stored.
    Stored,
    /// It is not stored, without an error.
    NotStored(Range<usize>),
    /// It is removed.
    Deleted,
    /// There was nothing to remove.
    NotFound,
    /// The server can't do it.
    ServerError(Range<usize>),
    /// The server does not understand it.
    Error(Range<usize>),
}

/// Result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// Too few bytes: at least this many are needed.
    More(usize),
    /// The first bytes, this many, form a piece of an answer.
    Whole(usize, Reply),
    /// No answer of memcached's.
    Broken,
}

/// Parses the piece at the beginning of `input`.
pub(crate) fn parse(input: &[u8]) -> Parsed {
    let end = input.iter().take(LINE_MAX).position(|byte| *byte == b'\n');
    let Some(end) = end else {
        return if input.len() < LINE_MAX { Parsed::More(input.len() + 1) } else { Parsed::Broken };
    };
    let Some(line) = input[..end].strip_suffix(b"\r") else { return Parsed::Broken };
    let all = 0..line.len();
    let reply = match line {
        b"END" => Reply::End,
        b"STORED" => Reply::Stored,
        b"NOT_STORED" => Reply::NotStored(all),
        b"DELETED" => Reply::Deleted,
        b"NOT_FOUND" => Reply::NotFound,
        b"ERROR" => Reply::Error(all),
        _ if line.starts_with(b"SERVER_ERROR") => Reply::ServerError(all),
        _ if line.starts_with(b"ERROR ") || line.starts_with(b"CLIENT_ERROR") => Reply::Error(all),
        _ => return value(line, input).unwrap_or(Parsed::Broken),
    };
    Parsed::Whole(end + 1, reply)
}

/// Parses from `VALUE key flags bytes[ cas]` on; `None` if it is no value.
fn value(line: &[u8], input: &[u8]) -> Option<Parsed> {
    let mut words = line.strip_prefix(b"VALUE ")?.split(|byte| *byte == b' ');
    let (key, _flags, bytes) = (words.next()?, words.next()?, words.next()?);
    let bytes: usize = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    if key.is_empty() || bytes > VALUE_MAX {
        return None;
    }
    let from = line.len() + 2;
    let (to, whole) = (from + bytes, from + bytes + 2);
    let Some(end) = input.get(to..whole) else { return Some(Parsed::More(whole)) };
    let key = b"VALUE ".len()..b"VALUE ".len() + key.len();
    (end == b"\r\n").then_some(Parsed::Whole(whole, Reply::Value { key, value: from..to }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALUE: &[u8] = b"VALUE key 7 5\r\na\r\nb\n\r\nEND\r\n";

    #[test]
    fn every_reply_of_the_protocol_parses() {
        let value = Reply::Value { key: 6..9, value: 15..20 };
        assert_eq!(parse(VALUE), Parsed::Whole(22, value));
        let empty = Reply::Value { key: 6..9, value: 17..17 };
        assert_eq!(
            parse(b"VALUE key 0 0 12\r\n\r\nEND\r\n"),
            Parsed::Whole(20, Reply::Value { key: 6..9, value: 18..18 })
        );
        assert_eq!(parse(b"VALUE key 0 0 1\r\n\r\n"), Parsed::Whole(19, empty));
        assert_eq!(parse(b"END\r\nmore"), Parsed::Whole(5, Reply::End));
        assert_eq!(parse(b"STORED\r\n"), Parsed::Whole(8, Reply::Stored));
        assert_eq!(parse(b"DELETED\r\n"), Parsed::Whole(9, Reply::Deleted));
        assert_eq!(parse(b"NOT_FOUND\r\n"), Parsed::Whole(11, Reply::NotFound));
        assert_eq!(parse(b"NOT_STORED\r\n"), Parsed::Whole(12, Reply::NotStored(0..10)));
        let large = b"SERVER_ERROR object too large for cache\r\n";
        assert_eq!(parse(large), Parsed::Whole(41, Reply::ServerError(0..39)));
        assert_eq!(parse(b"ERROR\r\n"), Parsed::Whole(7, Reply::Error(0..5)));
        assert_eq!(parse(b"CLIENT_ERROR bad\r\n"), Parsed::Whole(18, Reply::Error(0..16)));
        assert_eq!(parse(b"VALUE key 7 500\r\nabc"), Parsed::More(17 + 500 + 2));
    }

    #[test]
    fn malformed_replies_are_broken() {
        for input in [
            &b"END\n"[..],
            b"HTTP/1.1 400 Bad Request\r\n",
            b"VALUE key 0 99999999999\r\n",
            b"VALUE key 0 -1\r\n",
            b"VALUE key\r\n",
            b"VALUE  0 0\r\n\r\n",
            b"VALUE key 0 1\r\nabcEND\r\n",
            &[b'x'; 4000],
        ] {
            assert_eq!(parse(input), Parsed::Broken, "{input:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_as_incomplete_as_a_reply_within_them_or_as_broken(
            input in prop::collection::vec(prop::sample::select(b"VALUE key 0 12\r\nENDSTORED".to_vec()), 0..60),
        ) {
            match parse(&input) {
                Parsed::More(needed) => prop_assert!(needed > input.len()),
                Parsed::Whole(bytes, Reply::Value { key, value }) => {
                    prop_assert!(key.end < value.start && value.end < bytes && bytes <= input.len());
                }
                Parsed::Whole(bytes, _) => prop_assert!(bytes <= input.len()),
                Parsed::Broken => {}
            }
        }

        #[test]
        fn a_reply_parses_the_same_from_any_division_of_its_bytes(at in 0..22usize) {
            prop_assert!(matches!(parse(&VALUE[..at]), Parsed::More(_)));
        }
    }
}
