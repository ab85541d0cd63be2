//! containers: memory placement of containers, by annotations.
//!
//! Here: a container's request as text ([`annotations`]) and the memory it has claimed in Kubernetes ([`claims`]), their resolution on a machine within its cpuset ([`resolve`]) to
//! a [`policy`], the two ways to apply it, an OCI runtime's command line and bundle ([`runtime`], [`bundle`]) and the
//! node resource interface of containerd and CRI-O ([`nri`]), and the check of a running container against it
//! ([`verify`]). Old runtimes ignore memory policies without an error, so every placement is verified. Not here: the
//! command line, the execution of runtimes and output (crate nearfar). Read next: `annotations.rs`, `resolve.rs`.
#![forbid(unsafe_code)]

pub mod annotations;
pub mod bundle;
pub mod claims;
#[cfg(fuzzing)]
pub mod fuzz;
pub mod intel;
mod json;
pub mod nri;
pub mod policy;
pub mod resolve;
pub mod runtime;
pub mod seat;
pub mod verify;
