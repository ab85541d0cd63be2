//! Counts over all seeds.

use core::fmt;

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// Counts.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Tally { $($(#[$doc])* pub(crate) $name: u64,)* }

        impl Tally {
            pub(crate) const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Display for Tally {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(to, "{:>14}  {}", self.$name, $text)?;)*
                Ok(())
            }
        }
    };
}

tally! {
    seeds: "seeds",
    operations: "operations",
    writes: "writes to the device",
    reads: "objects asked for",
    hits: "of these, found, and checked",
    ends_opening: "ends while it was opened",
    kills: "ends by kill",
    cuts: "ends by power cut",
    torn: "of these, in the middle of a write",
    lost: "faults: writes that were lost",
    astray: "faults: writes that went elsewhere",
    late: "faults: writes that were done later than said",
    write_errors: "faults: writes that failed, or came back short",
    read_errors: "faults: reads that failed, or came back short",
    flips: "faults: reads with flipped bits",
    read_astray: "faults: reads from elsewhere",
    sync_errors: "faults: flushes of the device that failed",
    stuck: "faults: queues that stopped reporting completions",
    rots: "faults: places changed while stopped",
    closed: "closed in good order",
    not_closed: "closing failed",
    reopened: "reopened after closing",
    discarded: "reopened after a crash, and discarded",
    damaged: "reopened after closing, and discarded for damage",
    kept: "reopened after a crash, and kept",
    refused: "not opened for damage, and made anew",
    entries_kept: "keys found after reopening",
    entries_dropped: "keys that could have been found, and were not",
    older: "keys found after keeping with an older value than the last",
}
