//! Load on a cache: in this process, or behind the memcached protocol (`nearfar cache bench`).
//!
//! - [`spec`]: the workload; [`plan`]: a resolved run; [`run`]: runs it with one thread a worker, each with a [`job`].
//! - [`engine`]: requests to the cache in this process; [`server`]: requests over connections.
//! - `source`: each worker's requests; `pace`: when they are due; `values`: their values; `gate`: a common start.
//! - [`tally`]: counts; [`results`]: the saved result; `look`: progress.
//!
//! Not here: generators and traces ([`crate::requests`]), text and pages ([`crate::cache::pages`]).

pub mod engine;
mod gate;
pub mod job;
mod look;
mod pace;
pub mod pages;
pub mod plan;
pub mod results;
pub mod run;
pub mod server;
mod source;
pub mod spec;
pub mod tally;
mod unpack;
/// For fuzz targets.
#[cfg(fuzzing)]
pub(crate) mod fuzz {
    pub(crate) use super::unpack::unpacked;
}
mod values;

#[cfg(test)]
pub mod sample;
