//! cache: the cache of [`nearfar_cache`], wired to this machine: [`serve`] runs it as a server. The rest is a load on a cache, in
//! this process or behind memcached's protocol, and what came of it.
//!
//! [`spec`] reads which workload is meant, [`plan`] resolves a whole run, [`run`] carries it out with a thread a worker, each
//! with its [`job`]: [`engine`] asks the cache in this process, [`server`] asks over connections. [`source`] has each worker's
//! requests, [`pace`] says when they are due, [`values`] what they carry, [`tally`] what was counted, [`found`] what is kept;
//! [`gate`] has all begin together. Not here: what is drawn ([`nearfar_cache::workload`]), the command line (`cli/cache`), text
//! and pages (`report/cache`).

pub(crate) mod engine;
pub(crate) mod found;
mod gate;
mod job;
mod look;
mod pace;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod server;
mod source;
pub(crate) mod spec;
pub(crate) mod tally;
mod values;

#[cfg(test)]
pub(crate) mod sample;
