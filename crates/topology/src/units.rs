//! Units as types, so that names need not contain them: bytes, nanoseconds, bytes per second, basis points, ids.
//!
//! All are whole numbers. Bandwidth uses decimal gigabytes (10^9), sizes use binary units (2^30), as is usual; the
//! `Display` of each prints the unit.

use core::fmt;

/// Declares a transparent whole-number unit with ordering, arithmetic left to the caller through `.0`.
macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        pub struct $name(pub $inner);
    };
}

unit!(
    /// A Linux NUMA node, 0..=1023.
    NodeId(u16)
);
unit!(
    /// A logical CPU as the kernel numbers it.
    CpuId(u32)
);
unit!(
    /// A size in bytes.
    Bytes(u64)
);
unit!(
    /// A duration or latency in nanoseconds.
    Nanoseconds(u64)
);
unit!(
    /// A bandwidth in bytes per second (10^9 to the gigabyte).
    BytesPerSecond(u64)
);
unit!(
    /// A share in hundredths of a per cent: 10,000 is the whole.
    BasisPoints(u32)
);

impl NodeId {
    /// The largest node id Linux can be built with (`CONFIG_NODES_SHIFT` = 10).
    pub const MAX: Self = Self(1023);

    /// The node with a number; `None` above [`Self::MAX`].
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        u16::try_from(number).ok().map(Self).filter(|id| *id <= Self::MAX)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

/// A text that is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeError;

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a whole number of bytes, or with a unit: 512k, 64m, 4g, 1t")
    }
}

impl core::error::Error for SizeError {}

/// Parses a size: bytes, or `512k`, `64M`, `4GiB`, `1tb`. Units are powers of 1024 in either case; spaces before the unit are
/// ignored.
impl core::str::FromStr for Bytes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit.trim_start_matches(' ').as_bytes();
        let is =
            |names: [&str; 3]| names.iter().any(|one| unit.eq_ignore_ascii_case(one.as_bytes()));
        let units = [
            (["", "b", "b"], 0),
            (["k", "kb", "kib"], 10),
            (["m", "mb", "mib"], 20),
            (["g", "gb", "gib"], 30),
            (["t", "tb", "tib"], 40),
        ];
        let (_, shift) = units.into_iter().find(|(names, _)| is(*names)).ok_or(SizeError)?;
        let number: u64 = number.parse().map_err(|_| SizeError)?;
        number.checked_mul(1 << shift).map(Self).ok_or(SizeError)
    }
}

impl fmt::Display for Bytes {
    /// Binary units, with one decimal where it is significant: `512 MiB`, `1.5 GiB`, `4096 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut unit = 0;
        while unit + 1 < NAMES.len() && self.0 >= 1 << (10 * (unit + 1)) {
            unit += 1;
        }
        let tenths = u128::from(self.0) * 10 / (1u128 << (10 * unit));
        if unit == 0 || tenths.is_multiple_of(10) {
            write!(f, "{} {}", tenths / 10, NAMES[unit])
        } else {
            write!(f, "{}.{} {}", tenths / 10, tenths % 10, NAMES[unit])
        }
    }
}

impl fmt::Display for BytesPerSecond {
    /// Decimal gigabytes per second with one decimal: `27.0 GB/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (u128::from(self.0) + 50_000_000) / 100_000_000;
        write!(f, "{}.{} GB/s", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn sizes_print_in_the_largest_binary_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (4096, "4 KiB"),
            (512 << 20, "512 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn bandwidth_prints_in_decimal_gigabytes() {
        assert_eq!(BytesPerSecond(27_000_000_000).to_string(), "27.0 GB/s");
        assert_eq!(BytesPerSecond(54_860_000_000).to_string(), "54.9 GB/s");
    }
}
