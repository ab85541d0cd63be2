//! Read:write mixes from the memory's view: lines read to lines written back.
//!
//! `1:0` is a pure read stream, `1:1` an array modified in place (each line is fetched once and written back once),
//! `2:1` one array read while another is modified. A mix is kept in lowest terms, so `4:2` is `2:1`.

use core::fmt;
use core::str::FromStr;

use crate::units::BasisPoints;

/// A read:write mix in lowest terms, each part 0..=100 and not both zero. Prints and serializes as `2:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mix {
    reads: u16,
    writes: u16,
}

/// A text that is no mix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixError {
    /// The text as written.
    text: alloc::string::String,
}

impl fmt::Display for MixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text } = self;
        write!(
            f,
            "`{text}` is not a read:write mix; write READS:WRITES such as 1:0 or 2:1, each 0 to {} and not both 0",
            Mix::MAX
        )
    }
}

impl core::error::Error for MixError {}

impl Mix {
    /// Reads only.
    pub const READS: Self = Self { reads: 1, writes: 0 };
    /// Two reads for each write.
    pub const TWO_TO_ONE: Self = Self { reads: 2, writes: 1 };
    /// As many writes as reads.
    pub const ONE_TO_ONE: Self = Self { reads: 1, writes: 1 };
    /// The largest part.
    pub const MAX: u16 = 100;

    /// The mix of `reads` to `writes`; `None` if both are zero or one is above [`Mix::MAX`].
    #[must_use]
    pub const fn new(reads: u16, writes: u16) -> Option<Self> {
        if reads > Self::MAX || writes > Self::MAX || (reads == 0 && writes == 0) {
            return None;
        }
        let (mut divisor, mut rest) = (reads, writes);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Some(Self { reads: reads / divisor, writes: writes / divisor })
    }

    /// Reads per round.
    #[must_use]
    pub const fn reads(self) -> u16 {
        self.reads
    }

    /// Writes per round.
    #[must_use]
    pub const fn writes(self) -> u16 {
        self.writes
    }

    /// The share of reads in all traffic: 10,000 for `1:0`, 5,000 for `1:1`.
    #[must_use]
    pub fn read_share(self) -> BasisPoints {
        BasisPoints(
            u32::from(self.reads) * 10_000 / (u32::from(self.reads) + u32::from(self.writes)),
        )
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.reads, self.writes)
    }
}

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, MixError> {
        let part = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten()
        };
        text.split_once(':')
            .and_then(|(reads, writes)| Self::new(part(reads)?, part(writes)?))
            .ok_or_else(|| MixError { text: text.into() })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Mix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Mix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = alloc::string::String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString as _;

    #[test]
    fn mixes_are_kept_in_lowest_terms() {
        assert_eq!("4:2".parse(), Ok(Mix::TWO_TO_ONE));
        assert_eq!("7:0".parse(), Ok(Mix::READS));
        assert_eq!(Mix::new(0, 3).map(|mix| mix.to_string()), Some("0:1".into()));
    }

    #[test]
    fn invalid_mixes_are_refused_and_named() {
        for text in ["", ":", "1", "0:0", "1:", "+1:1", "1:0:0", "101:1", "99999:1", "a:b"] {
            let error = text.parse::<Mix>().unwrap_err().to_string();
            assert!(error.contains(&std::format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn the_read_share_is_of_all_traffic() {
        assert_eq!(Mix::READS.read_share(), BasisPoints(10_000));
        assert_eq!(Mix::TWO_TO_ONE.read_share(), BasisPoints(6_666));
        assert_eq!(Mix::ONE_TO_ONE.read_share(), BasisPoints(5_000));
    }

    proptest! {
        #[test]
        fn every_mix_prints_back(reads in 0u16..=100, writes in 0u16..=100) {
            if let Some(mix) = Mix::new(reads, writes) {
                prop_assert_eq!(mix.to_string().parse(), Ok(mix));
            }
        }
    }
}
