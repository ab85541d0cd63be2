//! Two tiers with contention for the near one, over time: results of controllers relative to the optimum.
//!
//! The machine and the workload are Colloid's ([`crate::published::colloid`]). Contention comes in phases; each
//! controller runs through all of them, and the last quarter of each counts as settled: a controller may wait and see
//! whether a phase lasts before it moves tens of gigabytes. The *oracle* is the best near share of all for the phase,
//! found by grid search on the model: it knows contention and heat, moves nothing and is never late.

use crate::live::{Controller, Settings, Still, World};
use crate::machine::Machine;
use crate::metrics::Figures;
use crate::pages::Pages;
use crate::policy::Policy;
use crate::published::colloid::{self, CONTENDING_LINES};
use crate::unable::Unable;
use crate::{threads, workload};

/// Contention of the phases, in units of five cores.
pub const PHASES: [f64; 6] = [0.0, 3.0, 1.0, 0.5, 2.0, 0.0];

/// Results of a controller in a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Contention.
    pub contention: f64,
    /// The workload's throughput once settled, 10^9 bytes a second.
    pub gbps: f64,
    /// The oracle's throughput, 10^9 bytes a second.
    pub oracle_gbps: f64,
    /// The workload's throughput over the whole phase, 10^9 bytes a second.
    pub whole_gbps: f64,
    /// Bytes migrated in the whole phase.
    pub moved_bytes: u64,
    /// Migration once settled, 10^9 bytes per second.
    pub churn_gbps: f64,
}

impl Phase {
    /// Settled throughput relative to the oracle's.
    #[must_use]
    pub fn of_oracle(&self) -> f64 {
        self.gbps / self.oracle_gbps
    }

    /// Churn as a share of the workload's own traffic.
    #[must_use]
    pub fn churn(&self) -> f64 {
        if self.gbps > 0.0 { self.churn_gbps / self.gbps } else { 0.0 }
    }
}

/// Runs `controller` through [`PHASES`], each of `seconds`, over far memory of `far_ns`.
///
/// # Errors
/// An invalid latency, or a controller that can't work.
pub fn study(
    far_ns: f64,
    seconds: u32,
    settings: &Settings,
    controller: &mut dyn Controller,
) -> Result<Vec<Phase>, Unable> {
    let machine = colloid::machine(far_ns)?;
    let workload = workload::find("hot-set", &machine)?;
    let mut pages = Pages::of(&workload, settings.seed);
    pages.first_touch(&workload, &machine);
    let mut world = World::new(&machine, &workload, pages, settings.clone());
    let epochs = seconds * 1000 / settings.epoch_ms.max(1);
    PHASES.iter().map(|of| phase(&machine, &mut world, (*of, epochs), controller)).collect()
}

/// One controller over one far latency.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Latency of far memory.
    pub far_ns: f64,
    /// The policy; first touch means that near memory is filled with the hottest pages first.
    pub policy: Policy,
    /// Results by phase.
    pub phases: Vec<Phase>,
}

impl Row {
    /// Throughput of all phases, including the time until they are settled, relative to the oracle's.
    #[must_use]
    pub fn whole_of_oracle(&self) -> f64 {
        let sum = |of: fn(&Phase) -> f64| self.phases.iter().map(of).sum::<f64>();
        sum(|of| of.whole_gbps) / sum(|of| of.oracle_gbps)
    }
}

/// Each of `policies` over each of the study's far latencies, on as many threads as there are CPUs.
///
/// # Errors
/// As [`study`].
pub fn rows(policies: &[Policy], seconds: u32, settings: &Settings) -> Result<Vec<Row>, Unable> {
    let runs: Vec<(f64, Policy)> = colloid::FAR_NS
        .into_iter()
        .flat_map(|far_ns| policies.iter().map(move |policy| (far_ns, *policy)))
        .collect();
    let row = |(far_ns, policy): &(f64, Policy)| {
        let mut controller = policy.controller().unwrap_or_else(|| Box::new(Still));
        let phases = study(*far_ns, seconds, settings, controller.as_mut())?;
        Ok(Row { far_ns: *far_ns, policy: *policy, phases })
    };
    threads::map(&runs, row).into_iter().collect()
}

fn phase(
    machine: &Machine,
    world: &mut World<'_>,
    (contention, epochs): (f64, u32),
    controller: &mut dyn Controller,
) -> Result<Phase, Unable> {
    world.contend(contention * CONTENDING_LINES);
    let (mut settled, mut moved_bytes, mut churn) = (Vec::<Figures>::new(), 0, 0);
    let mut whole = 0.0;
    for epoch in 0..epochs {
        let now = world.step(controller)?;
        moved_bytes += now.moved_bytes;
        whole += now.figures.gbps;
        if epoch >= epochs - epochs.div_ceil(4) {
            churn += now.moved_bytes;
            settled.push(now.figures);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "counts and bytes, for means")]
    let [count, churn] = [settled.len().max(1) as f64, churn as f64];
    let gbps = settled.iter().map(|of| of.gbps).sum::<f64>() / count;
    let seconds = count * f64::from(world.epoch_ms()) / 1000.0;
    Ok(Phase {
        contention,
        gbps,
        oracle_gbps: crate::machine::LINE * oracle(machine, contention).1,
        whole_gbps: whole / f64::from(epochs.max(1)),
        moved_bytes,
        churn_gbps: churn / 1e9 / seconds,
    })
}

/// The best near share, and its lines per nanosecond.
#[must_use]
pub fn oracle(machine: &Machine, contention: f64) -> (f64, f64) {
    const STEPS: u32 = 120;
    let tried = (0..=STEPS).map(|step| {
        let near = colloid::NEAR_MOST * f64::from(step) / f64::from(STEPS);
        (near, colloid::flow(machine, contention, near).served[0].per_ns)
    });
    tried.fold((0.0, 0.0), |best, now| if now.1 > best.1 { now } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::colloid::Colloid;
    use crate::live::{Act, Counters, Readings, Sensors};

    fn settings() -> Settings {
        let sensors = Sensors { noise: 0.05, samples: 500, ..Sensors::default() };
        Settings { tick_epochs: 1, sensors, ..Settings::default() }
    }

    #[test]
    fn a_policy_without_migration_equals_filled_near_memory() {
        let phases = study(135.0, 1, &settings(), &mut Still).unwrap();
        let machine = colloid::machine(135.0).unwrap();
        for of in &phases {
            let filled =
                colloid::flow(&machine, of.contention, colloid::NEAR_MOST).served[0].per_ns;
            assert!((of.gbps / (64.0 * filled) - 1.0).abs() < 1e-3, "{of:?}");
            assert!(of.of_oracle() <= 1.0 + 1e-3 && of.moved_bytes == 0, "{of:?}");
            assert!((of.whole_gbps / of.gbps - 1.0).abs() < 1e-9, "{of:?}");
        }
        assert!(phases[1].of_oracle() < 0.5 && phases[0].of_oracle() > 0.99, "{phases:?}");
    }

    #[test]
    fn colloid_approaches_the_oracle_under_contention_with_little_churn() {
        let phases = study(135.0, 32, &settings(), &mut Colloid::default()).unwrap();
        for (of, least) in phases.iter().zip([0.97, 0.95, 0.93, 0.93, 0.93, 0.93]) {
            assert!(of.of_oracle() > least && of.of_oracle() < 1.01, "{phases:#?}");
            assert!(of.churn_gbps < 0.5, "{phases:#?}");
        }
    }

    #[test]
    fn a_study_is_determined_by_its_seed() {
        let run = |seed| {
            study(168.0, 2, &Settings { seed, ..settings() }, &mut Colloid::default()).unwrap()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    /// Requests impossible acts: pages and nodes that do not exist, and all of memory near.
    struct Greedy;

    impl Controller for Greedy {
        fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
            let all =
                (0..u32::MAX).take(readings.on().len() + 5).map(|page| Act::Move { page, to: 0 });
            all.chain([Act::Move { page: 0, to: 9 }]).collect()
        }
    }

    #[test]
    fn migration_stays_within_existing_pages_free_memory_and_its_rate() {
        let machine = colloid::machine(135.0).unwrap();
        let workload = workload::find("hot-set", &machine).unwrap();
        let mut pages = Pages::of(&workload, 1);
        pages.interleave(&[1, 2], &machine);
        let mut world = World::new(&machine, &workload, pages, settings());
        let epochs: Vec<_> = (0..800).map(|_| world.step(&mut Greedy).unwrap()).collect();
        let mut moved = 0;
        for (done, epoch) in (1u64..).zip(&epochs) {
            moved += epoch.moved_bytes;
            assert!(moved <= 20_000_000 * done + (16 << 20), "{moved} in {done} epochs at 2 GB/s");
        }
        assert!(moved > 1 << 30);
        assert!(world.pages().bytes(2)[0] <= 32 << 30 && epochs.iter().any(|of| of.refused > 0));
    }

    #[test]
    fn migration_traffic_slows_the_workload_down() {
        let machine = colloid::machine(135.0).unwrap();
        let demand = || colloid::demands(1.0, 0.5);
        let moves = [crate::flow::Move { from: 0, to: 1, gbps: 10.0 }];
        let per_ns = |moves: &[_]| crate::flow::solve(&machine, &demand(), moves).served[0].per_ns;
        assert!(per_ns(&moves) < 0.99 * per_ns(&[]));
    }

    #[test]
    fn counters_report_traffic_by_origin_and_node_if_available() {
        struct Look(Vec<Option<f64>>, Vec<Option<f64>>);
        impl Controller for Look {
            fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
                self.0.clone_from(&readings.controllers_per_us);
                self.1.clone_from(&readings.own_per_us[0]);
                Vec::new()
            }
        }
        let run = |counters: Counters| {
            let machine = colloid::machine(135.0).unwrap();
            let workload = workload::find("hot-set", &machine).unwrap();
            let mut pages = Pages::of(&workload, 1);
            pages.first_touch(&workload, &machine);
            let sensors = Sensors { counters, delay_ticks: 0, ..Sensors::default() };
            let settings = Settings { tick_epochs: 1, sensors, ..Settings::default() };
            let mut world = World::new(&machine, &workload, pages, settings);
            world.contend(CONTENDING_LINES);
            let mut look = Look(Vec::new(), Vec::new());
            let gbps = world.step(&mut look).unwrap().figures.gbps;
            (look, gbps)
        };
        let (look, gbps) = run(Counters::All);
        let [all, own] = [&look.0, &look.1].map(|of| [of[0].unwrap(), of[1].unwrap()]);
        assert!((own[0] + own[1] - gbps / 64.0 * 1000.0).abs() < 1e-6 * (own[0] + own[1]));
        assert!(all[0] > 1.5 * own[0] && (all[1] - own[1]).abs() < 1e-6, "{all:?} {own:?}");
        assert!(run(Counters::None).0.0.iter().all(Option::is_none));
    }

    #[test]
    fn lost_and_delayed_readings_reach_the_controller_as_such() {
        struct Count(usize, usize);
        impl Controller for Count {
            fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
                self.0 += 1;
                self.1 += readings.loaded_ns.iter().flatten().filter(|of| of.is_none()).count();
                Vec::new()
            }
        }
        let run = |loss, delay_ticks| {
            let sensors = Sensors { loss, delay_ticks, ..settings().sensors };
            let mut count = Count(0, 0);
            study(135.0, 1, &Settings { sensors, ..settings() }, &mut count).unwrap();
            (count.0, count.1)
        };
        assert_eq!(run(0.0, 3), (600 - 3, 0));
        let (ticks, lost) = run(0.5, 0);
        assert!(ticks == 600 && (480..720).contains(&lost), "{lost} of 1200");
    }
}
