//! simulate: the simulator's machines, by name. Machine files are the lab's, and this module alone selects their
//! figures for the simulator, so that a machine in the lab and the same machine simulated have the same figures.

use std::sync::Arc;

use nearfar_lab::machine::{Machine as Described, Traffic, catalog};
use nearfar_sim::machine::{Builder, Link, Machine, Node, Route, Waiting};
use nearfar_sim::published::colloid;
use nearfar_sim::published::expansion::Measured;
use nearfar_topology::Curves;

pub mod antagonist;
pub mod file;
pub mod lab;
pub mod trace;

/// The machine of the traffic management studies.
pub const FOUR_NODES: &str = "numa-4node";

/// A machine by name, or by the path of its file.
///
/// # Errors
/// No such machine, or one without figures for a simulation.
pub fn machine(name: &str) -> anyhow::Result<Machine> {
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

/// Descriptions of the built-in machines that can be simulated.
///
/// # Errors
/// A machine file can't be parsed.
pub fn machines() -> anyhow::Result<Vec<Described>> {
    Ok(catalog::all()?.into_iter().filter(|machine| machine.traffic.is_some()).collect())
}

/// The simulator's part of a machine file. Not used: sizes of caches and the processor's time between accesses, which
/// workloads specify; the maximum bandwidth of a path, as it was measured with single programs.
fn simulated(
    described: &Described,
    traffic: Traffic,
) -> Result<Machine, nearfar_sim::machine::Refusal> {
    let nodes = described.nodes.iter().map(|node| Node {
        size: node.size,
        read_gbps: node.read_gbps,
        write_gbps: node.write_gbps,
        duplex: node.duplex,
        waiting: match &node.curves {
            Some(curves) => Waiting::Points(Arc::new(curves.clone())),
            None => Waiting::Queue,
        },
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

/// Machines of Colloid's study, by the latency of their far memory: they are not in the lab, and their figures are the
/// simulator's.
pub(crate) fn studies() -> [(f64, String); 4] {
    colloid::FAR_NS.map(|far_ns| (far_ns, format!("colloid-{far_ns}ns")))
}

/// The measured curves that predictions start from.
///
/// # Errors
/// A curve file can't be parsed.
pub fn measured() -> anyhow::Result<Measured> {
    let of = |name: &str| {
        let text = catalog::curve_built_in(name).map_err(anyhow::Error::msg)?;
        anyhow::Ok(Curves::parse(&text)?)
    };
    Ok(Measured {
        ddr5_4800: of("spr-ddr5.csv")?,
        ddr5_6400: of("gnr-ddr5.csv")?,
        cxl: of("emr-cxl.csv")?,
    })
}

/// Their description.
pub(crate) const STUDIED: &str =
    "two tiers of Colloid's study (2024): near memory of 70 ns, far memory as the name says";

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_sim::published::parameters::parameters;
    use nearfar_sim::published::{self, How};

    #[test]
    fn every_published_figure_is_within_its_bounds_with_one_set_of_parameters() {
        let rows = published::rows(&machine(FOUR_NODES).unwrap()).unwrap();
        // Two tables of nine and four figures of the active controller, sixteen ratios, two gains: all must be present.
        assert_eq!(rows.len(), 2 * (9 + 4) + 16 + 2);
        let out: Vec<_> = rows.iter().filter(|row| !row.within()).collect();
        assert!(out.is_empty(), "{out:#?}");
        let count = |how| rows.iter().filter(|row| row.how == how).count();
        let counts = [How::Fitted, How::Implied, How::Predicted, How::Limit].map(count);
        assert_eq!(counts, [18, 16, 8, 2], "{rows:#?}");
        assert!(rows.iter().all(|row| (row.how == How::Implied) != row.because.is_empty()));
        // Without the fifth of Colloid's, the others do not determine the parameters.
        let out: Vec<_> = rows.iter().filter(|row| row.left_out.is_some()).collect();
        assert!(out.iter().all(|row| row.how == How::Fitted), "{out:#?}");
        assert!(out.iter().all(|row| row.left_out.unwrap().abs() < 0.2), "{out:#?}");
        let of = |table: &str| out.iter().filter(|row| row.table == table).count();
        assert_eq!((of("Colloid on HeMem"), of("Carrefour, PCA")), (4, 0), "{out:#?}");
        assert_eq!(of("HMSDK, weights 2:1"), 0);
    }

    #[test]
    fn every_free_parameter_has_a_value_and_the_figures_it_was_fitted_to() {
        let all = parameters(&machine(FOUR_NODES).unwrap());
        // Thirteen and the routes, six, two.
        assert_eq!(all.len(), 14 + 6 + 2);
        assert_eq!(all.iter().filter(|of| of.value.is_none()).count(), 1);
        assert!(
            all.iter().all(|of| !of.fitted_to.is_empty() && of.value.is_none_or(|of| of > 0.0))
        );
        let z = all.iter().find(|of| of.study == "Carrefour, PCA" && of.name == "think time");
        assert_eq!(z.and_then(|of| of.value), Some(80.0));
    }

    #[test]
    fn another_machine_does_not_give_the_published_figures() {
        // The canary: links of 2.8 GB/s, with which the published gain is impossible.
        let described = catalog::built_in(FOUR_NODES).unwrap();
        let mut narrow = described.clone();
        narrow.links.iter_mut().for_each(|link| link.gbps = 2.8);
        let rows =
            published::carrefour::rows(&simulated(&narrow, described.traffic.unwrap()).unwrap())
                .unwrap();
        assert!(
            rows.iter().any(|row| row.what == "gain of interleaving" && !row.within()),
            "{rows:#?}"
        );
    }

    #[test]
    fn study_machines_are_found_by_their_own_names() {
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
