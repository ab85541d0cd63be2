//! Serves `GET /metrics`, and a page at `/` with a link to it. One thread with non-blocking connections, so that a
//! silent client delays no other.
//!
//! A connection has ten seconds in total. At most [`OPEN_MAX`] are open: a new one replaces the oldest.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use mio::{Events, Interest, Poll, Token, Waker};

use super::clock::Deadline;
use super::listen::Listener;
use super::metrics;
use super::shared::Shared;
use super::socket::Got;
use super::stream::Stream;

const WAIT: Duration = Duration::from_secs(10);
/// Maximum interval of checks for new and overdue connections.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum bytes of a request's line and headers.
const REQUEST_MAX: usize = 8 << 10;
/// Maximum open connections.
const OPEN_MAX: usize = 64;
const WAKE: Token = Token(usize::MAX);
const LISTEN: Token = Token(usize::MAX - 1);

const TEXT: &str = "text/plain; version=0.0.4";
const FRONT: &str =
    "<!doctype html><title>nearfar cache</title><a href=\"/metrics\">/metrics</a>\n";

/// A connection that sends a request or receives its reply.
struct Peer {
    stream: Stream,
    request: Vec<u8>,
    /// Empty until the request is whole.
    answer: Vec<u8>,
    sent: usize,
    until: Deadline,
}

/// The serving thread.
pub(super) struct Http {
    shared: Arc<Shared>,
    poll: Poll,
    waker: Arc<Waker>,
    listener: Listener,
    /// By age: numbers only grow.
    peers: BTreeMap<usize, Peer>,
    next: usize,
}

impl Http {
    pub(super) fn new(shared: Arc<Shared>, mut listener: Listener) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        listener.register(poll.registry(), LISTEN)?;
        Ok(Self { shared, poll, waker, listener, peers: BTreeMap::new(), next: 0 })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Serves until all workers have ended.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(OPEN_MAX);
        while self.shared.state.has_workers() {
            let left = self.peers.values().map(|peer| peer.until.left()).min();
            let polled =
                self.poll.poll(&mut events, Some(left.map_or(LOOK, |left| left.min(LOOK))));
            if let Err(error) = polled
                && error.kind() != ErrorKind::Interrupted
            {
                return Err(error);
            }
            for Token(number) in events.iter().map(|event| event.token()) {
                self.go_on(number);
            }
            self.peers.retain(|_, peer| !peer.until.passed());
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        // If none can be accepted now, the next iteration retries.
        while let Ok((mut stream, _)) = self.listener.accept() {
            if self.peers.len() >= OPEN_MAX {
                self.peers.pop_first();
            }
            if stream.register(self.poll.registry(), Token(self.next)).is_ok() {
                let (request, answer) = (Vec::new(), Vec::new());
                let until = Deadline::after(WAIT);
                self.peers.insert(self.next, Peer { stream, request, answer, sent: 0, until });
                self.go_on(self.next);
            }
            self.next += 1;
        }
    }

    /// Reads and replies as far as the socket allows; closes a finished connection.
    fn go_on(&mut self, number: usize) {
        let Some(mut peer) = self.peers.remove(&number) else { return };
        if self.try_go_on(&mut peer, number).is_ok_and(|is_open| is_open) {
            self.peers.insert(number, peer);
        }
    }

    fn try_go_on(&self, peer: &mut Peer, number: usize) -> io::Result<bool> {
        if peer.answer.is_empty() {
            if !peer.has_asked()? {
                return Ok(true);
            }
            peer.answer = answer(&self.shared, &peer.request);
            let both = Interest::READABLE | Interest::WRITABLE;
            peer.stream.watch(self.poll.registry(), Token(number), both)?;
        }
        while peer.sent < peer.answer.len() {
            match peer.stream.write(&peer.answer[peer.sent..])? {
                0 => return Ok(true),
                bytes => peer.sent += bytes,
            }
        }
        Ok(false)
    }
}

impl Peer {
    /// Reads the available bytes. Returns whether the request is complete, or never will be.
    fn has_asked(&mut self) -> io::Result<bool> {
        let mut part = [0; 1024];
        loop {
            let got = self.stream.read(&mut part)?;
            if add(&mut self.request, &part[..got.bytes()]) || got == Got::End {
                return Ok(true);
            }
            if got == Got::Nothing {
                return Ok(false);
            }
        }
    }
}

/// Adds a part of a request. Returns whether the request is complete, or too long.
fn add(request: &mut Vec<u8>, part: &[u8]) -> bool {
    let from = request.len().saturating_sub(3);
    request.extend_from_slice(part);
    let is_whole = request[from..].windows(4).any(|end| end == b"\r\n\r\n");
    is_whole || request.len() > REQUEST_MAX
}

fn answer(shared: &Shared, request: &[u8]) -> Vec<u8> {
    let (status, kind, body) = respond(shared, request);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

fn respond(shared: &Shared, request: &[u8]) -> (&'static str, &'static str, String) {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(path), Some(version)) if version.starts_with(b"HTTP/1.") => {
            match path {
                b"/metrics" => ("200 OK", TEXT, metrics::text(shared)),
                b"/" => ("200 OK", "text/html; charset=utf-8", FRONT.to_owned()),
                _ => ("404 Not Found", TEXT, "there is /metrics only\n".to_owned()),
            }
        }
        (Some(b"HEAD" | b"POST" | b"PUT" | b"DELETE" | b"OPTIONS"), Some(_), Some(_)) => {
            ("405 Method Not Allowed", TEXT, "GET only\n".to_owned())
        }
        _ => ("400 Bad Request", TEXT, "no request\n".to_owned()),
    }
}

/// Arbitrary bytes as a request, in parts with a length given by the first byte: the reply is valid HTTP with the
/// length it announces.
///
/// # Panics
/// If it is not, or if it depends on the parts.
#[cfg(any(fuzzing, test))]
pub(super) fn fuzz(data: &[u8]) {
    use super::{clock::Clock, config::Config, shared::State};
    use crate::proto::{Service, Settings, testkit::MapStore};
    static SHARED: std::sync::OnceLock<Shared> = std::sync::OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        let state = Arc::new(State::new(Config::default(), Clock::start(), &[]));
        let service = Service::new(Settings::default(), 1, 0, Box::new(()));
        Shared { state, service, store: Arc::new(MapStore::default()) }
    });
    let Some((length, text)) = data.split_first() else { return };
    let mut request = Vec::new();
    let is_over = text.chunks(usize::from(*length).max(1)).any(|part| add(&mut request, part));
    let ends = |text: &[u8]| text.windows(4).any(|end| end == b"\r\n\r\n");
    assert_eq!(is_over, ends(text) || text.len() > REQUEST_MAX);
    let answer = String::from_utf8_lossy(&answer(shared, &request)).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    assert!(head.starts_with("HTTP/1.1 "), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_request_gets_the_same_answer_however_it_is_split() {
        let requests = [
            "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\nmore",
            "",
            "POST / x",
            "\r\n\r\n",
        ];
        for request in requests {
            for length in 0..=40 {
                super::fuzz(&[&[length], request.as_bytes()].concat());
            }
        }
        super::fuzz(&[&[255][..], &[b'a'; 9000]].concat());
    }
}
