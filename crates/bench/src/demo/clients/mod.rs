//! Parsers of the packaged clients' output.

pub(crate) mod memcaslap;
pub(crate) mod redis_benchmark;

use nearfar_report::model::Latency;

/// A client's measurements, in its own (the guest's) time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Operations per second.
    pub(crate) operations_per_second: f64,
    /// Percentiles.
    pub(crate) latency: Latency,
}

/// Output that differs from that of the known version of the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotUnderstood {
    /// The client.
    pub(crate) client: &'static str,
    /// The missing part.
    pub(crate) missing: &'static str,
}

impl std::fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { client, missing } = self;
        write!(
            f,
            "the output of {client} has no {missing}; is it another version than Debian 12's?"
        )
    }
}

impl std::error::Error for NotUnderstood {}

impl Measured {
    /// The same on the modelled machine, which this one emulates `slow_motion` times slower.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "float to integer casts saturate; latencies are far below 2^53 ns"
    )]
    pub(crate) fn unslowed(self, slow_motion: f64) -> (u64, Latency) {
        let faster = |ns: Option<u64>| ns.map(|ns| (ns as f64 / slow_motion).round() as u64);
        let Latency { p50_ns, p99_ns, p999_ns } = self.latency;
        let latency =
            Latency { p50_ns: faster(p50_ns), p99_ns: faster(p99_ns), p999_ns: faster(p999_ns) };
        ((self.operations_per_second * slow_motion).round() as u64, latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_corrected_for_the_slowdown_factor() {
        let latency = Latency { p50_ns: Some(4_000), p99_ns: None, p999_ns: Some(9_999) };
        let measured = Measured { operations_per_second: 1_000.0, latency };
        let expected = Latency { p50_ns: Some(100), p99_ns: None, p999_ns: Some(250) };
        assert_eq!(measured.unslowed(40.0), (40_000, expected));
        assert_eq!(measured.unslowed(1.0), (1_000, latency));
    }
}
