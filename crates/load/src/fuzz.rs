//! Parsers of external input, for fuzz targets: each accepts any bytes, and a request it gives is valid for the protocol.

use std::io::{BufRead as _, Cursor};

use crate::cache::fuzz::unpacked;
use crate::reply::{self, Parsed, Reply};
use crate::requests::{KEY_MAX, Layout, Request, Trace, VALUE_MAX, cachebench};

/// Answers of a memcached server, piece by piece.
pub fn replies(mut data: &[u8]) {
    while let Parsed::Whole(length, reply) = reply::parse(data) {
        assert!((1..=data.len()).contains(&length));
        if let Reply::Value { key, value } = reply {
            assert!(key.end <= value.start && value.end <= length);
        }
        data = &data[length..];
    }
}

/// Traces, also compressed ones, and cachebench's configurations. The first byte selects the format.
pub fn traces(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    if let Ok(config) = std::str::from_utf8(rest) {
        let _ = cachebench::parse(config, None, &mut |_| Err("no file".into()));
    }
    let picked = ["key=1,size=2", "key=id,size=bytes,op=op,ttl=ttl"][usize::from(kind / 3 % 2)];
    let layout = match (kind % 3, picked.parse()) {
        (1, _) => Layout::OracleGeneral,
        (2, Ok(picked)) => Layout::Table(picked),
        _ => Layout::Recognised,
    };
    let Ok(mut reader) = unpacked(Cursor::new(rest.to_vec())) else { return };
    if reader.fill_buf().is_err() {
        return;
    }
    let Ok(mut trace) = Trace::new(reader, &layout, true) else { return };
    let mut request = Request::default();
    for _ in 0..1000 {
        if !matches!(trace.next(&mut request), Ok(true)) {
            return;
        }
        assert!((1..=KEY_MAX).contains(&request.key.len()) && request.value_bytes <= VALUE_MAX);
        assert!(request.key.iter().all(|byte| *byte > b' ' && *byte != 127));
    }
}
