//! Eviction policies: one small trait, one algorithm per file.
//!
//! A policy tracks the numbered slots of one size class in one tier. It is called under that class's lock. It reads
//! from [`Items`] how often an item was read since it last checked; readers maintain that count, up to three, without a
//! lock. Only policies that need the order of reads are notified of reads, with a delay and not of all
//! ([`Evict::wants_reads`]).

mod ghosts;
mod list;
mod lru;
mod s3fifo;
mod sieve;
mod sketch;
#[cfg(test)]
mod tests;
mod wtinylfu;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// No evictable item.
    Vacant,
    /// An item that is in use at present.
    Busy,
    /// An item, read this many times (0 to 3) since the count was last lowered.
    Item(u8),
}

/// The items of a class, as a policy sees them.
pub trait Items {
    /// The upper bound of slot numbers.
    fn slots(&self) -> u32;
    /// The state of a slot.
    fn look(&self, slot: u32) -> Look;
    /// Notes that [`Self::look`] will be called for a slot soon.
    fn prefetch(&self, _slot: u32) {}
    /// Sets the read count of the item in a slot.
    fn set_reads(&self, slot: u32, reads: u8);
    /// 32 bits of the hash of the key of the item in a slot.
    fn hash(&self, slot: u32) -> u32;
}

/// An eviction policy.
pub trait Evict: Send + core::fmt::Debug {
    /// An item was stored in a slot.
    fn stored(&mut self, slot: u32, hash: u32);
    /// The item in a slot was removed for a reason other than this policy.
    fn removed(&mut self, slot: u32);
    /// The item in a slot was read.
    fn read(&mut self, _slot: u32, _hash: u32) {}
    /// Whether [`Self::read`] should be called.
    fn wants_reads(&self) -> bool {
        false
    }
    /// The slot of the next eviction victim. [`Self::evicted`] or [`Self::kept`] follows, perhaps after further
    /// victims.
    fn victim(&mut self, items: &dyn Items) -> Option<u32>;
    /// A victim was evicted.
    fn evicted(&mut self, slot: u32, hash: u32);
    /// A victim was not evicted, because it was in use.
    fn kept(&mut self, slot: u32);
}

/// The available policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// S3-FIFO (Yang et al., SOSP 2023).
    #[default]
    S3Fifo,
    /// SIEVE (Zhang et al., NSDI 2024).
    Sieve,
    /// Segmented LRU, in three queues after 2Q (Johnson and Shasha, VLDB 1994).
    Lru,
    /// W-TinyLFU (Einziger et al., ACM TOS 2017).
    WTinyLfu,
}

impl Eviction {
    /// All policies with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("s3-fifo", Self::S3Fifo),
        ("sieve", Self::Sieve),
        ("lru", Self::Lru),
        ("w-tinylfu", Self::WTinyLfu),
    ];

    pub(crate) fn make(self) -> Box<dyn Evict> {
        match self {
            Self::S3Fifo => Box::<s3fifo::S3Fifo>::default(),
            Self::Sieve => Box::<sieve::Sieve>::default(),
            Self::Lru => Box::<lru::Lru>::default(),
            Self::WTinyLfu => Box::<wtinylfu::WTinyLfu>::default(),
        }
    }
}

/// One bit per slot.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn get(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    fn set(&mut self, slot: u32) {
        let at = slot as usize / 64;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (slot % 64);
    }

    fn clear(&mut self, slot: u32) {
        if let Some(word) = self.0.get_mut(slot as usize / 64) {
            *word &= !(1 << (slot % 64));
        }
    }
}

/// Grows a table indexed by the upper bits of a hash to at least `least` lines, by duplicating each line.
fn double_until<T: Clone>(lines: &mut Vec<T>, least: usize, first: impl FnOnce() -> Vec<T>) {
    if lines.is_empty() && least > 0 {
        *lines = first();
    }
    while lines.len() < least {
        *lines = lines.iter().flat_map(|line| [line.clone(), line.clone()]).collect();
    }
}
