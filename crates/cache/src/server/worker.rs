//! A thread that serves connections: waits for their sockets, and gives each its turn.
//!
//! Sockets tell once when something has changed, so a connection goes on until a read has emptied its socket (a read that does
//! not fill the buffer has) or a write found it full. One that has had its turn and could go on is remembered, and goes on
//! after all that are ready. Once a second it looks at who has been idle for too long.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use mio::{Events, Interest, Poll, Token, Waker};

use super::clock::Deadline;
use super::config::TICK_SECONDS;
use super::peer::{Buffers, Next, Peer, Work};
use super::shared::{Seen, Shared};
use super::stream::Stream;
use crate::proto::Shutdown;

/// Bytes of input that are looked at at once.
const INPUT: usize = 64 << 10;
/// A buffer for replies that has become larger is given back.
const OUTPUT_KEPT: usize = 4 << 20;
const EVENTS: usize = 256;
const WAKE: Token = Token(usize::MAX);

/// Connections for a worker that it does not know of yet.
#[derive(Debug)]
pub(super) struct Inbox {
    arrivals: Mutex<Vec<(Stream, Arc<Seen>)>>,
    pub(super) waker: Arc<Waker>,
}

impl Inbox {
    pub(super) fn push(&self, stream: Stream, seen: Arc<Seen>) {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((stream, seen));
        // The worker looks by itself within a second.
        let _ = self.waker.wake();
    }
}

/// A worker.
pub(super) struct Worker {
    shared: Arc<Shared>,
    number: usize,
    poll: Poll,
    inbox: Arc<Inbox>,
    peers: Vec<Option<Box<Peer>>>,
    /// Places in `peers` that are free.
    free: Vec<usize>,
    /// Who can go on without its socket.
    again: VecDeque<usize>,
    buffers: Buffers,
    /// Bytes that connections hold.
    held: usize,
    swept: u32,
    until: Option<Deadline>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        Ok(Self {
            shared,
            number,
            poll,
            inbox: Arc::new(Inbox { arrivals: Mutex::default(), waker }),
            peers: Vec::new(),
            free: Vec::new(),
            again: VecDeque::new(),
            buffers: Buffers { input: vec![0; INPUT], output: Vec::with_capacity(INPUT) },
            held: 0,
            swept: 0,
            until: None,
        })
    }

    pub(super) fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// Serves until the server is stopped and connections are done.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            // What goes wrong but for an interruption would go wrong again and again.
            if let Err(error) = self.poll.poll(&mut events, Some(self.wait()))
                && error.kind() != io::ErrorKind::Interrupted
            {
                break;
            }
            for event in &events {
                if event.token() == WAKE {
                    self.welcome();
                } else {
                    let ends = event.is_read_closed() || event.is_error();
                    self.ready(event.token().0, ends);
                }
            }
            for _ in 0..self.again.len() {
                if let Some(at) = self.again.pop_front() {
                    self.ready(at, false);
                }
            }
            self.sweep();
            if self.is_done() {
                break;
            }
        }
        for at in 0..self.peers.len() {
            if let Some(peer) = self.peers[at].take() {
                self.close(at, *peer);
            }
        }
    }

    fn wait(&self) -> Duration {
        match &self.until {
            _ if !self.again.is_empty() => Duration::ZERO,
            Some(until) => until.left().min(Duration::from_secs(TICK_SECONDS.into())),
            None => Duration::from_secs(TICK_SECONDS.into()),
        }
    }

    fn second(&self) -> u32 {
        self.shared.state.second.load(Relaxed)
    }

    fn welcome(&mut self) {
        let arrivals = std::mem::take(
            &mut *self.inbox.arrivals.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for (stream, seen) in arrivals {
            let at = self.free.pop().unwrap_or_else(|| {
                self.peers.push(None);
                self.peers.len() - 1
            });
            let mut peer = Peer::new(stream, seen, self.second());
            match peer.stream.register(self.poll.registry(), Token(at)) {
                Ok(()) => {
                    self.peers[at] = Some(Box::new(peer));
                    // A connection that came while the server is being stopped is looked at once.
                    if self.until.is_some() {
                        self.ready(at, false);
                    }
                }
                Err(_) => self.close(at, peer),
            }
        }
    }

    /// Gives a connection its turn.
    fn ready(&mut self, at: usize, ends: bool) {
        let Some(mut peer) = self.peers.get_mut(at).and_then(Option::take) else { return };
        peer.is_ending |= ends;
        let work = Work { shared: &self.shared, worker: self.number, second: self.second() };
        let next = peer.turn(&work, &mut self.buffers);
        if self.buffers.output.capacity() > OUTPUT_KEPT {
            self.buffers.output = Vec::with_capacity(INPUT);
        }
        let is_over = self.until.is_some() && next == Next::Wait && peer.is_idle();
        if next == Next::Gone || is_over || !self.watch(at, &mut peer) || !self.has_room(&mut peer)
        {
            return self.close(at, *peer);
        }
        if next == Next::Again {
            self.again.push_back(at);
        }
        peer.show();
        self.peers[at] = Some(peer);
    }

    /// Has a connection's socket told when it can be written, if and as long as replies wait. Whether that could be done.
    fn watch(&self, at: usize, peer: &mut Peer) -> bool {
        let is_stalled = peer.is_stalled();
        if peer.is_watched == is_stalled {
            return true;
        }
        peer.is_watched = is_stalled;
        let both = Interest::READABLE | Interest::WRITABLE;
        let interest = if is_stalled { both } else { Interest::READABLE };
        peer.stream.watch(self.poll.registry(), Token(at), interest).is_ok()
    }

    /// Counts what a connection holds. Whether there is room for it.
    fn has_room(&mut self, peer: &mut Peer) -> bool {
        let held = peer.memory();
        let grows = held > peer.held;
        self.held = self.held + held - peer.held;
        peer.held = held;
        let config = &self.shared.state.config;
        let share = config.buffer_bytes_max / config.threads.max(1);
        if config.buffer_bytes_max == 0 || self.held <= share || !grows {
            return true;
        }
        self.shared.service.counters(self.number).read_buf_oom.one();
        false
    }

    fn close(&mut self, at: usize, peer: Peer) {
        self.held -= peer.held;
        self.shared.state.close(peer.stream.number());
        drop(peer);
        self.free.push(at);
    }

    /// Closes who has been idle for too long, and has others give back memory; once a second.
    fn sweep(&mut self) {
        let second = self.second();
        if second == self.swept {
            return;
        }
        self.swept = second;
        let state = Arc::clone(&self.shared.state);
        let (idle, stalled) = (state.config.idle_seconds, state.config.stalled_seconds);
        for at in 0..self.peers.len() {
            let Some(mut peer) = self.peers[at].take() else { continue };
            let since = second.saturating_sub(peer.second);
            let counts = self.shared.service.counters(self.number);
            if stalled > 0 && since >= stalled && peer.is_stalled() {
                counts.slow_kicks.one();
                self.close(at, *peer);
            } else if idle > 0 && since >= idle {
                counts.idle_kicks.one();
                self.close(at, *peer);
            } else {
                peer.shrink();
                let held = peer.memory();
                self.held = self.held + held - peer.held;
                peer.held = held;
                self.peers[at] = Some(peer);
            }
        }
    }

    /// Whether the server was stopped, and connections have finished what they began or have had their time.
    fn is_done(&mut self) -> bool {
        let Some(how) = self.shared.state.stops() else { return false };
        if how == Shutdown::Now {
            return true;
        }
        if self.until.is_none() {
            let drain = self.shared.state.config.drain_seconds;
            self.until = Some(Deadline::after(Duration::from_secs(drain.into())));
            self.welcome();
            // What was sent before is answered; then those go that are at rest.
            for at in 0..self.peers.len() {
                self.ready(at, false);
            }
        }
        self.free.len() == self.peers.len() || self.until.is_some_and(Deadline::passed)
    }
}
