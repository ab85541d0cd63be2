//! Building machines: a figure out of bounds is refused and named, and a machine that was built can be built again.

use nearfar_sim::machine::{Builder, Route, Waiting};
use proptest::prelude::*;

use crate::machines::{CURVE, any_machine, builder, node};

fn two() -> Builder {
    builder(vec![node(1_000, 20.0, CURVE), node(1_000, 10.0, Waiting::Queue)])
}

/// The refusal of a machine of two nodes that is changed so.
fn refusal(change: impl FnOnce(&mut Builder)) -> String {
    let mut changed = two();
    change(&mut changed);
    changed.build().unwrap_err().to_string()
}

/// A figure that no machine has: too small, too large, or no number.
fn absurd() -> impl Strategy<Value = f64> {
    prop_oneof![
        -1e9f64..-1e-3,
        1e7f64..1e12,
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY)
    ]
}

proptest! {
    #[test]
    fn rebuilding_a_machine_returns_an_equal_one(machine in any_machine()) {
        prop_assert_eq!((*machine).clone().build(), Ok(machine));
    }

    #[test]
    fn an_out_of_range_bandwidth_is_rejected(gbps in absurd(), at in 0usize..2, writes in any::<bool>()) {
        let text = refusal(|of| match writes {
            true => of.nodes[at].write_gbps = gbps,
            false => of.nodes[at].read_gbps = gbps,
        });
        prop_assert!(text.contains(if writes { "write GB/s" } else { "read GB/s" }), "{text}");
    }

    #[test]
    fn an_out_of_range_latency_is_rejected(ns in absurd(), row in 0usize..2, column in 0usize..2) {
        let text = refusal(|of| of.latency_ns[row][column] = ns);
        prop_assert!(text.contains("latency in ns"), "{text}");
    }

    #[test]
    fn an_out_of_range_curve_is_rejected(figure in absurd(), powers in any::<bool>()) {
        let waiting = match powers {
            true => Waiting::Curve { factor_ns: 1.0, power: figure },
            false => Waiting::Curve { factor_ns: figure, power: 2.0 },
        };
        let text = refusal(|of| of.nodes[1].waiting = waiting);
        prop_assert!(text.contains("of a curve"), "{text}");
    }

    #[test]
    fn an_out_of_range_clock_or_probe_is_rejected(figure in absurd(), which in 0usize..3) {
        let text = refusal(|of| match which {
            0 => of.clock_ghz = figure,
            1 => of.concurrent_ns = figure,
            _ => of.probe_lines = figure,
        });
        let name = ["clock in GHz", "concurrent ns", "probe lines"][which];
        prop_assert!(text.contains(name) && text.contains("machine drawn"), "{text}");
    }

    #[test]
    fn cpus_on_a_missing_node_are_rejected(node in 2usize..100) {
        let text = refusal(|of| of.cpu_nodes[1] = node);
        prop_assert!(text.contains(&format!("id of a node with CPUs = {node}")), "{text}");
    }

    #[test]
    fn a_route_over_a_missing_link_is_rejected(link in 0usize..100, writes in any::<bool>()) {
        let links = vec![link];
        let route = match writes {
            true => Route { write_links: links, ..Route::default() },
            false => Route { read_links: links, ..Route::default() },
        };
        let text = refusal(|of| of.routes[0][1] = route);
        prop_assert!(text.contains("link of a route"), "{text}");
    }

    #[test]
    fn exactly_the_nodes_with_cpus_have_a_row(machine in any_machine(), node in 0usize..10) {
        let row = machine.row(node);
        prop_assert_eq!(row.is_some(), machine.cpu_nodes.contains(&node));
        prop_assert!(row.is_none_or(|row| machine.cpu_nodes[row] == node));
    }

    #[test]
    fn cycles_are_nanoseconds_times_the_clock(machine in any_machine(), ns in 0.0f64..1e6) {
        prop_assert!((machine.cycles(ns) - ns * machine.clock_ghz).abs() < 1e-6);
    }
}

#[test]
fn a_table_with_a_missing_row_or_column_is_rejected() {
    type Change = fn(&mut Builder);
    let cases: [(Change, &str); 5] = [
        (|of| of.latency_ns.truncate(1), "rows of latencies = 1"),
        (|of| of.routes.truncate(1), "rows of routes = 1"),
        (|of| of.latency_ns[1].truncate(1), "latencies in a row = 1"),
        (|of| of.routes[1].truncate(1), "routes in a row = 1"),
        (|of| of.cpu_nodes.clear(), "nodes with CPUs = 0"),
    ];
    for (change, part) in cases {
        let text = refusal(change);
        assert!(text.contains(part), "{part}: {text}");
    }
}
