//! The built-in machines, and look-up of a machine by name or path.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::Machine;
use super::file::{self, Refusal};

/// Built-in machine files, the default first.
pub const FILES: [(&str, &str); 13] = [
    ("cxl-2tier", include_str!("../../../../lab/machines/cxl-2tier.toml")),
    ("cxl-2tier-small", include_str!("../../../../lab/machines/cxl-2tier-small.toml")),
    ("cxl-2tier-ample", include_str!("../../../../lab/machines/cxl-2tier-ample.toml")),
    ("cxl-2tier-narrow", include_str!("../../../../lab/machines/cxl-2tier-narrow.toml")),
    ("hbm-dram-cxl", include_str!("../../../../lab/machines/hbm-dram-cxl.toml")),
    ("hbm-dram-cxl-small", include_str!("../../../../lab/machines/hbm-dram-cxl-small.toml")),
    ("cxl-2socket-small", include_str!("../../../../lab/machines/cxl-2socket-small.toml")),
    ("numa-4node", include_str!("../../../../lab/machines/numa-4node.toml")),
    ("spr-cxl", include_str!("../../../../lab/machines/spr-cxl.toml")),
    ("cxl-2socket", include_str!("../../../../lab/machines/cxl-2socket.toml")),
    ("xeon-max", include_str!("../../../../lab/machines/xeon-max.toml")),
    ("cxl-device", include_str!("../../../../lab/machines/cxl-device.toml")),
    ("cxl-idle", include_str!("../../../../lab/machines/cxl-idle.toml")),
];

/// Built-in curve files: loaded latency as measured.
pub const CURVES: [(&str, &str); 6] = [
    ("spr-ddr5.csv", include_str!("../../../../lab/curves/spr-ddr5.csv")),
    ("gnr-ddr5.csv", include_str!("../../../../lab/curves/gnr-ddr5.csv")),
    ("max-hbm.csv", include_str!("../../../../lab/curves/max-hbm.csv")),
    ("grace.csv", include_str!("../../../../lab/curves/grace.csv")),
    ("emr-remote.csv", include_str!("../../../../lab/curves/emr-remote.csv")),
    ("emr-cxl.csv", include_str!("../../../../lab/curves/emr-cxl.csv")),
];

/// The default machine.
pub const DEFAULT: &str = FILES[0].0;

/// Reasons why there is no such machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Neither a built-in name nor a file.
    #[error(
        "machine {0}: neither a built-in machine nor a file; built in are {names}, and a path to a file contains a / or ends in .toml",
        names = FILES.map(|(name, _)| name).join(", ")
    )]
    Unknown(String),
    /// The file can't be read.
    #[error("machine file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The file has an error in it.
    #[error("machine file {file}: {refusal}")]
    Refused {
        /// The file.
        file: String,
        /// The error.
        refusal: Refusal,
    },
    /// The machine can't have this number of CPUs.
    #[error(
        "{cpus} CPUs on machine {machine}: it takes {least} to {most}, at least one for each node that has CPUs"
    )]
    Cpus {
        /// The machine.
        machine: String,
        /// The requested number.
        cpus: u32,
        /// The least: one for each CPU node.
        least: usize,
        /// The most: the timing plugin's limit.
        most: usize,
    },
}

/// A larger file is refused.
const SIZE_MAX: u64 = 1 << 20;

/// A built-in machine.
///
/// # Errors
/// [`MachineError::Unknown`] if the name is not built in.
pub fn built_in(name: &str) -> Result<Machine, MachineError> {
    let Some((_, text)) = FILES.iter().find(|(known, _)| *known == name) else {
        return Err(MachineError::Unknown(name.to_owned()));
    };
    file::parse(text, &curve_built_in)
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
    let text =
        read(&path).map_err(|source| MachineError::Unreadable { path: path.clone(), source })?;
    let beside = |curve: &str| curve_of(&path, curve);
    file::parse(&text, &beside)
        .map_err(|refusal| MachineError::Refused { file: name.to_owned(), refusal })
}

/// The text of a built-in curve file.
///
/// # Errors
/// The names of those that there are.
pub fn curve_built_in(name: &str) -> Result<String, String> {
    let found = CURVES.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| {
        let names = CURVES.map(|(name, _)| name).join(", ");
        format!("not a built-in curve file; built in are {names}")
    })
}

/// The text of a curve file named in a machine file: a built-in one, or a path from the machine file's directory.
///
/// # Errors
/// The reason why it can't be read.
pub fn curve_of(machine: &Path, curve: &str) -> Result<String, String> {
    curve_built_in(curve).or_else(|names| {
        let path = machine.parent().unwrap_or(Path::new("")).join(curve);
        read(&path).map_err(|error| format!("{}: {error}; {names}", path.display()))
    })
}

/// Reads a machine file, which must be a regular file: a pipe could block, and a device need not end.
fn read(path: &Path) -> io::Result<String> {
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    if file.take(SIZE_MAX + 1).read_to_string(&mut text)? as u64 > SIZE_MAX {
        return Err(io::Error::other("larger than 1 MiB, so no machine file"));
    }
    Ok(text)
}

/// The machine with another number of CPUs.
///
/// # Errors
/// [`MachineError::Cpus`] if they can't be spread evenly or are too many.
pub fn with_cpus(machine: Machine, cpus: u32) -> Result<Machine, MachineError> {
    let most = nearfar_timing::config::CPUS_MAX;
    let least = machine.cpu_nodes().count();
    let refused = MachineError::Cpus { machine: machine.name.clone(), cpus, least, most };
    if usize::try_from(cpus).is_ok_and(|cpus| cpus > most) {
        return Err(refused);
    }
    machine.with_cpus(cpus).ok_or(refused)
}
