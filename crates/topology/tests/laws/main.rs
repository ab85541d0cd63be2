//! Laws of the public interface: properties that hold for every machine, recorded, generated or damaged.
//!
//! `sysfs` builds machines as text; the other modules each state the laws of one part. Not here: the exact result of reading one
//! recorded machine, which the tests beside the code have.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod corpus;
mod fingerprint;
mod kinds;
mod nodeset;
mod read;
mod sysfs;
mod tiers;
mod tree;
mod units;
