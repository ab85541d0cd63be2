//! kubernetes: memory of a node's NUMA nodes as devices of Kubernetes, by dynamic resource allocation (DRA).
//!
//! A driver runs on each node. It publishes the memory ([`devices`]) as `ResourceSlice`s ([`objects`], [`publish`]). The
//! scheduler allocates parts of it to resource claims; before a pod starts, kubelet has the driver prepare its claims over
//! gRPC ([`grpc`], [`driver`]). A claim's allocation becomes a placement ([`claims`]) in a CDI file ([`cdi`]), which the
//! container runtime applies as environment variables, and the NRI plugin (crate containers) as a memory policy.
//!
//! Not here: the command line and reading the machine (crate nearfar), memory policies of containers (crate
//! containers). Read next: `devices.rs`, `claims.rs`, `driver.rs`.
#![forbid(unsafe_code)]

pub mod cdi;
pub mod claims;
pub mod devices;
pub mod driver;
pub mod grpc;
pub mod messages;
pub mod objects;
pub mod publish;
pub mod quantity;
pub mod service;

/// The driver's name, which also qualifies its devices' attributes.
pub const DRIVER: &str = "memory.nearfar.io";
