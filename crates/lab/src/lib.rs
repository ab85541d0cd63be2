//! lab: a real kernel on an emulated machine whose far memory is slower.
//!
//! Here: machine files ([`machine`]), the download cache ([`fetch`]), the guest's first file system ([`image`]),
//! starting QEMU and communicating with the guest ([`host`], `wire`), the guest's side (`guest`), the command line
//! ([`cli`]) of both `nearfar-lab` and `nearfar lab`, and access from a guest to the emulated PMU ([`pmu`]). Not here:
//! the cost of an access (crate timing) and the live system's memory. Read next: `host/mod.rs` for the life of a run.
#![forbid(unsafe_code)]

pub mod check;
pub mod cli;
pub mod fetch;
pub mod host;
pub mod image;
pub mod machine;

pub use nearfar_timing::pmu;

/// Parsers of the lab's external inputs, for fuzz targets.
#[cfg(fuzzing)]
pub mod fuzz {
    pub use crate::fetch::fuzz::{images, listings};
    pub use crate::wire::fuzz as frames;

    /// Parses any text as a curve file and as a machine file: the result is valid or an error.
    pub fn machines(data: &[u8]) {
        let Ok(text) = std::str::from_utf8(data) else { return };
        if let Ok(curves) = nearfar_topology::Curves::parse(text) {
            assert!(curves.latency_ns(0.6, 0.5) >= 1.0 && curves.peak_gbps(0.6) >= 0.0);
        }
        match crate::machine::file::parse(text, &crate::machine::catalog::curve_built_in) {
            Ok(machine) => {
                let _ = (machine.cpus(), machine.ram(), machine.with_cpus(4));
            }
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
}

mod clock;
mod guest;
mod wire;
