//! One node's bandwidth as a function of the read:write mix, interpolated between known points.
//!
//! Between two known points the *time per byte* is interpolated, linear in the share of writes. On a bus that reads
//! and writes share this is exact: a byte read takes 1/R, a byte written 1/W, and a mix of r reads to w writes reaches
//! (r + w) / (r/R + w/W). A link with a lane each way (CXL) reaches more than the line between 1:0 and 0:1, so figures
//! for reads and for writes alone, without a duplex measurement, give a lower bound. Measured mixes close that gap:
//! with 1:0, 2:1 and 1:1 known, only neighbours are interpolated. Outside the known points there is no extrapolation:
//! the error names the known mixes.

use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use nearfar_topology::{BytesPerSecond, Mix};

/// A node's bandwidth at one or more mixes, by rising share of writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthByMix(Vec<(Mix, BytesPerSecond)>);

/// Reason why a bandwidth is unavailable. The text does not name the node, which the caller knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BandwidthError {
    /// No mix is known at all.
    Nothing,
    /// A figure of zero, or above [`BandwidthByMix::MAX`].
    Absurd {
        /// Its mix.
        mix: Mix,
        /// The figure.
        bandwidth: BytesPerSecond,
    },
    /// Two different figures for one mix.
    Twice {
        /// The mix.
        mix: Mix,
    },
    /// A mix with more or fewer writes than any known one.
    Outside {
        /// The mix asked for.
        asked: Mix,
        /// The known mixes, in words.
        known: String,
    },
}

impl fmt::Display for BandwidthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no bandwidth is known"),
            Self::Absurd { mix, bandwidth } => write!(
                f,
                "{} bytes/s at {mix} can't be right; a node has 1 to {} bytes/s",
                bandwidth.0,
                BandwidthByMix::MAX.0
            ),
            Self::Twice { mix } => write!(f, "two different figures for the mix {mix}; keep one"),
            Self::Outside { asked, known } => {
                write!(f, "no bandwidth at {asked}: known at {known}; ask for a mix between those")
            }
        }
    }
}

impl core::error::Error for BandwidthError {}

impl BandwidthByMix {
    /// Upper limit of plausible figures: 10^15 bytes per second.
    pub const MAX: BytesPerSecond = BytesPerSecond(1_000_000_000_000_000);

    /// From figures for reads alone and writes alone. A missing write figure is taken to equal the read figure.
    ///
    /// # Errors
    /// [`BandwidthError::Absurd`].
    pub fn from_read_write(
        read: BytesPerSecond,
        write: Option<BytesPerSecond>,
    ) -> Result<Self, BandwidthError> {
        let writes = Mix::new(0, 1).unwrap_or(Mix::READS);
        Self::from_points([(Mix::READS, read), (writes, write.unwrap_or(read))])
    }

    /// From figures at mixes, in any order.
    ///
    /// # Errors
    /// [`BandwidthError::Nothing`], [`BandwidthError::Absurd`] and [`BandwidthError::Twice`].
    pub fn from_points(
        points: impl IntoIterator<Item = (Mix, BytesPerSecond)>,
    ) -> Result<Self, BandwidthError> {
        let mut points: Vec<_> = points.into_iter().collect();
        points.sort_by(|(a, _), (b, _)| by_writes(*a, *b));
        points.dedup();
        if let Some(&(mix, bandwidth)) =
            points.iter().find(|(_, bandwidth)| bandwidth.0 == 0 || *bandwidth > Self::MAX)
        {
            return Err(BandwidthError::Absurd { mix, bandwidth });
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(BandwidthError::Twice { mix: pair[0].0 });
        }
        if points.is_empty() { Err(BandwidthError::Nothing) } else { Ok(Self(points)) }
    }

    /// The known points, by rising share of writes.
    #[must_use]
    pub fn points(&self) -> &[(Mix, BytesPerSecond)] {
        &self.0
    }

    /// The bandwidth at `mix`: a known point, or interpolated between its two neighbours.
    ///
    /// # Errors
    /// [`BandwidthError::Outside`] if `mix` does not lie between known points.
    pub fn at(&self, mix: Mix) -> Result<BytesPerSecond, BandwidthError> {
        if let Some(&(_, bandwidth)) = self.0.iter().find(|(known, _)| *known == mix) {
            return Ok(bandwidth);
        }
        let after = self.0.partition_point(|(known, _)| by_writes(*known, mix).is_lt());
        match (after.checked_sub(1).map(|before| self.0[before]), self.0.get(after)) {
            (Some(before), Some(&after)) => Ok(between(before, after, mix)),
            _ => Err(BandwidthError::Outside { asked: mix, known: self.mixes() }),
        }
    }

    fn mixes(&self) -> String {
        use core::fmt::Write as _;
        let mut text = String::new();
        for (index, (mix, _)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}{mix}");
        }
        text
    }
}

/// Orders mixes by their share of writes, exactly.
fn by_writes(a: Mix, b: Mix) -> Ordering {
    let (a_reads, b_reads) = (u32::from(a.reads()), u32::from(b.reads()));
    (u32::from(a.writes()) * b_reads).cmp(&(u32::from(b.writes()) * a_reads))
}

/// The bandwidth at `mix`, which lies between the two points: time per byte is linear in the share of writes.
fn between(
    (mix0, bandwidth0): (Mix, BytesPerSecond),
    (mix1, bandwidth1): (Mix, BytesPerSecond),
    mix: Mix,
) -> BytesPerSecond {
    let total = |mix: Mix| u128::from(mix.reads()) + u128::from(mix.writes());
    let writes = |mix: Mix| u128::from(mix.writes());
    // `mix` lies at `way / whole` between mix0 and mix1; both are below 2^23, bandwidths below 2^50.
    let way = (writes(mix) * total(mix0) - writes(mix0) * total(mix)) * total(mix1);
    let whole = (writes(mix1) * total(mix0) - writes(mix0) * total(mix1)) * total(mix);
    let (bandwidth0, bandwidth1) = (u128::from(bandwidth0.0), u128::from(bandwidth1.0));
    let drawn = whole * bandwidth0 * bandwidth1 / ((whole - way) * bandwidth1 + way * bandwidth0);
    BytesPerSecond(u64::try_from(drawn).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString as _;

    const GB: u64 = 1_000_000_000;

    fn mix(text: &str) -> Mix {
        text.parse().unwrap()
    }

    fn gb(bandwidth: u64) -> BytesPerSecond {
        BytesPerSecond(bandwidth * GB)
    }

    #[test]
    fn read_and_write_figures_alone_are_taken_as_a_shared_bus() {
        let bus = BandwidthByMix::from_read_write(gb(40), Some(gb(20))).unwrap();
        assert_eq!(bus.at(Mix::READS), Ok(gb(40)));
        assert_eq!(bus.at(mix("0:1")), Ok(gb(20)));
        // 3 / (2/40 + 1/20)
        assert_eq!(bus.at(Mix::TWO_TO_ONE), Ok(gb(30)));
    }

    #[test]
    fn a_missing_write_figure_is_taken_as_the_read_figure() {
        let bus = BandwidthByMix::from_read_write(gb(40), None).unwrap();
        assert_eq!(bus.at(Mix::ONE_TO_ONE), Ok(gb(40)));
    }

    #[test]
    fn a_mix_between_measured_mixes_is_interpolated() {
        let measured = BandwidthByMix::from_points([
            (Mix::ONE_TO_ONE, gb(30)),
            (Mix::READS, gb(20)),
            (Mix::TWO_TO_ONE, gb(28)),
        ])
        .unwrap();
        assert_eq!(measured.at(Mix::TWO_TO_ONE), Ok(gb(28)));
        // 3:1 writes a quarter, three quarters of the way from 1:0 to 2:1: 1 / (0.25/20 + 0.75/28)
        assert_eq!(measured.at(mix("3:1")), Ok(BytesPerSecond(25_454_545_454)));
    }

    #[test]
    fn a_mix_outside_the_measured_range_is_rejected_with_the_known_mixes() {
        let measured =
            BandwidthByMix::from_points([(Mix::READS, gb(20)), (Mix::ONE_TO_ONE, gb(30))]).unwrap();
        let error = measured.at(mix("1:3")).unwrap_err().to_string();
        assert!(error.contains("no bandwidth at 1:3") && error.contains("1:0, 1:1"), "{error}");
    }

    #[test]
    fn out_of_range_and_contradictory_bandwidths_are_rejected() {
        for bad in [0, BandwidthByMix::MAX.0 + 1, u64::MAX] {
            let error = BandwidthByMix::from_read_write(BytesPerSecond(bad), None).unwrap_err();
            assert!(matches!(error, BandwidthError::Absurd { .. }), "{error}");
        }
        let twice = [(Mix::READS, gb(1)), (Mix::READS, gb(2))];
        let error = BandwidthByMix::from_points(twice).unwrap_err();
        assert_eq!(error, BandwidthError::Twice { mix: Mix::READS });
        assert_eq!(BandwidthByMix::from_points([]).unwrap_err(), BandwidthError::Nothing);
    }

    prop_compose! {
        fn any_mix()(reads in 0u16..=100, writes in 0u16..=100) -> Mix {
            Mix::new(reads, writes).unwrap_or(Mix::READS)
        }
    }

    proptest! {
        #[test]
        fn an_interpolated_bandwidth_lies_between_the_read_and_write_figures(
            asked in any_mix(),
            read in 1..=BandwidthByMix::MAX.0,
            write in 1..=BandwidthByMix::MAX.0,
        ) {
            let (read, write) = (BytesPerSecond(read), BytesPerSecond(write));
            let drawn = BandwidthByMix::from_read_write(read, Some(write)).unwrap().at(asked).unwrap();
            prop_assert!(drawn >= read.min(write) && drawn <= read.max(write));
        }

        #[test]
        fn adding_a_point_on_the_interpolated_line_changes_no_bandwidth(asked in any_mix(), known in any_mix()) {
            let bus = BandwidthByMix::from_read_write(gb(40_000), Some(gb(13_000))).unwrap();
            let ends = bus.points().iter().copied();
            let on_line = (known, bus.at(known).unwrap());
            let same = BandwidthByMix::from_points(ends.chain([on_line])).unwrap();
            let (a, b) = (bus.at(asked).unwrap().0, same.at(asked).unwrap().0);
            prop_assert!(a.abs_diff(b) <= 1_000, "{a} {b}");
        }
    }
}
