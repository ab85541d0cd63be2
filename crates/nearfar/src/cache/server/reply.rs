//! What a server answers, read from as many bytes as have arrived (memcached's doc/protocol.txt).
//!
//! ```text
//! get     [VALUE key flags bytes[ cas]\r\n value \r\n] END\r\n
//! set     STORED\r\n | NOT_STORED\r\n
//! delete  DELETED\r\n | NOT_FOUND\r\n
//! any     ERROR\r\n | CLIENT_ERROR why\r\n | SERVER_ERROR why\r\n
//! ```

use std::ops::Range;

/// An answer's line has at most so many bytes.
const LINE_MAX: usize = 2048;
/// And a value: memcached's items may have up to 1 GiB.
const VALUE_MAX: usize = 1 << 30;
const END: &[u8] = b"END\r\n";

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// One key's value.
    Get,
    /// To store.
    Set,
    /// To remove.
    Delete,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// This value, of the key that was asked for.
    Value(Range<usize>),
    /// The value of a key that was not.
    Foreign,
    /// No value; nothing to remove.
    Missing,
    /// Stored, or removed.
    Done,
    /// Not stored.
    Refused(Range<usize>),
    /// Not understood by the server, or out of order.
    Error(Range<usize>),
}

/// What the bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Too few: at least so many are needed.
    More(usize),
    /// So many of them are an answer.
    Whole(usize, Reply),
    /// No answer of memcached's.
    Broken,
}

/// The answer at the beginning of `input`.
pub(super) fn parse(asked: Asked, key: &[u8], input: &[u8]) -> Parsed {
    let Some(line) = line(input) else {
        return if input.len() > LINE_MAX { Parsed::Broken } else { Parsed::More(input.len() + 1) };
    };
    let Ok(line) = line else { return Parsed::Broken };
    let whole = |reply| Parsed::Whole(line.len() + 2, reply);
    match (asked, line) {
        (Asked::Get, b"END") | (Asked::Delete, b"NOT_FOUND") => whole(Reply::Missing),
        (Asked::Set, b"STORED") | (Asked::Delete, b"DELETED") => whole(Reply::Done),
        (Asked::Set, b"NOT_STORED") => whole(Reply::Refused(0..line.len())),
        (Asked::Get, _) if line.starts_with(b"VALUE ") => value(key, line, input),
        (Asked::Set, _) if line.starts_with(b"SERVER_ERROR") => whole(Reply::Refused(0..line.len())),
        (_, b"ERROR") => whole(Reply::Error(0..line.len())),
        _ if line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR") => {
            whole(Reply::Error(0..line.len()))
        }
        _ => Parsed::Broken,
    }
}

/// The first line without its end; an error if it ends otherwise than memcached's do.
fn line(input: &[u8]) -> Option<Result<&[u8], ()>> {
    let end = input.iter().take(LINE_MAX + 1).position(|byte| *byte == b'\n')?;
    Some(input[..end].strip_suffix(b"\r").ok_or(()))
}

/// From `VALUE key flags bytes[ cas]` on.
fn value(key: &[u8], line: &[u8], input: &[u8]) -> Parsed {
    let mut words = line.split(|byte| *byte == b' ').skip(1);
    let (found, _flags, bytes) = (words.next(), words.next(), words.next());
    let bytes = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse::<usize>().ok());
    let (Some(found), Some(bytes)) = (found, bytes.filter(|bytes| *bytes <= VALUE_MAX)) else {
        return Parsed::Broken;
    };
    let from = line.len() + 2;
    let whole = from + bytes + 2 + END.len();
    let Some(rest) = input.get(from + bytes..whole) else { return Parsed::More(whole) };
    if !rest.starts_with(b"\r\n") || !rest.ends_with(END) {
        return Parsed::Broken;
    }
    let mine = found == key;
    Parsed::Whole(whole, if mine { Reply::Value(from..from + bytes) } else { Reply::Foreign })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALUE: &[u8] = b"VALUE key 7 5\r\na\r\nb\n\r\nEND\r\n";

    #[test]
    fn answers_are_what_the_protocol_says() {
        let of = |asked, input: &[u8]| parse(asked, b"key", input);
        assert_eq!(of(Asked::Get, VALUE), Parsed::Whole(VALUE.len(), Reply::Value(15..20)));
        assert_eq!(of(Asked::Get, b"VALUE kex 0 0\r\n\r\nEND\r\n"), Parsed::Whole(22, Reply::Foreign));
        assert_eq!(of(Asked::Get, b"END\r\nmore"), Parsed::Whole(5, Reply::Missing));
        assert_eq!(of(Asked::Set, b"STORED\r\n"), Parsed::Whole(8, Reply::Done));
        assert_eq!(of(Asked::Delete, b"DELETED\r\n"), Parsed::Whole(9, Reply::Done));
        assert_eq!(of(Asked::Delete, b"NOT_FOUND\r\n"), Parsed::Whole(11, Reply::Missing));
        let large = b"SERVER_ERROR object too large for cache\r\n";
        assert_eq!(of(Asked::Set, large), Parsed::Whole(41, Reply::Refused(0..39)));
        assert_eq!(of(Asked::Get, large), Parsed::Whole(41, Reply::Error(0..39)));
        assert_eq!(of(Asked::Set, b"ERROR\r\n"), Parsed::Whole(7, Reply::Error(0..5)));
        assert_eq!(of(Asked::Get, b"VALUE key 7 500\r\nabc"), Parsed::More(17 + 500 + 7));
    }

    #[test]
    fn what_is_no_answer_is_broken() {
        for (asked, input) in [
            (Asked::Set, &b"END\r\n"[..]),
            (Asked::Get, b"STORED\r\n"),
            (Asked::Get, b"END\n"),
            (Asked::Get, b"HTTP/1.1 400 Bad Request\r\n"),
            (Asked::Get, b"VALUE key 0 99999999999\r\n"),
            (Asked::Get, b"VALUE key 0 -1\r\n"),
            (Asked::Get, b"VALUE key\r\n"),
            (Asked::Get, b"VALUE key 0 1\r\nabcEND\r\n"),
            (Asked::Get, &[b'x'; 4000]),
        ] {
            assert_eq!(parse(asked, b"key", input), Parsed::Broken, "{input:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_more_an_answer_within_them_or_broken(
            asked in prop::sample::select(vec![Asked::Get, Asked::Set, Asked::Delete]),
            input in prop::collection::vec(prop::sample::select(b"VALUE key 0 12\r\nENDSTORED".to_vec()), 0..60),
        ) {
            match parse(asked, b"key", &input) {
                Parsed::More(needed) => prop_assert!(needed > input.len()),
                Parsed::Whole(bytes, Reply::Value(range)) => prop_assert!(range.end <= bytes && bytes <= input.len()),
                Parsed::Whole(bytes, _) => prop_assert!(bytes <= input.len()),
                Parsed::Broken => {}
            }
        }

        #[test]
        fn an_answer_is_the_same_however_it_arrives(at in 0..VALUE.len()) {
            prop_assert!(matches!(parse(Asked::Get, b"key", &VALUE[..at]), Parsed::More(_)));
        }
    }
}
