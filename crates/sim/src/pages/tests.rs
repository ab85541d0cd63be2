//! Heat, first touch, interleaving, huge pages and copies, with figures worked out by hand.

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::workload::{Region, Worker};
use nearfar_topology::Bytes;

fn machine(nodes: usize) -> Machine {
    let node = crate::machine::Node {
        size: Bytes(1 << 30),
        read_gbps: 5.5,
        write_gbps: 5.5,
        duplex: false,
        waiting: crate::machine::Waiting::Queue,
    };
    let builder = crate::machine::Builder {
        name: "test".into(),
        clock_ghz: 1.0,
        nodes: vec![node; nodes],
        links: Vec::new(),
        cpu_nodes: (0..nodes).collect(),
        latency_ns: vec![vec![100.0; nodes]; nodes],
        routes: vec![vec![crate::machine::Route::default(); nodes]; nodes],
        concurrent_ns: 0.0,
        probe_lines: 0.0,
    };
    builder.build().unwrap()
}

fn workload(touched_by: &[f64]) -> Workload {
    let region = |name: &str, hot_pages, hot_share| Region {
        name: name.to_owned(),
        pages: 1000,
        hot_pages,
        hot_share,
        touched_by: touched_by.to_vec(),
        reads: 1.0,
    };
    let worker = |row| Worker { row, lines: 4.0, think_ns: 0.0, uses: vec![0.25, 0.75] };
    Workload {
        name: "test".into(),
        about: String::new(),
        page_bytes: 4096,
        regions: vec![region("one", 10, 0.5), region("two", 0, 0.7)],
        workers: (0..touched_by.len()).map(worker).collect(),
        antagonists: Vec::new(),
        huge: false,
        stripe: 0,
        walk_ns: 0.0,
    }
}

#[test]
fn the_heat_of_each_region_adds_up_to_one() {
    let pages = Pages::of(&workload(&[1.0]), 3);
    for region in [0, 1] {
        let of = || pages.heat.iter().zip(&pages.region).filter(|(_, at)| **at == region);
        assert!((of().map(|(heat, _)| heat).sum::<f64>() - 1.0).abs() < 1e-9);
        let hot = of().filter(|(heat, _)| **heat > 0.01).count();
        assert_eq!(hot, if region == 0 { 10 } else { 0 });
    }
}

#[test]
fn first_touch_gives_each_node_the_share_its_cpus_touch_first() {
    let (workload, machine) = (workload(&[0.9, 0.07, 0.03]), machine(3));
    let mut pages = Pages::of(&workload, 5);
    pages.first_touch(&workload, &machine);
    for demand in pages.demands(&workload, &machine) {
        for (share, wanted) in demand.shares.iter().zip([0.9, 0.07, 0.03]) {
            assert!((share - wanted).abs() < 0.002, "{:?}", demand.shares);
        }
    }
}

#[test]
fn pages_that_do_not_fit_go_to_the_nearest_node_with_free_memory() {
    let machine = crate::published::colloid::machine(135.0).unwrap();
    let workload = crate::workload::find("hot-set", &machine).unwrap();
    let mut pages = Pages::of(&workload, 1);
    pages.first_touch(&workload, &machine);
    assert_eq!(pages.bytes(2), [32 << 30, 40 << 30]);
    let near = pages.demands(&workload, &machine)[0].shares[0];
    assert!((near - crate::published::colloid::NEAR_MOST).abs() < 1e-9, "{near}");
}

#[test]
fn interleaving_places_pages_by_weight_and_heat_at_random() {
    let (workload, machine) = (workload(&[0.5, 0.5]), machine(2));
    let deal = |seed, weights: &[u32]| {
        let mut pages = Pages::of(&workload, seed);
        pages.interleave(weights, &machine);
        pages
    };
    assert_eq!(deal(1, &[3, 1]).bytes(2), [1500 * 4096, 500 * 4096]);
    let near = |seed| deal(seed, &[1, 1]).demands(&workload, &machine)[0].shares[0];
    let shares: Vec<f64> = (0..50).map(near).collect();
    let mean = shares.iter().sum::<f64>() / 50.0;
    assert!(
        (mean - 0.5).abs() < 0.02 && shares.iter().any(|share| (share - 0.5).abs() > 0.01),
        "{shares:?}"
    );
    let unplaced = deal(1, &[0, 0]);
    assert!(unplaced.node.iter().all(|node| *node == 0), "no node to deal to: pages stay");
}

#[test]
fn the_seed_alone_determines_the_hot_pages() {
    let workload = workload(&[1.0]);
    assert_eq!(Pages::of(&workload, 9), Pages::of(&workload, 9));
    assert_ne!(Pages::of(&workload, 9).heat, Pages::of(&workload, 10).heat);
}

#[test]
fn a_copy_serves_the_cpus_that_are_nearest_to_it() {
    let (workload, machine) = (workload(&[1.0, 0.0]), machine(2));
    let mut pages = Pages::of(&workload, 1);
    pages.first_touch(&workload, &machine);
    assert!(pages.demands(&workload, &machine)[1].shares[0] > 0.999);
    pages.copies.fill(0b10);
    let mut near = (*machine).clone();
    near.latency_ns = vec![vec![50.0, 100.0], vec![100.0, 50.0]];
    let near = near.build().unwrap();
    for (row, demand) in pages.demands(&workload, &near).iter().enumerate() {
        assert!((demand.shares[row] - 1.0).abs() < 1e-9, "{demand:?}");
    }
    assert_eq!(pages.bytes(2), [2000 * 4096, 2000 * 4096]);
}

#[test]
fn huge_pages_are_placed_whole_and_small_pages_add_walk_time() {
    let (mut workload, machine) = (workload(&[0.5, 0.5]), machine(2));
    (workload.huge, workload.walk_ns) = (true, 10.0);
    let mut pages = Pages::of(&workload, 1);
    pages.interleave(&[1, 1], &machine);
    // 2000 pages are three huge pages and 464 small ones.
    for (at, wanted) in [(0, 0), (511, 0), (512, 1), (1024, 0), (1536, 1), (1537, 0)] {
        assert_eq!(pages.node[at], wanted, "page {at}");
    }
    assert_eq!((pages.whole(700), pages.whole(1700)), (512..1024, 1700..1701));
    let think = |pages: &Pages| pages.demands(&workload, &machine)[0].think_ns;
    let before = think(&pages);
    pages.huge[1] = false;
    assert!(before > 0.0 && think(&pages) > before + 0.5, "{before} {}", think(&pages));
}

#[test]
fn regions_alternate_in_stripes_if_configured() {
    let mut workload = workload(&[1.0]);
    workload.stripe = 4;
    let pages = Pages::of(&workload, 1);
    assert_eq!(pages.region[..12], [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]);
    let heat = |pages: &Pages| pages.heat.iter().sum::<f64>();
    let mut other = pages.clone();
    other.rotate(5);
    assert_eq!(other.region[5..9], [0, 0, 0, 0]);
    assert!((heat(&pages) - 2.0).abs() < 1e-9 && (heat(&other) - 2.0).abs() < 1e-9);
}

proptest! {
    #[test]
    fn hot_and_cold_pages_add_up_to_the_whole_region(pages in 1u32..5_000, hot in 0u32..5_000, share in 0.0f64..=1.0) {
        let hot = hot.min(pages);
        let [hot_heat, cold_heat] = heats(pages, hot, share);
        let sum = f64::from(hot) * hot_heat + f64::from(pages - hot) * cold_heat;
        prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        let expected = if hot == 0 { 0.0 } else if hot == pages { 1.0 } else { share };
        prop_assert!((f64::from(hot) * hot_heat - expected).abs() < 1e-9);
    }

    #[test]
    fn a_sample_has_as_many_distinct_numbers_as_requested_or_available(room in 0u32..300, count in 0u32..300, seed in any::<u64>()) {
        let found = some_of(room, count, &mut Rng::new(seed));
        prop_assert_eq!(found.len(), room.min(count) as usize);
        prop_assert!(found.iter().all(|number| *number < room));
    }
}

#[test]
fn hot_pages_lie_among_the_first_four_fifths_of_the_main_touchers_pages() {
    for (touched, end) in [([0.9, 0.1], 720), ([0.2, 0.8], 640)] {
        let pages = Pages::of(&workload(&touched), 11);
        let hot: Vec<usize> = (0..1_000).filter(|page| pages.heat[*page] > 0.01).collect();
        assert!(hot.len() == 10 && hot.iter().all(|page| *page < end), "{hot:?}");
    }
}

#[test]
fn a_page_for_a_full_node_falls_back_to_the_nearest_with_free_memory() {
    let mut builder = (*machine(3)).clone();
    builder.latency_ns[0] = vec![100.0, 300.0, 200.0];
    for (node, pages) in builder.nodes.iter_mut().zip([1, 1, 2]) {
        node.size = Bytes(pages * 4096);
    }
    let machine = builder.build().unwrap();
    let mut room = Room::of(&machine, 4096);
    let taken: Vec<usize> = (0..6).map(|_| room.take(0)).collect();
    assert_eq!(taken, [0, 2, 2, 1, 0, 0]);
}

#[test]
fn a_workers_reads_and_translations_are_means_over_its_regions() {
    let (mut workload, machine) = (workload(&[1.0]), machine(1));
    (workload.huge, workload.walk_ns) = (true, 8.0);
    workload.regions[1].reads = 0.2;
    let mut pages = Pages::of(&workload, 1);
    // A quarter of the accesses only reads, the others read a fifth of the time.
    assert!((pages.demands(&workload, &machine)[0].reads - 0.4).abs() < 1e-12);
    pages.huge.fill(false);
    assert!((pages.demands(&workload, &machine)[0].think_ns - 8.0).abs() < 1e-9);
    // One huge page has 512 of the 1000 pages of the second region: three quarters of 48.8 % are left.
    pages.huge[2] = true;
    let second = (1_024..1_536).filter(|page| pages.region[*page] == 1).count();
    assert_eq!(second, 512);
    let think = pages.demands(&workload, &machine)[0].think_ns;
    assert!((think - 8.0 * (0.25 + 0.75 * 0.488)).abs() < 1e-9, "{think}");
}
