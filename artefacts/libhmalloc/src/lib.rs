//! hmalloc: HMSDK's `libhmalloc.so` anew, over libnearfar: programs made for that library run with this one as they are.
//!
//! Here: its fifteen symbols ([`api`], [`extent`]), what its variables ask for, and which memory that gives. libnearfar is linked
//! as a library of its own, so that a program that uses both has one heap.
//! Not here: how memory is placed (crate alloc), the command (`artefacts/hmctl`). The header is `include/hmalloc.h`.
//! Read next: `settings.rs`, then `api.rs`.

pub mod api;
pub mod extent;
mod nearfar;
mod policy;
mod settings;
mod variables;
