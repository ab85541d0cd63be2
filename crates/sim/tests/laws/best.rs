//! The oracle's placements: no drawn placement beats them, nodes alike are used alike, and huge pages are split only if the gain
//! exceeds the cost of translation.

use nearfar_sim::compare::steady;
use nearfar_sim::machine::Machine;
use nearfar_sim::pages::Pages;
use nearfar_sim::policy::Policy;
use nearfar_sim::workload::Workload;
use proptest::prelude::*;

use crate::machines::{alike, region, two_tiers, workload};

fn best(workload: &Workload, machine: &Machine) -> Pages {
    let mut pages = Pages::of(workload, 1);
    Policy::Oracle.place(&mut pages, workload, machine);
    pages
}

/// Two regions of one row of CPUs each, which also reads a part of the other's.
fn apart(own: f64, lines: [f64; 2]) -> Workload {
    let mut of = workload(vec![region(300, 0, 2), region(300, 0, 2)], 2);
    for (row, worker) in of.workers.iter_mut().enumerate() {
        let uses = [own, 1.0 - own];
        (worker.lines, worker.uses) = (lines[row], vec![uses[row], uses[1 - row]]);
    }
    of
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_drawn_placement_beats_the_oracle(own in 0.5f64..=1.0, lines in [1.0f64..80.0, 1.0..80.0], on in prop::collection::vec(0u16..2, 600)) {
        let (machine, of) = (alike(2, 1 << 12), apart(own, lines));
        let mut drawn = Pages::of(&of, 1);
        drawn.node.copy_from_slice(&on);
        let [drawn, best] = [drawn, best(&of, &machine)].map(|pages| steady(&machine, &of, &pages).gbps);
        prop_assert!(drawn <= best * 1.005, "{drawn} {best}");
    }

    #[test]
    fn no_drawn_share_of_near_memory_beats_the_oracle(lines in 1.0f64..400.0, share in 0.0f64..=1.0, room in 100u64..700) {
        let machine = two_tiers(room, 1 << 12);
        let mut of = workload(vec![region(200, 0, 1), region(400, 0, 1)], 1);
        (of.workers[0].lines, of.workers[0].uses) = (lines, vec![0.8, 0.2]);
        let mut drawn = Pages::of(&of, 1);
        drawn.hottest_near(&of, &machine, share);
        let best = best(&of, &machine);
        prop_assert!(best.bytes(2)[0] <= room * 4_096);
        let [drawn, best] = [drawn, best].map(|pages| steady(&machine, &of, &pages).gbps);
        prop_assert!(drawn <= best * 1.005, "{drawn} {best}");
    }
}

#[test]
fn pages_read_by_all_nodes_are_spread_evenly_over_equal_nodes() {
    for nodes in [2, 3, 4] {
        let machine = alike(nodes, 1 << 12);
        let mut of = workload(vec![region(600, 0, nodes)], nodes);
        of.workers.iter_mut().for_each(|worker| worker.lines = 50.0);
        let bytes = best(&of, &machine).bytes(nodes);
        let even = 600 * 4_096 / nodes as u64;
        // Throughput hardly changes with a page more or less.
        assert!(bytes.iter().all(|bytes| bytes.abs_diff(even) <= even / 50), "{bytes:?}");
    }
}

#[test]
fn pages_used_by_one_node_are_placed_on_it() {
    let machine = alike(2, 1 << 12);
    let of = apart(1.0, [4.0, 4.0]);
    let pages = best(&of, &machine);
    assert!(pages.region.iter().zip(&pages.node).all(|(region, node)| region == node));
}

#[test]
fn a_hot_huge_page_is_split_only_if_small_pages_cost_little() {
    let machine = alike(2, 1 << 12);
    let mut of = workload(vec![region(512, 0, 2), region(512, 0, 2)], 2);
    of.huge = true;
    for worker in &mut of.workers {
        (worker.lines, worker.uses) = (60.0, vec![0.95, 0.05]);
    }
    let split = |walk_ns| {
        let pages = best(&Workload { walk_ns, ..of.clone() }, &machine);
        let hot = pages.node[..512].iter().filter(|node| **node == 0).count();
        (pages.huge[0], hot)
    };
    let (is_huge, hot) = split(0.0);
    assert!(!is_huge && (200..=312).contains(&hot), "{hot} of 512 pieces on node 0");
    assert!(split(1e6).0, "a walk of a millisecond costs more than any waiting");
}
