//! A run as it will be: workload loaded, numbers in range, all that can be wrong found before anything is asked.

use std::fmt;

use anyhow::bail;
use nearfar_cache::workload::Spacing;

use super::found::Load;
use super::spec::{Spec, Workload};
use crate::report::words;

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
}

impl Plan {
    /// Refuses what does not go together.
    pub(crate) fn checked(self) -> anyhow::Result<Self> {
        let keys = match &self.workload {
            Workload::Drawn(drawn) => drawn.parts().keys,
            Workload::Trace(..) if self.besides.preload => {
                bail!("--preload stores a workload's keys first; which keys a trace has, nobody knows before its end")
            }
            Workload::Trace(..) => 0,
        };
        if self.besides.preload && keys > PRELOADED_MAX {
            bail!("--preload would store {keys} keys, at most {PRELOADED_MAX} are; use fewer with --keys");
        }
        if self.length.operations.is_some_and(|all| all < u64::from(self.threads)) {
            bail!("--operations: at least one for each of {} threads", self.threads);
        }
        Ok(self)
    }

    /// How the target is asked, for the result; what only servers have is left out.
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
            connections: None,
            pipeline: None,
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

/// `1 thread`, `2 threads`.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", words::grouped(number), if number == 1 { "" } else { "s" })
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "workload {}: {}", self.spec, self.workload.made_of())?;
        write!(f, "seed {}, {}, ", self.seed, count(self.threads.into(), "thread"))?;
        match self.pace {
            Loop::Closed => write!(f, "closed loop: each request as soon as one was answered")?,
            Loop::Open(rate, spacing) => write!(
                f,
                "open loop: {rate} requests a second, {} arrivals, timed from when they are due",
                spaced(spacing)
            )?,
        }
        let Length { seconds, warm_up, operations } = self.length;
        match seconds {
            Some(seconds) => write!(f, "\n{seconds} s after {warm_up} s of warm-up")?,
            None => write!(f, "\nto the end of the trace after {warm_up} s of warm-up")?,
        }
        if let Some(operations) = operations {
            write!(f, ", at most {}", count(operations, "request"))?;
        }
        let Besides { preload, verify } = self.besides;
        writeln!(f)?;
        f.write_str(if preload { "all keys are stored first\n" } else { "" })?;
        f.write_str(if verify { "values are checked\n" } else { "" })
    }
}
