//! The front thread: accepts connections, distributes them over workers in turn, and advances the store's clock once
//! per second.
//!
//! At the maximum number of connections, or without a free descriptor, it stops accepting for a moment. Clients in the
//! kernel's queue are accepted after that.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use mio::{Events, Poll, Token, Waker};
use rustix::io::Errno;

use super::clock::Deadline;
use super::config::Overload;
use super::listen::Listener;
use super::shared::{Seen, Shared};
use super::stream::Stream;
use super::worker::Inbox;
use crate::proto::Shutdown;

/// Pause after running out of descriptors or of connections.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections accepted in a row before the clock and other listeners are checked.
const ACCEPTS: usize = 256;
const WAKE: Token = Token(usize::MAX);
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// The front thread.
pub(super) struct Front {
    shared: Arc<Shared>,
    poll: Poll,
    waker: Arc<Waker>,
    listeners: Vec<Listener>,
    inboxes: Vec<Arc<Inbox>>,
    turn: usize,
    /// The store's second at the start of the server.
    first: u32,
    pause: Option<(Deadline, u64)>,
    /// Whether there may be more to accept without a new event.
    owes: bool,
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ServerConfig>>,
}

/// The result of accepting.
enum Accepted {
    One,
    None,
    /// No connection can be accepted at present.
    Pause,
}

impl Front {
    pub(super) fn new(
        shared: Arc<Shared>,
        mut listeners: Vec<Listener>,
        inboxes: Vec<Arc<Inbox>>,
        first: u32,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        for (at, listener) in listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(at))?;
        }
        Ok(Self {
            shared,
            poll,
            waker,
            listeners,
            inboxes,
            turn: 0,
            first,
            pause: None,
            owes: false,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    #[cfg(feature = "tls")]
    pub(super) fn set_tls(&mut self, tls: Option<Arc<rustls::ServerConfig>>) {
        self.tls = tls;
    }

    /// Accepts until the server is stopped. Listeners are closed then; the clock continues until workers have ended.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(16);
        while self.is_wanted() {
            let second = self.shared.state.clock.until_next_second();
            let wait = self.pause.map_or(second, |(until, _)| until.left().min(second));
            let wait = if self.owes { Duration::ZERO } else { wait };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != ErrorKind::Interrupted
            {
                return Err(error);
            }
            self.tick();
            if self.pause.is_some_and(|(until, _)| until.passed()) {
                self.resume();
            } else if std::mem::take(&mut self.owes) {
                self.accept_everywhere();
            }
            for event in &events {
                match event.token() {
                    WAKE => (),
                    Token(at) => self.accept_all(at),
                }
            }
        }
        Ok(())
    }

    fn is_wanted(&mut self) -> bool {
        if self.shared.state.stops().is_none() {
            return true;
        }
        self.listeners.clear();
        self.shared.state.has_workers()
    }

    fn tick(&self) {
        let Shared { state, service, store } = &*self.shared;
        let second = state.clock.seconds();
        if state.second.swap(second, Relaxed) != second {
            service.tick(&**store, self.first.saturating_add(second));
        }
    }

    fn pause(&mut self) {
        let state = &self.shared.state;
        if self.pause.is_none() {
            state.gauges.paused.fetch_add(1, Relaxed);
        }
        state.gauges.is_paused.store(true, Relaxed);
        let since = self.pause.map_or_else(|| state.clock.micros(), |(_, since)| since);
        self.pause = Some((Deadline::after(PAUSE), since));
    }

    fn resume(&mut self) {
        let before = self.pause;
        self.accept_everywhere();
        let still = |pause: &(Deadline, u64)| !pause.0.passed();
        if let Some((_, since)) = before
            && !self.pause.as_ref().is_some_and(still)
        {
            let state = &self.shared.state;
            let micros = state.clock.micros().saturating_sub(since);
            state.gauges.paused_us.fetch_add(micros, Relaxed);
            state.gauges.is_paused.store(false, Relaxed);
            self.pause = None;
        }
    }

    fn accept_everywhere(&mut self) {
        for at in 0..self.listeners.len() {
            self.accept_all(at);
        }
    }

    fn is_pausing(&self) -> bool {
        self.pause.is_some_and(|(until, _)| !until.passed())
    }

    fn accept_all(&mut self, at: usize) {
        if self.is_pausing() {
            return;
        }
        for _ in 0..ACCEPTS {
            match self.accept(at) {
                Accepted::One => (),
                Accepted::None => return,
                Accepted::Pause => return self.pause(),
            }
        }
        self.owes = true;
    }

    fn accept(&mut self, at: usize) -> Accepted {
        let state = &self.shared.state;
        let (gauges, config) = (&state.gauges, &state.config);
        let is_full = || gauges.connections.load(Relaxed) >= config.connections_max as u64;
        if config.overload == Overload::Wait && is_full() {
            return Accepted::Pause;
        }
        let Some(listener) = self.listeners.get(at) else { return Accepted::None };
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Accepted::None,
            Err(error) => {
                gauges.accept_errors.fetch_add(1, Relaxed);
                return if is_passing(&error) { Accepted::One } else { Accepted::Pause };
            }
        };
        if is_full() {
            gauges.refused.fetch_add(1, Relaxed);
            self.refuse(stream);
            return Accepted::One;
        }
        #[cfg(feature = "tls")]
        let Some(stream) = self.encrypted(stream) else { return Accepted::One };
        gauges.connections.fetch_add(1, Relaxed);
        gauges.connections_ever.fetch_add(1, Relaxed);
        let name = state.listeners.get(at).map_or_else(|| "".into(), |(_, name)| Arc::clone(name));
        let seen = Arc::new(Seen::new(from, name, state.second.load(Relaxed)));
        state.open(stream.number(), Arc::clone(&seen));
        self.turn = (self.turn + 1) % self.inboxes.len().max(1);
        if let Some(inbox) = self.inboxes.get(self.turn) {
            inbox.push(stream, seen);
        }
        Accepted::One
    }

    /// Sends a client the error of too many connections, if possible without waiting; with TLS it is not sent.
    fn refuse(&self, mut stream: Stream) {
        #[cfg(feature = "tls")]
        if self.tls.is_some() && matches!(stream, Stream::Tcp(_)) {
            return;
        }
        let _ = stream.write(TOO_MANY);
    }

    /// A TCP connection with TLS over it, if configured.
    #[cfg(feature = "tls")]
    fn encrypted(&self, stream: Stream) -> Option<Stream> {
        match (stream, &self.tls) {
            (Stream::Tcp(socket), Some(tls)) => {
                let stream = super::tls::TlsStream::new(Arc::clone(tls), socket).ok()?;
                Some(Stream::Tls(Box::new(stream)))
            }
            (stream, _) => Some(stream),
        }
    }
}

impl Drop for Front {
    /// Also after a panic: a server without a front thread can't be reached.
    fn drop(&mut self) {
        self.shared.state.stop(Shutdown::Graceful);
    }
}

/// Whether an error concerns the one connection, not accepting in general.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::INTR
                | Errno::CONNABORTED
                | Errno::PROTO
                | Errno::CONNRESET
                | Errno::NOTCONN
                | Errno::INVAL
        )
    )
}
