//! Sampled pages: no sample is lost uncounted, and huge pages are the sum of their pieces.

use nearfar_policy::traffic::{PIECES, Page, Process, Reads, Sample, Table};
use nearfar_topology::NodeId;
use proptest::prelude::*;

fn sample() -> impl Strategy<Value = Sample> {
    (0u32..3, 0u64..2_000, 0u16..4, 0usize..5, any::<bool>(), any::<bool>()).prop_map(
        |(process, number, node, cpu, huge, write)| Sample {
            page: Page { process: Process(process), number },
            node: NodeId(node),
            huge,
            cpu,
            write,
        },
    )
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec(sample(), 0..200)
}

fn table(samples: &[Sample], pages_max: usize) -> Table {
    let mut table = Table::new(pages_max, 4);
    samples.iter().for_each(|sample| table.add(*sample));
    table
}

fn counted(table: &Table) -> u64 {
    table.pages().values().map(nearfar_policy::traffic::Sampled::all).sum()
}

proptest! {
    #[test]
    fn every_sample_is_counted_or_lost(samples in samples(), pages_max in 0usize..150) {
        let table = table(&samples, pages_max);
        prop_assert_eq!(counted(&table) + table.lost(), samples.len() as u64);
        prop_assert!(table.pages().len() <= pages_max);
    }

    #[test]
    fn an_unlimited_table_drops_only_samples_of_unknown_cpus(samples in samples()) {
        let unknown = samples.iter().filter(|sample| sample.cpu >= 4).count();
        prop_assert_eq!(table(&samples, usize::MAX).lost(), unknown as u64);
    }

    #[test]
    fn counts_do_not_depend_on_the_order_of_samples(samples in samples(), turn in any::<prop::sample::Index>()) {
        let mut turned = samples.clone();
        turned.rotate_left(turn.index(samples.len().max(1)));
        let (one, other) = (table(&samples, usize::MAX), table(&turned, usize::MAX));
        let counts = |table: &Table| -> Vec<_> {
            table.pages().iter().map(|(page, one)| (*page, one.by.clone(), one.writes)).collect()
        };
        prop_assert_eq!(counts(&one), counts(&other));
    }

    #[test]
    fn writes_are_at_most_all_accesses_and_a_lone_node_has_all_of_them(samples in samples()) {
        for one in table(&samples, usize::MAX).pages().values() {
            prop_assert!(u64::from(one.writes) <= one.all());
            if let Some(lone) = one.lone() {
                prop_assert_eq!(u64::from(one.by[lone]), one.all());
            }
        }
    }

    #[test]
    fn whole_pages_have_the_samples_of_their_pieces(samples in samples()) {
        let table = table(&samples, usize::MAX);
        let whole = table.whole_pages();
        prop_assert_eq!(whole.values().map(|one| one.all()).sum::<u64>(), counted(&table));
        prop_assert!(whole.iter().all(|(page, one)| !one.huge || *page == page.whole()));
        prop_assert!(whole.len() <= table.pages().len());
    }

    #[test]
    fn whole_returns_the_first_piece_of_the_same_huge_page(number in any::<u64>()) {
        let page = Page { process: Process(1), number };
        let whole = page.whole();
        prop_assert!(whole.number <= number && number - whole.number < PIECES);
        prop_assert_eq!(whole.whole(), whole);
    }

    #[test]
    fn placing_a_run_of_pages_changes_the_node_of_those_only(samples in samples(), start in 0u64..2_000, count in 0u64..1_000) {
        let mut table = table(&samples, usize::MAX);
        let before = table.pages().clone();
        let first = Page { process: Process(1), number: start };
        table.placed(first, count, NodeId(9));
        for (page, one) in table.pages() {
            let inside = page.process == Process(1) && (start..start + count).contains(&page.number);
            prop_assert_eq!(one.node, if inside { NodeId(9) } else { before[page].node });
            prop_assert_eq!(&one.by, &before[page].by);
        }
    }

    #[test]
    fn keep_retains_the_pages_and_clear_removes_them(samples in samples(), pages_max in 0usize..100) {
        let mut kept = table(&samples, pages_max);
        let pages = kept.pages().clone();
        kept.keep(pages_max);
        prop_assert_eq!((kept.pages(), kept.lost()), (&pages, 0));
        kept.clear(pages_max);
        prop_assert!(kept.pages().is_empty() && kept.lost() == 0);
    }

    #[test]
    fn read_counts_of_two_intervals_add_up_without_overflow(a in any::<[u64; 2]>(), b in any::<[u64; 2]>()) {
        let lines = |[reads, writes]: [u64; 2]| Reads::Lines { reads, writes };
        let sum = lines([a[0].saturating_add(b[0]), a[1].saturating_add(b[1])]);
        prop_assert_eq!(lines(a).and(lines(b)), sum);
        prop_assert_eq!(lines(b).and(lines(a)), sum);
        prop_assert_eq!(Reads::Unknown.and(lines(a)), lines(a));
        prop_assert_eq!(lines(a).and(Reads::Unknown), lines(a));
    }
}
