//! Settings that services write as they start: the kernel's NUMA balancing, which migrates pages too, and the lines of
//! a dry run about them.

use std::fmt::Write as _;

use anyhow::Context as _;
use nearfar_kernel::balancing::{NumaBalancing, numa_balancing, numa_balancing_change};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::{Change, Journal};

/// The change that turns NUMA balancing off; none if it is off, absent, or to be kept.
pub(crate) fn numa_balancing_off(fs: &dyn Fs, keep: bool) -> anyhow::Result<Option<Change>> {
    let is_on = numa_balancing(fs)?.is_some_and(|mode| mode != NumaBalancing::OFF);
    Ok((is_on && !keep).then(|| numa_balancing_change(NumaBalancing::OFF)))
}

/// Turns NUMA balancing off unless it is to be kept.
pub(crate) fn turn_numa_balancing_off(
    fs: &dyn Fs,
    journal: &Journal<'_>,
    by: &str,
    keep: bool,
) -> anyhow::Result<()> {
    if let Some(off) = numa_balancing_off(fs, keep)? {
        journal.change(by, &[off]).context("turning the kernel's NUMA balancing off")?;
    }
    Ok(())
}

/// A line for each setting that a start would change.
pub(crate) fn would_set(
    fs: &dyn Fs,
    changes: impl IntoIterator<Item = Change>,
) -> anyhow::Result<String> {
    let mut out = String::new();
    for Change { path, new } in changes {
        let now = fs.read(&path)?;
        let now = now.as_deref().map_or("absent", str::trim);
        if now != new {
            let _ = writeln!(out, "would set /{path} from {now} to {new}");
        }
    }
    Ok(out)
}
