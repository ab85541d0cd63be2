//! The cost of tiering on a machine larger than any available one: *simulated*, except for the daemon's own time and
//! memory.
//!
//! The daemon's code (loop, policy, DAMON session) runs over the requested number of nodes, with files in a scratch
//! directory instead of sysfs; its CPU time, its memory and the files it writes are measured. The kernel's part is a
//! model: a scan takes a given CPU time per page. The interval of scans follows from the policy, in virtual time:
//! nothing sleeps.

use anyhow::Context as _;
use nearfar_control::tiering::Loop;
use nearfar_control::turns::Turns;
use nearfar_kernel::damon::{DamonStat, Session};
use nearfar_kernel::fs::{Fs as _, RootFs};
use nearfar_kernel::journal::Journal;
use nearfar_kernel::process;
use nearfar_policy::ports::{TierBoundaries as _, TierPages as _};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeSet};
use serde::Serialize;

mod scratch;

use scratch::{BLOCK, Machine, Scratch};

use nearfar_daemon::tier::damon::DamonMigrator;
use nearfar_daemon::tier::plan::{Limits, Plan};
use nearfar_daemon::tier::schemes::specifications;

/// The schema of a [`Cost`].
pub(crate) const SCHEMA: &str = "nearfar.tiering-cost/1";
/// Page sizes for which the cost is reported.
const PAGES: [u64; 2] = [4 << 10, 2 << 20];
/// Counted scans, and the maximum number of scans before, which find the sampling window.
const LOOKS: u64 = 6;
const TICKS_MOST: u32 = 2_000;

/// The parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) nodes: u16,
    pub(crate) near: u16,
    pub(crate) memory: Bytes,
    /// Kernel CPU time of a scan per page.
    pub(crate) page_ns: u64,
    /// As in `nearfar tier start --cpu`.
    pub(crate) cpu_percent: u32,
}

/// The cost.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) schema: &'static str,
    /// Always true: the machine does not exist.
    pub(crate) simulated: bool,
    pub(crate) nodes: u16,
    pub(crate) near_nodes: u16,
    pub(crate) memory_bytes: u64,
    pub(crate) kdamonds: usize,
    pub(crate) schemes: usize,
    pub(crate) regions_max: u64,
    pub(crate) daemon: Daemon,
    /// Basis of the model of the kernel's part.
    pub(crate) page_look_ns: u64,
    pub(crate) kernel: Vec<Kernel>,
}

/// This program's part: measured, with files of a scratch directory instead of sysfs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Daemon {
    pub(crate) looks: u64,
    pub(crate) cpu_us_per_look: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) files_read_per_look: u64,
    pub(crate) files_written_per_look: u64,
    /// Commands to kdamonds among the writes. Linux 6.12 takes a tenth of a second for each.
    pub(crate) commands_per_look: u64,
}

/// The kernel's part: modelled.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Kernel {
    pub(crate) page_bytes: u64,
    pub(crate) cpu_percent: u32,
    pub(crate) cpu_ms_per_look: u64,
    /// Interval of scans, by the policy.
    pub(crate) period_ms: u64,
}

/// Computes the cost.
pub(crate) fn run(request: Request) -> anyhow::Result<Cost> {
    let bytes_each = request.memory.0 / u64::from(request.nodes) / BLOCK * BLOCK;
    anyhow::ensure!(
        bytes_each > 0 && (1..request.nodes).contains(&request.near),
        "{} nodes of which {} are near, with {} in all: at least one of each, and {} each",
        request.nodes,
        request.near,
        request.memory,
        Bytes(BLOCK)
    );
    let percents = [request.cpu_percent, request.cpu_percent * u32::from(request.nodes)];
    let mut kernel = Vec::new();
    let mut first = None;
    for page_bytes in PAGES {
        for cpu_percent in percents {
            let look_ns = bytes_each / page_bytes * request.page_ns;
            let machine = Machine { nodes: request.nodes, near: request.near, bytes_each, look_ns };
            let simulated = simulate(machine, cpu_percent)?;
            let cpu_ms_per_look = look_ns * u64::from(request.nodes) / 1_000_000;
            let period_ms = simulated.period.0 / 1_000_000;
            kernel.push(Kernel { page_bytes, cpu_percent, cpu_ms_per_look, period_ms });
            first.get_or_insert(simulated);
        }
    }
    let first = first.context("no page size")?;
    Ok(Cost {
        schema: SCHEMA,
        simulated: true,
        nodes: request.nodes,
        near_nodes: request.near,
        memory_bytes: bytes_each * u64::from(request.nodes),
        kdamonds: usize::from(request.nodes),
        schemes: first.schemes,
        regions_max: first.regions_max,
        daemon: first.daemon,
        page_look_ns: request.page_ns,
        kernel,
    })
}

struct Simulated {
    daemon: Daemon,
    period: Nanoseconds,
    schemes: usize,
    regions_max: u64,
}

/// Runs the daemon on a simulated machine.
fn simulate(machine: Machine, cpu_percent: u32) -> anyhow::Result<Simulated> {
    // Files in memory, as those of sysfs are.
    let scratch = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let (dir, state) = (scratch()?, scratch()?);
    let fs = Scratch::new(dir.path(), machine)?;
    let list = |text: &String| NodeSet::parse_list(text).context("a list of nodes");
    let tiers = machine.sides().iter().map(list).collect::<anyhow::Result<Vec<_>>>()?;
    let limits = Limits {
        headroom: BasisPoints(200),
        traffic: BasisPoints(1000),
        cpu: BasisPoints(cpu_percent.saturating_mul(100)),
    };
    let plan = Plan::imagined(tiers, limits);
    let (nodes, specs) = specifications(&fs, &plan, None)?;
    let journal = Journal::new(state.path(), &fs, "/");
    let session = Session::start(&fs, &journal, &specs, DamonStat::Keep)?;
    let mut pages = DamonMigrator::new(&fs, session, nodes, None, &plan);
    pages.turn_to(0)?;
    let goals = plan.boundaries[0].goals;
    let mut turns = Turns::new(vec![Loop::new(goals, pages.count()?)]);
    let live = RootFs::live()?;
    let (mut now, mut begun) = (Nanoseconds(0), None);
    for _ in 0..TICKS_MOST {
        // Once the window is found, and the initial budget is spent.
        if begun.is_none() && !turns.is_scanning() && fs.looks() >= LOOKS {
            begun = Some((fs.looks(), fs.calls(), process::cpu_ns(&live, "self"), now));
        }
        let wait = turns.tick(now, &mut pages)?;
        now = Nanoseconds(now.0.saturating_add(wait.0.max(1)));
        if !turns.is_scanning() && begun.is_some_and(|(looks, ..)| fs.looks() >= looks + LOOKS) {
            break;
        }
    }
    let (looks, calls, cpu_ns, since) = begun.context("the simulation made no scan")?;
    let (looks, after) = (fs.looks() - looks, fs.calls());
    let each = |now: u64, before: u64| (now - before) / looks.max(1);
    let cpu_ns = process::cpu_ns(&live, "self").saturating_sub(cpu_ns);
    let schemes = specs.iter().map(|spec| spec.context.schemes.len()).sum();
    Ok(Simulated {
        daemon: Daemon {
            looks,
            cpu_us_per_look: cpu_ns / 1000 / looks.max(1),
            resident_bytes: resident(&live),
            files_read_per_look: each(after.reads, calls.reads),
            files_written_per_look: each(after.writes, calls.writes),
            commands_per_look: each(after.commands, calls.commands),
        },
        period: Nanoseconds((now.0 - since.0) / looks.max(1)),
        schemes,
        regions_max: specs.iter().map(|spec| spec.context.nr_regions.max).sum(),
    })
}

fn resident(live: &RootFs) -> u64 {
    let text = live.read("proc/self/status").ok().flatten().unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok()
    });
    kib.unwrap_or(0) << 10
}

/// The cost as text.
pub(crate) fn text(cost: &Cost) -> String {
    let daemon = cost.daemon;
    let seconds = |ms: u64| {
        let tenths = ms.saturating_add(50) / 100;
        format!("{}.{} s", tenths / 10, tenths % 10)
    };
    let mut text = format!(
        "SIMULATED: {} nodes, {} of them near, {} in all; no such machine was used.\n\n\
         nearfar tier, measured here over files of a scratch directory in place of sysfs, {} looks:\n\
         \x20 {} of CPU time a look, {} resident\n\
         \x20 a look reads {} files and writes {}, of these {} commands to kdamonds\n\
         In the kernel: {} kdamonds with {} schemes, at most {} regions\n\n\
         The kernel's part, modelled from {} ns of CPU time a page and look (--page-ns):\n",
        cost.nodes,
        cost.near_nodes,
        Bytes(cost.memory_bytes),
        daemon.looks,
        format_args!(
            "{}.{} ms",
            daemon.cpu_us_per_look / 1000,
            daemon.cpu_us_per_look % 1000 / 100
        ),
        Bytes(daemon.resident_bytes),
        daemon.files_read_per_look,
        daemon.files_written_per_look,
        daemon.commands_per_look,
        cost.kdamonds,
        cost.schemes,
        cost.regions_max,
        cost.page_look_ns,
    );
    for row in &cost.kernel {
        let pages = Bytes(row.page_bytes);
        let share = row.cpu_ms_per_look * 100 / row.period_ms.max(1);
        let over = if share > u64::from(row.cpu_percent) {
            format!(
                "; that takes {share} % of a CPU, more than allowed: looks are at most six hours apart"
            )
        } else {
            String::new()
        };
        text += &format!(
            "  pages of {pages}, {} % of one CPU: {} of CPU time a look, a look every {}{over}\n",
            row.cpu_percent,
            seconds(row.cpu_ms_per_look),
            seconds(row.period_ms),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiering_cost_scales_with_the_memory_size_of_the_machine() {
        let request =
            Request { nodes: 2, near: 1, memory: Bytes(32 << 30), page_ns: 100, cpu_percent: 5 };
        let cost = run(request).unwrap();
        assert_eq!((cost.kdamonds, cost.memory_bytes, cost.simulated), (2, 32 << 30, true));
        // 8,388,608 pages at 100 ns; at 5 % of a CPU.
        assert_eq!(cost.kernel[0].cpu_ms_per_look, 838);
        assert!((12_000..24_000).contains(&cost.kernel[0].period_ms), "{cost:?}");
        assert!(cost.kernel[1].period_ms < cost.kernel[0].period_ms, "{cost:?}");
        assert!(cost.kernel[2].cpu_ms_per_look <= 2, "{cost:?}");
        let daemon = cost.daemon;
        assert!(daemon.looks >= LOOKS && daemon.commands_per_look >= 6, "{cost:?}");
        assert!(text(&cost).starts_with("SIMULATED: 2 nodes"), "{}", text(&cost));
    }

    #[test]
    fn impossible_machines_are_rejected() {
        for (nodes, near, gib) in [(4, 0, 64), (4, 4, 64), (4, 1, 6)] {
            let memory = Bytes(gib << 30);
            let request = Request { nodes, near, memory, page_ns: 100, cpu_percent: 5 };
            let error = run(request).unwrap_err().to_string();
            assert!(error.contains("at least one of each"), "{error}");
        }
    }
}
