//! The machines that come with the lab, and finding one by name or path.

use std::path::{Path, PathBuf};

use super::Machine;
use super::file::{self, Refusal};

/// Built-in machine files, the default first.
pub const FILES: [(&str, &str); 9] = [
    ("cxl-2tier", include_str!("../../../../lab/machines/cxl-2tier.toml")),
    ("cxl-2tier-small", include_str!("../../../../lab/machines/cxl-2tier-small.toml")),
    ("cxl-2tier-ample", include_str!("../../../../lab/machines/cxl-2tier-ample.toml")),
    ("cxl-2tier-narrow", include_str!("../../../../lab/machines/cxl-2tier-narrow.toml")),
    ("hbm-dram-cxl", include_str!("../../../../lab/machines/hbm-dram-cxl.toml")),
    ("hbm-dram-cxl-small", include_str!("../../../../lab/machines/hbm-dram-cxl-small.toml")),
    ("cxl-2socket-small", include_str!("../../../../lab/machines/cxl-2socket-small.toml")),
    ("numa-4node", include_str!("../../../../lab/machines/numa-4node.toml")),
    ("cxl-device", include_str!("../../../../lab/machines/cxl-device.toml")),
];

/// The machine that is used when none is named.
pub const DEFAULT: &str = FILES[0].0;

/// Why there is no such machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Neither a built-in name nor a file.
    #[error(
        "machine {0}: neither a built-in machine nor a file; built in are {names}, and a path to a file contains a / or ends in .toml",
        names = FILES.map(|(name, _)| name).join(", ")
    )]
    Unknown(String),
    /// A file that can't be read.
    #[error("machine file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file with something wrong in it.
    #[error("machine file {file}: {refusal}")]
    Refused {
        /// The file.
        file: String,
        /// What is wrong.
        refusal: Refusal,
    },
    /// A number of CPUs the machine can't have.
    #[error(
        "{cpus} CPUs on machine {machine}: it takes {least} to {most}, at least one for each node that has CPUs"
    )]
    Cpus {
        /// The machine.
        machine: String,
        /// What was asked.
        cpus: u32,
        /// One for each CPU node.
        least: usize,
        /// What the timing plugin serves.
        most: usize,
    },
}

/// A built-in machine.
///
/// # Errors
/// [`MachineError::Unknown`] for another name.
pub fn built_in(name: &str) -> Result<Machine, MachineError> {
    let Some((_, text)) = FILES.iter().find(|(known, _)| *known == name) else {
        return Err(MachineError::Unknown(name.to_owned()));
    };
    file::parse(text)
        .map_err(|refusal| MachineError::Refused { file: format!("{name} (built in)"), refusal })
}

/// All built-in machines.
///
/// # Errors
/// As [`built_in`].
pub fn all() -> Result<Vec<Machine>, MachineError> {
    FILES.iter().map(|(name, _)| built_in(name)).collect()
}

/// A machine by its built-in name or by the path of its file.
///
/// # Errors
/// [`MachineError`]: unknown, unreadable, or refused.
pub fn find(name: &str) -> Result<Machine, MachineError> {
    let looks_like_path = name.contains('/')
        || Path::new(name).extension().is_some_and(|extension| extension == "toml");
    if !looks_like_path {
        return built_in(name);
    }
    let path = PathBuf::from(name);
    let text = std::fs::read_to_string(&path)
        .map_err(|source| MachineError::Unreadable { path: path.clone(), source })?;
    file::parse(&text).map_err(|refusal| MachineError::Refused { file: name.to_owned(), refusal })
}

/// The machine with another number of CPUs.
///
/// # Errors
/// [`MachineError::Cpus`] if they don't go round or are too many.
pub fn with_cpus(machine: Machine, cpus: u32) -> Result<Machine, MachineError> {
    let most = nearfar_timing::config::CPUS_MAX;
    let least = machine.cpu_nodes().count();
    let refused = MachineError::Cpus { machine: machine.name.clone(), cpus, least, most };
    if usize::try_from(cpus).is_ok_and(|cpus| cpus > most) {
        return Err(refused);
    }
    machine.with_cpus(cpus).ok_or(refused)
}
