//! Runs the cache server: creates the cache, starts the movers and the server, and ends all of them at a signal.
//!
//! On SIGTERM, SIGINT and SIGHUP, connections complete the requests they have begun; a second signal ends the server at once. A
//! thread that fails ends it, too, with an error.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nearfar_cache::copy::Copying;
use nearfar_cache::evict::Eviction;
use nearfar_cache::mover::Movers;
use nearfar_cache::store::{Store as _, cas_at};
use nearfar_cache::tiers::Memory;
use nearfar_cache::{Cache, Config, Making, PageSize, Tier};
use nearfar_memcached::server::{self, Bound, Server, Stop};
use nearfar_topology::Bytes;
use signal_hook::iterator::Signals;

use nearfar_command::sandbox::{self, Sandbox, User};
use nearfar_command::supervisor::Supervisor;
use nearfar_command::{interrupt, output};
use nearfar_kernel::clock::unix_ns;

/// Interval at which the supervisor is notified that the cache is alive.
const LOOK: Duration = Duration::from_millis(500);

/// The plan of a server.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The cache's configuration, with its tiers as named by the user.
    pub(crate) cache: (Config, Vec<Memory>),
    /// Sockets and limits.
    pub(crate) server: server::Config,
    /// Number of mover threads.
    pub(crate) movers: usize,
    /// The user to switch to.
    pub(crate) user: Option<User>,
    /// The sandbox, once it is entered.
    pub(crate) sandbox: Option<Sandbox>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, memory) in self.cache.1.iter().enumerate() {
            let Memory { name, bytes, policy } = memory;
            writeln!(f, "tier {at}   {bytes} of {name} memory ({policy})")?;
        }
        if let Some(disk) = &self.cache.0.disk {
            let at = self.cache.1.len();
            writeln!(f, "tier {at}   {} at {}", Bytes(disk.config.bytes), disk.path.display())?;
        }
        for address in &self.server.tcp {
            writeln!(f, "listen   {address}")?;
        }
        if let Some(unix) = &self.server.unix {
            writeln!(f, "listen   {} (mode {:o})", unix.path.display(), unix.mode)?;
        }
        if let Some(metrics) = self.server.metrics {
            writeln!(f, "metrics  http://{metrics}/metrics")?;
        }
        match (&self.sandbox, &self.user) {
            (Some(sandbox), _) => writeln!(f, "sandbox  {sandbox}")?,
            (None, Some(user)) => writeln!(f, "user     {}", user.name)?,
            (None, None) => (),
        }
        writeln!(f, "threads  {}, and {} that move items", self.server.threads, self.movers)
    }
}

impl Plan {
    /// An address that other machines can reach without client certificates.
    fn open_address(&self) -> Option<SocketAddr> {
        let are_asked = self.server.tls.as_ref().is_some_and(|tls| tls.client_roots.is_some());
        let mut open = self.server.tcp.iter().filter(|at| !at.ip().is_loopback());
        if are_asked { None } else { open.next().copied() }
    }
}

/// A cache over these tiers, for this many items, each with at most this many bytes of key and value.
///
/// # Errors
/// Too many tiers, or tiers too small for such items.
pub(crate) fn cache(
    tiers: Vec<Memory>,
    eviction: Eviction,
    (items, item_max): (Option<u64>, Option<usize>),
) -> anyhow::Result<(Config, Vec<Memory>)> {
    let tier =
        |memory: &Memory| Tier { bytes: memory.bytes.0, policy: memory.policy.clone(), eviction };
    let config = Config {
        tiers: tiers.iter().map(tier).collect(),
        items,
        slab: None,
        item_max,
        pages: PageSize::default(),
        disk: None,
        making: Making::Inline,
        copying: Copying::default(),
    };
    config.check().context("--memory")?;
    Ok((config, tiers))
}

/// The Unix second at which a cache's clock is 0; the clock begins at 1.
pub(crate) fn clock_zero() -> u32 {
    unix_second().saturating_sub(1)
}

fn unix_second() -> u32 {
    u32::try_from(unix_ns() / 1_000_000_000).unwrap_or(0)
}

/// Warns of an address that other machines reach.
pub(crate) fn warn(plan: &Plan) {
    if let Some(open) = plan.open_address() {
        output::note(format_args!(
            "{open} can be reached from other machines, and there is no authentication: any client may run every command \
             (--tls-clients asks for certificates)"
        ));
    }
    if let Some(open) = plan.server.metrics.filter(|at| !at.ip().is_loopback()) {
        output::note(format_args!(
            "{open} can be reached from other machines, and shows its metrics to any of them"
        ));
    }
}

/// Serves until a signal ends it.
///
/// # Errors
/// Memory or sockets that are unavailable.
pub(crate) fn serve(mut plan: Plan) -> anyhow::Result<()> {
    let (config, _) = &mut plan.cache;
    if plan.movers > 0 {
        config.making = Making::Background;
    }
    let signals = Signals::new(interrupt::signals()).context("listening for signals")?;
    let allowed = server::allow_descriptors(plan.server.connections_max).context("descriptors")?;
    let wanted = plan.server.connections_max;
    if allowed < wanted as u64 {
        output::note(format_args!(
            "this process may have {allowed} descriptors, too few for {wanted} connections: raise its limit (ulimit -n)"
        ));
    }
    if config.disk.is_some() {
        // Above those of all items recovered from disk.
        plan.server.protocol.cas_first = cas_at(unix_ns());
    }
    if plan.user.is_none() && sandbox::is_root() {
        output::note("this runs as root; -u USER switches to another user once all files are open");
    }
    let clock_zero = config.disk.as_ref().map(|disk| disk.clock_zero);
    let mut bound = Bound::new(plan.server.clone())?;
    let disk = config.disk.as_ref().map_or(String::new(), |disk| disk.path.display().to_string());
    let cache = Arc::new(Cache::new(config)?);
    if cache.counted().disk.is_some_and(|disk| disk.discarded) {
        output::note(format_args!(
            "{disk}: was not closed cleanly, so its objects are discarded (--disk-after-crash keep keeps them)"
        ));
    }
    let unix = plan.server.unix.as_ref().map(|unix| unix.path.as_path());
    let supervisor = Supervisor::find();
    let sandbox = sandbox::enter(plan.user.as_ref(), unix, !disk.is_empty())?;
    bound.config().about = sandbox.figures();
    plan.sandbox = Some(sandbox);
    let mut movers = Movers::start(&cache, plan.movers).context("movers")?;
    movers.expire_too().context("starting the thread that removes expired items")?;
    if let Some(zero) = clock_zero {
        // Opening the disk may have taken minutes, in which items have expired.
        cache.set_now(unix_second().saturating_sub(zero).max(1));
    }
    let server = bound.start(Arc::clone(&cache) as _)?;
    // Replaces ports given as 0 by the ports that were bound.
    plan.server.tcp = server.addresses().to_vec();
    plan.server.metrics = server.metrics_address();
    output::print_error(&plan.to_string());
    let watched = watched(Arc::clone(&cache), supervisor);
    let attended = attend(server, movers, signals);
    drop(watched);
    // The disk tier is closed cleanly, whichever error occurred.
    let closed = cache.close().with_context(|| format!("--disk {disk}"));
    attended.and(closed)
}

/// Notifies the supervisor that the server is ready, and then that its cache responds, until the result is dropped: then
/// that it is stopping.
fn watched(cache: Arc<Cache>, mut supervisor: Supervisor) -> Watched {
    let (stop, stopped) = mpsc::channel();
    supervisor.ready("serving");
    let thread = std::thread::spawn(move || {
        while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            // Takes each lock once: a deadlocked cache sends no notification.
            let _ = cache.counted();
            supervisor.alive();
        }
    });
    Watched { stop: Some(stop), thread: Some(thread) }
}

/// The thread that notifies the supervisor; ended when this is dropped.
struct Watched {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Else the process might end before the last notification.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits until a signal, or a failed thread, has ended the server, then ends the movers.
fn attend(server: Server, movers: Movers, mut signals: Signals) -> anyhow::Result<()> {
    let (stop, handle) = (server.stop(), signals.handle());
    let failing = stop.clone();
    movers.on_failure(move || failing.drain());
    let waiting = std::thread::spawn(move || obey(&mut signals, &stop));
    let served = server.wait();
    handle.close();
    let obeyed = waiting.join();
    let moved = movers.end();
    served?;
    moved?;
    ensure!(obeyed.is_ok(), "the signal thread failed; restart the server");
    Ok(())
}

fn obey(signals: &mut Signals, stop: &Stop) {
    for (count, _) in signals.forever().enumerate() {
        if count == 0 {
            stop.drain();
        } else {
            stop.now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use nearfar_cache::store::{Decide, Head, Meta, Refused, Store};
    use nearfar_kernel::mempolicy::Policy;

    fn any(bytes: u64) -> Vec<Memory> {
        vec![Memory { name: "any".into(), bytes: Bytes(bytes), policy: Policy::Default }]
    }

    #[test]
    fn the_slab_size_depends_on_memory_and_not_on_the_largest_item() {
        for item_max in [None, Some(1 << 20), Some(16 << 20)] {
            let (config, _) = cache(any(64 << 20), Eviction::default(), (None, item_max)).unwrap();
            assert_eq!((config.check().unwrap(), config.item_max), (128 << 10, item_max));
        }
    }

    /// A store that panics when it is read.
    #[derive(Debug)]
    struct Broken;

    impl Store for Broken {
        fn now(&self) -> u32 {
            1
        }
        fn set_now(&self, _: u32) {}
        fn get(&self, _: &[u8], _: &mut Vec<u8>, _: &mut Head<'_>) -> Option<Meta> {
            panic!("broken, as this test wants it")
        }
        fn edit(&self, _: &[u8], _: &mut Vec<u8>, _: &mut Decide<'_>) -> Result<(), Refused> {
            Ok(())
        }
        fn flush(&self, _: u32) {}
        fn each(&self, _: &mut dyn FnMut(&[u8], &Meta, usize) -> bool) {}
        fn resize(&self, _: u64) -> bool {
            false
        }
        fn stats(&self, _: &mut dyn FnMut(&str, u64)) {}
    }

    #[test]
    fn a_panicking_thread_ends_the_command_with_an_error_that_names_it() {
        let loopback = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        let config = server::Config { tcp: vec![loopback], ..server::Config::default() };
        let cache = Arc::new(Cache::new(&Config::of_bytes(8 << 20)).unwrap());
        let start = |store| Server::start(store, config.clone()).unwrap();
        let movers = || Movers::start(&cache, 1).unwrap();
        let server = start(Arc::new(Broken) as _);
        let mut client = std::net::TcpStream::connect(server.addresses()[0]).unwrap();
        client.write_all(b"get a\r\n").unwrap();
        let error = attend(server, movers(), Signals::new([0_i32; 0]).unwrap()).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("thread cache-") && text.contains("broken, as"), "{text}");

        let server = start(Arc::clone(&cache) as _);
        server.stop().now();
        attend(server, movers(), Signals::new([0_i32; 0]).unwrap()).unwrap();
    }

    #[test]
    fn memory_too_small_for_its_items_is_refused() {
        let error = cache(any(2 << 20), Eviction::default(), (None, Some(1 << 20))).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("--memory") && error.contains("more than a quarter"), "{error}");
    }
}
