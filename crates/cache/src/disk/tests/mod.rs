//! Tests of the tier as a whole: against a model, on devices that fail, damaged and killed, from several threads.

pub(crate) mod child;
mod damage;
mod faults;
mod kill;
mod model;
mod opening;
pub(crate) mod testkit;
mod threads;
mod use_cases;
