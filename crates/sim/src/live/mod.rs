//! A machine in time: epochs of 10 ms, a controller that is told what sensors saw and moves pages, contention that comes
//! and goes.
//!
//! Each epoch: what waits to be done is done, as much as the rate allows, and loads what it reads and writes; then the
//! machine's steady state under all that is the epoch's ([`World`]). Every tick the controller gets [`Readings`],
//! which are noisy, late or missing as [`Sensors`] says, and answers with [`Act`]s. What it never gets is the
//! truth: heat, utilisation and other people's demand it has to infer, as on a machine.
//!
//! Not here: what controllers decide: [`mod@colloid`], [`mod@carrefour`] and [`mod@balanced`] hand over to the policies.

pub mod adversaries;
pub mod balanced;
pub mod carrefour;
mod carry;
pub mod colloid;
pub mod heat;
pub mod sense;
pub mod tiers;
mod world;

pub use sense::{Counters, Readings, Sample, Sensors};
pub use world::{Epoch, World};

/// Something to do to a page, which is its index in [`Pages`](crate::pages::Pages); a huge page goes by any of its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is to be on another node. Copies of it are given up.
    Move {
        /// The page.
        page: u32,
        /// The node.
        to: u16,
    },
    /// It is to have a copy on another node, which a write to it ends.
    Copy {
        /// The page.
        page: u32,
        /// The node.
        to: u16,
    },
    /// The huge page becomes small ones, where they are.
    Split {
        /// The page.
        page: u32,
    },
    /// The small pages of a huge page's place become one, where this one is.
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

/// Decides what is done.
pub trait Controller {
    /// Called every [`Settings::tick_epochs`]; acts are carried out in the order given, after those still waiting.
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act>;

    /// The part of [`Sensors::samples`] that it wants taken.
    fn sampling(&self) -> f64 {
        1.0
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
}

/// Two at once that do not know of each other.
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
}

/// How time runs and what moving costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Length of an epoch.
    pub epoch_ms: u32,
    /// Epochs from tick to tick.
    pub tick_epochs: u32,
    /// The most that is moved, 10^9 bytes a second.
    pub rate_gbps: f64,
    /// What a flush of address translations takes of each of the workload's CPUs: one for each 2 MiB that move together.
    pub flush_ns: f64,
    /// Share of moves that fail although there is room, as where memory is pinned or a node is full for a moment.
    pub refused: f64,
    /// What is seen.
    pub sensors: Sensors,
    /// What chance decides.
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
