//! State shared by the threads of a server, and the server's implementation of the protocol's
//! [`Host`].

use core::fmt::Display;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mio::Waker;

use super::clock::Clock;
use super::config::{Config, Overload};
use super::latency::Latencies;
use super::listen::Listener;
use crate::proto::{Doing, Figures, Host, Service, Shutdown};
use nearfar_cache::store::Store;

/// State of a connection, for `stats conns`.
#[derive(Debug)]
pub(super) struct Seen {
    address: String,
    listener: Arc<str>,
    state: AtomicU8,
    /// The second of the last command.
    since: AtomicU32,
}

/// Activities of a connection, by memcached's names.
const STATES: [&str; 6] = [
    "conn_waiting",
    "conn_nread",
    "conn_swallow",
    "conn_mwrite",
    "conn_parse_cmd",
    "conn_io_queue",
];

impl Seen {
    pub(super) fn new(address: String, listener: Arc<str>, second: u32) -> Self {
        Self { address, listener, state: AtomicU8::new(0), since: AtomicU32::new(second) }
    }

    /// Records a command.
    pub(super) fn asks(&self, second: u32) {
        self.state.store(4, Relaxed);
        self.since.store(second, Relaxed);
    }

    /// Records the end of a turn.
    pub(super) fn rests(&self, doing: Doing, holds: bool) {
        let state = match doing {
            _ if holds => 3,
            Doing::Waiting => 0,
            Doing::Reading => 1,
            Doing::Swallowing => 2,
            Doing::Fetching => 5,
        };
        self.state.store(state, Relaxed);
    }
}

/// Gauges, besides the counters of workers.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    pub(super) connections: AtomicU64,
    pub(super) connections_ever: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) paused: AtomicU64,
    pub(super) paused_us: AtomicU64,
    pub(super) is_paused: AtomicBool,
    pub(super) accept_errors: AtomicU64,
    /// Bytes held by connections.
    pub(super) held: AtomicU64,
}

const RUNS: u8 = 0;
const DRAINS: u8 = 1;
const ENDS: u8 = 2;

/// State shared by all threads and the protocol.
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: Config,
    pub(super) clock: Clock,
    /// Seconds since the start, at the last check.
    pub(super) second: AtomicU32,
    pub(super) gauges: Gauges,
    pub(super) latencies: Latencies,
    /// Connections by descriptor.
    seen: Mutex<BTreeMap<i32, Arc<Seen>>>,
    /// Listeners by descriptor.
    pub(super) listeners: Vec<(i32, Arc<str>)>,
    port: u16,
    stop: AtomicU8,
    /// Number of workers that have not ended.
    workers: AtomicUsize,
    wakers: OnceLock<Vec<Arc<Waker>>>,
    /// The kernel's figures of this process: opened once, as that may be forbidden later.
    pub(super) process: Option<File>,
}

impl State {
    pub(super) fn new(config: Config, clock: Clock, listeners: &[Listener]) -> Self {
        Self {
            clock,
            second: AtomicU32::new(0),
            gauges: Gauges::default(),
            latencies: Latencies::default(),
            seen: Mutex::default(),
            listeners: listeners.iter().map(|one| (one.number(), one.name().into())).collect(),
            port: listeners.iter().find_map(Listener::address).map_or(0, |one| one.port()),
            workers: AtomicUsize::new(config.threads.max(1)),
            config,
            stop: AtomicU8::new(RUNS),
            process: None,
            wakers: OnceLock::new(),
        }
    }

    /// Sets the wakers to call when the server is stopped. Once.
    pub(super) fn set_wakers(&self, wakers: Vec<Arc<Waker>>) {
        // There is one start, and after an earlier stop the threads check `stop` first.
        let _ = self.wakers.set(wakers);
    }

    pub(super) fn stop(&self, how: Shutdown) {
        let stop = if how == Shutdown::Now { ENDS } else { DRAINS };
        self.stop.fetch_max(stop, AcqRel);
        for waker in self.wakers.get().into_iter().flatten() {
            // A thread that can't be woken checks within a second.
            let _ = waker.wake();
        }
    }

    /// The kind of stop, if it was stopped.
    pub(super) fn stops(&self) -> Option<Shutdown> {
        match self.stop.load(Acquire) {
            RUNS => None,
            DRAINS => Some(Shutdown::Graceful),
            _ => Some(Shutdown::Now),
        }
    }

    /// Records that a worker has ended. Without a request for it, the others end, too: its connections would wait
    /// without end.
    pub(super) fn worker_ends(&self) {
        self.workers.fetch_sub(1, AcqRel);
        let how = self.stops().unwrap_or(Shutdown::Now);
        self.stop(how);
    }

    /// Whether any worker has not ended.
    pub(super) fn has_workers(&self) -> bool {
        self.workers.load(Acquire) > 0
    }

    pub(super) fn open(&self, number: i32, seen: Arc<Seen>) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(number, seen);
    }

    /// Must be called before the socket is closed, as its number may be reused then.
    pub(super) fn close(&self, number: i32) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        self.gauges.connections.fetch_sub(1, Relaxed);
    }
}

/// References that each thread of a server needs.
pub(super) struct Shared {
    pub(super) state: Arc<State>,
    pub(super) service: Service,
    pub(super) store: Arc<dyn Store + Send>,
}

/// The server, as the protocol's host.
#[derive(Debug)]
pub(super) struct Teller(pub(super) Arc<State>);

/// Seconds of CPU time of this process, in user mode and in the kernel.
fn cpu_seconds(process: &File) -> Option<(f64, f64)> {
    let mut stat = [0; 1024];
    let bytes = process.read_at(&mut stat, 0).ok()?;
    let stat = str::from_utf8(&stat[..bytes]).ok()?;
    // The name of the program is in parentheses and may have spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    let per_second = u32::try_from(rustix::param::clock_ticks_per_second()).ok().map(f64::from)?;
    Some((next()? / per_second, next()? / per_second))
}

impl Host for Teller {
    fn stats(&self, each: &mut Figures<'_>) {
        let State { config, gauges, .. } = &*self.0;
        each("pid", &std::process::id());
        each("uptime", &self.0.second.load(Relaxed));
        if let Some((user, system)) = self.0.process.as_ref().and_then(cpu_seconds) {
            each("rusage_user", &format_args!("{user:.6}"));
            each("rusage_system", &format_args!("{system:.6}"));
        }
        each("max_connections", &config.connections_max);
        let figures: [(&str, &AtomicU64); 6] = [
            ("curr_connections", &gauges.connections),
            ("total_connections", &gauges.connections_ever),
            ("rejected_connections", &gauges.refused),
            ("connection_structures", &gauges.connections),
            ("listen_disabled_num", &gauges.paused),
            ("time_in_listen_disabled_us", &gauges.paused_us),
        ];
        for (name, figure) in figures {
            each(name, &figure.load(Relaxed));
        }
        each("accept_errors", &gauges.accept_errors.load(Relaxed));
        each("read_buf_bytes", &gauges.held.load(Relaxed));
        each("accepting_conns", &u8::from(!gauges.is_paused.load(Relaxed)));
        each("threads", &config.threads);
    }

    fn settings(&self, each: &mut Figures<'_>) {
        let State { config, .. } = &*self.0;
        let yes = |is: bool| if is { "yes" } else { "no" };
        each("maxconns", &config.connections_max);
        each("maxconns_fast", &yes(config.overload == Overload::Refuse));
        each("tcpport", &self.0.port);
        each("udpport", &0);
        match config.tcp.first() {
            Some(address) => each("inter", &address.ip()),
            None => each("inter", &"NULL"),
        }
        match &config.unix {
            Some(unix) => {
                each("domain_socket", &unix.path.display());
                each("unix_mode", &format_args!("{:o}", unix.mode));
            }
            None => each("domain_socket", &"NULL"),
        }
        each("num_threads", &config.threads);
        each("tcp_backlog", &config.backlog);
        each("idle_timeout", &config.idle_seconds);
        each("stalled_timeout", &config.stalled_seconds);
        each("read_buf_mem_limit", &config.buffer_bytes_max);
        for (name, value) in &config.about {
            each(name, value);
        }
        #[cfg(feature = "tls")]
        each("ssl_enabled", &yes(config.tls.is_some()));
        #[cfg(not(feature = "tls"))]
        each("ssl_enabled", &"no");
    }

    fn connections(&self, each: &mut Figures<'_>) {
        let mut one = |number: i32, name: &str, value: &dyn Display| {
            each(&format!("{number}:{name}"), value);
        };
        for (number, name) in &self.0.listeners {
            one(*number, "addr", name);
            one(*number, "state", &"conn_listening");
        }
        let second = self.0.second.load(Relaxed);
        for (number, seen) in self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            one(*number, "addr", &seen.address);
            one(*number, "listen_addr", &seen.listener);
            one(*number, "state", &STATES[usize::from(seen.state.load(Relaxed)) % STATES.len()]);
            let since = seen.since.load(Relaxed);
            one(*number, "secs_since_last_cmd", &second.saturating_sub(since));
        }
    }

    fn reset(&self) {
        let gauges = &self.0.gauges;
        for one in [
            &gauges.connections_ever,
            &gauges.refused,
            &gauges.paused,
            &gauges.paused_us,
            &gauges.accept_errors,
        ] {
            one.store(0, Relaxed);
        }
        self.0.latencies.reset();
    }

    fn shutdown(&self, how: Shutdown) {
        self.0.stop(how);
    }
}
