//! The tiering port: pages of two tiers, scanned for use and migrated between them.
//!
//! The tiering loop asks for scans and migrations in the order of [`TierPages`]'s methods; each returns how long to wait until
//! the machine has done it. Crates daemon (by DAMON) and sim implement the port.

use nearfar_topology::Nanoseconds;

use crate::tiering::{BackgroundMigration, Decision, Scan, Scanned, TierUsage};

/// A machine with two tiers of pages that can be scanned and migrated.
pub trait TierPages {
    /// An error of the machine.
    type Error;

    /// First pass over both sides: clears accessed bits for this scan. Returns how long the pass takes.
    ///
    /// # Errors
    /// Errors of the machine.
    fn clear_accessed(&mut self, look: Scan) -> Result<Nanoseconds, Self::Error>;

    /// Second pass, a sampling window after the first: counts referenced pages, and clears their accessed bits.
    /// Returns how long the pass takes.
    ///
    /// # Errors
    /// Errors of the machine.
    fn scan(&mut self, look: Scan) -> Result<Nanoseconds, Self::Error>;

    /// Third pass: demotes as decided, and promotes as soon as that has freed memory. Returns how long the pass takes.
    ///
    /// # Errors
    /// Errors of the machine.
    fn migrate(&mut self, decision: &Decision) -> Result<Nanoseconds, Self::Error>;

    /// Idles until the next scan, except for background migration if the machine does that by itself. When this
    /// returns, outstanding passes have ended.
    ///
    /// # Errors
    /// Errors of the machine.
    fn idle(&mut self, upkeep: &BackgroundMigration) -> Result<KeptBy, Self::Error>;

    /// Present memory, near and far. Called often, so it should be cheap.
    ///
    /// # Errors
    /// Errors of the machine.
    fn sides(&mut self) -> Result<(TierUsage, TierUsage), Self::Error>;

    /// Present memory, and the counters since the beginning.
    ///
    /// # Errors
    /// Errors of the machine.
    fn count(&mut self) -> Result<Count, Self::Error>;
}

/// Responsibility for background migration between scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// The machine.
    Machine,
    /// The loop, which checks free memory every second.
    Loop,
}

/// Counters of a machine, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The faster side, now.
    pub near: TierUsage,
    /// The slower side, now.
    pub far: TierUsage,
    /// Near memory scanned, referenced, and migrated away.
    pub near_scan: Scanned,
    /// Far memory scanned, referenced, and migrated away.
    pub far_scan: Scanned,
    /// CPU time used.
    pub cpu: Nanoseconds,
    /// The part of it between scans: from the end of [`TierPages::idle`] to the next pass.
    pub idle_cpu: Nanoseconds,
}

/// Tiered pages with several boundaries, of which one is at turn.
pub trait TierBoundaries: TierPages {
    /// Selects the boundary for all further calls: 0 is the one below the fastest tier.
    ///
    /// # Errors
    /// Errors of the machine.
    fn turn_to(&mut self, boundary: usize) -> Result<(), Self::Error>;
}
