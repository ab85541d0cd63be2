//! The place of a large object on the device, in 40 bits.
//!
//! ```text
//! 37 bits  address in units of 64 bytes from the first region: 8 TiB
//!  3 bits  size of the first read: 1152 << n bytes hold the whole object, except that n = 7 stands for all larger ones
//! ```
//! Units are 64 bytes, not the device's 512 or 4096, because an object of 4 KiB and its header would waste an eighth of
//! the bytes written. With the three bits, nearly all objects are read by one read of at most twice their size, without
//! a length in memory. Steps are powers of two plus an eighth, so that values of a power of two fit with key and
//! header.

/// Objects begin at multiples of this many bytes.
pub const UNIT: usize = 64;
/// Bits of a place.
pub const PLACE_BITS: u32 = 40;
const ADDRESS_BITS: u32 = 37;
/// Maximum bytes that places can address: 8 TiB.
pub const REACH: u64 = (1 << ADDRESS_BITS) * UNIT as u64;
const FIRST: usize = 18 * UNIT;

/// The place of a large object. Valid until its region is evicted, of which the [`Keeper`](super::Keeper) is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// A place from the bits kept in an index; `None` if there are more than 40.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits >> PLACE_BITS == 0 { Some(Self(bits)) } else { None }
    }

    /// The place in at most 40 bits.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The place of an object with this many bytes at this unit.
    pub(super) const fn new(unit: u64, bytes: usize) -> Self {
        let mut step = 0_u32;
        while step < 7 && FIRST << step < bytes {
            step += 1;
        }
        Self(((step as u64) << ADDRESS_BITS) | (unit & ((1 << ADDRESS_BITS) - 1)))
    }

    /// Units from the first region.
    pub(super) const fn unit(self) -> u64 {
        self.0 & ((1 << ADDRESS_BITS) - 1)
    }

    /// Bytes of the first read.
    pub(super) const fn bound(self) -> usize {
        FIRST << (self.0 >> ADDRESS_BITS)
    }
}

impl Place {
    /// Maximum bytes of the object with its key and metadata; `None` if it is larger than a place can express.
    #[must_use]
    pub const fn largest(self) -> Option<usize> {
        if self.bound() < FIRST << 7 { Some(self.bound()) } else { None }
    }
}

/// All places of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub(super) first_unit: u64,
    pub(super) units: u64,
}

impl Places {
    /// Whether the place is among them.
    #[must_use]
    #[inline]
    pub const fn contains(&self, place: Place) -> bool {
        place.unit() >= self.first_unit && place.unit() - self.first_unit < self.units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forty_bits_reach_eight_tebibytes() {
        assert_eq!(REACH, 8 << 40);
        let last = Place::new(REACH / UNIT as u64 - 1, usize::MAX / 2);
        assert!(last.bits() < 1 << PLACE_BITS);
        assert_eq!(Place::from_bits(last.bits()), Some(last));
        assert_eq!(Place::from_bits(1 << PLACE_BITS), None);
    }

    #[test]
    fn the_first_read_covers_the_object_and_is_at_most_twice_its_size() {
        for bytes in FIRST + 1..=FIRST << 7 {
            let place = Place::new(7, bytes);
            assert_eq!(place.unit(), 7);
            assert!(place.bound() >= bytes && place.bound() < 2 * bytes, "{bytes}");
        }
        assert_eq!(Place::new(0, 10).bound(), FIRST);
        assert_eq!(Place::new(0, 64 << 20).bound(), FIRST << 7);
    }
}
