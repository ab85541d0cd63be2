//! The source of sampled data (include/uapi/linux/perf_event.h, union perf_mem_data_src).
//!
//! Two fields give the level: an old one with one bit per level, and a number with a separate bit for "remote".
//! Hardware sets either, or none. Neither gives the node, which follows from the physical address.

/// The level that answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Not reported.
    #[default]
    Unknown,
    /// A cache of the CPU's own socket.
    Cache,
    /// A cache of another socket.
    RemoteCache,
    /// Memory: DRAM, CXL, persistent.
    Memory,
    /// Neither: a device.
    Device,
}

/// An access as hardware describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Whether it was a write; `None` where hardware does not report it.
    pub write: Option<bool>,
    /// The level that answered.
    pub level: Level,
    /// Whether it was on another node.
    pub remote: bool,
    /// Whether another cache had modified the line.
    pub modified: bool,
}

impl Source {
    /// Decodes a sample's word.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        const LOAD: u64 = 2;
        const STORE: u64 = 4;
        const HIT_MODIFIED: u64 = 1 << 4;
        let (operation, old) = (word & 0x1f, word >> 5 & 0x3fff);
        let (number, remote) = (word >> 33 & 0xf, word >> 37 & 1 != 0);
        let write = match operation & (LOAD | STORE) {
            LOAD => Some(false),
            // An atomic operation reads and writes; it counts as a write.
            STORE | 6 => Some(true),
            _ => None,
        };
        let (level, is_remote) = match Self::numbered(number) {
            Level::Unknown => Self::old(old),
            level => (level, false),
        };
        let remote = remote || is_remote;
        let level = match level {
            Level::Cache if remote => Level::RemoteCache,
            level => level,
        };
        Self { write, level, remote, modified: word >> 19 & HIT_MODIFIED != 0 }
    }

    /// `mem_lvl_num`.
    const fn numbered(number: u64) -> Level {
        match number {
            // L1 to L4, L2's miss buffer, the memory-side cache, any cache, the fill buffer.
            1..=6 | 0xb | 0xc => Level::Cache,
            // CXL, RAM, persistent memory.
            9 | 0xd | 0xe => Level::Memory,
            // Uncached, I/O.
            8 | 0xa => Level::Device,
            _ => Level::Unknown,
        }
    }

    /// `mem_lvl`, and whether that is a remote one.
    const fn old(bits: u64) -> (Level, bool) {
        const MISS: u64 = 4;
        const CACHES: u64 = 0x78;
        const LOCAL: u64 = 0x80;
        const REMOTE: u64 = 0x300;
        const REMOTE_CACHES: u64 = 0xc00;
        const OTHER: u64 = 0x3000;
        if bits & REMOTE != 0 {
            (Level::Memory, true)
        } else if bits & LOCAL != 0 {
            (Level::Memory, false)
        } else if bits & REMOTE_CACHES != 0 {
            (Level::Cache, true)
        } else if bits & OTHER != 0 {
            (Level::Device, false)
        } else if bits & CACHES != 0 && bits & MISS == 0 {
            (Level::Cache, false)
        } else {
            (Level::Unknown, false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_encodings_of_the_data_source_are_parsed() {
        let (load, store) = (2, 4);
        for (word, write, level, remote) in [
            (load | 1 << 33, Some(false), Level::Cache, false),
            (load | 3 << 33 | 1 << 37, Some(false), Level::RemoteCache, true),
            (store | 0xd << 33 | 1 << 37, Some(true), Level::Memory, true),
            (load | 9 << 33, Some(false), Level::Memory, false),
            (6 | 0xa << 33, Some(true), Level::Device, false),
            // Without a number: a hit in L3, local and remote memory, a remote cache, a miss without further
            // information.
            (load | 0x42 << 5 | 0xf << 33, Some(false), Level::Cache, false),
            (load | 0x82 << 5 | 0xf << 33, Some(false), Level::Memory, false),
            (load | 0x102 << 5, Some(false), Level::Memory, true),
            (load | 0x402 << 5, Some(false), Level::RemoteCache, true),
            (1 | 0x44 << 5, None, Level::Unknown, false),
            (0, None, Level::Unknown, false),
        ] {
            let modified = false;
            assert_eq!(Source::of(word), Source { write, level, remote, modified }, "{word:#x}");
        }
        assert!(Source::of(2 | 0x10 << 19 | 3 << 33).modified);
    }

    proptest! {
        #[test]
        fn any_data_source_parses_and_remote_data_is_never_local_cache(word in any::<u64>()) {
            let source = Source::of(word);
            prop_assert!(!(source.remote && source.level == Level::Cache));
        }
    }
}
