//! The memory of a virtual machine as it measures it: DRAM, CXL memory as a node of its own, and CXL memory as a type-3
//! device; then Redis in DRAM, in CXL memory and tiered. The evaluation of the proposal of `host-mem-type` for QEMU, by one
//! command, emulated.
//!
//! The virtual machines are guests of the lab, whose memories are as fast as those of the modelled host. In each, the
//! lab's C programs measure every node (`measure`). A guest within such a guest would not show the host's latency: of
//! loads that QEMU emulates once more, the timing model does not see that one waits for the other. `results.rs` has the
//! results; text and page are in `pages/vm.rs`.

use std::path::Path;
use std::time::Duration;

use nearfar_lab::check::programs::Programs;

mod redis;
pub(crate) mod results;

use crate::demo::line::Line;
use crate::demo::machine;
use crate::demo::process::Launcher;
use nearfar_command::progress::Progress;
use results::{Found, Row, SCHEMA, Setup};

/// The virtual machine with a type-3 device: the other's CXL memory is a node of its firmware's.
pub(crate) const DEVICE: &str = "cxl-device";
/// Time limit of a program.
const LIMIT: Duration = Duration::from_secs(300);
/// Regions of CXL memory that a driver has made of a device.
const REGION: &str = "/sys/bus/cxl/devices/region0";

/// Compiles the programs into `dir`.
///
/// # Errors
/// There is no compiler, or a file can't be copied.
pub(crate) fn prepare(dir: &Path) -> anyhow::Result<()> {
    let programs = Programs::compile()?;
    for name in ["chase", "bandwidth"] {
        std::fs::copy(programs.dir().join(name), dir.join(name))?;
    }
    Ok(())
}

/// Measures each node of this machine with the programs that [`prepare`] has put into `dir`.
pub(crate) fn measure(dir: &Path, progress: bool) -> anyhow::Result<Found> {
    let machine = machine::read()?;
    let nearfar = crate::demo::beside::program("nearfar")?;
    let launcher = Launcher { nearfar: &nearfar, dir };
    let has_device = Path::new(REGION).exists();
    let servers = if has_device { 0 } else { redis::ROWS };
    let mut progress = Progress::new(machine.nodes.len() + servers, progress);
    let mut rows = Vec::new();
    for node in &machine.nodes {
        let setup = match (node.kind.as_str(), has_device) {
            ("cxl", true) => Setup::CxlDevice,
            ("cxl", false) => Setup::CxlNode,
            _ => Setup::Dram,
        };
        progress.step(setup.name());
        let mut lines = Vec::new();
        for line in programs(dir, setup, node.id) {
            lines.push(launcher.run(&line, &format!("node{}", node.id), LIMIT)?);
        }
        rows.push(Row::of(setup, lines.iter().map(|line| line.trim())));
    }
    let slow_motion = machine.emulation.as_ref().map_or(1.0, |emulation| emulation.slow_motion);
    let redis = match servers {
        0 => Vec::new(),
        _ => redis::measure(launcher, slow_motion, |step| progress.step(step)),
    };
    let nearfar = env!("CARGO_PKG_VERSION").into();
    Ok(Found { schema: SCHEMA.into(), nearfar, machine, rows, redis })
}

/// The programs on a node. Those on a device are shorter: each of its accesses is emulated I/O.
fn programs(dir: &Path, setup: Setup, node: u16) -> [Line; 2] {
    let size = if setup == Setup::CxlDevice { "mb=16 steps=4000" } else { "mb=32 steps=20000" };
    let line = |program: &str, options: &str| {
        Line::new([dir.join(program).display().to_string()])
            .and(&Line::words(&format!("node={node} {size} rounds=3 huge=1 {options}")))
    };
    [line("chase", ""), line("bandwidth", "threads=1")]
}

/// The plan, as text.
pub(crate) fn plan(host: &str) -> String {
    let mut out = String::new();
    for setup in Setup::ALL {
        let machine = if setup == Setup::CxlDevice { DEVICE } else { host };
        out += &format!("{}: in a guest of the lab's {machine}\n", setup.name());
        for line in programs(Path::new("DIR"), setup, u16::from(setup != Setup::Dram)) {
            out += &format!("  {line}\n");
        }
    }
    out + &redis::plan()
}

/// The results of both virtual machines: that of the second is its device.
pub(crate) fn joined(mut found: Found, device: Found) -> Found {
    found.rows.extend(device.rows.into_iter().filter(|row| row.setup == Setup::CxlDevice));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_has_a_guest_for_each_memory() {
        let plan = plan("cxl-2tier");
        for part in [
            "DRAM: in a guest of the lab's cxl-2tier\n  DIR/chase node=0 ",
            "CXL as a node: in a guest of the lab's cxl-2tier\n  DIR/chase node=1 mb=32",
            "CXL as a type-3 device: in a guest of the lab's cxl-device\n  DIR/chase node=1 mb=16",
        ] {
            assert!(plan.contains(part), "{part}:\n{plan}");
        }
    }

    #[test]
    fn only_the_device_row_is_kept_from_the_device_machine() {
        let row = |setup| Row { setup, latency_ns: Some(1.0), gbps: Some(1.0), failed: None };
        let of = |setups: [Setup; 2]| Found {
            schema: SCHEMA.into(),
            nearfar: "0.0.0".into(),
            machine: crate::heap::sample::found().machine,
            rows: setups.map(row).into(),
            redis: Vec::new(),
        };
        let found = joined(of([Setup::Dram, Setup::CxlNode]), of([Setup::Dram, Setup::CxlDevice]));
        let setups: Vec<Setup> = found.rows.iter().map(|row| row.setup).collect();
        assert_eq!(setups, Setup::ALL);
    }
}
