//! A thread that serves connections: waits for their sockets, and gives each its turn.
//!
//! Sockets tell once when something has changed, so a connection goes on until a read has emptied its socket (a read that does
//! not fill the buffer has) or a write found it full. One that has had its turn and could go on is remembered, and goes on
//! after all that are ready. One that asked for what lies below the store's memory goes on when that was read. Once a second it
//! looks at who has been idle for too long.

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
use crate::proto::{Ahead, Shutdown};

/// Bytes of input that are looked at at once.
const INPUT: usize = 64 << 10;
/// A buffer for replies that has become larger is given back.
const OUTPUT_KEPT: usize = 4 << 20;
const EVENTS: usize = 256;
const WAKE: Token = Token(usize::MAX);
const LANDED: Token = Token(usize::MAX - 1);
/// Reads from below the store's memory that are under way at once; more wait.
const READS: usize = 64;

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
    /// Reads that connections wait for, where the store has something below its memory.
    ahead: Option<Ahead>,
    /// Connections whose reads have landed.
    landed: Vec<usize>,
    /// Bytes that connections hold.
    held: usize,
    swept: u32,
    until: Option<Deadline>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let ahead = Arc::clone(&shared.store).fetch(READS).map(Ahead::new);
        if let Some(ahead) = &ahead {
            let ready = ahead.ready();
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
            buffers: Buffers { input: vec![0; INPUT], output: Vec::with_capacity(INPUT) },
            ahead,
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
            // What goes wrong but for an interruption would go wrong again and again.
            if let Err(error) = self.poll.poll(&mut events, Some(self.wait()))
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            for event in &events {
                match event.token() {
                    WAKE => self.welcome(),
                    // Looked at each time.
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
        // Reads that were asked for are begun when what has landed is looked at.
        let asks = self.ahead.as_ref().is_some_and(Ahead::is_asked);
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
                    // A connection that came while the server is being stopped is looked at once.
                    if self.until.is_some() {
                        self.ready(at);
                    }
                }
                Err(_) => self.close(at, peer),
            }
        }
    }

    /// A connection's socket has changed. If the connection's turn is to come all the same, then it comes once.
    fn told(&mut self, at: usize, ends: bool) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else { return };
        peer.is_ending |= ends;
        if !peer.is_queued {
            self.ready(at);
        }
    }

    /// Gives those a turn that could go on after their last one.
    fn go_on(&mut self) {
        for _ in 0..self.again.len() {
            let Some(at) = self.again.pop_front() else { return };
            if let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) {
                peer.is_queued = false;
            }
            self.ready(at);
        }
    }

    /// Begins reads that connections have asked for, and gives those a turn that wait for none any more.
    fn take_landed(&mut self) {
        let Some(ahead) = self.ahead.as_ref().filter(|ahead| ahead.under_way() > 0) else {
            return;
        };
        let (peers, landed) = (&mut self.peers, &mut self.landed);
        let second = self.shared.state.second.load(Relaxed);
        let work = Work { shared: &self.shared, worker: self.number, second, ahead: None };
        // What goes wrong is tried again within a second.
        let _ = ahead.take(&mut |token, item| {
            let at = Ahead::connection(token);
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
        let ahead = self.ahead.as_ref().map(|ahead| (ahead, connection));
        let work = Work { shared: &self.shared, worker: number, second, ahead };
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

    /// Whether there is room for what a connection holds.
    fn has_room(&mut self, peer: &mut Peer) -> bool {
        let config = &self.shared.state.config;
        let share = match config.buffer_bytes_max {
            0 => usize::MAX,
            all => all / config.threads.max(1),
        };
        // Memory that is not in use is given back once a second, and at once where it is half of what there is.
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

    /// Counts what a connection holds.
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
        peer.stream.end();
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
            // Seconds that are over: the first is only a part of one.
            let since = second.saturating_sub(peer.second).saturating_sub(1);
            // Counted when it is closed: who sees the one sees the other.
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
                self.told(at, false);
            }
        }
        self.free.len() == self.peers.len() || self.until.is_some_and(Deadline::passed)
    }
}

impl Drop for Worker {
    /// Also where it has panicked: what it has not closed would never be.
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
    fn who_could_go_on_is_remembered_once_however_often_its_socket_changes() {
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
