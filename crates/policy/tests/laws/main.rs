//! Laws of the public interface: properties that the heads of the modules promise, for any input.
//!
//! A module here for each there. Not here: published figures and single cases, which the tests beside the code have.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod advice;
mod advisor;
mod balance;
mod bandwidth;
mod budget;
mod carrefour;
mod colloid;
mod interleave;
mod metrics;
mod migration;
mod pages;
mod place;
mod readings;
mod segments;
mod table;
mod tiering;
mod weights;
