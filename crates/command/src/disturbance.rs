//! Other load during a measurement: CPU time of other programs, and time that the host gave to others (steal).

use std::fmt;
use std::time::Duration;

use nearfar_kernel::clock::Stopwatch;
use nearfar_kernel::cpu_time::{self, CpuTime};
use nearfar_kernel::fs::Fs;
use serde::Serialize;

/// Other load is reported from this much on: of a CPU, and in per cent of the time of all CPUs.
const OTHERS: f64 = 0.2;
const STOLEN: f64 = 1.0;

/// A measurement that has begun.
#[derive(Debug)]
pub struct Watch {
    begun: Stopwatch,
    before: Option<CpuTime>,
}

/// Other load during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Disturbance {
    /// CPUs that other programs used on average.
    pub others_cpus: f64,
    /// Share of the time of all CPUs that the host gave to others, in per cent.
    pub stolen_percent: f64,
    /// CPUs of the machine.
    pub cpus: u32,
}

impl Watch {
    /// Begins.
    #[must_use]
    pub fn start(fs: &dyn Fs) -> Self {
        Self { begun: Stopwatch::start(), before: cpu_time::now(fs) }
    }

    /// The load of others since the start, if it is large enough to distort a measurement, and known.
    #[must_use]
    pub fn end(&self, fs: &dyn Fs) -> Option<Disturbance> {
        between(self.before?, cpu_time::now(fs)?, self.begun.elapsed())
    }
}

fn between(before: CpuTime, after: CpuTime, elapsed: Duration) -> Option<Disturbance> {
    let elapsed = elapsed.as_secs_f64().max(1e-3);
    let since = |of: fn(&CpuTime) -> Duration| of(&after).saturating_sub(of(&before));
    let others = since(|time| time.busy).saturating_sub(since(|time| time.own));
    let stolen = since(|time| time.stolen).as_secs_f64() / elapsed / f64::from(after.cpus.max(1));
    let found = Disturbance {
        others_cpus: others.as_secs_f64() / elapsed,
        stolen_percent: stolen * 100.0,
        cpus: after.cpus,
    };
    (found.others_cpus >= OTHERS || found.stolen_percent >= STOLEN).then_some(found)
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { others_cpus, stolen_percent, cpus } = self;
        write!(
            f,
            "disturbed while measuring: other programs used {others_cpus:.1} of {cpus} CPUs"
        )?;
        if *stolen_percent >= STOLEN {
            write!(f, ", and the host took {stolen_percent:.0} % of their time")?;
        }
        f.write_str("; measure again on a quiet machine")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpu_time_of_other_programs_and_the_host_counts_as_disturbance() {
        let time = |busy, stolen, own| {
            let [busy, stolen, own] = [busy, stolen, own].map(Duration::from_millis);
            CpuTime { busy, stolen, own, cpus: 2 }
        };
        let second = Duration::from_secs(1);
        let found = |after| between(time(500, 0, 100), after, second);
        assert_eq!(found(time(2500, 0, 2100)), None);
        assert_eq!(found(time(2600, 0, 2150)), None, "less than {OTHERS} of a CPU");
        let said = found(time(2500, 60, 1100)).unwrap().to_string();
        assert_eq!(
            said,
            "disturbed while measuring: other programs used 1.0 of 2 CPUs, and the host took 3 % of their time; measure \
             again on a quiet machine"
        );
        let said = found(time(1500, 0, 100)).unwrap().to_string();
        assert!(said.contains("1.0 of 2 CPUs; measure"), "{said}");
    }
}
