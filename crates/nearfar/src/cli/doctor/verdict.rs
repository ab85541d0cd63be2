//! Verdicts on nearfar's commands: whether each can work here, the reason if not, and the way to enable it.
//!
//! Evidence is the machine's topology, the kernel's features, the settings and the privileges; nothing is changed or
//! started. Evidence that cannot be read gives the verdict "unknown". Not here: reading the evidence (`state.rs`).

use nearfar_cache::copy;
use nearfar_daemon::owner::Service;
use nearfar_kernel::features::{Feature, State};
use nearfar_topology::MemoryKind;

use super::answer::{Answer, LAB, Verdict, damon_holder, held, in_use, is_in_path, verdict};
use super::state::{Privilege, ROOT};
use super::{Scene, services};

/// Every verdict, in the order a user would try the commands.
pub(super) fn all(scene: &Scene<'_>, privileges: &[Privilege]) -> Vec<Verdict> {
    let mut verdicts = vec![
        topo(scene),
        probe(scene),
        place(scene),
        weighted(scene),
        apply(scene, privileges),
        residency(scene),
        tiering(scene, privileges),
        services::balancing(scene, privileges),
        services::recording(scene, privileges),
        services::cache(scene),
        copying(scene),
    ];
    if scene.live {
        verdicts.extend([heap(), services::machines(scene), lab()]);
    }
    verdicts
}

/// DSA as what copies a cache's items. Queues are not opened here: whether they take descriptors shows when a cache starts.
fn copying(scene: &Scene<'_>) -> Verdict {
    const COMMAND: &str = "cache --copy dsa";
    let found = copy::discover(scene.fs);
    if found.queues.is_empty() {
        let why = match found.findings.first() {
            Some(finding) => finding.clone(),
            None => "no DSA work queue of type user is enabled: the CPU copies items".into(),
        };
        return verdict(COMMAND, Answer::No, why).next("docs/cache-copy.md sets a queue up");
    }
    let name = |queue: &copy::WorkQueue| match queue.node {
        Some(node) => format!("{} on node {node}", queue.name),
        None => queue.name.clone(),
    };
    let names: Vec<_> = found.queues.iter().map(name).collect();
    let why = format!("DSA work queues: {} (found, not tried)", names.join(", "));
    verdict(COMMAND, Answer::Yes, why)
}

/// Whether the library that places a program's heap is installed.
fn heap() -> Verdict {
    const COMMAND: &str = "run --heap";
    match crate::cli::run::preload_library() {
        Ok(_) => verdict(COMMAND, Answer::Yes, "malloc of a program can be in a kind of memory"),
        Err(found) => verdict(COMMAND, Answer::No, found.to_string())
            .next("the package nearfar-preload, or make library in the sources"),
    }
}

fn topo(scene: &Scene<'_>) -> Verdict {
    let unknown = scene.machine.of_kind(MemoryKind::Unknown);
    let tiers = scene.machine.tiers.len();
    if !unknown.is_empty() {
        return verdict(
            "topo",
            Answer::Partly,
            format!("the kind of memory of node {unknown} is unknown"),
        )
        .next(format!("set it: nearfar topo --kind {}=cxl (or dram, hbm, pmem)", first(&unknown)));
    }
    let what = match tiers {
        0 => "no node has memory".to_string(),
        1 => "one tier: all memory is near, or differs only by socket".to_string(),
        _ => format!("{tiers} tiers: near {}, far {}", scene.machine.near(), scene.machine.far()),
    };
    verdict("topo", Answer::Yes, what)
}

fn first(nodes: &nearfar_topology::NodeSet) -> String {
    nodes.iter().next().map(|id| id.to_string()).unwrap_or_default()
}

fn probe(scene: &Scene<'_>) -> Verdict {
    match scene.features.state(Feature::HugePages) {
        State::Present => {
            verdict("probe", Answer::Yes, "latency and bandwidth of every pair can be measured")
        }
        State::Lacking => verdict(
            "probe",
            Answer::Partly,
            "without huge pages latencies include page table walks",
        )
        .next("a kernel with CONFIG_TRANSPARENT_HUGEPAGE"),
        State::Unknown(why) => verdict("probe", Answer::Unknown, why),
    }
}

fn place(scene: &Scene<'_>) -> Verdict {
    if let Some(refused) = &scene.refused {
        return verdict("run", Answer::No, refused);
    }
    let memory = scene.machine.memory_nodes();
    if memory.len() < 2 {
        return verdict("run", Answer::No, "one node with memory: there is nothing to choose")
            .next(LAB);
    }
    verdict(
        "run",
        Answer::Yes,
        format!("programs can be placed on nodes {memory} (-m -p -i -N -C)"),
    )
}

fn weighted(scene: &Scene<'_>) -> Verdict {
    const COMMAND: &str = "run -w";
    if scene.machine.memory_nodes().len() < 2 {
        return verdict(COMMAND, Answer::No, "one node with memory: no bandwidth to add").next(LAB);
    }
    if let Some(refused) = &scene.refused {
        return verdict(COMMAND, Answer::No, refused);
    }
    match scene.features.state(Feature::WeightedInterleave) {
        State::Present => {
            verdict(COMMAND, Answer::Yes, "the bandwidth of several nodes at once, by weight")
        }
        State::Lacking => {
            verdict(COMMAND, Answer::Partly, "this kernel has no weighted interleave")
                .next("Linux 6.9 or later; until then --fallback interleaves 1:1")
        }
        State::Unknown(why) => verdict(COMMAND, Answer::Unknown, why),
    }
}

fn apply(scene: &Scene<'_>, privileges: &[Privilege]) -> Verdict {
    const COMMAND: &str = "weights --apply";
    if scene.machine.memory_nodes().len() < 2 {
        return verdict(COMMAND, Answer::No, "one node with memory: nothing to weigh").next(LAB);
    }
    match scene.features.state(Feature::WeightedInterleave) {
        State::Lacking => verdict(COMMAND, Answer::No, "this kernel has no weights to set")
            .next("Linux 6.9 or later"),
        State::Unknown(why) => verdict(COMMAND, Answer::Unknown, why),
        State::Present if !scene.live || held(privileges, ROOT) => {
            verdict(COMMAND, Answer::Yes, "weights for the whole system, restored by --restore")
        }
        State::Present => {
            verdict(COMMAND, Answer::No, "setting weights for the whole system needs root")
                .next("sudo")
        }
    }
}

fn residency(scene: &Scene<'_>) -> Verdict {
    const COMMAND: &str = "run --report";
    match scene.features.state(Feature::NumaMaps) {
        State::Present => verdict(COMMAND, Answer::Yes, "a program's residency can be sampled"),
        State::Lacking => verdict(COMMAND, Answer::No, "this kernel does not report residency")
            .next("a kernel with CONFIG_NUMA and CONFIG_PROC_PAGE_MONITOR"),
        State::Unknown(why) => verdict(COMMAND, Answer::Unknown, why),
    }
}

/// Kernel support for migrating pages by access frequency.
fn tiering(scene: &Scene<'_>, privileges: &[Privilege]) -> Verdict {
    const COMMAND: &str = "tier";
    if scene.machine.tiers.len() < 2 {
        return verdict(COMMAND, Answer::No, "one tier: there is no other to migrate pages to")
            .next(LAB);
    }
    let damon = scene.features.state(Feature::DamonMigrate);
    let balancing = scene.features.has(Feature::NumaBalancingTiering);
    match damon {
        State::Present if scene.live && !held(privileges, ROOT) => {
            verdict(COMMAND, Answer::Partly, "the kernel can migrate pages by access frequency (DAMON), this user may not").next("sudo")
        }
        State::Present => match damon_holder(scene).filter(|_| Service::Tier.running().is_none()) {
            Some(holder) => in_use(COMMAND, &holder),
            None => verdict(COMMAND, Answer::Yes, "the kernel can migrate pages by access frequency between any nodes (DAMON)"),
        },
        State::Unknown(why) => verdict(COMMAND, Answer::Unknown, why),
        State::Lacking if balancing => verdict(COMMAND, Answer::Partly, "the kernel promotes pages if numa_balancing is 2, and can't migrate them by access frequency between chosen nodes")
            .next("Linux 6.11 or later with CONFIG_DAMON_SYSFS and CONFIG_DAMON_PADDR"),
        State::Lacking => verdict(COMMAND, Answer::No, "this kernel can't migrate pages by access frequency")
            .next("Linux 6.11 or later with CONFIG_DAMON_SYSFS and CONFIG_DAMON_PADDR"),
    }
}

/// Whether emulated machines can be started from here.
fn lab() -> Verdict {
    const COMMAND: &str = "lab";
    if std::env::var_os("NEARFAR_LAB").is_some() {
        return verdict(
            COMMAND,
            Answer::No,
            "this is a guest of the lab; one in another would be too slow",
        );
    }
    let filled = |kind: &str| {
        let cache = nearfar_lab::fetch::Cache::from_env().ok();
        let entries = cache.and_then(|cache| std::fs::read_dir(cache.dir().join(kind)).ok());
        entries.is_some_and(|mut entries| entries.next().is_some())
    };
    if filled("qemu") && filled("kernels") {
        return match nearfar_lab::host::find_plugin() {
            Ok(_) => verdict(COMMAND, Answer::Yes, "emulator and kernel are in the cache"),
            Err(found) => {
                verdict(COMMAND, Answer::Partly, "far memory is as fast as near memory in guests")
                    .next(found)
            }
        };
    }
    match ["apt-get", "dpkg-deb", "xz"].iter().find(|tool| !is_in_path(tool)) {
        None => {
            verdict(COMMAND, Answer::Partly, "the first use downloads an emulator and a kernel")
                .next("nearfar lab fetch does so now")
        }
        Some(tool) => {
            verdict(COMMAND, Answer::No, format!("no {tool}, with which it is downloaded"))
                .next("nearfar lab fetch on a Debian system, and NEARFAR_CACHE naming the result")
        }
    }
}
