//! What goes when room is needed: one small trait, an algorithm a file.
//!
//! A policy keeps the books of the slots of one size class in one tier, which are numbered. It is called under that class's
//! lock. How often an item was read since it was looked at last, it asks of [`Items`]; readers count that up to three and
//! take no lock. Only policies that want the order of reads are told of them, some time later and not of all
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

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing that could go.
    Vacant,
    /// An item that is not to be had now.
    Busy,
    /// An item, read this many times (0 to 3) since that was last lowered.
    Item(u8),
}

/// The items of a class, as a policy sees them.
pub trait Items {
    /// Slots are numbered below this.
    fn slots(&self) -> u32;
    /// What is in a slot.
    fn look(&self, slot: u32) -> Look;
    /// Sets how often the item in a slot was read.
    fn set_reads(&self, slot: u32, reads: u8);
    /// 32 bits of the hash of the key of the item in a slot.
    fn hash(&self, slot: u32) -> u32;
}

/// A policy of eviction.
pub trait Evict: Send + core::fmt::Debug {
    /// An item has come into a slot.
    fn stored(&mut self, slot: u32, hash: u32);
    /// The item in a slot has gone, without this policy's doing.
    fn removed(&mut self, slot: u32);
    /// The item in a slot was read.
    fn read(&mut self, _slot: u32, _hash: u32) {}
    /// Whether [`Self::read`] is to be called.
    fn wants_reads(&self) -> bool {
        false
    }
    /// The slot of an item that should go. [`Self::evicted`] or [`Self::kept`] follows, perhaps after further victims.
    fn victim(&mut self, items: &dyn Items) -> Option<u32>;
    /// A victim has gone.
    fn evicted(&mut self, slot: u32, hash: u32);
    /// A victim stays, as somebody had it.
    fn kept(&mut self, slot: u32);
}

/// The policies there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// S3-FIFO (Yang et al., SOSP 2023).
    #[default]
    S3Fifo,
    /// SIEVE (Zhang et al., NSDI 2024).
    Sieve,
    /// Least recently used, in three queues as of 2Q (Johnson and Shasha, VLDB 1994).
    Lru,
    /// W-TinyLFU (Einziger et al., ACM TOS 2017).
    WTinyLfu,
}

impl Eviction {
    /// All, with their names.
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

/// A bit for each slot.
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

/// Has a table that is reached by the upper bits of a hash grow to `least` lines or more, each line twice where it was once.
fn double_until<T: Clone>(lines: &mut Vec<T>, least: usize, first: impl FnOnce() -> Vec<T>) {
    if lines.is_empty() && least > 0 {
        *lines = first();
    }
    while lines.len() < least {
        *lines = lines.iter().flat_map(|line| [line.clone(), line.clone()]).collect();
    }
}
