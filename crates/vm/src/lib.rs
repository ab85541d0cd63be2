//! vm: memory kinds for virtual machines: text in and text out, and the memory of running ones.
//!
//! Here: resolution of a wish (`host-mem-type=cxl`) to nodes of the host ([`wish`]), the command line of QEMU with such wishes
//! rewritten to options that every QEMU has ([`qemu`]), options of Cloud Hypervisor ([`cloud_hypervisor`]), libvirt's domain
//! XML ([`libvirt`]), the figures of host memory that a guest is given ([`figures`]).
//! The memory of a running QEMU is compared with its requested placement, moved and resized by [`running`], which
//! alone touches the system.
//! Not here: reading the machine (crate kernel), starting a VMM, mounting, setting policies: a [`qemu::Plan`] lists these for
//! the caller. Read next: `qemu/mod.rs`.
#![forbid(unsafe_code)]

mod capacity;
pub mod cloud_hypervisor;
pub mod error;
pub mod figures;
pub mod libvirt;
pub mod policy;
pub mod qemu;
pub mod running;
pub mod shell;
mod size;
mod splice;
pub mod wish;

pub use error::VmError;
pub use figures::{Figure, Figures};
pub use policy::Policy;
pub use wish::{Host, HugePages};
