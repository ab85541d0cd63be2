//! Verdicts on commands that run for long: balancing, recording, the cache, virtual machines.

use nearfar_kernel::features::{Feature, State};

use super::Scene;
use super::answer::{Answer, LAB, Verdict, damon_holder, held, in_use, is_in_path, verdict};
use super::state::{Privilege, ROOT};

const SUDO: &str = "sudo";

/// Whether this user lacks root on the machine that is judged.
fn lacks_root(scene: &Scene<'_>, privileges: &[Privilege]) -> bool {
    scene.live && !held(privileges, ROOT)
}

pub(super) fn balancing(scene: &Scene<'_>, privileges: &[Privilege]) -> Verdict {
    const COMMAND: &str = "balance";
    if scene.machine.memory_nodes().len() < 2 {
        return verdict(COMMAND, Answer::No, "one node with memory: traffic has no other place")
            .next(LAB);
    }
    match scene.features.state(Feature::NumaBalancing) {
        _ if lacks_root(scene, privileges) => {
            verdict(COMMAND, Answer::No, "measuring and migrating all processes needs root")
                .next(SUDO)
        }
        State::Present => {
            verdict(COMMAND, Answer::Yes, "traffic is measured by NUMA balancing's faults at least")
        }
        State::Lacking => {
            verdict(COMMAND, Answer::Partly, "without NUMA balancing, only where a PMU samples")
                .next("a kernel with CONFIG_NUMA_BALANCING")
        }
        State::Unknown(why) => verdict(COMMAND, Answer::Unknown, why),
    }
}

pub(super) fn recording(scene: &Scene<'_>, privileges: &[Privilege]) -> Verdict {
    const COMMAND: &str = "record";
    match scene.features.state(Feature::Damon) {
        State::Present if lacks_root(scene, privileges) => {
            verdict(COMMAND, Answer::No, "DAMON counts accesses, this user may not start it")
                .next(SUDO)
        }
        State::Present => match damon_holder(scene) {
            Some(holder) => in_use(COMMAND, &holder),
            None if scene.features.state(Feature::DamonVaddr) == State::Lacking => verdict(
                COMMAND,
                Answer::Partly,
                "DAMON counts accesses to physical memory, not to that of a process (CONFIG_DAMON_VADDR is off)",
            )
            .next("nearfar record --all"),
            None => verdict(COMMAND, Answer::Yes, "DAMON counts accesses"),
        },
        State::Lacking => {
            verdict(COMMAND, Answer::No, "this kernel has no DAMON to count accesses")
                .next("a kernel with CONFIG_DAMON_SYSFS, CONFIG_DAMON_VADDR and CONFIG_DAMON_PADDR")
        }
        State::Unknown(why) => verdict(COMMAND, Answer::Unknown, why),
    }
}

pub(super) fn cache(scene: &Scene<'_>) -> Verdict {
    const COMMAND: &str = "cache serve";
    let (near, far) = (scene.machine.near(), scene.machine.far());
    if far.is_empty() {
        return verdict(COMMAND, Answer::Yes, "in one tier: this machine has no far memory");
    }
    if let Some(refused) = &scene.refused {
        return verdict(COMMAND, Answer::Partly, format!("only without nodes: {refused}"));
    }
    verdict(COMMAND, Answer::Yes, format!("in two tiers: near {near}, far {far}"))
}

/// Whether memory of a virtual machine can be chosen here; a monitor is searched for in PATH.
pub(super) fn machines(scene: &Scene<'_>) -> Verdict {
    const COMMAND: &str = "vm run";
    if scene.machine.memory_nodes().len() < 2 {
        return verdict(COMMAND, Answer::No, "one node with memory: there is nothing to choose")
            .next(LAB);
    }
    let monitor = format!("qemu-system-{}", std::env::consts::ARCH);
    match [monitor.as_str(), "cloud-hypervisor"].into_iter().find(|name| is_in_path(name)) {
        Some(name) => {
            verdict(COMMAND, Answer::Yes, format!("memory of a named kind for machines of {name}"))
        }
        None => {
            verdict(COMMAND, Answer::No, format!("neither {monitor} nor cloud-hypervisor in PATH"))
                .next(format!("install {monitor}"))
        }
    }
}
