//! Answers `GET /metrics`, and nothing else. One at a time, and whoever is slow is left after two seconds.

use core::time::Duration;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::metrics;
use super::shared::Shared;
use super::stream::Stream;

const WAIT: Duration = Duration::from_secs(2);
/// A request's line and headers have at most so many bytes.
const REQUEST_MAX: usize = 8 << 10;
/// Reads that a request may take, so that bytes that trickle in don't hold others up.
const READS: usize = 64;

/// Answers until nobody can ask any more.
pub(super) fn run(shared: &Arc<Shared>, from: &Receiver<Stream>) {
    for stream in from {
        if let Stream::Tcp(socket) = stream {
            // Who asked and went away is not missed.
            let _ = answer(shared, TcpStream::from(OwnedFd::from(socket)));
        }
    }
}

fn answer(shared: &Shared, mut socket: TcpStream) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.set_write_timeout(Some(WAIT))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    for _ in 0..READS {
        let bytes = socket.read(&mut part)?;
        request.extend_from_slice(&part[..bytes]);
        let is_whole = request.windows(4).any(|end| end == b"\r\n\r\n");
        if bytes == 0 || is_whole || request.len() > REQUEST_MAX {
            break;
        }
    }
    let (status, body) = respond(shared, &request);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes())?;
    socket.write_all(body.as_bytes())
}

fn respond(shared: &Shared, request: &[u8]) -> (&'static str, String) {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics"), Some(version)) if version.starts_with(b"HTTP/1.") => {
            ("200 OK", metrics::text(shared))
        }
        (Some(b"GET"), Some(path), Some(_)) if path.starts_with(b"/") => {
            ("404 Not Found", "there is /metrics only\n".to_owned())
        }
        (Some(b"HEAD" | b"POST" | b"PUT" | b"DELETE" | b"OPTIONS"), Some(_), Some(_)) => {
            ("405 Method Not Allowed", "GET only\n".to_owned())
        }
        _ => ("400 Bad Request", "no request\n".to_owned()),
    }
}
