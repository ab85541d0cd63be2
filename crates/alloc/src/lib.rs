//! alloc: malloc and free by memory kind, for programs.
//!
//! A *kind* is a set of nodes with a policy: far memory, CXL only, all nodes by weights. Objects of any kind are freed
//! by one function, which finds the kind itself; a thread caches free objects of the kinds it uses, so most calls touch
//! nothing shared.
//!
//! Modules, from the outside in; none imports a module of a line above its own:
//!
//! - [`ffi`] is the C interface (`nearfar.h`), `rust` that of Rust, [`front`] the program's malloc, which `setup`
//!   configures; `stats` are statistics;
//! - `heap` allocates and frees; with the feature `checked`, module `checked` wraps it and detects wrong frees;
//! - `adapt` changes the kind of the heap with the load, `machine` makes a kind from text (crate spec);
//! - `thread` is a thread's cache, `objects` are a kind's large objects;
//! - `growth` gives a kind address space;
//! - `kind` is a kind at run time, its parts are `nursery` (its first objects), `arena` (its jemalloc arenas), `depot`
//!   (passes free objects between threads), `kept` (its cache of freed large objects), `room` (free memory of its
//!   nodes), `counts` and `placing`;
//! - `record` is a thread's record with its magazines, `space` the address range of all kinds, `sys` the system calls.
//!
//! Replicated regions, memory with a copy on each node, are in `region`, the synchronisation of threads on a granule in
//! `granule`, creation from text in `regions`. Not here: moving memory after its allocation (`nearfar tier`), and the
//! nodes of the machine (crate topology). Read next: `heap.rs`, then `space.rs`.
//!
//! Usable before `main` and after `exit`, in children of fork, in threads that end, without /proc once kinds are made.
//! The allocator's own metadata comes from `own`, never from `malloc`.

mod adapt;
mod arena;
mod bytes;
#[cfg(feature = "checked")]
mod checked;
mod choice;
mod claim;
mod classes;
mod counts;
mod depot;
#[cfg(test)]
mod depot_tests;
pub mod ffi;
pub mod front;
mod granule;
mod growth;
mod haste;
mod heap;
mod inner;
mod kept;
mod kind;
mod line;
mod machine;
mod map;
mod nodes;
mod nursery;
mod objects;
mod own;
mod page;
mod placing;
mod program;
mod record;
mod region;
#[cfg(test)]
mod region_tests;
mod regions;
mod replicated;
mod room;
mod rust;
mod setup;
#[cfg(feature = "checked")]
mod shadow;
mod shared;
mod space;
mod stats;
mod sync;
mod sys;
mod thread;
mod visitors;

pub use inner::Inner;
pub use machine::{KindError, OutsideCpuset};
pub use map::Mapping;
pub use replicated::{OutOfRegion, Replicated, ReplicatedError, ReplicatedStats, View};
pub use rust::{Global, Kind, Stats};

use nearfar_spec::spec;
pub use nearfar_spec::{conf, spec::SpecError};
