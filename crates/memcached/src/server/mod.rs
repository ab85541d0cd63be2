//! server: memcached's protocol over sockets, for any [`Store`].
//!
//! One front thread accepts connections and advances the store's clock; worker threads serve them, each with its own
//! connections ([`Config::threads`]). Commands are parsed by [`proto`](crate::proto). Not in this module: options and
//! signals, which binaries handle. Read next: `front.rs`, `worker.rs`, then `peer.rs` for the life of a connection.

mod clock;
mod config;
mod front;
mod http;
mod latency;
mod listen;
mod metrics;
mod peer;
mod shared;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod worker;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[cfg(feature = "tls")]
pub use config::Tls;
pub use config::{Config, Error, Overload, Unix};

use crate::proto::{Service, Shutdown};
use clock::Clock;
use front::Front;
use http::Http;
use listen::Listener;
use nearfar_cache::store::Store;
use shared::{Shared, State, Teller};
use worker::Worker;

/// Fuzz targets: arbitrary bytes for the server's parsers other than memcached's protocol.
#[cfg(fuzzing)]
pub mod fuzz {
    /// Requests to /metrics.
    pub fn http(data: &[u8]) {
        super::http::fuzz(data);
    }

    /// Certificates and keys.
    #[cfg(feature = "tls")]
    pub fn tls(data: &[u8]) {
        super::tls::fuzz(data);
    }
}

/// Stops a server, for example from a signal handler.
#[derive(Clone, Debug)]
pub struct Stop(Arc<State>);

impl Stop {
    /// Stops accepting; connections may complete their requests, for at most [`Config::drain_seconds`].
    pub fn drain(&self) {
        self.0.stop(Shutdown::Graceful);
    }

    /// Closes all connections at once.
    pub fn now(&self) {
        self.0.stop(Shutdown::Now);
    }
}

/// The error of a server that has ended without being stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "thread {thread} of the server failed ({why}), and all connections were closed; start it again"
)]
pub struct Failed {
    /// The thread's name.
    pub thread: String,
    /// Its error.
    pub why: String,
}

/// Stops a server in which a thread panics; workers and the front thread do more than that, and sooner.
struct Guard(Arc<State>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(Shutdown::Graceful);
        }
    }
}

/// A running server, until it is stopped or dropped.
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
    result.map_err(|why| Error::Start { what, why })
}

/// A server that listens but does not reply yet: its sockets and keys are open, and it has no threads.
pub struct Bound {
    config: Config,
    listeners: Vec<Listener>,
    metrics: Option<Listener>,
    process: Option<File>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl core::fmt::Debug for Bound {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bound").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Bound {
    /// Opens all resources that need privileges.
    ///
    /// # Errors
    /// An address on which it can't listen, or a missing certificate or key.
    pub fn new(config: Config) -> Result<Self, Error> {
        Ok(Self {
            #[cfg(feature = "tls")]
            tls: config.tls.as_ref().map(tls::server).transpose()?,
            listeners: Listener::all(&config)?,
            metrics: config.metrics.map(|at| Listener::on_tcp(at, config.backlog)).transpose()?,
            process: File::open("/proc/self/stat").ok(),
            config,
        })
    }

    /// Its configuration; changes do not affect open sockets.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Starts the server, for a store.
    ///
    /// # Errors
    /// If the system has no threads or descriptors for it.
    pub fn start(self, store: Arc<dyn Store + Send>) -> Result<Server, Error> {
        let Self { config, listeners, metrics, process, .. } = self;
        let metrics_address = metrics.as_ref().and_then(Listener::address);
        let addresses = listeners.iter().filter_map(Listener::address).collect();
        let workers = config.threads.max(1);
        let (clock, first) = (Clock::start(), store.now().max(1));
        let settings = config.protocol.clone();
        let mut state = State::new(config, clock, &listeners);
        state.process = process;
        let state = Arc::new(state);
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
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "TLS alone sets anything"))]
        let mut front = started("the acceptor", front)?;
        wakers.push(front.waker());
        let http = metrics.map(|listener| Http::new(Arc::clone(&shared), listener)).transpose();
        let http = started("metrics", http)?;
        wakers.extend(http.as_ref().map(Http::waker));
        #[cfg(feature = "tls")]
        front.set_tls(self.tls);
        let mut server =
            Server { shared, addresses, metrics: metrics_address, threads: Vec::new() };
        server.shared.state.set_wakers(wakers);
        // If a part can't be started the server is dropped, which stops the others.
        if let Some(http) = http {
            server.spawn("cache-metrics", move || http.run())?;
        }
        for (number, worker) in workers.into_iter().enumerate() {
            server.spawn(&format!("cache-{number}"), move || worker.run())?;
        }
        server.spawn("cache-front", move || front.run())?;
        Ok(server)
    }
}

impl Server {
    /// Starts a server for a store. It listens when this returns.
    ///
    /// # Errors
    /// An address on which it can't listen, or no threads or descriptors for it.
    pub fn start(store: Arc<dyn Store + Send>, config: Config) -> Result<Self, Error> {
        Bound::new(config)?.start(store)
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

    /// Its TCP addresses, with actual ports.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of `GET /metrics`.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// All metrics in Prometheus's format.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::text(&self.shared)
    }

    /// The handle that stops it.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(Arc::clone(&self.shared.state))
    }

    /// Waits until it has been stopped and all its threads have ended.
    ///
    /// # Errors
    /// A thread of it failed.
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
                Err(panic) => Err(failed(nearfar_cache::mover::panic_message(&*panic))),
            };
            ended = ended.and(one);
        }
        ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop().now();
        // `wait` reports errors.
        let _ = self.join();
    }
}

/// Raises this process's limit of descriptors for this many connections and the server's other needs, as far as the
/// system allows. Returns the new limit.
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
