//! Load generators: programs that use memory, a store or a cache in a known way and measure its performance.
//!
//! - YCSB's workloads for Redis and memcached (`nearfar-load`), by its documented definitions ("Benchmarking cloud
//!   serving systems with YCSB", SoCC 2010, and its core properties), with throughput over time and a hot set that
//!   moves: [`workload`] has the operations, [`popularity`] the distribution of records, [`drive`] the timing,
//!   [`store`] the clients, [`report`] the result. One connection, one thread; for more, run several.
//! - A load on a cache, in this process or behind the memcached protocol (`nearfar cache bench`): [`cache`], with its
//!   requests generated or read from traces in [`requests`].
//! - [`inference`]: memory accesses of inference with a language model, without the model.
//!
//! Not here: starting servers (crate bench does that), and several machines.

pub mod cache;
pub mod drive;
#[cfg(fuzzing)]
pub mod fuzz;
pub mod inference;
pub mod popularity;
pub mod random;
pub mod records;
mod reply;
pub mod report;
pub mod requests;
pub mod store;
pub mod workload;
