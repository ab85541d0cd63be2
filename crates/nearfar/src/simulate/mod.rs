//! simulate: the simulator's machines, by name. A machine file is the lab's, and what the simulator takes of it is said here
//! and nowhere else, so that a machine in the lab and the same machine simulated have the same figures.

use nearfar_lab::machine::{Machine as Described, Traffic, catalog};
use nearfar_sim::machine::{Builder, Link, Machine, Node, Route, Waiting};
use nearfar_sim::published::colloid;

pub(crate) mod lab;
pub(crate) mod trace;

/// The machine of the traffic management studies.
pub(crate) const FOUR_NODES: &str = "numa-4node";

/// A machine by name, or by the path of its file.
pub(crate) fn machine(name: &str) -> anyhow::Result<Machine> {
    if let Some((far_ns, _)) = studies().into_iter().find(|(_, study)| study == name) {
        return Ok(colloid::machine(far_ns)?);
    }
    let described = catalog::find(name)?;
    let Some(traffic) = described.traffic else {
        anyhow::bail!(
            "machine {}: it can't be simulated, as its file has no [traffic] table; nearfar sim list shows which can",
            described.name
        );
    };
    Ok(simulated(&described, traffic)?)
}

/// Built-in machines that can be simulated, with what they are.
pub(crate) fn machines() -> anyhow::Result<Vec<Described>> {
    Ok(catalog::all()?.into_iter().filter(|machine| machine.traffic.is_some()).collect())
}

/// What the simulator takes of a machine file. Not taken: sizes of caches and what a processor does between accesses, which
/// workloads say themselves; the most that a path carries, as it is what single programs were seen to read.
fn simulated(
    described: &Described,
    traffic: Traffic,
) -> Result<Machine, nearfar_sim::machine::Refusal> {
    let nodes = described.nodes.iter().map(|node| Node {
        size: node.size,
        read_gbps: node.read_gbps,
        write_gbps: node.write_gbps,
        duplex: node.duplex,
        waiting: Waiting::Queue,
    });
    let links =
        described.links.iter().map(|link| Link { name: link.name.clone(), gbps: link.gbps });
    let route = |from: u16, to: usize| {
        let path =
            described.paths.iter().find(|path| path.from == from && usize::from(path.to) == to);
        let crossed = |links: &[u16]| links.iter().copied().map(usize::from).collect();
        path.map_or_else(Route::default, |path| Route {
            read_links: crossed(&path.read_links),
            write_links: crossed(&path.write_links),
        })
    };
    let routes = described
        .cpu_nodes()
        .map(|from| (0..described.nodes.len()).map(|to| route(from, to)).collect());
    let builder = Builder {
        name: described.name.clone(),
        clock_ghz: traffic.clock_ghz,
        nodes: nodes.collect(),
        links: links.collect(),
        cpu_nodes: described.cpu_nodes().map(usize::from).collect(),
        latency_ns: described.latency_ns.clone(),
        routes: routes.collect(),
        concurrent_ns: traffic.concurrent_ns,
        probe_lines: traffic.coherence_lines,
    };
    builder.build()
}

/// Machines of Colloid's study, by the latency of their far memory: no lab has them, and their figures are the simulator's.
pub(crate) fn studies() -> [(f64, String); 4] {
    colloid::FAR_NS.map(|far_ns| (far_ns, format!("colloid-{far_ns}ns")))
}

/// What they are.
pub(crate) const STUDIED: &str =
    "two tiers of Colloid's study (2024): near memory of 70 ns, far memory as the name says";

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_sim::published::{self, How};

    #[test]
    fn every_published_figure_is_within_its_bounds_with_one_set_of_parameters() {
        let rows = published::rows(&machine(FOUR_NODES).unwrap());
        // Two tables of nine and four of the controller at work, sixteen ratios, two gains: none may go missing.
        assert_eq!(rows.len(), 2 * (9 + 4) + 16 + 2);
        let out: Vec<_> = rows.iter().filter(|row| !row.within()).collect();
        assert!(out.is_empty(), "{out:#?}");
        assert!(rows.iter().filter(|row| row.how == How::Predicted).count() >= 8 + 6 + 8);
    }

    #[test]
    fn another_machine_does_not_give_the_published_figures() {
        // The canary: links of 2.8 GB/s, with which the published gain can't happen.
        let described = catalog::built_in(FOUR_NODES).unwrap();
        let mut narrow = described.clone();
        narrow.links.iter_mut().for_each(|link| link.gbps = 2.8);
        let rows =
            published::carrefour::rows(&simulated(&narrow, described.traffic.unwrap()).unwrap());
        assert!(
            rows.iter().any(|row| row.what == "gain of interleaving" && !row.within()),
            "{rows:#?}"
        );
    }

    #[test]
    fn machines_of_the_study_go_by_the_names_they_give_themselves() {
        for (far_ns, name) in studies() {
            let found = machine(&name).unwrap();
            assert!(found.name == name && found.latency_ns[0][1] == far_ns, "{found:?}");
        }
    }

    #[test]
    fn a_machine_without_traffic_figures_is_refused_by_name() {
        let refused = machine("cxl-2tier").unwrap_err().to_string();
        assert!(refused.contains("cxl-2tier") && refused.contains("[traffic]"), "{refused}");
        assert!(machine("numa-5node").unwrap_err().to_string().contains("numa-5node"));
    }
}
