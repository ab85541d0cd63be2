//! `nearfar cache serve`: turns arguments into a plan. Options that memcached has, too, have its letters and its
//! defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_cache::DiskTier;
use nearfar_cache::disk::Disk;
use nearfar_memcached::server::{Config, Overload, Tls, Unix};
use nearfar_topology::Bytes;

use super::engine::{EngineArgs, item_size};
use super::listen;
use super::size;
use crate::serve::{self, Plan};
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;
use nearfar_command::output;
use nearfar_command::sandbox;

/// memcached's port.
const PORT: u16 = 11211;
/// memcached's default of `-I`.
const ITEM_MAX: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Maximum item size, counting key, value and 57 bytes of overhead, up to 16m [default: 1m, or a quarter of the
    /// smallest tier]
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = item_size)]
    item_max: Option<Bytes>,
    /// Show the plan without serving
    #[arg(long)]
    dry_run: bool,
    /// Switch to this user once sockets, disk and keys are open
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// memcached's options that are not supported here.
    #[arg(short = 'd', short_aliases = ABSENT, hide = true, num_args = 0..=1, default_missing_value = "")]
    absent: Vec<String>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sockets: Sockets,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    allowed: Allowed,
}

/// Letters of memcached's options that are not supported here, besides `-d`.
const ABSENT: [char; 17] =
    ['P', 'o', 'U', 'M', 'k', 'D', 'L', 'f', 'n', 'S', 'Y', 'B', 'C', 'r', 'i', 'Z', 'e'];
const PRESENT: &str = "supported options of memcached are -m -p -l -s -a -t -c -b -u -I -R -F -X -A; nearfar cache serve --help lists all options";

/// Sockets to listen on.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sockets")]
struct Sockets {
    /// Listen on this address or name; may be repeated [default: 127.0.0.1, or none with --unix]
    #[arg(short, long, value_name = "ADDRESS[:PORT]", value_delimiter = ',')]
    listen: Vec<String>,
    /// Default port of addresses; 0: any free port [default: 11211]
    #[arg(short, long, value_name = "PORT", value_parser = whole::<u16>(0..=65535))]
    port: Option<u16>,
    /// Listen on a Unix socket at this path
    #[arg(short = 's', long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// File mode of the Unix socket, which sets the users that may connect
    #[arg(short = 'a', long, value_name = "MODE", value_parser = mode, default_value = "700", requires = "unix")]
    unix_mode: u32,
    /// Serve GET /metrics (Prometheus) on this address
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket)]
    metrics: Option<SocketAddr>,
    /// Use TLS on all addresses; FILE holds the server's certificate and its chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of --tls-certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Require client certificates issued by one of these authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_clients: Option<PathBuf>,
}

/// Limits on connections and threads.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct Limits {
    /// Server threads
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = whole::<u16>(1..=256))]
    threads: u16,
    /// Maximum simultaneous connections
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = whole::<u32>(1..=1_000_000))]
    connections: u32,
    /// Let further connections wait instead of refusing them
    #[arg(long)]
    connections_wait: bool,
    /// Length of the kernel's queue of connections not yet accepted
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = whole::<i32>(1..=1 << 20))]
    backlog: i32,
    /// Maximum requests served for one connection before others have their turn
    #[arg(short = 'R', long, value_name = "N", default_value_t = 256, value_parser = whole::<u32>(1..=1 << 20))]
    requests_per_turn: u32,
    /// Memory for partial requests and for replies not yet sent; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256m")]
    buffers: Bytes,
    /// Close connections without a request for this many seconds; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = whole::<u32>(0..=u32::MAX.into()))]
    idle: u32,
    /// Close connections that accept no reply, or send nothing of a TLS handshake, for this many seconds; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole::<u32>(0..=u32::MAX.into()))]
    stalled: u32,
    /// Seconds for connections to complete their requests after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = whole::<u32>(0..=u32::MAX.into()))]
    drain: u32,
}

/// Permitted commands.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Commands")]
struct Allowed {
    /// Refuse flush_all
    #[arg(short = 'F', long)]
    no_flush: bool,
    /// Refuse commands that list keys
    #[arg(short = 'X', long)]
    no_dump: bool,
    /// Allow the shutdown command
    #[arg(short = 'A', long)]
    allow_shutdown: bool,
    /// Allow the debugtime command, which moves the clock
    #[arg(long, hide = true)]
    debug_time: bool,
}

/// Parses the address of `--metrics`.
fn socket(text: &str) -> Result<SocketAddr, String> {
    let wanted = "write ADDRESS:PORT with a numeric address, such as 127.0.0.1:9150";
    text.parse().map_err(|_| wanted.into())
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "a mode has up to three octal digits, such as 700 or 660".into())
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = plan(args)?;
    serve::warn(&plan);
    let Sockets { listen, port, unix, .. } = &args.sockets;
    if let (Some(1..), Some(_), true) = (port, unix, listen.is_empty()) {
        output::note(
            "--unix opens no TCP port, so --port has no effect; --listen ADDRESS opens one",
        );
    }
    if args.dry_run {
        output::print(&plan.to_string())?;
    } else {
        serve::serve(plan)?;
    }
    Ok(Exit::Done.into())
}

fn plan(args: &Args) -> anyhow::Result<Plan> {
    if !args.absent.is_empty() {
        return Err(anyhow::anyhow!(PRESENT)).ends_with(Exit::Usage);
    }
    let mut cache = args.engine.cache(args.item_max)?;
    let item_max = cache.0.item_max.unwrap_or_else(|| cache.0.item_share().min(ITEM_MAX));
    cache.0.item_max = Some(item_max);
    let server = args.server(item_max).ends_with(Exit::Usage)?;
    if args.dry_run {
        cache.0.copying.open().context("--copy")?;
    }
    if let Some(DiskTier { path, config, .. }) = &cache.0.disk {
        Disk::check(path, config).context("--disk").ends_with(Exit::Usage)?;
    }
    if let Some(tls) = &server.tls {
        tls.check().ends_with(Exit::Usage)?;
    }
    let user = args.user.as_deref().map(sandbox::user).transpose().ends_with(Exit::Usage)?;
    Ok(Plan { cache, server, movers: args.engine.movers(), user, sandbox: None })
}

impl Args {
    fn server(&self, item_max: usize) -> anyhow::Result<Config> {
        let Self { sockets, limits, allowed, .. } = self;
        let mut server = Config {
            tcp: sockets.addresses()?,
            unix: sockets.unix()?,
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
        // A value is received and sent whole, and its buffer doubles as it grows.
        let (needed, threads) = (2 * item_max, server.threads.max(1));
        anyhow::ensure!(
            server.buffer_bytes_max == 0 || server.buffer_bytes_max / threads >= needed,
            "--buffers {}: each of {threads} threads has a share of it, which must be {} for items of {}; give {} or more",
            limits.buffers,
            Bytes(needed as u64),
            Bytes(item_max as u64),
            Bytes((needed * threads) as u64)
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
    /// The Unix socket, whose directory is there.
    fn unix(&self) -> anyhow::Result<Option<Unix>> {
        let Some(path) = self.unix.clone() else { return Ok(None) };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let there = dir.is_none_or(Path::is_dir);
        anyhow::ensure!(there, "--unix {}: its directory is not there; create it", path.display());
        Ok(Some(Unix { path, mode: self.unix_mode }))
    }

    fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let port = self.port.unwrap_or(PORT);
        if self.listen.is_empty() && self.unix.is_some() {
            return Ok(Vec::new());
        }
        if self.listen.is_empty() {
            return Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]);
        }
        listen::addresses(&self.listen, port)
    }
}
