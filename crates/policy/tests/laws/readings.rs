//! Readings of sensors: joined and appended without loss, and converted to rounds that count each sample once.

use nearfar_policy::ports::{Counts, Reading};
use nearfar_policy::traffic::{Memory, Page, Process, Reads, Sample};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};
use proptest::prelude::*;

const NODES: u16 = 3;

fn sample() -> impl Strategy<Value = Sample> {
    (any::<u64>(), 0..NODES + 1, 0usize..5, any::<bool>()).prop_map(|(number, node, cpu, write)| {
        let page = Page { process: Process(1), number };
        Sample { page, node: NodeId(node), huge: false, cpu, write }
    })
}

fn table<T: Clone + std::fmt::Debug>(
    cell: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<Vec<T>>> {
    let nodes = usize::from(NODES);
    let cells = prop::collection::vec(cell, nodes * nodes);
    cells.prop_map(move |cells| cells.chunks(nodes).map(<[T]>::to_vec).collect())
}

/// Readings of one sensor: with lines counted or not, with latencies measured or not.
fn reading() -> impl Strategy<Value = Reading> {
    let lines = prop::option::of(table(0u64..1 << 40));
    let served = prop::collection::vec(prop::option::of(0u64..1 << 40), usize::from(NODES));
    let latency = table(prop::option::of((50u64..1_000).prop_map(Nanoseconds)));
    let samples = prop::collection::vec(sample(), 0..20);
    let counts = any::<[u32; 4]>().prop_map(|[seen, lost, throttled, unplaced]| Counts {
        seen: seen.into(),
        lost: lost.into(),
        throttled: throttled.into(),
        unplaced: unplaced.into(),
    });
    let time = (1u64..1 << 40, 0u32..=10_000);
    (time, lines, served, latency, samples, counts).prop_map(
        |((elapsed, coverage), accesses, served, latency, samples, counts)| Reading {
            elapsed: Nanoseconds(elapsed),
            coverage: BasisPoints(coverage),
            accesses,
            served,
            latency,
            samples,
            counts,
            ..Reading::default()
        },
    )
}

fn nodes() -> Vec<Memory> {
    let memory = |node| Memory { node: NodeId(node), total: Bytes(8), free: Bytes(4) };
    (0..NODES).map(memory).collect()
}

fn appended(mut first: Reading, later: &Reading) -> Reading {
    first.go_on(later.clone());
    first
}

/// Observed time, in nanoseconds times basis points.
fn observed(reading: &Reading) -> u128 {
    u128::from(reading.elapsed.0) * u128::from(reading.coverage.0)
}

proptest! {
    #[test]
    fn appended_readings_keep_all_samples_counts_and_time(first in reading(), later in reading()) {
        let both = appended(first.clone(), &later);
        prop_assert_eq!(both.elapsed.0, first.elapsed.0 + later.elapsed.0);
        prop_assert_eq!(both.samples.len(), first.samples.len() + later.samples.len());
        prop_assert_eq!(both.counts.seen, first.counts.seen + later.counts.seen);
        prop_assert_eq!(both.counts.lost, first.counts.lost + later.counts.lost);
        let rounded = u128::from(both.elapsed.0);
        prop_assert!(observed(&first) + observed(&later) - observed(&both) < rounded);
        prop_assert_eq!(both.latency, later.latency, "the later latency is the present one");
    }

    #[test]
    fn appending_readings_is_associative(first in reading(), second in reading(), third in reading()) {
        let left = appended(appended(first.clone(), &second), &third);
        let right = appended(first, &appended(second, &third));
        prop_assert_eq!((left.accesses, left.served), (right.accesses, right.served));
        prop_assert_eq!((left.elapsed, left.samples), (right.elapsed, right.samples));
    }

    #[test]
    fn coverage_stays_between_those_of_the_parts(first in reading(), later in reading()) {
        let both = appended(first.clone(), &later).coverage;
        prop_assert!(both >= first.coverage.min(later.coverage) && both <= first.coverage.max(later.coverage));
    }

    #[test]
    fn a_joined_reading_has_the_values_of_both_and_prefers_the_first(first in reading(), other in reading()) {
        let mut both = first.clone();
        both.join(other.clone());
        prop_assert_eq!(&both.accesses, &first.accesses.clone().or(other.accesses.clone()));
        for (at, served) in both.served.iter().enumerate() {
            prop_assert_eq!(*served, first.served[at].or(other.served[at]));
        }
        for (row, latencies) in both.latency.iter().enumerate() {
            for (column, latency) in latencies.iter().enumerate() {
                prop_assert_eq!(*latency, first.latency[row][column].or(other.latency[row][column]));
            }
        }
    }

    #[test]
    fn samples_of_different_weights_are_never_mixed(first in reading(), other in reading(), weights in any::<[u8; 2]>()) {
        let [mine, its] = weights.map(|weight| Some(u64::from(weight)));
        let mut both = Reading { per_sample: mine, ..first.clone() };
        both.join(Reading { per_sample: its, ..other.clone() });
        let taken = both.samples.len();
        let all = first.samples.len() + other.samples.len();
        prop_assert_eq!(taken == all, mine == its || first.samples.is_empty() || other.samples.is_empty());
    }

    #[test]
    fn a_round_counts_each_sample_of_a_known_node_and_cpu_once(reading in reading(), per_sample in 1u64..1_000) {
        let sampled = Reading { accesses: None, per_sample: Some(per_sample), ..reading.clone() };
        let round = sampled.round(nodes());
        let known = reading.samples.iter().filter(|of| of.node.0 < NODES && of.cpu < usize::from(NODES)).count();
        let lines: u64 = round.accesses.iter().flatten().sum();
        prop_assert_eq!(lines, per_sample * u64::try_from(known).unwrap());
        prop_assert!(sampled.counts_lines());
        let writes = reading.samples.iter().filter(|of| of.write).count();
        let all = reading.samples.len();
        let expected = if all == 0 { Reads::Unknown } else {
            Reads::Lines { reads: u64::try_from(all - writes).unwrap(), writes: u64::try_from(writes).unwrap() }
        };
        prop_assert_eq!(round.reads, expected);
    }

    #[test]
    fn counted_lines_override_samples_in_a_round(reading in reading(), per_sample in prop::option::of(1u64..1_000)) {
        let counted = Reading { per_sample, ..reading.clone() };
        if let Some(lines) = &reading.accesses {
            prop_assert_eq!(&counted.round(nodes()).accesses, lines);
        }
        prop_assert_eq!(counted.counts_lines(), reading.accesses.is_some() || per_sample.is_some());
    }
}
