//! Counters of the tier.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the tier was opened, except those marked "now".
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        /// The same, as atomic counters.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $(pub(super) $name: AtomicU64,)* }

        impl Counters {
            pub(super) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl Stats {
            /// Calls `each` with every counter and its name.
            pub fn each(&self, each: &mut dyn FnMut(&str, u64)) {
                $(each(stringify!($name), self.$name);)*
            }
        }
    };
}

figures! {
    /// Large objects appended.
    large_appended,
    /// Bytes of their keys and values.
    large_bytes_users,
    /// Bytes written to the device for large objects: data, lists, footers, and reinserted objects.
    large_bytes_device,
    /// Large objects read.
    large_reads,
    /// Of these, found.
    large_hits,
    /// Of these, found in a buffer that was not yet written.
    large_hits_memory,
    /// Of these, reads of the device that needed a second read.
    large_second_reads,
    /// Places that held another object: the tag in the index was the same, or the region was evicted meanwhile.
    large_other,
    /// Objects reinserted when their region was evicted.
    reinserted,
    /// Bytes of them on the device.
    reinserted_bytes,
    /// Objects dropped with their region.
    evicted,
    /// Removals recorded in lists of regions.
    removals,
    /// Regions evicted.
    regions_evicted,
    /// Regions with an unreadable list when they were evicted.
    regions_lost,
    /// Total regions, now.
    regions_total,
    /// Regions to write to, now.
    regions_free,
    /// Regions with objects on the device, now.
    regions_used,
    /// Regions no longer used because of errors, now.
    regions_retired,
    /// Small objects stored.
    small_appended,
    /// Bytes of their keys and values.
    small_bytes_users,
    /// Bytes written to the device for small objects.
    small_bytes_device,
    /// Small objects requested.
    small_reads,
    /// Of these, found.
    small_hits,
    /// Of these, found in memory.
    small_hits_memory,
    /// Of these, absent according to the filter.
    small_filtered,
    /// Sets written.
    sets_written,
    /// Small objects evicted from a set by newer ones.
    small_evicted,
    /// Small objects never written, because too few others belonged to their set.
    small_dropped,
    /// Bytes of small objects waiting in memory, now.
    small_waiting_bytes,
    /// Sets no longer used because of errors, now.
    sets_retired,
    /// Sets emptied because more removals waited than could be written.
    sets_emptied,
    /// Checksum errors.
    checksum_errors,
    /// Reads that failed or came back short.
    read_errors,
    /// Writes that failed or came back short, each attempt.
    write_errors,
    /// Objects admitted.
    admitted,
    /// Objects refused by admission for too few uses.
    refused_use,
    /// Objects refused by admission for lack of budget.
    refused_budget,
    /// Objects refused because all buffers were full.
    refused_busy,
    /// Remaining write budget in bytes, now; 0 without a budget.
    budget_left,
    /// Bytes of memory for tables and filters, without buffers.
    table_bytes,
}

impl Stats {
    /// Write amplification of large objects in thousandths: bytes written to the device per byte stored; 0 without any.
    #[must_use]
    pub fn large_amplification(&self) -> u64 {
        per_thousand(self.large_bytes_device, self.large_bytes_users)
    }

    /// Write amplification of small objects in thousandths: bytes written to the device per byte stored; 0 without any.
    #[must_use]
    pub fn small_amplification(&self) -> u64 {
        per_thousand(self.small_bytes_device, self.small_bytes_users)
    }
}

fn per_thousand(part: u64, whole: u64) -> u64 {
    let ratio = u128::from(part) * 1000 / u128::from(whole.max(1));
    if whole == 0 { 0 } else { u64::try_from(ratio).unwrap_or(u64::MAX) }
}

pub(super) fn add(counter: &AtomicU64, much: usize) {
    counter.fetch_add(much as u64, Relaxed);
}

pub(super) fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
