//! Metrics: shares of one whole, blind to node numbers, and worse the more uneven a round was.

use nearfar_policy::traffic::metrics::imbalance;
use nearfar_policy::traffic::{Memory, Metrics, Reads, Round};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};
use proptest::prelude::*;

const NODES: usize = 4;

fn round(cells: &[u64]) -> Round {
    let memory =
        |node: u16| Memory { node: NodeId(node), total: Bytes(1 << 30), free: Bytes(1 << 29) };
    Round {
        elapsed: Nanoseconds(1_000_000_000),
        coverage: BasisPoints(10_000),
        nodes: (0..).map(memory).take(NODES).collect(),
        accesses: cells.chunks(NODES).map(<[u64]>::to_vec).collect(),
        reads: Reads::Lines { reads: 3, writes: 1 },
        threads: Vec::new(),
    }
}

fn cells() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0u64..1 << 40, NODES * NODES)
}

fn of(round: &Round) -> Metrics {
    Metrics::of(round).unwrap()
}

proptest! {
    #[test]
    fn renumbering_the_nodes_changes_nothing(cells in cells(), order in Just([0, 1, 2, 3]).prop_shuffle()) {
        let one = round(&cells);
        let mut other = one.clone();
        other.nodes = order.iter().map(|at| one.nodes[*at]).collect();
        other.accesses =
            order.iter().map(|row| order.iter().map(|column| one.accesses[*row][*column]).collect()).collect();
        prop_assert_eq!(of(&one), of(&other));
    }

    #[test]
    fn metrics_stay_within_their_ranges(cells in cells(), coverage in 1u32..20_000, elapsed in 1_000u64..1 << 40) {
        let mut one = round(&cells);
        (one.coverage, one.elapsed) = (BasisPoints(coverage), Nanoseconds(elapsed));
        if let Some(found) = Metrics::of(&one) {
            prop_assert!(found.local.0 <= 10_000 && found.in_use.0 <= 10_000);
            prop_assert!(found.reads.is_some_and(|reads| reads.0 <= 10_000));
            prop_assert!(found.imbalance.0 <= 20_000, "all on one of four nodes is 200 %");
        }
    }

    #[test]
    fn doubling_the_elapsed_time_halves_the_access_rate(cells in cells()) {
        let once = round(&cells);
        let twice = Round { elapsed: Nanoseconds(2_000_000_000), ..once.clone() };
        prop_assert_eq!(of(&twice).per_ms, of(&once).per_ms / 2);
        prop_assert_eq!((of(&twice).local, of(&twice).imbalance), (of(&once).local, of(&once).imbalance));
    }

    #[test]
    fn a_coverage_of_one_half_equals_a_round_of_half_the_length(cells in cells()) {
        let half = Round { coverage: BasisPoints(5_000), ..round(&cells) };
        let short = Round { elapsed: Nanoseconds(500_000_000), ..round(&cells) };
        prop_assert_eq!(of(&half), of(&short));
    }

    #[test]
    fn more_local_accesses_never_lower_the_local_access_ratio(cells in cells(), node in 0..NODES, more in 0u64..1 << 40) {
        let before = of(&round(&cells));
        let mut cells = cells;
        cells[node * NODES + node] += more;
        prop_assert!(of(&round(&cells)).local >= before.local);
    }

    #[test]
    fn remote_accesses_alone_give_a_local_share_of_zero(cells in cells()) {
        let remote = cells.iter().enumerate().map(|(at, cell)| if at / NODES == at % NODES { 0 } else { cell + 1 });
        prop_assert_eq!(of(&round(&remote.collect::<Vec<_>>())).local, BasisPoints(0));
    }

    #[test]
    fn imbalance_does_not_depend_on_the_order(counts in prop::collection::vec(any::<u64>(), 0..9).prop_shuffle()) {
        let mut sorted = counts.clone();
        sorted.sort_unstable();
        prop_assert_eq!(imbalance(&counts), imbalance(&sorted));
    }

    #[test]
    fn moving_traffic_to_a_busier_controller_never_lowers_imbalance(counts in prop::collection::vec(0u64..1 << 30, 2..8), share in 0u64..=100) {
        let [less, more] = [counts.iter().min().unwrap(), counts.iter().max().unwrap()].map(|of| counts.iter().position(|one| one == of).unwrap());
        let mut moved = counts.clone();
        let by = counts[less] * share / 100;
        moved[less] -= by;
        moved[more] += by;
        prop_assert!(less == more || imbalance(&moved).0 + 1 >= imbalance(&counts).0);
    }

    #[test]
    fn equal_counts_have_no_imbalance(count in any::<u64>(), nodes in 0usize..9) {
        prop_assert_eq!(imbalance(&vec![count; nodes]), BasisPoints(0));
    }

    #[test]
    fn by_node_is_the_sum_of_each_column(cells in cells()) {
        let found = round(&cells).by_node();
        let column = |node: usize| (0..NODES).map(|row| cells[row * NODES + node]).sum::<u64>();
        prop_assert_eq!(found, (0..NODES).map(column).collect::<Vec<_>>());
    }
}
