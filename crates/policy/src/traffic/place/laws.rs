//! Laws of the search and of its parts: bounds, whole parts, scenes, and the best placement against all of a grid.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::BytesPerSecond;
use proptest::prelude::*;

use super::*;
use crate::traffic::model::Queue;
use crate::traffic::testkit::{alike, near_tier, two_tiers};

fn spot(least: &[f64], most: &[f64]) -> Spot {
    Spot { by: vec![1.0], least: least.to_vec(), most: most.to_vec() }
}

fn free(nodes: usize) -> Spot {
    spot(&vec![0.0; nodes], &vec![1.0; nodes])
}

fn loops(lines: &[f64]) -> Loops {
    Loops { lines: lines.to_vec(), think: vec![0.0; lines.len()], reads: 1.0 }
}

fn scene(foreign: &[f64], weight: f64) -> Scene {
    Scene { foreign: foreign.to_vec(), weight }
}

#[track_caller]
fn assert_near(found: &[f64], right: &[f64]) {
    let near = |(found, right): (&f64, &f64)| (found - right).abs() < 1e-6;
    assert!(
        found.len() == right.len() && found.iter().zip(right).all(near),
        "{found:?}, not {right:?}"
    );
}

#[test]
fn a_share_beyond_its_bounds_is_clamped_and_the_rest_redistributed() {
    let fit = |least: &[f64], most: &[f64], wish: &[f64]| spot(least, most).fit(wish).unwrap();
    assert_near(&fit(&[0.0; 2], &[0.6, 1.0], &[0.9, 0.1]), &[0.6, 0.4]);
    assert_near(&fit(&[0.0; 3], &[0.4, 1.0, 1.0], &[0.6, 0.2, 0.2]), &[0.4, 0.3, 0.3]);
    // 0.2 are missing, and there is room for 0.3 and 0.1.
    assert_near(&fit(&[0.0; 3], &[0.4, 0.5, 0.3], &[0.6, 0.2, 0.2]), &[0.4, 0.35, 0.25]);
    // A least share is taken from the others by as much as they have above their own.
    assert_near(&fit(&[0.0, 0.1, 0.4], &[1.0; 3], &[0.6, 0.3, 0.1]), &[0.375, 0.225, 0.4]);
}

#[test]
fn parts_are_rounded_down_and_the_largest_remainders_up() {
    assert_eq!(apportion(&[1.0 / 3.0; 3]), [22, 21, 21]);
    assert_eq!(apportion(&[0.5, 0.25, 0.25]), [32, 16, 16]);
    // 6.4, 25.6 and 32.0 parts.
    assert_eq!(apportion(&[0.1, 0.4, 0.5]), [6, 26, 32]);
    // 0.64 and 63.36: the small share has the larger remainder.
    assert_eq!(apportion(&[0.01, 0.99]), [1, 63]);
    assert_eq!(apportion(&[0.007, 0.993]), [0, 64]);
}

#[test]
fn throughput_is_averaged_over_scenes_by_their_weights() {
    let (machine, loops, spots) = (two_tiers(135), loops(&[128.0]), [free(2)]);
    let at = vec![vec![0.8, 0.2]];
    let value = |scenes: &[Scene]| {
        Problem { machine: &machine, loops: &loops, spots: &spots, scenes }.value(&at)
    };
    let alone = |others: f64| value(&[scene(&[others, 0.0], 1.0)]);
    let right = (3.0 * alone(0.0) + alone(666.0)) / 4.0;
    let (calm, busy) = (scene(&[0.0; 2], 3.0), scene(&[666.0, 0.0], 1.0));
    assert_near(&[value(&[calm.clone(), busy.clone()])], &[right]);
    assert_near(&[value(&[busy, calm])], &[right]);
}

#[test]
fn regions_of_one_node_are_placed_on_it_and_the_shared_region_is_spread() {
    let machine = alike(3);
    let loops = loops(&[13.0; 3]);
    let private = |cpu: usize| {
        let by = (0..3).map(|at| if at == cpu { 0.6 } else { 0.0 }).collect();
        Spot { by, ..free(3) }
    };
    let shared = Spot { by: vec![0.4; 3], ..free(3) };
    let spots = [private(0), private(1), private(2), shared];
    let scenes = [scene(&[0.0; 3], 1.0)];
    let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &scenes };
    // All memory is on one node at first.
    let (best, value) = problem.best(&vec![vec![1.0, 0.0, 0.0]; 4]);
    assert_near(&best[0], &[1.0, 0.0, 0.0]);
    assert_near(&best[1], &[0.0, 1.0, 0.0]);
    assert_near(&best[2], &[0.0, 0.0, 1.0]);
    assert_near(&best[3], &[1.0 / 3.0; 3]);
    assert!(value > 1.5 * problem.value(&vec![vec![1.0, 0.0, 0.0]; 4]), "{value}");
}

#[test]
fn a_placement_within_noise_of_a_simple_one_is_replaced_by_it() {
    let (machine, loops) = (alike(2), loops(&[13.0; 2]));
    let (spots, scenes) = ([Spot { by: vec![1.0; 2], ..free(2) }], [scene(&[0.0; 2], 1.0)]);
    let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &scenes };
    assert_eq!(problem.plain(&vec![vec![0.51, 0.49]]), Some(vec![vec![0.5, 0.5]]));
    // Where near memory serves a third of the lines at best, no simple placement is as good.
    let (machine, loops) = (two_tiers(135), self::loops(&[128.0]));
    let (spots, scenes) = ([free(2)], [scene(&[222.0, 0.0], 1.0)]);
    let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &scenes };
    let (best, _) = problem.best(&vec![vec![1.0, 0.0]]);
    let plain = problem.plain(&best);
    let loses = |at: &Placement| 1.0 - problem.value(at) / problem.value(&best);
    assert!(plain.as_ref().is_none_or(|at| loses(at) <= 0.01), "{plain:?}");
    assert!(loses(&vec![vec![1.0, 0.0]]) > 0.01);
}

/// Placements of one region on three nodes in steps of a twelfth.
fn grid() -> Vec<Placement> {
    let twelfths = |parts: [u32; 3]| vec![parts.map(|part| f64::from(part) / 12.0).to_vec()];
    let row = |a: u32| (0..=12 - a).map(move |b| twelfths([a, b, 12 - a - b]));
    (0..=12).flat_map(row).collect()
}

fn three_tiers() -> impl Strategy<Value = Machine> {
    prop::array::uniform3((60_u64..400, 10_u64..200)).prop_map(|tiers| {
        let tier = |(ns, gbps): (u64, u64)| {
            let capacity = BytesPerSecond(gbps * 1_000_000_000);
            (Nanoseconds(ns), Queue { capacity, ..near_tier() })
        };
        Machine::tiers(&tiers.map(tier)).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_grid_placement_beats_the_optimum_found(
        machine in three_tiers(), lines in 1_u32..600, foreign in prop::array::uniform3(0_u32..300), from in 0_usize..91,
    ) {
        let (loops, spots) = (loops(&[f64::from(lines)]), [free(3)]);
        let scenes = [scene(&foreign.map(f64::from), 1.0)];
        let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &scenes };
        let grid = grid();
        let (best, value) = problem.best(&grid[from]);
        prop_assert!((problem.value(&best) / value - 1.0).abs() < 1e-6, "its value is its own");
        for at in &grid {
            // Gains below 0.2 % are not pursued.
            prop_assert!(problem.value(at) <= value * 1.003, "{at:?} over {best:?}: {} over {value}", problem.value(at));
        }
    }

    #[test]
    fn marginal_costs_of_the_best_placement_are_equal_on_nodes_in_use_and_no_less_elsewhere(
        machine in three_tiers(), lines in 20_u32..600, foreign in prop::array::uniform3(0_u32..300),
    ) {
        let (loops, spots) = (loops(&[f64::from(lines)]), [free(3)]);
        let scenes = [scene(&foreign.map(f64::from), 1.0)];
        let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &scenes };
        let (best, value) = problem.best(&vec![vec![1.0 / 3.0; 3]]);
        let costs = &problem.costs(&best)[0].1;
        // A move of 2 % to a node with lower marginal cost gains next to nothing.
        for from in (0..3).filter(|node| best[0][*node] > 0.02) {
            for to in (0..3).filter(|to| costs[*to] < costs[from]) {
                let mut at = best.clone();
                (at[0][from], at[0][to]) = (at[0][from] - 0.02, at[0][to] + 0.02);
                prop_assert!(problem.value(&at) < value * 1.002, "{best:?}, {costs:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn fitting_a_placement_twice_changes_nothing(
        wish in prop::collection::vec(0.0_f64..1.0, 4),
        least in prop::collection::vec(0.0_f64..0.25, 4),
        more in prop::collection::vec(0.25_f64..1.0, 4),
    ) {
        let most: Vec<f64> = least.iter().zip(&more).map(|(least, more)| least + more).collect();
        let spot = spot(&least, &most);
        let once = spot.fit(&wish).unwrap();
        let twice = spot.fit(&once).unwrap();
        prop_assert!(once.iter().zip(&twice).all(|(one, two)| (one - two).abs() < 1e-9), "{once:?} {twice:?}");
    }

    #[test]
    fn parts_add_up_to_64_and_are_each_within_one_of_the_exact_share(weights in prop::collection::vec(0_u32..1_000, 1..9)) {
        let all = f64::from(weights.iter().sum::<u32>());
        prop_assume!(all > 0.0);
        let shares: Vec<f64> = weights.iter().map(|weight| f64::from(*weight) / all).collect();
        let parts = apportion(&shares);
        prop_assert_eq!(parts.iter().map(|part| u32::from(*part)).sum::<u32>(), 64);
        for (share, part) in shares.iter().zip(parts) {
            prop_assert!((share * 64.0 - f64::from(part)).abs() < 1.0 + 1e-6, "{share} {part}");
            prop_assert!(*share > 0.0 || part == 0);
        }
    }
}
