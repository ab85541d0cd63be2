//! A run as it will be: workload loaded, numbers in range, all that can be wrong found before anything is asked.

use std::fmt;

use anyhow::bail;
use nearfar_cache::workload::Spacing;

use super::found::{Asking, Load};
use super::spec::{Spec, Workload};
use crate::report::cache::{count, how};

/// Keys that are stored before a run, at most: they take a request each.
const PRELOADED_MAX: u64 = 1_000_000_000;

/// How fast requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loop {
    /// Each as soon as the one before was answered.
    Closed,
    /// So many a second in all.
    Open(f64, Spacing),
}

/// How long a run goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Length {
    /// Seconds that count; a trace without goes on to its end.
    pub(crate) seconds: Option<f64>,
    /// Seconds before that.
    pub(crate) warm_up: f64,
    /// No more than so many requests, warm-up included.
    pub(crate) operations: Option<u64>,
}

/// What is done besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Besides {
    /// Store all keys first.
    pub(crate) preload: bool,
    /// Check values.
    pub(crate) verify: bool,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What was meant.
    pub(crate) spec: Spec,
    /// What that is.
    pub(crate) workload: Workload,
    /// Of all chance.
    pub(crate) seed: u64,
    /// Threads that ask.
    pub(crate) threads: u32,
    /// How fast.
    pub(crate) pace: Loop,
    /// How long.
    pub(crate) length: Length,
    /// What else.
    pub(crate) besides: Besides,
    /// How a server is asked, if it is one.
    pub(crate) server: Option<Asking>,
}

impl Plan {
    /// Refuses what does not go together.
    pub(crate) fn checked(self) -> anyhow::Result<Self> {
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

    /// How the target is asked, for the result.
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
    fn a_plan_says_all_that_will_be_done() {
        let mut plan = asked(plan("zipf:1", None, 500), 4, 1);
        plan.pace = Loop::Open(2000.0, Spacing::Constant);
        plan.length = Length { seconds: Some(3.0), warm_up: 0.5, operations: Some(500) };
        plan.besides.preload = true;
        assert_eq!(
            plan.checked().unwrap().to_string(),
            "zipf:1: 1,000 keys of 16 bytes, values of 64 bytes on average, 100 % get; a read that finds nothing stores the key\n\
             Seed 1, 2 threads, each with 1 connection and on each up to 4 commands under way\n\
             Open loop: 2000 requests a second, constant arrivals; latencies are from when requests were due\n\
             The first 0.5 s do not count\nAll keys are stored first\nEvery value read is looked at\n\
             It goes on for 3 s, at most 500 requests\n"
        );
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
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
