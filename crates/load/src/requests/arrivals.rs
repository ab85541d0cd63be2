//! Due times of requests in an open loop: at a rate that does not depend on answers.
//!
//! Latency is measured from these times, not from when a request could be sent, so that a slow target can't hide the
//! waiting time of later requests (coordinated omission).

use crate::random::Random;

/// Distribution of the time between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Constant.
    Constant,
    /// Exponential, as between independent events.
    Poisson,
}

/// Times in nanoseconds from a start, ascending, without end.
#[derive(Clone, Debug)]
pub struct Arrivals {
    spacing: Spacing,
    gap: f64,
    at: f64,
    random: Random,
}

impl Arrivals {
    /// At this rate, beginning one interval after 0. With a rate that is not above 0 the first request never comes.
    #[must_use]
    pub fn new(spacing: Spacing, per_second: f64, random: Random) -> Self {
        let gap = if per_second > 0.0 { 1e9 / per_second } else { f64::INFINITY };
        Self { spacing, gap, at: 0.0, random }
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let gaps = match self.spacing {
            Spacing::Constant => 1.0,
            Spacing::Poisson => -(1.0 - self.random.unit()).ln(),
        };
        self.at += gaps * self.gap;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 0; what is beyond all times becomes the last one"
        )]
        let at = self.at as u64;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spacing: Spacing, per_second: f64) -> Arrivals {
        Arrivals::new(spacing, per_second, Random::new(9))
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced() {
        let times: Vec<u64> = of(Spacing::Constant, 1000.0).take(3).collect();
        assert_eq!(times, [1_000_000, 2_000_000, 3_000_000]);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_spread_of_independent_events() {
        let times: Vec<u64> = of(Spacing::Poisson, 1e6).take(100_000).collect();
        assert!(times.is_sorted());
        let last = times[times.len() - 1];
        assert!((98_500_000..101_500_000).contains(&last), "{last}");
        // One interval in e is longer than the mean, at random.
        let long = times.windows(2).filter(|pair| pair[1] - pair[0] > 1000).count();
        assert!((35_900..37_700).contains(&long), "{long}");
    }

    #[test]
    fn with_a_rate_of_zero_the_first_request_never_arrives() {
        assert_eq!(of(Spacing::Constant, 0.0).next(), Some(u64::MAX));
        assert_eq!(of(Spacing::Constant, f64::NAN).next(), Some(u64::MAX));
    }
}
