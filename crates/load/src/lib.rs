//! YCSB's workloads for Redis and memcached: what is asked of a store, how popular each record is, and how fast it answers.
//!
//! After YCSB's documented definitions ("Benchmarking cloud serving systems with YCSB", SoCC 2010, and its core properties),
//! with what studies of memory tiering need besides: throughput over time and a hot set that moves. Not here: starting
//! servers (`nearfar bench workload` does) and several machines. One connection, one thread; for more, run several.
//!
//! Read on in [`workload`] (what is asked), [`popularity`] (of which record), [`drive`] (how it is timed), [`store`] (of whom), [`report`] (what comes out). [`inference`] is apart: a program that uses memory as language models do.

pub mod clock;
pub mod drive;
pub mod inference;
pub mod popularity;
pub mod random;
pub mod records;
pub mod report;
pub mod store;
pub mod workload;
