//! The machine as the timing plugin's settings.

use std::path::PathBuf;

use nearfar_timing::config;

use super::Machine;

/// The plugin's settings for `machine` under `clock`; statistics go to `stats`.
#[must_use]
pub fn config(machine: &Machine, clock: config::Clock, stats: Option<PathBuf>) -> config::Config {
    let nodes = (0u16..).zip(&machine.nodes).map(|(id, node)| config::MemoryNode {
        id,
        read_gbps: node.read_gbps,
        write_gbps: node.write_gbps,
        duplex: node.duplex,
        curves: node.curves.clone(),
    });
    let ranges = machine.ranges().into_iter().map(|range| config::Range {
        start: range.start,
        end: range.end,
        node: range.node,
    });
    let links = machine.links.iter();
    config::Config {
        clock,
        cpu_nodes: machine.node_of_cpu(),
        nodes: nodes.collect(),
        ranges: ranges.collect(),
        paths: paths(machine),
        links: links.map(|l| config::Link { name: l.name.clone(), gbps: l.gbps }).collect(),
        processor: machine.processor.clone(),
        stats,
        stats_every_ms: None,
        pmu: None,
        begins: None,
    }
}

fn paths(machine: &Machine) -> Vec<config::Path> {
    let mut paths = Vec::new();
    for (from, row) in machine.cpu_nodes().zip(&machine.latency_ns) {
        for (to, latency_ns) in (0u16..).zip(row) {
            let spec = machine.path(from, to);
            paths.push(config::Path {
                from,
                to,
                latency_ns: *latency_ns,
                gbps_max: spec.and_then(|path| path.gbps_max),
                curves: spec.and_then(|path| path.curves.clone()),
                read_links: spec.map(|path| path.read_links.clone()).unwrap_or_default(),
                write_links: spec.map(|path| path.write_links.clone()).unwrap_or_default(),
            });
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog;

    #[test]
    fn every_built_in_machine_gives_settings_the_plugin_accepts() {
        for machine in catalog::all().unwrap() {
            let clock = config::Clock::Auto { fallback_slow_motion: machine.slow_motion };
            assert_eq!(config(&machine, clock, None).check(), Ok(()), "{}", machine.name);
        }
    }
}
