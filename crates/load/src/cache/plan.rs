//! The plan of a run: the workload is loaded, numbers are in range, and all errors that can be found beforehand are
//! reported.

use std::fmt;

use crate::requests::Spacing;
use anyhow::bail;

use super::results::{Asking, Load};
use super::spec::{Spec, Workload};
use crate::cache::pages::{count, how};

/// The most keys that are stored before a run: each takes a request.
const PRELOADED_MAX: u64 = 1_000_000_000;

/// Pace of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loop {
    /// Each as soon as the previous one was answered.
    Closed,
    /// At this total rate per second.
    Open(f64, Spacing),
}

/// Duration of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Seconds counted; without it a trace runs to its end.
    pub seconds: Option<f64>,
    /// Seconds of warm-up before.
    pub warm_up: f64,
    /// The most requests, warm-up included.
    pub operations: Option<u64>,
}

/// Additional steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Besides {
    /// Store all keys first.
    pub preload: bool,
    /// Verify values.
    pub verify: bool,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workload as specified.
    pub spec: Spec,
    /// The workload, loaded.
    pub workload: Workload,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of client threads.
    pub threads: u32,
    /// Pace.
    pub pace: Loop,
    /// Duration.
    pub length: Length,
    /// Additional steps.
    pub besides: Besides,
    /// Parameters of requests to a server, if the target is one.
    pub server: Option<Asking>,
}

impl Plan {
    /// Checks that the parts of the plan are compatible.
    ///
    /// # Errors
    /// The first conflict.
    pub fn checked(self) -> anyhow::Result<Self> {
        let keys = match &self.workload {
            Workload::Drawn(drawn) => drawn.parts().keys,
            Workload::Trace(..) if self.besides.preload => {
                bail!(
                    "--preload stores a workload's keys first; which keys a trace has, nobody knows before its end"
                )
            }
            Workload::Trace(..) => 0,
        };
        if self.besides.preload && keys > PRELOADED_MAX {
            bail!(
                "--preload would store {keys} keys, at most {PRELOADED_MAX} are; use fewer with --keys"
            );
        }
        if self.length.operations.is_some_and(|all| all < u64::from(self.threads)) {
            bail!("--operations: at least one for each of {} threads", self.threads);
        }
        Ok(self)
    }

    /// Parameters of the load, for the result.
    pub(crate) fn load(&self) -> Load {
        let (rate, arrivals) = match self.pace {
            Loop::Closed => (None, None),
            Loop::Open(rate, spacing) => (Some(rate), Some(spaced(spacing).into())),
        };
        Load {
            workload: self.spec.to_string(),
            made_of: self.workload.made_of(),
            seed: self.seed,
            threads: self.threads,
            server: self.server,
            rate,
            arrivals,
            warm_up_s: self.length.warm_up,
            preloaded: self.besides.preload,
            verified: self.besides.verify,
        }
    }
}

const fn spaced(spacing: Spacing) -> &'static str {
    match spacing {
        Spacing::Constant => "constant",
        Spacing::Poisson => "poisson",
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        how(&self.load()).iter().try_for_each(|said| writeln!(f, "{said}"))?;
        let Length { seconds, operations, .. } = self.length;
        let end = seconds.map_or("to its end".into(), |seconds| format!("for {seconds} s"));
        write!(f, "It goes on {end}")?;
        match operations {
            Some(operations) => writeln!(f, ", at most {}", count(operations, "request")),
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cache::sample::{asked, plan};

    use super::*;

    #[test]
    fn a_plan_lists_all_steps() {
        let mut plan = asked(plan("zipf:1", None, 500), 4, 1);
        plan.pace = Loop::Open(2000.0, Spacing::Constant);
        plan.length = Length { seconds: Some(3.0), warm_up: 0.5, operations: Some(500) };
        plan.besides.preload = true;
        assert_eq!(
            plan.checked().unwrap().to_string(),
            "zipf:1: 1,000 keys of 16 bytes, values of 64 bytes on average, 100 % get; a read that finds nothing stores the key\n\
             Seed 1, 2 threads, each with 1 connection and on each up to 4 commands under way\n\
             Open loop: 2,000 requests a second, constant arrivals; latencies are from when requests were due\n\
             The first 0.5 s do not count\nAll keys are stored first\nEvery value read is checked\n\
             It goes on for 3 s, at most 500 requests\n"
        );
    }

    #[test]
    fn contradicting_options_are_refused() {
        let refused = |plan: Plan| plan.checked().unwrap_err().to_string();
        assert!(refused(plan("uniform", None, 1)).contains("at least one for each of 2 threads"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "key,op,size\n").unwrap();
        let mut trace = plan(&format!("trace:{}", file.path().display()), None, 10);
        assert!(trace.clone().checked().is_ok());
        trace.besides.preload = true;
        assert!(refused(trace).contains("which keys a trace has"));
    }
}
