//! The interval between scans, from their cost and the CPU time allowed.
//!
//! Between scans the machine may use CPU time as well: a kdamond samples, and on kernels that do background migration its
//! schemes run. That part leaves less for scans, but it grows with the interval. Charged to scans like their own cost, it
//! would make each interval longer than the one before wherever it exceeds the share allowed, so it only lowers that
//! share, to an eighth at the least.

use nearfar_topology::BasisPoints;

use super::feedback::PART_MOST;
use super::{Observation, SECOND_NS, Seek, Tiering, WHOLE, scale, share_of, signed};

/// CPU time saved or owed, and the cost of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    pub(super) saved_ns: i64,
    pub(super) look_ns: u64,
}

impl Credit {
    /// All that can be saved of this share.
    pub(super) fn full(share: BasisPoints) -> Self {
        let saved_ns = share_of(SAVED_NS, u64::from(share.0)).cast_signed();
        Self { saved_ns, look_ns: 0 }
    }
}

/// CPU time is saved for at most this long.
const SAVED_NS: u64 = 60 * SECOND_NS;
/// Longest interval between scans, at any cost.
const PERIOD_MOST_NS: u64 = 6 * 3600 * SECOND_NS;
/// Scans get at least this part of the CPU time allowed.
const SHARE_LEAST_PART: u64 = 8;
/// Scans that find little to do delay the next one, by at most this many doublings of a second.
const CALM_MOST: u32 = 5;
/// If the hot set fits near memory and less than this part of near memory's size is hot in far memory, there is little
/// to do.
const LITTLE: u64 = 256;
/// At this part or less, there is little left to do.
pub(super) const PART_SETTLED: u64 = WHOLE / 16;

impl Tiering {
    /// Sets the interval between scans: as short as their cost allows, but at least a second, and longer while there is
    /// little to do.
    pub(super) fn fit_period(&mut self, seen: &Observation) {
        let whole = u64::from(self.goals.cpu.0).max(1);
        let least_share = whole.div_ceil(SHARE_LEAST_PART);
        let idle = scale(seen.idle_cpu.0, WHOLE, seen.elapsed.0);
        let left = whole.saturating_sub(idle).max(least_share);
        let spent = seen.cpu.0.saturating_sub(seen.idle_cpu.0);
        // The less there is to gain, the less is spent: a scan costs programs more than its CPU time, as it fills
        // caches with page tables.
        let share = match self.seek {
            Seek::Found if !self.is_elsewhere() => {
                scale(whole, self.part.share, PART_MOST).clamp(least_share, whole)
            }
            _ => whole,
        };
        let share = share.min(left);
        let earned = signed(share_of(seen.elapsed.0, share));
        let (saved, most) = (self.credit.saved_ns, signed(share_of(SAVED_NS, whole)));
        self.credit.saved_ns =
            saved.saturating_add(earned).min(most).saturating_sub(signed(spent)).max(-most);
        if seen.near_scan.at.0 > 0 || seen.far_scan.at.0 > 0 {
            self.credit.look_ns = spent;
        }
        let settled = self.part.share <= PART_SETTLED || self.trial.rest_ns > 0;
        let fits = self.hot(seen) <= self.capacity(seen)
            && self.far_hot(seen) <= seen.near.total.0 / LITTLE;
        let settled = self.seek == Seek::Found && (settled || fits);
        self.calm = if settled { (self.calm + 1).min(CALM_MOST) } else { 0 };
        let least = match self.seek {
            Seek::Under(_) => self.window_ns,
            Seek::Found => self.window_ns.max(SECOND_NS << self.calm),
        };
        let owed = signed(self.credit.look_ns).saturating_sub(self.credit.saved_ns).max(0);
        let affordable = scale(owed.cast_unsigned(), WHOLE, share);
        self.period_ns = affordable.clamp(least, least.max(PERIOD_MOST_NS));
    }
}
