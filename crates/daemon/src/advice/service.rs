//! The running daemon: samples, evaluates and publishes until a signal ends it; then its files are removed.
//!
//! All checks precede the first file. The interval between samples is the configured one, or longer if samples would
//! otherwise use more than a thousandth of a CPU ([`pace`]).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_kernel::advice::Publisher;
use nearfar_kernel::fs::{Fs as _, RootFs};
use nearfar_kernel::tierd::{Figures, Tierd};
use nearfar_kernel::{affinity, chase};
use nearfar_policy::advice::{Page, Traffic};
use nearfar_policy::advisor::{Advisor, pace};
use nearfar_topology::{CpuId, Nanoseconds, NodeId, Topology};

use super::look::Eyes;
use super::options::Options;
use super::plan::Plan;
use nearfar_command::machine::Machine;
use nearfar_command::supervisor::Supervisor;
use nearfar_command::{interrupt, output, sandbox};
use nearfar_kernel::clock::sleep;

/// The kernel's list of nodes with memory.
const HAS_MEMORY: &str = "sys/devices/system/node/has_memory";
/// The longest wait without a word to the watchdog.
const ALIVE: Nanoseconds = Nanoseconds(5_000_000_000);
/// Samples before a single page is shown.
const ONCE: usize = 5;

/// State of the sampling and its evaluation.
struct Service {
    fs: RootFs,
    /// The CPUs this process may use, before it restricts itself to some of them.
    allowed: Vec<CpuId>,
    machine: Topology,
    plan: Plan,
    eyes: Eyes,
    advisor: Advisor,
    /// The nodes with memory that the plan was made for.
    nodes: Option<String>,
    asked: Nanoseconds,
    /// Interval until the next sample.
    interval: Nanoseconds,
    begun: Nanoseconds,
    cpu_before: Nanoseconds,
    looks: u64,
}

/// Publishes until a signal asks it to stop.
///
/// # Errors
/// The reason why sampling or publishing failed; nothing is left behind then.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    let mut stop = Signals::listen()?;
    let mut service = Service::new(options)?;
    service.look()?;
    let path = options.advice();
    let mut publisher =
        Publisher::start(&path, service.page()).with_context(|| match &options.advice {
            Some(_) => format!("--advice {}", path.display()),
            None => String::from("the advice page (--advice FILE names another)"),
        })?;
    let recovered = publisher.claim().recovered().to_vec();
    say_removed(&recovered);
    let first = service.figures();
    let tierd = options.tierd.as_ref();
    let mut tierd = tierd
        .map(|dir| Tierd::start(dir, &first, publisher.claim()).context("--tierd"))
        .transpose()?;
    sandbox::drop_capabilities().context("dropping capabilities")?;
    output::remark(service.about(&path, options.tierd.as_deref()));
    // The cost of the start does not count as cost of sampling.
    service.begin();
    let mut supervisor = Supervisor::find();
    supervisor.ready(&format!("publishing at {}", path.display()));
    while !waited(&mut stop, service.interval, &mut supervisor)? {
        service.look()?;
        publisher.publish(service.page());
        if let Some(tierd) = &mut tierd {
            for (node, figures) in service.figures() {
                tierd.publish(node, &figures)?;
            }
        }
    }
    Ok(())
}

/// Waits for a signal for at most `time`, and keeps the watchdog content; returns whether one arrived.
fn waited(
    stop: &mut Signals,
    time: Nanoseconds,
    supervisor: &mut Supervisor,
) -> anyhow::Result<bool> {
    let mut left = time;
    loop {
        let part = left.min(ALIVE);
        if stop.wait(part)? {
            return Ok(true);
        }
        supervisor.alive();
        left.0 -= part.0;
        if left.0 == 0 {
            return Ok(false);
        }
    }
}

/// A page after a few samples, not published.
///
/// # Errors
/// The reason why sampling failed.
pub fn once(options: &Options) -> anyhow::Result<Page> {
    let mut service = Service::new(options)?;
    for _ in 0..ONCE {
        service.look()?;
        sleep(Duration::from_nanos(service.interval.0));
    }
    Ok(service.page())
}

/// Reports files of a killed daemon that were removed.
pub fn say_removed(removed: &[PathBuf]) {
    let Some((last, others)) = removed.split_last() else { return };
    let more =
        if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    output::remark(format_args!(
        "removed {}{more}, left by a daemon that was killed",
        last.display()
    ));
}

impl Service {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let fs = RootFs::live()?;
        // If the kernel does not report the affinity, all CPUs count as allowed.
        let allowed = affinity::get().unwrap_or_default();
        let (machine, plan, eyes) = Self::see(&fs, &allowed)?;
        let advisor = Advisor::new(&plan.known());
        let nodes = fs.read(HAS_MEMORY)?;
        let asked = u64::try_from(options.interval().as_nanos()).unwrap_or(u64::MAX);
        let (begun, cpu_before) = (chase::now(), chase::own_cpu());
        let asked = Nanoseconds(asked);
        Ok(Self {
            fs,
            allowed,
            machine,
            plan,
            eyes,
            advisor,
            nodes,
            asked,
            interval: asked,
            begun,
            cpu_before,
            looks: 0,
        })
    }

    fn see(fs: &RootFs, allowed: &[CpuId]) -> anyhow::Result<(Topology, Plan, Eyes)> {
        let args = Machine::default();
        args.open()?;
        let (machine, _) = args.read(fs)?;
        let plan = Plan::new(&machine, allowed)?;
        let eyes = Eyes::new(fs, &machine, &plan)?;
        Ok((machine, plan, eyes))
    }

    fn look(&mut self) -> anyhow::Result<()> {
        let (looks, has_read) = self.eyes.look(&self.fs);
        self.advisor.step(&looks);
        self.looks += 1;
        if has_read {
            self.notice_nodes()?;
        }
        self.interval = pace(self.asked, self.cpu(), self.looks);
        Ok(())
    }

    fn begin(&mut self) {
        (self.begun, self.cpu_before, self.looks) = (chase::now(), chase::own_cpu(), 0);
    }

    /// Restarts with a new plan if nodes were added or removed.
    fn notice_nodes(&mut self) -> anyhow::Result<()> {
        let nodes = self.fs.read(HAS_MEMORY)?;
        if nodes == self.nodes {
            return Ok(());
        }
        // A node that is still being added is sampled a second later.
        let Ok((machine, plan, eyes)) = Self::see(&self.fs, &self.allowed) else { return Ok(()) };
        output::note(format_args!(
            "nodes were added or removed; the daemon continues with nodes {}",
            machine.memory_nodes()
        ));
        self.advisor = Advisor::new(&plan.known());
        (self.machine, self.plan, self.eyes, self.nodes) = (machine, plan, eyes, nodes);
        let (looks, _) = self.eyes.look(&self.fs);
        self.advisor.step(&looks);
        Ok(())
    }

    fn cpu(&self) -> Nanoseconds {
        Nanoseconds(chase::own_cpu().0.saturating_sub(self.cpu_before.0))
    }

    fn traffic(&self) -> Traffic {
        self.eyes.counts_by().map_or(Traffic::Unknown, |_| Traffic::Resctrl)
    }

    fn page(&self) -> Page {
        Page {
            heartbeat: chase::now(),
            interval: self.interval,
            pid: std::process::id(),
            traffic: self.traffic(),
            cpu: self.cpu(),
            begun: self.begun,
            looks: self.looks,
            nodes: self.advisor.advice(),
        }
    }

    /// The figures of each node for SMDK's files.
    fn figures(&self) -> BTreeMap<NodeId, Figures> {
        let has_cpus = |node: NodeId| {
            self.plan.nodes.iter().any(|planned| planned.known.node == node && planned.has_cpus)
        };
        let of_node = |advice: nearfar_policy::advice::Advice| {
            let node = advice.node;
            let orders = has_cpus(node).then(|| self.plan.orders(&self.machine, node));
            let figures = Figures {
                has_bandwidth: self.advisor.has_bandwidth(node),
                has_room: self.advisor.has_room(node),
                read: advice.read,
                write: advice.write,
                used: advice.used,
                orders,
            };
            (node, figures)
        };
        self.advisor.advice().into_iter().map(of_node).collect()
    }

    /// A description of the service in one line.
    fn about(&self, path: &Path, tierd: Option<&Path>) -> String {
        let tierd = tierd.map(|dir| format!(" and {}", dir.display())).unwrap_or_default();
        let used = match self.eyes.counts_by() {
            Some(file) => format!("bandwidth in use is counted by resctrl ({file})"),
            None => "bandwidth in use is not known (no counters of resctrl)".into(),
        };
        format!(
            "process {} publishes {}{tierd}: {} by timed loads every {} ms; {used}",
            std::process::id(),
            path.display(),
            self.machine.memory_nodes().named(),
            self.interval.0 / 1_000_000,
        )
    }
}

/// Signals that end the service.
struct Signals(UnixStream);

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let (reading, writing) = UnixStream::pair().context("listening for signals")?;
        for signal in interrupt::signals() {
            let end = writing.try_clone().context("listening for signals")?;
            signal_hook::low_level::pipe::register(signal, end).context("listening for signals")?;
        }
        Ok(Self(reading))
    }

    /// Waits for a signal for at most `time`; returns whether one arrived.
    fn wait(&mut self, time: Nanoseconds) -> anyhow::Result<bool> {
        self.0.set_read_timeout(Some(Duration::from_nanos(time.0.max(1_000_000))))?;
        loop {
            match self.0.read(&mut [0]) {
                Ok(_) => return Ok(true),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&why.kind()) => {
                    return Ok(false);
                }
                Err(why) => return Err(why).context("waiting for signals"),
            }
        }
    }
}

/// Removes the files that a killed daemon left at `path`; returns their paths.
///
/// # Errors
/// A daemon that is running, or a file that cannot be removed.
pub fn recover(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    nearfar_kernel::advice::recover(path).context("--recover")
}
