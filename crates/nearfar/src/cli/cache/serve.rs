//! `nearfar cache serve`: from words to a plan. Options that memcached has, too, have its letters and its defaults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueEnum;
use nearfar_cache::evict::Eviction;
use nearfar_cache::server::{Config, Overload, Tls, Unix};
use nearfar_kernel::affinity;
use nearfar_topology::Bytes;

use super::super::machine::MachineArgs;
use super::super::output;
use crate::cache::serve::{self, Plan};
use crate::cache::tiers::{self, MemoryExpr};
use crate::exit::{EndsWith as _, Exit};

/// memcached's port.
const PORT: u16 = 11211;
/// memcached's `-m`.
const MEMORY: Bytes = Bytes(64 << 20);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Memory for items: SIZE, or a kind of memory and a size, for each tier, fastest first: near=4g,
    /// 'weighted:near,far=16g', 0=64m [default: 64m]
    #[arg(short, long = "memory", value_name = "[KIND=]SIZE")]
    memory: Vec<MemoryExpr>,
    /// What goes first where a tier is full
    #[arg(long, value_enum, default_value_t = Policy::S3Fifo)]
    eviction: Policy,
    /// Threads that make room in tiers ahead of need; 0: whoever stores makes it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=64))]
    movers: u16,
    /// Items to have room for in the index [default: one for each 100 bytes of memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    items: Option<u64>,
    /// The largest item: key, value and 57 bytes, up to 16m
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = item_size, default_value = "1m")]
    item_max: Bytes,
    #[command(flatten)]
    sockets: Sockets,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    allowed: Allowed,
    /// Show what would be served, and end
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Where it listens.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sockets")]
struct Sockets {
    /// Listen on this address; may be given again [default: 127.0.0.1, or none with --unix]
    #[arg(short, long, value_name = "ADDRESS[:PORT]")]
    listen: Vec<String>,
    /// The port of addresses without one; 0 is any that is free
    #[arg(short, long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Listen on a socket in the file system
    #[arg(short = 's', long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Who may connect to it, as a file mode
    #[arg(short = 'a', long, value_name = "MODE", value_parser = mode, default_value = "700")]
    unix_mode: u32,
    /// Answer GET /metrics (Prometheus) on this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// TLS on all addresses: the server's certificate and those above it (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The key of --tls-certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Clients need a certificate that comes from one of these (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_clients: Option<PathBuf>,
}

/// How much at once.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct Limits {
    /// Threads that serve connections
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Connections at a time
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Have connections above that wait, instead of refusing them
    #[arg(long)]
    connections_wait: bool,
    /// Connections that the kernel keeps until they are accepted
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(i32).range(1..=1 << 20))]
    backlog: i32,
    /// Requests of a connection before others have their turn
    #[arg(short = 'R', long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    requests_per_turn: u32,
    /// Memory for what connections have half sent or not taken yet; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256m")]
    buffers: Bytes,
    /// Close connections that ask nothing for so long; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle: u32,
    /// Close connections that take no replies for so long; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    stalled: u32,
    /// On SIGTERM, give connections so long to finish what they began
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain: u32,
}

/// What clients may do.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Commands")]
struct Allowed {
    /// Refuse flush_all
    #[arg(short = 'F', long)]
    no_flush: bool,
    /// Refuse commands that list keys
    #[arg(short = 'X', long)]
    no_dump: bool,
    /// Allow shutdown
    #[arg(short = 'A', long)]
    allow_shutdown: bool,
    /// Allow debugtime, which moves the clock
    #[arg(long, hide = true)]
    debug_time: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Three queues: new ones, those read again, and the names of those that went
    S3Fifo,
    /// One queue, and a hand that leaves what was read
    Sieve,
    /// Least recently used, in three queues
    Lru,
    /// Who comes in is read more often than who goes
    WTinylfu,
}

impl From<Policy> for Eviction {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::S3Fifo => Self::S3Fifo,
            Policy::Sieve => Self::Sieve,
            Policy::Lru => Self::Lru,
            Policy::WTinylfu => Self::WTinyLfu,
        }
    }
}

fn size(text: &str) -> Result<Bytes, String> {
    nearfar_spec::spec::size(text).map_err(|error| error.to_string())
}

fn item_size(text: &str) -> Result<Bytes, String> {
    let fits = size(text)?;
    let fits = (1 << 10..=16 << 20).contains(&fits.0).then_some(fits);
    fits.ok_or_else(|| "an item may have 1k to 16m".into())
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "a mode has up to three octal digits, such as 700 or 660".into())
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = plan(args)?;
    if args.dry_run {
        output::print(&plan.to_string())?;
    } else {
        serve::serve(plan)?;
    }
    Ok(Exit::Done.into())
}

fn plan(args: &Args) -> anyhow::Result<Plan> {
    let default = [MemoryExpr { kind: None, bytes: MEMORY }];
    let memory = if args.memory.is_empty() { &default[..] } else { &args.memory };
    let item_max = usize::try_from(args.item_max.0)?;
    let needs_machine = memory.iter().any(|one| one.kind.is_some());
    let tiers = if needs_machine {
        let fs = args.machine.open()?;
        let (machine, _) = args.machine.read(fs.as_ref())?;
        let cpus = affinity::get().unwrap_or_default();
        tiers::resolve(memory, &machine, (&cpus, fs.as_ref()))
    } else {
        tiers::plain(memory)
    };
    let tiers = tiers.ends_with(Exit::Usage)?;
    let server = args.server(item_max).ends_with(Exit::Usage)?;
    let cache = serve::cache(tiers, args.eviction.into(), (args.items, item_max));
    Ok(Plan { cache: cache.ends_with(Exit::Usage)?, server, movers: args.movers.into() })
}

impl Args {
    fn server(&self, item_max: usize) -> anyhow::Result<Config> {
        let Self { sockets, limits, allowed, .. } = self;
        let mut server = Config {
            tcp: sockets.addresses()?,
            unix: sockets.unix.clone().map(|path| Unix { path, mode: sockets.unix_mode }),
            metrics: sockets.metrics,
            threads: limits.threads.into(),
            connections_max: usize::try_from(limits.connections)?,
            overload: if limits.connections_wait { Overload::Wait } else { Overload::Refuse },
            backlog: limits.backlog,
            buffer_bytes_max: usize::try_from(limits.buffers.0)?,
            idle_seconds: limits.idle,
            stalled_seconds: limits.stalled,
            drain_seconds: limits.drain,
            ..Config::default()
        };
        server.tls = sockets.tls_certificate.clone().zip(sockets.tls_key.clone()).map(
            |(certificate, key)| Tls {
                certificate,
                key,
                client_roots: sockets.tls_clients.clone(),
            },
        );
        server.protocol.item_bytes_max = item_max;
        server.protocol.requests_per_turn = usize::try_from(limits.requests_per_turn)?;
        server.protocol.flush = !allowed.no_flush;
        server.protocol.dump = !allowed.no_dump;
        server.protocol.shutdown = allowed.allow_shutdown;
        server.protocol.debug_time = allowed.debug_time;
        Ok(server)
    }
}

impl Sockets {
    fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        if self.listen.is_empty() && self.unix.is_some() {
            return Ok(Vec::new());
        }
        if self.listen.is_empty() {
            return Ok(vec![(Ipv4Addr::LOCALHOST, self.port).into()]);
        }
        let address = |text: &String| {
            let alone = text.parse::<IpAddr>().map(|address| (address, self.port).into());
            alone.or_else(|_| text.parse::<SocketAddr>()).with_context(|| {
                format!(
                    "--listen {text}: write an address such as 127.0.0.1, [::1]:11211 or 0.0.0.0"
                )
            })
        };
        self.listen.iter().map(address).collect()
    }
}
