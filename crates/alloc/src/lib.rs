//! alloc: malloc and free by memory kind, for programs.
//!
//! A *kind* is a set of nodes with a policy: far memory, CXL only, all nodes by weights. Objects of any kind are freed
//! by one function, which finds the kind itself; a thread caches free objects of the kinds it uses, so most calls touch
//! nothing shared.
//!
//! Modules, from the outside in: [`ffi`] is the C interface (`nearfar.h`); `heap` allocates and frees; `thread` is a
//! thread's cache; `depot` passes free objects between threads; `kind` is a kind at run time, with `nursery` (its first
//! objects), `arena` (its jemalloc arenas), `objects` (its large objects), `kept` (its cache of freed large objects)
//! and `room` (free memory of its nodes); `space` is the address range of all kinds; `machine` makes a kind from text
//! (crate spec). Replicated regions, memory with a copy on each node, are in `region`, the synchronisation of threads
//! on a granule in `granule`, creation from text in `regions`. With the feature `checked`, module `checked` wraps
//! `heap` and detects wrong frees. Not here: moving memory after its allocation (`nearfar tier`), and the nodes of the
//! machine (crate topology). Read next: `heap.rs`, then `space.rs`.
//!
//! Usable before `main` and after `exit`, in children of fork, in threads that end, without /proc once kinds are made.
//! The allocator's own metadata comes from `own`, never from `malloc`.

mod adapt;
mod arena;
mod bytes;
#[cfg(feature = "checked")]
mod checked;
mod claim;
mod classes;
mod counts;
mod depot;
#[cfg(test)]
mod depot_tests;
pub mod ffi;
pub mod front;
mod granule;
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
mod tls;
mod visitors;

pub use inner::Inner;
pub use machine::{KindError, NamedNodes};
pub use map::Mapping;
pub use replicated::{OutOfRegion, Replicated, ReplicatedError, ReplicatedStats, View};
pub use rust::{Global, Kind, Stats};

use nearfar_spec::spec;
pub use nearfar_spec::{conf, spec::SpecError};
