//! Options of the disk tier, shared by `serve` and `bench`.

use clap::ValueEnum;
use nearfar_cache::DiskTier;
use nearfar_cache::disk::AfterCrash;
use nearfar_cache::tiers::DiskExpr;
use nearfar_topology::Bytes;

use super::size;
use crate::serve;
use nearfar_command::number::whole;

/// The tier below memory.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Disk")]
pub(super) struct DiskArgs {
    /// Disk tier: a file (created if missing) or block device, and its size; its items survive a restart
    #[arg(long, value_name = "PATH=SIZE")]
    disk: Option<DiskExpr>,
    /// Share of the disk tier for objects of at most 1 KiB [default: a sixteenth]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "disk")]
    disk_small: Option<Bytes>,
    /// Maximum bytes written to disk per 24 hours; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", requires = "disk")]
    disk_writes: Bytes,
    /// Disk admission: least number of reads in memory, or of earlier demotions [default: 0, or 1 with --disk-writes]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=3), requires = "disk")]
    disk_reads: Option<u32>,
    /// Overwrite a device or file that holds data, unless its first and last MiB show a cache or other known data
    #[arg(long, requires = "disk")]
    disk_format: bool,
    /// Whether to use the objects on a disk that was not closed cleanly
    #[arg(long, value_enum, default_value_t = Crashed::Discard, requires = "disk")]
    disk_after_crash: Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Crashed {
    /// Discard all of them
    Discard,
    /// Keep all that were written; values deleted or overwritten just before the crash may reappear
    Keep,
}

impl DiskArgs {
    /// The disk tier; `None` without `--disk`.
    pub(super) fn tier(&self) -> Option<DiskTier> {
        let disk = self.disk.clone()?;
        let after_crash = match self.disk_after_crash {
            Crashed::Discard => AfterCrash::Discard,
            Crashed::Keep => AfterCrash::Keep,
        };
        let (small, writes, reads) = (self.disk_small, self.disk_writes, self.disk_reads);
        let format = self.disk_format;
        let disk = DiskExpr { small, writes, reads, after_crash, format, ..disk };
        Some(disk.tier(serve::clock_zero()))
    }
}
