//! The thread in front: accepts connections and hands them to workers in turn, and moves the store's clock once a second.
//!
//! Where there are as many connections as may be, or no descriptor is left for one, it stops accepting for a moment. Who waits
//! in the kernel's queue is accepted after that.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use mio::{Events, Poll, Token, Waker};
use rustix::io::Errno;

use super::clock::Deadline;
use super::config::Overload;
use super::listen::Listener;
use super::shared::{Seen, Shared};
use super::stream::Stream;
use super::worker::Inbox;
use crate::proto::Shutdown;

/// How long nothing is accepted after there was no descriptor left, or no place.
const PAUSE: Duration = Duration::from_millis(50);
/// So many connections are accepted before the clock and other listeners are looked at.
const ACCEPTS: usize = 256;
const WAKE: Token = Token(usize::MAX);
const METRICS: Token = Token(usize::MAX - 1);
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// The thread in front.
pub(super) struct Front {
    shared: Arc<Shared>,
    poll: Poll,
    waker: Arc<Waker>,
    listeners: Vec<Listener>,
    inboxes: Vec<Arc<Inbox>>,
    turn: usize,
    /// The store's second when the server started.
    first: u32,
    pause: Option<(Deadline, u64)>,
    /// There may be more to accept without being told.
    owes: bool,
    metrics: Option<(Listener, SyncSender<Stream>)>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ServerConfig>>,
}

/// What there was to accept.
enum Accepted {
    One,
    None,
    /// Nothing can be accepted now.
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
            metrics: None,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Has who asks for metrics handed to another thread.
    pub(super) fn set_metrics(
        &mut self,
        mut listener: Listener,
        to: SyncSender<Stream>,
    ) -> io::Result<()> {
        listener.register(self.poll.registry(), METRICS)?;
        self.metrics = Some((listener, to));
        Ok(())
    }

    #[cfg(feature = "tls")]
    pub(super) fn set_tls(&mut self, tls: Option<Arc<rustls::ServerConfig>>) {
        self.tls = tls;
    }

    /// Accepts until the server is stopped. Listeners are closed then; the clock and metrics go on until workers have ended.
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
                    METRICS => self.accept_scrapers(),
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
        self.accept_scrapers();
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

    /// Tells a client that there are too many, if it can be told: nobody waits for it, and where TLS is spoken this is not.
    fn refuse(&self, mut stream: Stream) {
        #[cfg(feature = "tls")]
        if self.tls.is_some() && matches!(stream, Stream::Tcp(_)) {
            return;
        }
        let _ = stream.write(TOO_MANY);
    }

    /// A TCP connection with TLS over it, if that was asked for.
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

    fn accept_scrapers(&mut self) {
        // Who asks how things are is heard also while no connection has a place.
        let Some((listener, to)) = &self.metrics else { return };
        for _ in 0..ACCEPTS {
            match listener.accept() {
                // Where many ask at once, the last ones are not answered.
                Ok((stream, _)) => drop(to.try_send(stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_passing(&error) => (),
                Err(_) => return self.pause(),
            }
        }
        self.owes = true;
    }
}

impl Drop for Front {
    /// Also where it has panicked: a server that nobody can reach is none.
    fn drop(&mut self) {
        self.shared.state.stop(Shutdown::Graceful);
    }
}

/// Whether an error is of the one connection that was not accepted, and not of accepting.
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
