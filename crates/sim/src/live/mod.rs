//! A simulated machine over time: epochs of 10 ms, a controller that gets readings and moves pages, varying
//! contention.
//!
//! In each epoch, waiting acts are carried out as the rate allows, and load the nodes that they read and write; the
//! machine's steady state under all load is the result of the epoch ([`World`]). Every tick the controller gets
//! [`Readings`], which are noisy, late or missing as [`Sensors`] specifies, and answers with [`Act`]s. It never gets
//! the true heat, utilisation or demand of other programs: it has to infer these, as on a real machine.
//!
//! Not here: decisions: [`mod@colloid`], [`mod@carrefour`] and [`mod@balancing`] leave them to the policies.

pub mod balancing;
pub mod carrefour;
mod carry;
pub mod colloid;
pub mod heat;
mod model;
mod number;
pub mod sense;
#[cfg(test)]
mod testkit;
pub mod tiering;
mod world;

use nearfar_policy::traffic::model::Unmodelled;

pub use sense::{Counters, Readings, Sample, Sensors};
pub use world::{Epoch, World};

/// An action on a page, given by its index in [`Pages`](crate::pages::Pages); any piece of a huge page represents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Migrates it to another node. Its copies are given up.
    Move {
        /// The page.
        page: u32,
        /// The node.
        to: u16,
    },
    /// Copies it to another node; a write to the page ends the copy.
    Copy {
        /// The page.
        page: u32,
        /// The node.
        to: u16,
    },
    /// Splits the huge page into small ones, in place.
    Split {
        /// The page.
        page: u32,
    },
    /// Joins the small pages of a huge page's place, on the node of this one.
    Join {
        /// The page.
        page: u32,
    },
}

impl Act {
    /// The page.
    #[must_use]
    pub const fn page(self) -> u32 {
        let (Self::Move { page, .. }
        | Self::Copy { page, .. }
        | Self::Split { page }
        | Self::Join { page }) = self;
        page
    }
}

/// A controller that can't decide. A real daemon would report it and go on without migration; the result of a
/// simulation would be that of first touch under the policy's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// The policy can't model the machine.
    #[error("policy {policy}: it can't model this machine: {reason}")]
    Unmodelled {
        /// The policy.
        policy: &'static str,
        /// The reason.
        reason: Unmodelled,
    },
    /// The readings have other dimensions than the policy's model of the machine.
    #[error(
        "policy {policy}: readings do not fit its model of the machine (verdict mismatch); this is an error of the \
         simulator, please report it"
    )]
    Mismatch {
        /// The policy.
        policy: &'static str,
    },
}

/// Decides on acts.
pub trait Controller {
    /// Called every [`Settings::tick_epochs`]; acts are carried out in the order given, after those still waiting.
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act>;

    /// The part of [`Sensors::samples`] that it requests.
    fn sampling(&self) -> f64 {
        1.0
    }

    /// The reason why it can't decide at all, after which the simulation ends.
    fn failed(&self) -> Option<Failed> {
        None
    }

    /// Whether it reads accessed bits, so that accesses are to be counted page by page ([`Readings::accesses`]).
    fn scans(&self) -> bool {
        false
    }
}

/// Never moves anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Still;

impl Controller for Still {
    fn tick(&mut self, _: &Readings<'_>) -> Vec<Act> {
        Vec::new()
    }

    fn sampling(&self) -> f64 {
        0.0
    }
}

impl Controller for Box<dyn Controller> {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        self.as_mut().tick(readings)
    }

    fn sampling(&self) -> f64 {
        self.as_ref().sampling()
    }

    fn failed(&self) -> Option<Failed> {
        self.as_ref().failed()
    }

    fn scans(&self) -> bool {
        self.as_ref().scans()
    }
}

/// Two controllers at once, unaware of each other.
#[derive(Debug)]
pub struct Both<A, B>(pub A, pub B);

impl<A: Controller, B: Controller> Controller for Both<A, B> {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        let mut acts = self.0.tick(readings);
        acts.extend(self.1.tick(readings));
        acts
    }

    fn sampling(&self) -> f64 {
        self.0.sampling().max(self.1.sampling())
    }

    fn failed(&self) -> Option<Failed> {
        self.0.failed().or_else(|| self.1.failed())
    }

    fn scans(&self) -> bool {
        self.0.scans() || self.1.scans()
    }
}

/// Time steps, and the cost of migration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Length of an epoch.
    pub epoch_ms: u32,
    /// Epochs per tick.
    pub tick_epochs: u32,
    /// Highest migration rate, 10^9 bytes per second.
    pub rate_gbps: f64,
    /// Time that a flush of address translations takes from each of the workload's CPUs: one for each 2 MiB that move
    /// together.
    pub flush_ns: f64,
    /// Share of moves that fail despite free memory, for example because memory is pinned.
    pub refused: f64,
    /// Properties of the sensors.
    pub sensors: Sensors,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            epoch_ms: 10,
            tick_epochs: 10,
            rate_gbps: 2.0,
            flush_ns: 5_000.0,
            refused: 0.0,
            sensors: Sensors::default(),
            seed: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{pages, readings, tiers};

    /// A controller with fixed answers.
    #[derive(Clone, Default)]
    struct Fixed {
        acts: Vec<Act>,
        sampling: f64,
        failed: Option<Failed>,
        scans: bool,
    }

    impl Controller for Fixed {
        fn tick(&mut self, _: &Readings<'_>) -> Vec<Act> {
            self.acts.clone()
        }

        fn sampling(&self) -> f64 {
            self.sampling
        }

        fn failed(&self) -> Option<Failed> {
            self.failed.clone()
        }

        fn scans(&self) -> bool {
            self.scans
        }
    }

    #[test]
    fn every_act_names_its_page() {
        let acts = [
            Act::Move { page: 3, to: 1 },
            Act::Copy { page: 3, to: 0 },
            Act::Split { page: 3 },
            Act::Join { page: 3 },
        ];
        assert_eq!(acts.map(Act::page), [3; 4]);
    }

    #[test]
    fn combined_controllers_use_the_denser_sampling_and_the_first_failure() {
        let failed = |policy| Some(Failed::Mismatch { policy });
        let act = |page| Act::Split { page };
        let one = Fixed { acts: vec![act(1)], sampling: 0.25, ..Fixed::default() };
        let other =
            Fixed { acts: vec![act(2), act(3)], sampling: 1.0, failed: failed("b"), scans: true };
        let (machine, pages) = (tiers(&[1 << 20]), pages(&[0], 4096));
        let mut both = Both(one.clone(), other.clone());
        assert_eq!(both.tick(&readings(&machine, &pages)), [1, 2, 3].map(act));
        assert!((both.sampling() - 1.0).abs() < 1e-12 && both.scans());
        assert_eq!(both.failed(), failed("b"));
        let both = Both(Fixed { failed: failed("a"), ..one.clone() }, other);
        assert_eq!(both.failed(), failed("a"));
        assert!(!Both(one.clone(), one).scans());
    }

    #[test]
    fn a_boxed_controller_forwards_every_call() {
        let of = Fixed {
            acts: vec![Act::Join { page: 9 }],
            sampling: 0.5,
            failed: Some(Failed::Mismatch { policy: "boxed" }),
            scans: true,
        };
        let mut boxed: Box<dyn Controller> = Box::new(of.clone());
        let (machine, pages) = (tiers(&[1 << 20]), pages(&[0], 4096));
        assert_eq!(Controller::tick(&mut boxed, &readings(&machine, &pages)), of.acts);
        assert!((Controller::sampling(&boxed) - 0.5).abs() < 1e-12 && Controller::scans(&boxed));
        assert_eq!(Controller::failed(&boxed), of.failed);
    }

    #[test]
    fn a_controller_that_never_moves_needs_no_samples_and_no_scans() {
        assert!(Still.sampling().abs() < 1e-12 && !Still.scans() && Still.failed().is_none());
    }
}
