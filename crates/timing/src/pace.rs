//! Real waits: the guest sees real time, and is prevented from getting ahead of the model.
//!
//! Where modelled time times `slow_motion` runs ahead of real time, the vCPU owes a wait. Where it falls behind while
//! it runs (the host woke it late, or the emulator took longer than the model) it continues without waiting until it
//! has caught up; but only up to a limit, the rest is dropped. A vCPU that was idle starts again without credit.

/// Shorter waits are postponed.
const OWED_MIN_NS: u64 = 50_000;
/// Lateness beyond this is dropped: about the scheduling delay on a busy host.
const FORGIVEN_NS: u64 = 3_000_000;

/// The relation of modelled to real time.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    slow_motion: f64,
}

/// The next action of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The modelled time to continue from.
    pub own_ps: u64,
    /// How long to wait before.
    pub wait_ns: u64,
}

impl Pacer {
    /// Modelled time passes `slow_motion` times slower than real time.
    #[must_use]
    pub fn new(slow_motion: f64) -> Self {
        Self { slow_motion }
    }

    /// A vCPU has reached the modelled time `own_ps`, `real_ns` after the start in real time.
    #[must_use]
    pub fn pace(&self, own_ps: u64, real_ns: u64) -> Pace {
        let due_ns = self.real_ns(own_ps);
        let late_ns = real_ns.saturating_sub(due_ns);
        let owed_ns = due_ns.saturating_sub(real_ns);
        if late_ns > FORGIVEN_NS {
            return Pace { own_ps: self.model_ps(real_ns - FORGIVEN_NS), wait_ns: 0 };
        }
        Pace { own_ps, wait_ns: if owed_ns < OWED_MIN_NS { 0 } else { owed_ns } }
    }

    /// A vCPU that was idle since its modelled time `own_ps` runs again; returns the time to continue from.
    #[must_use]
    pub fn wake(&self, own_ps: u64, real_ns: u64) -> u64 {
        own_ps.max(self.model_ps(real_ns))
    }

    /// Modelled time that corresponds to `OWED_MIN_NS`: the interval between calls.
    #[must_use]
    pub fn quantum_ps(&self) -> u64 {
        self.model_ps(OWED_MIN_NS).max(1)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are positive; a float holds years"
    )]
    fn real_ns(&self, model_ps: u64) -> u64 {
        (model_ps as f64 / 1000.0 * self.slow_motion) as u64
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are positive; a float holds years"
    )]
    fn model_ps(&self, real_ns: u64) -> u64 {
        (real_ns as f64 * 1000.0 / self.slow_motion) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_vcpu_ahead_waits_the_difference_in_slow_motion() {
        let pacer = Pacer::new(10.0);
        assert_eq!(
            pacer.pace(100_000_000, 400_000),
            Pace { own_ps: 100_000_000, wait_ns: 600_000 }
        );
    }

    #[test]
    fn small_waits_are_put_off() {
        assert_eq!(Pacer::new(1.0).pace(40_000_000, 0).wait_ns, 0);
    }

    #[test]
    fn a_vcpu_far_behind_is_advanced_to_the_tolerated_lag() {
        let pace = Pacer::new(10.0).pace(0, FORGIVEN_NS + 1_000_000);
        assert_eq!(pace, Pace { own_ps: 100_000_000, wait_ns: 0 });
    }

    #[test]
    fn idling_gives_no_credit() {
        let pacer = Pacer::new(10.0);
        assert_eq!(pacer.wake(5_000_000, 1_000_000), 100_000_000);
        assert_eq!(pacer.wake(200_000_000, 1_000_000), 200_000_000);
    }

    proptest! {
        /// A vCPU whose emulation is always faster than the model keeps the model's time, even with coarse waits.
        #[test]
        fn waits_add_up_to_modelled_time(slow_motion in 1.0f64..40.0, overslept in 0u64..2_000_000) {
            let pacer = Pacer::new(slow_motion);
            let (mut own, mut real) = (0, 0);
            for _ in 0..20_000 {
                own += 10_000_000;
                let pace = pacer.pace(own, real);
                own = pace.own_ps;
                real += if pace.wait_ns > 0 { pace.wait_ns + overslept } else { 1000 };
            }
            let ratio = real as f64 * 1000.0 / slow_motion / own as f64;
            prop_assert!((0.95..1.05).contains(&ratio), "{}", ratio);
        }
    }
}
