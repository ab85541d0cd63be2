//! The server at work: the cache is made, movers and the server are started, and all end at a signal.
//!
//! SIGTERM and SIGINT let connections finish what they began; a second one ends at once. A thread that fails ends it, too, as an
//! error.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use nearfar_cache::evict::Eviction;
use nearfar_cache::mover::Movers;
use nearfar_cache::server::{self, Server, Stop};
use nearfar_cache::store::cas_at;
use nearfar_cache::tiers::Memory;
use nearfar_cache::{Cache, Config, Making, PageSize, Tier};
use nearfar_topology::Bytes;
use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::output;
use crate::clock::unix_ns;

/// What will be served.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The cache, with its tiers as they were named.
    pub(crate) cache: (Config, Vec<Memory>),
    /// Where and to how many.
    pub(crate) server: server::Config,
    /// Threads that move.
    pub(crate) movers: usize,
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
        writeln!(f, "threads  {}, and {} that move items", self.server.threads, self.movers)
    }
}

/// A cache over these tiers, of so many items, each of so many bytes of key and value at most.
///
/// # Errors
/// Tiers that are too many or too small for such items.
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
    };
    config.check().context("--memory")?;
    Ok((config, tiers))
}

/// The Unix second in which a cache's clock, which begins at 1, stands at 0.
pub(crate) fn clock_zero() -> u32 {
    u32::try_from(unix_ns() / 1_000_000_000 - 1).unwrap_or(0)
}

/// Serves until a signal ends it.
///
/// # Errors
/// Memory or sockets that can't be had.
pub(crate) fn serve(mut plan: Plan) -> anyhow::Result<()> {
    let (config, _) = &mut plan.cache;
    if plan.movers > 0 {
        config.making = Making::Background;
    }
    let signals = Signals::new([SIGTERM, SIGINT]).context("listening for signals")?;
    let allowed = server::allow_descriptors(plan.server.connections_max).context("descriptors")?;
    let wanted = plan.server.connections_max;
    if allowed < wanted as u64 {
        output::note(format_args!(
            "this process may have {allowed} descriptors, too few for {wanted} connections: raise its limit (ulimit -n)"
        ));
    }
    if config.disk.is_some() {
        // Above those of items that are found on disk.
        plan.server.protocol.cas_first = cas_at(unix_ns());
    }
    let cache = Arc::new(Cache::new(config)?);
    let mut movers = Movers::start(&cache, plan.movers).context("movers")?;
    movers.reap_too().context("the thread that takes out what has expired")?;
    let server = Server::start(Arc::clone(&cache) as _, plan.server.clone())?;
    // Ports that were any are those that were found.
    plan.server.tcp = server.addresses().to_vec();
    plan.server.metrics = server.metrics_address();
    output::print_error(&plan.to_string());
    let attended = attend(server, movers, signals);
    // What is on disk is left in good order whatever has failed.
    let closed = cache.close().context("--disk");
    attended.and(closed)
}

/// Waits until a signal, or a thread that fails, has ended the server, and ends the movers.
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
    ensure!(obeyed.is_ok(), "the thread that waits for signals failed; start it again");
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
    fn slabs_are_by_memory_whatever_the_largest_item_is() {
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
    fn a_thread_that_panics_ends_the_command_as_an_error_that_names_it() {
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
