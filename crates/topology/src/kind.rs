//! Memory kinds, and the evidence for each.

use alloc::string::{String, ToString};
use core::fmt;

/// The kind of a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum MemoryKind {
    /// Memory on the processor's own DDR channels.
    Dram,
    /// Memory behind a CXL link.
    Cxl,
    /// High-bandwidth memory on the package.
    Hbm,
    /// Persistent memory.
    Pmem,
    /// Memory of a GPU that is coherent with the CPUs. It belongs to the GPU's programs: `near`, `far` and `all` leave it out.
    Gpu,
    /// Unknown: the machine provides no evidence.
    #[default]
    Unknown,
}

impl MemoryKind {
    /// All kinds, in the order help texts list them.
    pub const ALL: [Self; 6] =
        [Self::Dram, Self::Cxl, Self::Hbm, Self::Pmem, Self::Gpu, Self::Unknown];

    /// The word used in commands, configuration and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Cxl => "cxl",
            Self::Hbm => "hbm",
            Self::Pmem => "pmem",
            Self::Gpu => "gpu",
            Self::Unknown => "unknown",
        }
    }
}

impl core::str::FromStr for MemoryKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let kind = Self::ALL.into_iter().find(|kind| kind.word() == text);
        kind.ok_or_else(|| UnknownKind { text: text.to_string() })
    }
}

/// A text that is no memory kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKind {
    /// The text.
    pub text: String,
}

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a memory kind; kinds are", self.text)?;
        for (index, kind) in MemoryKind::ALL.iter().enumerate() {
            write!(f, "{} {kind}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownKind {}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// The evidence for a kind, strongest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum KnownBy {
    /// Stated by the user.
    User,
    /// A CXL region's dax device names the node as its target, or the region starts in the node's memory.
    CxlRegion,
    /// A persistent-memory (nd) region's dax device names the node.
    NdRegion,
    /// The device's driver names the node (NVIDIA's `numa_status`), or has added its memory.
    Driver,
    /// Firmware's HMAT attributes: clearly more bandwidth, or more latency, than the CPUs' own DRAM.
    Hmat,
    /// The CPU's model has such memory on its package (Xeon Phi, Xeon Max, A64FX).
    CpuModel,
    /// The kernel's memory tier differs from DRAM's.
    MemoryTier,
    /// Measured by `nearfar probe`.
    Probe,
    /// The node has CPUs, and there is no other evidence.
    Cpus,
    /// The SLIT distance from the nearest CPUs (only for a tier's rank; a distance does not determine a kind).
    Distance,
    /// No evidence.
    #[default]
    Nothing,
}

impl KnownBy {
    /// The word used in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::CxlRegion => "cxl_region",
            Self::NdRegion => "nd_region",
            Self::Driver => "driver",
            Self::Hmat => "hmat",
            Self::CpuModel => "cpu_model",
            Self::MemoryTier => "memory_tier",
            Self::Probe => "probe",
            Self::Cpus => "cpus",
            Self::Distance => "distance",
            Self::Nothing => "nothing",
        }
    }
}

impl fmt::Display for KnownBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
