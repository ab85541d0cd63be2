//! Ports: the interfaces between the control loops and a machine.
//!
//! A loop of crate control needs three things of a machine: pages of two tiers that can be scanned and migrated
//! ([`TierPages`]), a mover of single pages ([`PageMover`]), and sensors of memory traffic ([`Sensor`]). They are traits in
//! the policy's terms, so that the same loops run on the live system (crates daemon and sensors) and in the simulator (crate
//! sim). The ports hold no state and no decisions.

mod page_mover;
mod reading;
mod sensor;
mod tier_pages;

pub use page_mover::{Move, PageMover, Placed};
pub use reading::{Counts, Heat, Reading};
pub use sensor::{Cost, Grain, Nature, Scope, Sees, Sensor, Targets, Unusable, Why};
pub use tier_pages::{Count, KeptBy, TierBoundaries, TierPages};
