//! Tests of the whole tier: against a model, on failing, damaged and killed devices, with several threads.

mod closing;
mod damage;
mod faults;
mod foreign;
mod kill;
mod model;
mod opening;
mod testkit;
mod threads;
mod use_cases;
