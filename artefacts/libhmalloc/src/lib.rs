//! hmalloc: a reimplementation of HMSDK's `libhmalloc.so` over libnearfar: programs made for that library run
//! unchanged.
//!
//! Here: its fifteen symbols ([`api`], [`extent`]), its environment variables, and the memory they select. libnearfar
//! is linked as a library of its own, so that a program that uses both has one heap. Not here: placement itself (crate
//! alloc), the command (`artefacts/hmctl`). The header is `include/hmalloc.h`. Read next: `settings.rs`, then `api.rs`.

pub mod api;
pub mod extent;
mod nearfar;
mod policy;
mod settings;
mod variables;
