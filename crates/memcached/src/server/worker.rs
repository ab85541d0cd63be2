//! A thread that serves connections: waits for events of their sockets, and gives each its turn.
//!
//! Events are edge-triggered, so a connection continues until a read has emptied its socket (a read that does not fill
//! the buffer has) or a write has filled it. A connection that could continue after its turn is queued behind all ready
//! ones. One with a pending read from below the store's memory continues when it completes. Once a second the worker
//! closes connections that were idle too long.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use super::clock::Deadline;
use super::config::TICK_SECONDS;
use super::peer::{Buffers, Next, Peer, Work};
use super::shared::{Seen, Shared};
use super::stream::Stream;
use crate::proto::{PendingReads, Shutdown};

/// Size of the input buffer.
const INPUT: usize = 64 << 10;
/// A reply buffer that has grown beyond this is freed.
const OUTPUT_KEPT: usize = 4 << 20;
const EVENTS: usize = 256;
const WAKE: Token = Token(usize::MAX);
const LANDED: Token = Token(usize::MAX - 1);
/// Maximum reads in flight from below the store's memory; more wait.
const READS: usize = 64;

/// New connections for a worker.
#[derive(Debug)]
pub(super) struct Inbox {
    arrivals: Mutex<Vec<(Stream, Arc<Seen>)>>,
    pub(super) waker: Arc<Waker>,
}

impl Inbox {
    pub(super) fn push(&self, stream: Stream, seen: Arc<Seen>) {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((stream, seen));
        // The worker checks by itself within a second.
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
    /// Free places in `peers`.
    free: Vec<usize>,
    /// Connections that can continue without an event.
    again: VecDeque<usize>,
    buffers: Buffers,
    /// Asynchronous reads, if the store has a tier below its memory.
    pending: Option<PendingReads>,
    /// Connections whose reads have completed.
    landed: Vec<usize>,
    /// Bytes held by connections.
    held: usize,
    swept: u32,
    until: Option<Deadline>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let pending = Arc::clone(&shared.store).fetch(READS).map(PendingReads::new);
        if let Some(pending) = &pending {
            let ready = pending.ready();
            poll.registry().register(&mut SourceFd(&ready), LANDED, Interest::READABLE)?;
        }
        Ok(Self {
            shared,
            number,
            poll,
            inbox: Arc::new(Inbox { arrivals: Mutex::default(), waker }),
            peers: Vec::new(),
            free: Vec::new(),
            again: VecDeque::new(),
            buffers: Buffers { input: vec![0; INPUT], output: Vec::with_capacity(INPUT), reads: 0 },
            pending,
            landed: Vec::new(),
            held: 0,
            swept: 0,
            until: None,
        })
    }

    pub(super) fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// Serves until the server is stopped and connections are done.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            // Errors except interruption would repeat without end.
            if let Err(error) = self.poll.poll(&mut events, Some(self.wait()))
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            for event in &events {
                match event.token() {
                    WAKE => self.welcome(),
                    // Checked in each iteration.
                    LANDED => (),
                    Token(at) => self.told(at, event.is_read_closed() || event.is_error()),
                }
            }
            self.go_on();
            self.take_landed();
            self.sweep();
            if self.is_done() {
                return Ok(());
            }
        }
    }

    fn wait(&self) -> Duration {
        // Requested reads are started when completed ones are processed.
        let asks = self.pending.as_ref().is_some_and(PendingReads::is_asked);
        match &self.until {
            _ if asks || !self.again.is_empty() => Duration::ZERO,
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
                    // A connection that arrives while the server is being stopped has one turn.
                    if self.until.is_some() {
                        self.ready(at);
                    }
                }
                Err(_) => self.close(at, peer),
            }
        }
    }

    /// A connection's socket has an event. If its turn is due anyway, it comes only once.
    fn told(&mut self, at: usize, ends: bool) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else { return };
        peer.is_ending |= ends;
        if !peer.is_queued {
            self.ready(at);
        }
    }

    /// Gives queued connections their turn.
    fn go_on(&mut self) {
        for _ in 0..self.again.len() {
            let Some(at) = self.again.pop_front() else { return };
            if let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) {
                peer.is_queued = false;
            }
            self.ready(at);
        }
    }

    /// Starts requested reads, and gives connections a turn that wait for no read any more.
    fn take_landed(&mut self) {
        let Some(pending) = self.pending.as_ref().filter(|pending| pending.under_way() > 0) else {
            return;
        };
        let (peers, landed) = (&mut self.peers, &mut self.landed);
        let second = self.shared.state.second.load(Relaxed);
        let work = Work { shared: &self.shared, worker: self.number, second, pending: None };
        // Errors are retried within a second.
        let _ = pending.take(&mut |token, item| {
            let at = PendingReads::connection(token);
            let peer = peers.get_mut(at).and_then(Option::as_mut);
            if peer.is_some_and(|peer| peer.land(&work, token, item)) {
                landed.push(at);
            }
        });
        let mut landed = core::mem::take(&mut self.landed);
        landed.drain(..).for_each(|at| self.told(at, false));
        self.landed = landed;
    }

    /// Gives a connection its turn.
    fn ready(&mut self, at: usize) {
        let Some(mut peer) = self.peers.get_mut(at).and_then(Option::take) else { return };
        let (number, second) = (self.number, self.second());
        let connection = u32::try_from(at).unwrap_or(u32::MAX);
        let pending = self.pending.as_ref().map(|pending| (pending, connection));
        let work = Work { shared: &self.shared, worker: number, second, pending };
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
            peer.is_queued = true;
            self.again.push_back(at);
        }
        peer.show();
        self.peers[at] = Some(peer);
    }

    /// Polls a connection's socket for writing, if and as long as replies wait. Returns whether that succeeded.
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

    /// Whether there is room for the bytes held by a connection.
    fn has_room(&mut self, peer: &mut Peer) -> bool {
        let config = &self.shared.state.config;
        let share = match config.buffer_bytes_max {
            0 => usize::MAX,
            all => all / config.threads.max(1),
        };
        // Unused memory is freed once a second, and at once above half of this worker's share.
        if self.held > share / 2 {
            peer.shrink();
        }
        let held = peer.memory();
        let grows = held > peer.held;
        self.hold(peer, held);
        if self.held <= share || !grows {
            return true;
        }
        self.shared.service.counters(self.number).read_buf_oom.one();
        false
    }

    /// Accounts the bytes held by a connection.
    fn hold(&mut self, peer: &mut Peer, held: usize) {
        if held != peer.held {
            let all = &self.shared.state.gauges.held;
            all.fetch_add(held as u64, Relaxed);
            all.fetch_sub(peer.held as u64, Relaxed);
            self.held = self.held + held - peer.held;
            peer.held = held;
        }
    }

    fn close(&mut self, at: usize, mut peer: Peer) {
        self.hold(&mut peer, 0);
        if peer.is_queued {
            self.again.retain(|one| *one != at);
        }
        if let Some(pending) = self.pending.as_ref().filter(|pending| pending.under_way() > 0) {
            pending.forget(at);
        }
        peer.stream.end();
        self.shared.state.close(peer.stream.number());
        drop(peer);
        self.free.push(at);
    }

    /// Closes connections that were idle too long, and frees unused memory of others; once a second.
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
            // Complete seconds: the first is partial.
            let since = second.saturating_sub(peer.second).saturating_sub(1);
            // Counted when it is closed, so that both are visible together.
            if stalled > 0 && since >= stalled && peer.is_stalled() {
                self.close(at, *peer);
                self.shared.service.counters(self.number).slow_kicks.one();
            } else if idle > 0 && since >= idle && !peer.waits() {
                self.close(at, *peer);
                self.shared.service.counters(self.number).idle_kicks.one();
            } else {
                peer.shrink();
                let held = peer.memory();
                self.hold(&mut peer, held);
                self.peers[at] = Some(peer);
            }
        }
    }

    /// Whether the server was stopped, and connections have completed their requests or run out of time.
    fn is_done(&mut self) -> bool {
        let Some(how) = self.shared.state.stops() else { return false };
        if how == Shutdown::Now {
            return true;
        }
        if self.until.is_none() {
            let drain = self.shared.state.config.drain_seconds;
            self.until = Some(Deadline::after(Duration::from_secs(drain.into())));
            self.welcome();
            // Requests sent before are answered; then idle connections are closed.
            for at in 0..self.peers.len() {
                self.told(at, false);
            }
        }
        self.free.len() == self.peers.len() || self.until.is_some_and(Deadline::passed)
    }
}

impl Drop for Worker {
    /// Also after a panic: its connections would never be closed otherwise.
    fn drop(&mut self) {
        for at in 0..self.peers.len() {
            if let Some(peer) = self.peers[at].take() {
                self.close(at, *peer);
            }
        }
        self.shared.state.worker_ends();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::proto::testkit::MapStore;
    use crate::proto::{Service, Settings};
    use crate::server::clock::Clock;
    use crate::server::config::Config;
    use crate::server::shared::State;

    #[test]
    fn a_ready_connection_is_queued_once_for_any_number_of_events() {
        let state = Arc::new(State::new(Config::default(), Clock::start(), &[]));
        let service = Service::new(Settings::default(), 1, 0, Box::new(()));
        let shared = Shared { state, service, store: Arc::new(MapStore::default()) };
        let mut worker = Worker::new(Arc::new(shared), 0).unwrap();
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let seen = Arc::new(Seen::new(String::new(), "".into(), 0));
        worker.inbox().push(Stream::Unix(mio::net::UnixStream::from_std(ours)), seen);
        worker.welcome();
        theirs.write_all(&b"mn\r\n".repeat(2000)).unwrap();
        for _ in 0..3 {
            worker.told(0, false);
        }
        assert_eq!(worker.again, [0]);
        worker.go_on();
        assert_eq!(worker.again, [0]);
        drop(theirs);
        for _ in 0..10 {
            worker.go_on();
        }
        assert!(worker.again.is_empty() && worker.free == [0]);
    }
}
