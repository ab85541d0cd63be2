//! alloc: malloc and free by memory kind, for programs.
//!
//! A *kind* is a set of nodes with a policy: far memory, CXL only, all nodes by weights. Objects of any kind are freed alike,
//! without being told which; a thread keeps free objects of the kinds it uses, so most calls touch nothing that is shared.
//!
//! Here, from the outside in: [`ffi`] is the C interface (`nearfar.h`); `heap` allocates and frees; `thread` is what a thread
//! keeps; `depot` what threads leave for each other; `kind` a kind at work; `arena` jemalloc's arenas under it; `space` the
//! address range of all kinds; `machine` makes a kind of words (crate spec). Beside it, `region` is memory that each node has a copy
//! of, `granule` how threads meet in it, `regions` makes one of words. With the feature `checked`, module `checked`
//! stands before `heap` and finds what is given back wrongly. Not here: moving what is placed (`nearfar tier`), and what nodes
//! there are (crate topology). Read next: `heap.rs`, then `space.rs`.
//!
//! Usable before `main` and after `exit`, in children of fork, in threads that end, without /proc once kinds are made. What
//! the allocator itself remembers comes from `own`, never from `malloc`.

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
mod kind;
mod machine;
mod map;
mod nodes;
mod own;
mod page;
mod placing;
mod region;
#[cfg(test)]
mod region_tests;
mod regions;
mod replicated;
mod rust;
mod setup;
#[cfg(feature = "checked")]
mod shadow;
mod shared;
mod smdk;
mod space;
mod stats;
mod sync;
mod sys;
mod thread;
mod tls;

pub use machine::{KindError, NamedNodes};
pub use map::Mapping;
pub use replicated::{OutOfRegion, Replicated, ReplicatedError, ReplicatedStats, View};
pub use rust::{Global, Kind, Stats};

use nearfar_spec::spec;
pub use nearfar_spec::{conf, spec::SpecError};
