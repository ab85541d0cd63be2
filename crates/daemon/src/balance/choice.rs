//! Selection of sensors for balancing: the named ones, or else, of the usable ones, the first that samples pages, the
//! first that counts traffic and, if the policy needs it, the first that measures latency.

use nearfar_policy::ports::{Grain, Sees, Sensor};

use super::options::Policy;
use nearfar_command::exit::{EndsWith as _, Exit};

/// A sensor of this machine.
pub(crate) type Eye<'a> = Box<dyn Sensor + 'a>;

/// Combined capabilities of sensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sight {
    pages: bool,
    traffic: bool,
    latency: bool,
}

impl Sight {
    fn of(sees: Sees) -> Self {
        let pages = sees.addresses == Grain::Pages && sees.cpu;
        Self { pages, traffic: sees.traffic, latency: sees.latency }
    }

    /// Whether this adds a needed capability to `other`.
    const fn adds_to(self, other: Self, needs_latency: bool) -> bool {
        self.pages && !other.pages
            || self.traffic && !other.traffic
            || self.latency && !other.latency && needs_latency
    }

    const fn and(self, other: Self) -> Self {
        Self {
            pages: self.pages || other.pages,
            traffic: self.traffic || other.traffic,
            latency: self.latency || other.latency,
        }
    }
}

/// Selects sensors from `all`, and checks each.
///
/// # Errors
/// A name without a sensor; an unusable named sensor; no sensor that samples pages with the accessing node.
pub(super) fn choose<'a>(
    all: Vec<Eye<'a>>,
    named: &[String],
    policy: Policy,
) -> anyhow::Result<Vec<Eye<'a>>> {
    let names: Vec<&str> = all.iter().map(|sensor| sensor.name()).collect();
    if let Some(unknown) = named.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(anyhow::anyhow!(
            "--sensor {unknown}: unknown sensor; known are {}",
            names.join(", ")
        ))
        .ends_with(Exit::Usage);
    }
    let (mut chosen, mut sight, mut lacking) = (Vec::new(), Sight::default(), Vec::new());
    for mut sensor in all {
        let is_named = named.iter().any(|name| name == sensor.name());
        let best = Sight::of(sensor.sees());
        let is_wanted = named.is_empty() && best.adds_to(sight, policy.needs_latency());
        if !is_named && !is_wanted {
            continue;
        }
        match sensor.check() {
            Ok(()) => {
                sight = sight.and(Sight::of(sensor.sees()));
                chosen.push(sensor);
            }
            Err(why) if is_named => anyhow::bail!("--sensor {}: {why}", sensor.name()),
            Err(why) => lacking.push(format!("{}: {why}", sensor.name())),
        }
    }
    let because = if lacking.is_empty() {
        "; nearfar doctor lists sensors".into()
    } else {
        format!(": {}", lacking.join("; "))
    };
    anyhow::ensure!(
        sight.pages,
        "no usable sensor samples accessed pages with the accessing node{because}"
    );
    anyhow::ensure!(
        sight.latency || !policy.needs_latency(),
        "--policy {} needs load latencies, and no usable sensor measures them{because}; --policy carrefour does not need it",
        policy.word()
    );
    Ok(chosen)
}

/// Whether a sensor counts memory traffic, so that utilisation is known.
pub(super) fn counts(sensors: &[Eye<'_>]) -> bool {
    sensors.iter().any(|sensor| sensor.sees().traffic)
}

/// Whether a sensor uses the kernel's NUMA balancing.
pub(super) fn needs_numa_balancing(sensors: &[Eye<'_>]) -> bool {
    sensors.iter().any(|sensor| sensor.name() == "hint-faults")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_policy::ports::{Cost, Nature, Reading, Scope, Targets, Unusable, Why};
    use nearfar_topology::Nanoseconds;

    #[derive(Debug)]
    struct One(&'static str, Sight, bool);

    impl Sensor for One {
        fn name(&self) -> &'static str {
            self.0
        }
        fn sees(&self) -> Sees {
            Sees {
                addresses: if self.1.pages { Grain::Pages } else { Grain::None },
                writes: false,
                cpu: self.1.pages,
                traffic: self.1.traffic,
                latency: self.1.latency,
                scope: Scope::Machine,
                nature: Nature::Measured,
            }
        }
        fn check(&mut self) -> Result<(), Unusable> {
            if self.2 { Ok(()) } else { Err(Unusable::new(Why::Absent, "no such PMU")) }
        }
        fn start(&mut self, _: &Targets, _: Nanoseconds) -> Result<(), Unusable> {
            Ok(())
        }
        fn read(&mut self, _: Nanoseconds) -> Result<Reading, Unusable> {
            Ok(Reading::default())
        }
        fn cost(&self) -> Cost {
            Cost::default()
        }
        fn stop(&mut self) -> Result<(), Unusable> {
            Ok(())
        }
    }

    const PAGES: Sight = Sight { pages: true, traffic: false, latency: false };
    const TRAFFIC: Sight = Sight { pages: false, traffic: true, latency: false };
    const LATENCY: Sight = Sight { pages: false, traffic: false, latency: true };

    fn chosen(all: &[(&'static str, Sight, bool)], named: &[&str], policy: Policy) -> String {
        let all =
            all.iter().map(|(name, sight, works)| Box::new(One(name, *sight, *works)) as Eye<'_>);
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        match choose(all.collect(), &named, policy) {
            Ok(chosen) => chosen.iter().map(|sensor| sensor.name()).collect::<Vec<_>>().join(" "),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn the_first_working_sensor_is_chosen_for_each_required_measurement() {
        let all = [
            ("ibs", PAGES, false),
            ("hint", PAGES, true),
            ("damon", PAGES, true),
            ("imc", TRAFFIC, true),
            ("latency", LATENCY, true),
        ];
        assert_eq!(chosen(&all, &[], Policy::Carrefour), "hint imc");
        assert_eq!(chosen(&all, &[], Policy::Balanced), "hint imc latency");
        assert_eq!(
            chosen(&all, &["damon"], Policy::Carrefour),
            "damon",
            "named ones and no others"
        );
    }

    #[test]
    fn missing_sensors_are_reported_with_the_reason() {
        let all = [("ibs", PAGES, false), ("latency", LATENCY, true)];
        for (named, policy, says) in [
            (vec![], Policy::Balanced, "ibs: no such PMU"),
            (vec!["ibs"], Policy::Carrefour, "--sensor ibs: no such PMU"),
            (vec!["spe"], Policy::Carrefour, "known are ibs, latency"),
            (vec!["latency"], Policy::Carrefour, "accessed pages"),
        ] {
            let error = chosen(&all, &named, policy);
            assert!(error.contains(says), "{named:?}: {error}");
        }
        let blind = [("ibs", PAGES, true)];
        assert!(chosen(&blind, &[], Policy::Colloid).contains("--policy carrefour"));
    }
}
