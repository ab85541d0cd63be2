//! The demo on the machine of this process, either a real one or the lab's guest.

use std::path::Path;
use std::time::Duration;

use super::line::Line;
use super::process::Launcher;
use super::saved::KeptWeights;
use super::servers::{SERVICES, Service};
use super::{kernels, placements};
use nearfar_command::disturbance::Watch;
use nearfar_command::output;
use nearfar_command::progress::Progress;
use nearfar_kernel::fs::RootFs;
use nearfar_report::model::{LeftOut, Machine, Placement, Report, SCHEMA};

/// Time limit for trying a placement.
const LIMIT: Duration = Duration::from_secs(60);

/// The parts of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// The bandwidth kernels
    Bandwidth,
    /// redis-server and redis-benchmark
    Redis,
    /// memcached and memcaslap
    Memcached,
}

impl Part {
    /// The service of this part, if it is one.
    fn service(self) -> Option<&'static Service> {
        let id = match self {
            Self::Bandwidth => return None,
            Self::Redis => "redis",
            Self::Memcached => "memcached",
        };
        SERVICES.iter().find(|service| service.id == id)
    }
}

/// Runs `parts`; the output of every child process is saved in `dir`.
///
/// # Errors
/// A program fails or is missing, or the run is interrupted.
pub fn run(machine: Machine, parts: &[Part], dir: &Path, progress: bool) -> anyhow::Result<Report> {
    let nearfar = super::beside::program("nearfar")?;
    let launcher = Launcher { nearfar: &nearfar, dir };
    let _kept = KeptWeights::of(launcher)?;
    let placements = available(launcher, placements::all());
    let bandwidth = parts.contains(&Part::Bandwidth);
    let (services, left_out) = services(parts);
    let each = if bandwidth { kernels::steps(&machine, &placements) } else { 0 };
    let fs = RootFs::live()?;
    let watch = Watch::start(&fs);
    let mut progress = Progress::new(each + services.len() * placements.len(), progress);
    let bandwidth = bandwidth
        .then(|| kernels::run(launcher, &machine, &placements, &mut progress))
        .transpose()?;
    let emulation = machine.emulation.as_ref();
    let mut servers = Vec::new();
    for service in services {
        servers.push(service.run(launcher, emulation, &placements, &mut progress)?);
    }
    // Emulated time does not depend on the load of the host.
    if let Some(disturbance) = watch.end(&fs).filter(|_| emulation.is_none()) {
        output::note(disturbance);
    }
    Ok(Report {
        schema: SCHEMA.into(),
        nearfar: env!("CARGO_PKG_VERSION").into(),
        machine,
        placements,
        bandwidth,
        servers,
        left_out,
    })
}

/// Marks placements that are unavailable with this kernel or user, tried with a program that does nothing.
fn available(launcher: Launcher<'_>, mut placements: Vec<Placement>) -> Vec<Placement> {
    for placement in placements.iter_mut().filter(|placement| !placement.prefix.is_empty()) {
        let line = placements::under(placement, None, &Line::words("true"));
        let tried = launcher.run(&line, &format!("try-{}.txt", placement.id), LIMIT);
        placement.unavailable = tried.err().map(|error| format!("{error:#}"));
    }
    placements
}

/// The requested services that can run here, and those that can't.
fn services(parts: &[Part]) -> (Vec<&'static Service>, Vec<LeftOut>) {
    let mut left_out = Vec::new();
    let asked = parts.iter().filter_map(|part| part.service());
    let present = asked.filter(|service| match service.missing() {
        Some(missing) => {
            left_out.push(missing);
            false
        }
        None => true,
    });
    (present.collect(), left_out)
}
