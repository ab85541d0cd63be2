//! Fuzz targets: the parsers of untrusted input, one function each; the environment variable TARGET selects one. There
//! is a single binary because each additional one would link all of nearfar again. A target panics if the parser
//! panics, or if a parsed value changes when it is formatted and parsed again.
#![no_main]

use std::sync::OnceLock;

type Target = fn(&[u8]);

/// The targets; each has a directory of the same name in seeds.
const TARGETS: [(&str, Target); 21] = [
    ("containers", nearfar_containers::fuzz::texts),
    ("disk", nearfar_cache_disk::fuzz::fuzz),
    ("frames", nearfar_lab::fuzz::frames),
    ("http", nearfar_memcached::server::fuzz::http),
    ("images", |data| {
        nearfar_lab::fuzz::images(data);
        nearfar_lab::fuzz::listings(data);
    }),
    ("journal", |data| {
        nearfar_kernel::journal::fuzz(data);
        nearfar_kernel::claim::fuzz(data);
        nearfar_kernel::cgroup::own::fuzz(data);
    }),
    ("machines", nearfar_lab::fuzz::machines),
    ("maps", |data| {
        nearfar_kernel::residency::fuzz(data);
        nearfar_kernel::cgroup::fuzz(data);
    }),
    ("nri", nearfar_containers::nri::fuzz),
    ("options", |data| {
        nearfar_daemon::fuzz::options(data);
        nearfar_bench::fuzz::workloads(data);
    }),
    ("probes", |data| {
        let text = String::from_utf8_lossy(data);
        if let Ok(report) = nearfar_probe::ProbeReport::parse(&text) {
            let written = report.to_json().unwrap_or_default();
            assert!(nearfar_probe::ProbeReport::parse(&written).is_ok(), "{written}");
            let _ = (report.best(), report.memory_nodes());
        }
    }),
    ("protocol", nearfar_memcached::proto::testkit::fuzz),
    ("records", nearfar_record::fuzz),
    ("replies", nearfar_load::fuzz::replies),
    ("samples", |data| {
        nearfar_kernel::perf::record::fuzz(data);
        let _ = nearfar_kernel::perf::spe::accesses(data);
        nearfar_kernel::smbios::fuzz(data);
    }),
    ("settings", |data| {
        // One in a line: the variables that libraries read when a program starts, and node sets.
        for line in String::from_utf8_lossy(data).lines() {
            let _ = line.parse::<nearfar_spec::conf::Conf>();
            let _ = nearfar_spec::smdk::parse(line, || true).0.lines();
            let _ = line.parse::<nearfar_spec::region::RegionSpec>();
            let _ = line.parse::<nearfar_spec::spec::Spec>();
            if let Ok(nodes) = line.parse::<nearfar_topology::NodeExpr>() {
                assert_eq!(nodes.to_string().parse(), Ok(nodes));
            }
        }
    }),
    ("states", nearfar_daemon::fuzz::states),
    ("tls", nearfar_memcached::server::fuzz::tls),
    ("topology", |data| {
        let tree = nearfar_topology::Tree::parse(&String::from_utf8_lossy(data));
        let (machine, _) = nearfar_topology::Topology::read(&tree);
        let _ = (machine.near(), machine.far(), machine.inventory());
    }),
    ("traces", nearfar_load::fuzz::traces),
    ("vm", |data| {
        nearfar_vm::qemu::fuzz(data);
        nearfar_vm::libvirt::fuzz(data);
    }),
];

static SELECTED: OnceLock<Target> = OnceLock::new();

fn select() -> Target {
    let name = std::env::var("TARGET").unwrap_or_default();
    let Some((_, target)) = TARGETS.iter().find(|(known, _)| *known == name) else {
        eprintln!(
            "TARGET={name} is no fuzz target; those are: {}",
            TARGETS.map(|(name, _)| name).join(" ")
        );
        std::process::exit(2);
    };
    *target
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| SELECTED.get_or_init(select)(data));
