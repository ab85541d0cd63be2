//! The tier below memory as options say it, the same for `serve` and for `bench`.

use clap::ValueEnum;
use nearfar_cache::DiskTier;
use nearfar_cache::disk::Recover;
use nearfar_cache::tiers::DiskExpr;
use nearfar_topology::Bytes;

use super::engine::size;
use crate::cache::serve;

/// What lies below memory.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Disk")]
pub(super) struct DiskArgs {
    /// A tier below memory: a file, made if there is none, or block device, and its size; what it holds is found again when it is
    /// opened the next time
    #[arg(long, value_name = "PATH=SIZE")]
    disk: Option<DiskExpr>,
    /// What of it is for objects of at most 1 KiB [default: a sixteenth]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "disk")]
    disk_small: Option<Bytes>,
    /// Write no more than that to it in 24 hours; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", requires = "disk")]
    disk_writes: Bytes,
    /// What goes to it must have been read so often in memory, or have come down so often before [default: 0, or 1 with
    /// --disk-writes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=3), requires = "disk")]
    disk_reads: Option<u32>,
    /// After a crash, take over what was written, though removals of the last moments may be lost, or nothing
    #[arg(long, value_enum, default_value_t = AfterCrash::Written, requires = "disk")]
    disk_after_crash: AfterCrash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AfterCrash {
    /// All that was written
    Written,
    /// Nothing
    Nothing,
}

impl DiskArgs {
    /// The tier, if there is to be one.
    pub(super) fn tier(&self) -> Option<DiskTier> {
        let disk = self.disk.clone()?;
        let after_crash = match self.disk_after_crash {
            AfterCrash::Written => Recover::Always,
            AfterCrash::Nothing => Recover::Closed,
        };
        let (small, writes, reads) = (self.disk_small, self.disk_writes, self.disk_reads);
        let disk = DiskExpr { small, writes, reads, after_crash, ..disk };
        Some(disk.tier(serve::clock_zero()))
    }
}
