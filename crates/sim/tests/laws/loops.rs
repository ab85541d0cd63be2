//! Controllers at work: they stay at rest where nothing is to gain, keep within their rate, lose no page, and repeat for a seed.

use nearfar_sim::live::{Epoch, Settings, World};
use nearfar_sim::machine::Machine;
use nearfar_sim::pages::Pages;
use nearfar_sim::policy::Policy;
use nearfar_sim::workload::Workload;
use proptest::prelude::*;

use crate::machines::{alike, region, two_tiers, workload};

const BALANCING: [Policy; 3] = [Policy::Balanced, Policy::Carrefour, Policy::CarrefourReplicate];
const TIERS: [Policy; 2] = [Policy::Colloid, Policy::Tiering];

/// The epochs of a run from this placement, and the pages after it.
fn run(
    policy: Policy,
    (machine, workload): (&Machine, &Workload),
    pages: &Pages,
    settings: Settings,
    epochs: u32,
) -> (Vec<Epoch>, Pages) {
    let mut controller = policy.controller().unwrap();
    let mut world = World::new(machine, workload, pages.clone(), settings);
    let found = (0..epochs).map(|_| world.step(controller.as_mut()).unwrap()).collect();
    (found, world.pages().clone())
}

fn moved(epochs: &[Epoch]) -> u64 {
    epochs.iter().map(|epoch| epoch.moved_bytes).sum()
}

fn placed(workload: &Workload, machine: &Machine) -> Pages {
    let mut pages = Pages::of(workload, 1);
    pages.first_touch(workload, machine);
    pages
}

/// All lines of both rows go to one region, on node 0.
fn crowded() -> Workload {
    let mut of = workload(vec![region(4_096, 0, 2)], 2);
    of.workers.iter_mut().for_each(|worker| worker.lines = 40.0);
    of
}

#[test]
fn nothing_is_migrated_if_each_node_uses_local_pages_only() {
    let machine = alike(2, 1 << 14);
    let mut of = workload(vec![region(2_048, 0, 2), region(2_048, 1, 2)], 2);
    for (row, worker) in of.workers.iter_mut().enumerate() {
        worker.uses = (0..2).map(|at| f64::from(u8::from(at == row))).collect();
    }
    for policy in BALANCING {
        let pages = placed(&of, &machine);
        let (epochs, after) = run(policy, (&machine, &of), &pages, Settings::default(), 400);
        assert_eq!((moved(&epochs), &after), (0, &pages), "{}", policy.name());
    }
}

#[test]
fn memory_that_fits_near_memory_is_never_migrated() {
    let machine = two_tiers(1 << 14, 1 << 14);
    let of = workload(vec![region(2_048, 0, 1)], 1);
    for policy in TIERS {
        let pages = placed(&of, &machine);
        let (epochs, after) = run(policy, (&machine, &of), &pages, Settings::default(), 400);
        assert_eq!((moved(&epochs), &after), (0, &pages), "{}", policy.name());
    }
}

#[test]
fn shared_pages_are_spread_and_the_gain_remains() {
    let machine = alike(2, 1 << 14);
    let of = crowded();
    for policy in BALANCING {
        let pages = placed(&of, &machine);
        let (epochs, after) = run(policy, (&machine, &of), &pages, Settings::default(), 600);
        let [before, last] = [&epochs[0], epochs.last().unwrap()].map(|epoch| epoch.figures.gbps);
        assert!(last > 1.3 * before, "{}: {before} to {last}", policy.name());
        assert!(after.bytes(2)[1] > 1_000 * 4_096, "{}", policy.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_controller_moves_within_its_rate_and_loses_no_page(rate in 0.000_2f64..0.003, seed in any::<u64>(), which in 0usize..5) {
        let policy = [BALANCING.as_slice(), &TIERS].concat()[which];
        let is_tiered = TIERS.contains(&policy);
        let machine = if is_tiered { two_tiers(1_024, 1 << 14) } else { alike(2, 1 << 14) };
        let of = if is_tiered { workload(vec![region(4_096, 0, 1)], 1) } else { crowded() };
        let mut pages = placed(&of, &machine);
        if is_tiered {
            // Near memory is full of the last pages.
            (0..4_096).for_each(|page| pages.put(page, usize::from(page < 3_072)));
        }
        let settings = Settings { rate_gbps: rate, seed, tick_epochs: 1, ..Settings::default() };
        let (epochs, after) = run(policy, (&machine, &of), &pages, settings, 300);
        // An epoch is 10 ms.
        #[expect(clippy::cast_precision_loss, reason = "bytes of pages")]
        let bytes = moved(&epochs) as f64;
        prop_assert!(bytes <= rate * 1e7 * 300.0 + 4_096.0, "{}: {bytes}", policy.name());
        prop_assert_eq!((after.count(), &after.heat), (pages.count(), &pages.heat));
        let fits = after.bytes(2).iter().zip(&machine.nodes).all(|(bytes, node)| *bytes <= node.size.0);
        prop_assert!(fits, "{}", policy.name());
    }

    #[test]
    fn a_run_is_the_same_for_a_seed(seed in any::<u64>(), which in 0usize..3) {
        let (machine, of) = (alike(2, 1 << 14), crowded());
        let pages = placed(&of, &machine);
        let again = || run(BALANCING[which], (&machine, &of), &pages, Settings { seed, ..Settings::default() }, 250);
        prop_assert_eq!(again(), again());
    }
}
