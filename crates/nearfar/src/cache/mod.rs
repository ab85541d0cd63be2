//! cache: a load on a cache, in this process or behind memcached's protocol, and what came of it.
//!
//! [`spec`] reads which workload is meant, [`plan`] resolves a whole run, [`run`] carries it out with a thread a worker:
//! [`target`] asks what answers at once, [`server`] asks over connections. [`source`] has each worker's requests, [`pace`] says when
//! they are due, [`values`] what they carry, [`tally`] what was counted, [`found`] what is kept. [`engine`] is the target in this
//! process. Not here: what is drawn ([`nearfar_cache::workload`]), the command line (`cli/cache`), text and pages (`report/cache`).

pub(crate) mod engine;
pub(crate) mod found;
pub(crate) mod job;
pub(crate) mod pace;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod source;
pub(crate) mod spec;
pub(crate) mod tally;
pub(crate) mod target;
pub(crate) mod values;
