//! The kernel's own page migration: NUMA balancing, demotion, and the counters of both.
//!
//! `numa_balancing` is a set of bits: 1 migrates pages towards the CPUs that use them, 2 promotes hot pages from slower
//! nodes. `demotion_enabled` lets reclaim demote cold pages to slower nodes. Pages migrated by DAMON are in none of the
//! promotion and demotion counters, only in `pgmigrate_*`.

use nearfar_topology::NodeId;

use crate::fs::{Fs, FsError};
use crate::journal::{Change, Journal, JournalError, Recorded};

const NUMA_BALANCING: &str = "proc/sys/kernel/numa_balancing";
/// In milliseconds; in debugfs, so it may be missing.
const SCAN_MAX: &str = "sys/kernel/debug/sched/numa_balancing/scan_period_max_ms";
const SCAN_MIN: &str = "sys/kernel/debug/sched/numa_balancing/scan_period_min_ms";
const DEMOTION: &str = "sys/kernel/mm/numa/demotion_enabled";

/// The bits of NUMA balancing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaBalancing(pub u32);

impl NumaBalancing {
    /// No migration.
    pub const OFF: Self = Self(0);
    /// Pages migrate towards their users.
    pub const NORMAL: Self = Self(1);
    /// Hot pages are promoted from slower nodes.
    pub const TIERING: Self = Self(2);

    /// Whether all bits of `other` are on.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The mode of NUMA balancing; `None` where the kernel has none, or the file contains no number.
///
/// # Errors
/// [`FsError`], if the file exists but can't be read.
pub fn numa_balancing(fs: &dyn Fs) -> Result<Option<NumaBalancing>, FsError> {
    Ok(fs.read(NUMA_BALANCING)?.and_then(|text| text.trim().parse().ok()).map(NumaBalancing))
}

/// Sets it through the journal, with owner `by`.
///
/// # Errors
/// [`JournalError`]; nothing is changed then.
pub fn set_numa_balancing(
    journal: &Journal<'_>,
    by: &str,
    mode: NumaBalancing,
) -> Result<Vec<Recorded>, JournalError> {
    journal.change(by, &[numa_balancing_change(mode)])
}

/// The change of the setting to this mode.
#[must_use]
pub fn numa_balancing_change(mode: NumaBalancing) -> Change {
    Change { path: NUMA_BALANCING.into(), new: mode.0.to_string() }
}

/// Makes NUMA balancing scan all of a busy process at its highest rate, through the journal, with owner `by`: sets the
/// longest scan period to the shortest, which is a second by default. Otherwise the period grows to as much as a minute
/// while no page needs to migrate. Nothing changes without debugfs.
///
/// Source: Linux 6.12, kernel/sched/debug.c (`scan_period_min_ms`, `scan_period_max_ms`), fair.c
/// (`update_task_scan_period`).
///
/// # Errors
/// [`JournalError`]; nothing is changed then.
pub fn scan_steadily(
    fs: &dyn Fs,
    journal: &Journal<'_>,
    by: &str,
) -> Result<Vec<Recorded>, JournalError> {
    let shortest = fs.read(SCAN_MIN).ok().flatten();
    let longest = fs.read(SCAN_MAX).ok().flatten();
    match (shortest, longest) {
        (Some(shortest), Some(_)) => {
            let new = shortest.trim().to_owned();
            journal.change(by, &[Change { path: SCAN_MAX.into(), new }])
        }
        _ => Ok(Vec::new()),
    }
}

/// Whether reclaim demotes; `None` where the kernel does not support it.
///
/// # Errors
/// [`FsError`], if the file exists but can't be read.
pub fn demotion_enabled(fs: &dyn Fs) -> Result<Option<bool>, FsError> {
    Ok(fs.read(DEMOTION)?.map(|text| matches!(text.trim(), "true" | "1" | "Y")))
}

/// Whether reclaim should demote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demotion {
    /// Cold pages are demoted to slower nodes.
    On,
    /// Cold pages are dropped or swapped.
    Off,
}

/// Sets it through the journal, with owner `by`.
///
/// # Errors
/// [`JournalError`]; nothing is changed then.
pub fn set_demotion(
    journal: &Journal<'_>,
    by: &str,
    demotion: Demotion,
) -> Result<Vec<Recorded>, JournalError> {
    let new = if demotion == Demotion::On { "true" } else { "false" };
    journal.change(by, &[Change { path: DEMOTION.into(), new: new.into() }])
}

/// Declares the counters once: the field has the kernel's name.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters of pages since boot; 0 for those the kernel does not have.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Migrations { $($(#[$doc])* pub $name: u64,)+ }

        impl Migrations {
            fn set(&mut self, name: &str, value: u64) {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => {}
                }
            }

            /// The increments since `earlier`.
            #[must_use]
            pub const fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name),)+ }
            }
        }
    };
}

counters! {
    /// Promoted by NUMA balancing.
    pgpromote_success,
    /// Candidates for promotion.
    pgpromote_candidate,
    /// Demoted by background reclaim.
    pgdemote_kswapd,
    /// Demoted by a task short of memory.
    pgdemote_direct,
    /// Demoted for a huge page.
    pgdemote_khugepaged,
    /// Demoted by a write to memory.reclaim (Linux 6.15).
    pgdemote_proactive,
    /// Migrated, for any reason; whole system only.
    pgmigrate_success,
    /// Failed migrations; whole system only.
    pgmigrate_fail,
    /// Migrated by NUMA balancing; whole system only.
    numa_pages_migrated,
    /// Hint faults of NUMA balancing; whole system only.
    numa_hint_faults,
    /// Of these, accesses from the page's own node; whole system only.
    numa_hint_faults_local,
}

impl Migrations {
    /// The counters of the whole system.
    ///
    /// # Errors
    /// [`FsError`], if the file exists but can't be read.
    pub fn read(fs: &dyn Fs) -> Result<Self, FsError> {
        Ok(Self::understand(&fs.read("proc/vmstat")?.unwrap_or_default()))
    }

    /// The counters of one node: pages promoted to it, and demoted from it.
    ///
    /// # Errors
    /// [`FsError`], if the file exists but can't be read.
    pub fn of_node(fs: &dyn Fs, node: NodeId) -> Result<Self, FsError> {
        let path = format!("sys/devices/system/node/node{node}/vmstat");
        Ok(Self::understand(&fs.read(&path)?.unwrap_or_default()))
    }

    /// All demotions.
    #[must_use]
    pub const fn demoted(&self) -> u64 {
        self.pgdemote_kswapd
            .saturating_add(self.pgdemote_direct)
            .saturating_add(self.pgdemote_khugepaged)
            .saturating_add(self.pgdemote_proactive)
    }

    fn understand(vmstat: &str) -> Self {
        let mut found = Self::default();
        for line in vmstat.lines() {
            let Some((name, value)) = line.split_once(' ') else { continue };
            if let Ok(value) = value.trim().parse() {
                found.set(name, value);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeFs;
    use crate::journal::OnConflict;
    use nearfar_topology::Tree;

    fn system() -> FakeFs {
        let mut tree = Tree::new();
        tree.insert(NUMA_BALANCING, "1");
        tree.insert(DEMOTION, "false");
        tree.insert(
            "proc/vmstat",
            "pgpromote_success 5\npgdemote_kswapd 3\npgdemote_direct 4\nodd\npgfault x\n",
        );
        tree.insert("sys/devices/system/node/node1/vmstat", "pgpromote_success 2");
        FakeFs::new(tree)
    }

    #[test]
    fn modes_are_set_and_put_back() {
        let (dir, fs) = (tempfile::tempdir().unwrap(), system());
        let journal = Journal::new(dir.path(), &fs, "/");
        set_numa_balancing(&journal, "tier", NumaBalancing::TIERING).unwrap();
        set_demotion(&journal, "tier", Demotion::On).unwrap();
        assert!(numa_balancing(&fs).unwrap().unwrap().has(NumaBalancing::TIERING));
        assert_eq!(demotion_enabled(&fs).unwrap(), Some(true));
        journal.restore("tier", OnConflict::Refuse).unwrap();
        assert_eq!(numa_balancing(&fs).unwrap(), Some(NumaBalancing::NORMAL));
        assert_eq!(demotion_enabled(&fs).unwrap(), Some(false));
    }

    #[test]
    fn a_kernel_without_balancing_files_yields_no_settings() {
        let fs = FakeFs::default();
        assert_eq!((numa_balancing(&fs).unwrap(), demotion_enabled(&fs).unwrap()), (None, None));
        assert_eq!(Migrations::read(&fs).unwrap(), Migrations::default());
    }

    #[test]
    fn counters_are_found_by_name_and_differ_from_earlier_ones() {
        let fs = system();
        let now = Migrations::read(&fs).unwrap();
        assert_eq!((now.pgpromote_success, now.demoted()), (5, 7));
        assert_eq!(Migrations::of_node(&fs, NodeId(1)).unwrap().pgpromote_success, 2);
        let earlier = Migrations { pgpromote_success: 2, pgdemote_kswapd: 9, ..now };
        let since = now.since(&earlier);
        assert_eq!((since.pgpromote_success, since.pgdemote_kswapd, since.demoted()), (3, 0, 0));
    }
}
