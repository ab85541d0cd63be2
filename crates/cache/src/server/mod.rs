//! server: memcached's protocol over sockets, for any [`Store`].
//!
//! One thread in front accepts, and moves the store's clock; so many workers serve, each with its own connections
//! ([`Config::threads`]). What clients say is [`proto`](crate::proto)'s matter. Not here: reading options and signals, which a
//! binary does. Read next: `front.rs`, `worker.rs`, then `peer.rs` for what happens to one connection.

mod clock;
mod config;
mod front;
mod http;
mod listen;
mod metrics;
mod peer;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[cfg(feature = "tls")]
pub use config::Tls;
pub use config::{Config, Error, Overload, Unix};

use crate::proto::{Service, Shutdown};
use crate::store::Store;
use clock::Clock;
use front::Front;
use listen::Listener;
use shared::{Shared, State, Teller};
use worker::Worker;

/// Who asks for metrics while others are answered waits, if they are no more than this.
const SCRAPERS: usize = 8;

/// Stops a server. Can be kept by whoever handles signals.
#[derive(Clone, Debug)]
pub struct Stop(Arc<State>);

impl Stop {
    /// Nothing more is accepted; connections may finish what they began, for [`Config::drain_seconds`] at most.
    pub fn drain(&self) {
        self.0.stop(Shutdown::Graceful);
    }

    /// All connections are closed at once.
    pub fn now(&self) {
        self.0.stop(Shutdown::Now);
    }
}

/// Why a server has ended that nobody had stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "thread {thread} of the server failed ({why}), and all connections were closed; start it again"
)]
pub struct Failed {
    /// The thread's name.
    pub thread: String,
    /// What it said.
    pub why: String,
}

/// Stops a server of which a thread panics: workers and the one in front do more than that, and sooner.
struct Guard(Arc<State>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(Shutdown::Graceful);
        }
    }
}

/// A server that runs, until it is stopped or dropped.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    metrics: Option<SocketAddr>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl core::fmt::Debug for Server {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn started<T>(what: &'static str, result: io::Result<T>) -> Result<T, Error> {
    result.map_err(|source| Error::Start { what, source })
}

impl Server {
    /// Starts a server for a store. It listens when this comes back.
    ///
    /// # Errors
    /// If it can't listen where it should, or the system has no threads or descriptors for it.
    pub fn start(store: Arc<dyn Store + Send>, config: Config) -> Result<Self, Error> {
        #[cfg(feature = "tls")]
        let tls = config.tls.as_ref().map(tls::server).transpose()?;
        let listeners = Listener::all(&config)?;
        let metrics = config.metrics.map(|at| Listener::on_tcp(at, config.backlog)).transpose()?;
        let addresses = listeners.iter().filter_map(Listener::address).collect();
        let workers = config.threads.max(1);
        let (clock, first) = (Clock::start(), store.now().max(1));
        let settings = config.protocol.clone();
        let state = Arc::new(State::new(config, clock, &listeners));
        let origin = clock.unix_start() - i64::from(first);
        let host = Box::new(Teller(Arc::clone(&state)));
        let service = Service::new(settings, workers, origin, host);
        service.tick(&*store, first);
        let shared = Arc::new(Shared { state, service, store });
        let workers: io::Result<Vec<Worker>> =
            (0..workers).map(|number| Worker::new(Arc::clone(&shared), number)).collect();
        let workers = started("workers", workers)?;
        let inboxes: Vec<_> = workers.iter().map(Worker::inbox).collect();
        let mut wakers: Vec<_> = inboxes.iter().map(|inbox| Arc::clone(&inbox.waker)).collect();
        let front = Front::new(Arc::clone(&shared), listeners, inboxes, first);
        let mut front = started("the acceptor", front)?;
        wakers.push(front.waker());
        #[cfg(feature = "tls")]
        front.set_tls(tls);
        let mut server = Self {
            shared,
            addresses,
            metrics: metrics.as_ref().and_then(Listener::address),
            threads: Vec::new(),
        };
        server.shared.state.set_wakers(wakers);
        // A server of which a part can't be started is dropped, and that stops the others.
        if let Some(listener) = metrics {
            server.serve_metrics(listener, &mut front)?;
        }
        for (number, worker) in workers.into_iter().enumerate() {
            server.spawn(&format!("cache-{number}"), move || worker.run())?;
        }
        server.spawn("cache-front", move || front.run())?;
        Ok(server)
    }

    fn serve_metrics(&mut self, listener: Listener, front: &mut Front) -> Result<(), Error> {
        let (to, from) = sync_channel(SCRAPERS);
        started("metrics", front.set_metrics(listener, to))?;
        let shared = Arc::clone(&self.shared);
        self.spawn("cache-metrics", move || {
            http::run(&shared, &from);
            Ok(())
        })
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        let guard = Guard(Arc::clone(&self.shared.state));
        let run = move || {
            let ended = run();
            drop(guard);
            ended
        };
        let thread = Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(started("a thread", thread)?);
        Ok(())
    }

    /// TCP addresses it listens on, with their ports.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where it answers `GET /metrics`.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// All figures, as Prometheus reads them.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::text(&self.shared)
    }

    /// What stops it.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(Arc::clone(&self.shared.state))
    }

    /// Waits until it has been stopped and all its threads have ended.
    ///
    /// # Errors
    /// If it has ended as one of them failed.
    pub fn wait(mut self) -> Result<(), Failed> {
        self.join()
    }

    fn join(&mut self) -> Result<(), Failed> {
        let mut ended = Ok(());
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            let failed = |why: String| Failed { thread: name, why };
            let one = match thread.join() {
                Ok(one) => one.map_err(|error| failed(error.to_string())),
                Err(panic) => Err(failed(crate::mover::said(&*panic))),
            };
            ended = ended.and(one);
        }
        ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop().now();
        // Who wants to know waits.
        let _ = self.join();
    }
}

/// Lets this process have descriptors for so many connections and what else a server needs, as far as the system allows. How
/// many it may have then.
///
/// # Errors
/// The system's.
pub fn allow_descriptors(connections: usize) -> io::Result<u64> {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(64);
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let now = limit.current.unwrap_or(u64::MAX);
    if now >= wanted {
        return Ok(now);
    }
    let current = wanted.min(most);
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum })?;
    Ok(current)
}
