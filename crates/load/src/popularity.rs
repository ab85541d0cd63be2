//! Popularity of records: YCSB's request distributions.
//!
//! - **zipfian**: record 0 is the most popular, record k is requested in proportion to 1 / (k + 1)^0.99 ([`Zipf`]; YCSB
//!   draws by an approximation of the same law).
//! - **scrambled**: a zipfian over ten thousand million items, hashed (FNV-1a, 64 bits) over the records, so that
//!   popular records are scattered. This is YCSB's `requestdistribution=zipfian`.
//! - **latest**: a zipfian counted back from the most recently inserted record.
//! - **uniform**: all records alike.
//! - **hotspot**: a share of the requests goes to a share of the records, both uniformly; the rest to the others.

use std::fmt;
use std::str::FromStr;

use crate::random::Random;
use crate::requests::Zipf;

/// YCSB's zipfian constant.
const THETA: f64 = 0.99;
/// Items of the zipfian behind the scrambled one.
const ITEMS: u64 = 10_000_000_000;

/// A request distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// Popular records are adjacent, at the beginning.
    Zipfian,
    /// Popular records are scattered.
    Scrambled,
    /// Recently inserted records are popular.
    Latest,
    /// All records alike.
    Uniform,
    /// Shares in per cent.
    Hotspot {
        /// Share of the records that are hot.
        set_percent: u8,
        /// Share of the requests that go to these.
        share_percent: u8,
    },
}

impl Popularity {
    /// YCSB's default hotspot.
    pub const HOTSPOT: Self = Self::Hotspot { set_percent: 20, share_percent: 80 };
}

/// A text that is no distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: no request distribution; there are zipfian, scrambled, latest, uniform, hotspot and \
     hotspot:SET:SHARE, per cents of the records and of the requests from 1 to 100"
)]
pub struct UnknownPopularity(String);

impl FromStr for Popularity {
    type Err = UnknownPopularity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownPopularity(text.into());
        let percent = |text: &str| {
            let number = text.parse().ok().filter(|number| (1..=100u8).contains(number));
            number.ok_or_else(unknown)
        };
        Ok(match text.split(':').collect::<Vec<_>>()[..] {
            ["zipfian"] => Self::Zipfian,
            ["scrambled"] => Self::Scrambled,
            ["latest"] => Self::Latest,
            ["uniform"] => Self::Uniform,
            ["hotspot"] => Self::HOTSPOT,
            ["hotspot", set, share] => {
                Self::Hotspot { set_percent: percent(set)?, share_percent: percent(share)? }
            }
            _ => return Err(unknown()),
        })
    }
}

impl fmt::Display for Popularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zipfian => f.write_str("zipfian"),
            Self::Scrambled => f.write_str("scrambled"),
            Self::Latest => f.write_str("latest"),
            Self::Uniform => f.write_str("uniform"),
            Self::Hotspot { set_percent, share_percent } => {
                write!(f, "hotspot:{set_percent}:{share_percent}")
            }
        }
    }
}

/// Chooses records.
#[derive(Clone, Debug)]
pub struct Chooser {
    popularity: Popularity,
    zipfian: Zipf,
    /// Records over which the scrambled numbers are spread: existing and expected ones.
    space: u64,
}

impl Chooser {
    /// For this many records, and at most this many inserts.
    #[must_use]
    pub fn new(popularity: Popularity, records: u64, inserts: u64) -> Self {
        let items = if popularity == Popularity::Scrambled { ITEMS } else { records };
        Self { popularity, zipfian: Zipf::within(items, THETA), space: records + inserts }
    }

    /// Chooses one of the `records` that exist now; there must be at least one.
    pub fn choose(&mut self, random: &mut Random, records: u64) -> u64 {
        match self.popularity {
            Popularity::Zipfian => self.zipfian.draw(random).min(records - 1),
            Popularity::Scrambled => loop {
                // A record that does not exist yet is drawn again, as in YCSB.
                let chosen = fnv64(self.zipfian.draw(random)) % self.space;
                if chosen < records {
                    return chosen;
                }
            },
            Popularity::Latest => {
                if self.zipfian.items() != records {
                    self.zipfian = Zipf::within(records, THETA);
                }
                records - 1 - self.zipfian.draw(random).min(records - 1)
            }
            Popularity::Uniform => random.below(records),
            Popularity::Hotspot { set_percent, share_percent } => {
                let hot = (records * u64::from(set_percent) / 100).max(1);
                if random.below(100) < u64::from(share_percent) || hot >= records {
                    random.below(hot)
                } else {
                    hot + random.below(records - hot)
                }
            }
        }
    }
}

/// YCSB's hash of a number: FNV-1a over its eight bytes, least first, without the sign.
#[must_use]
pub fn fnv64(number: u64) -> u64 {
    let hash = number.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211)
    });
    hash.cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DRAWS: u32 = 200_000;

    fn counts(popularity: Popularity, records: u64) -> Vec<u32> {
        let mut chooser = Chooser::new(popularity, records, 0);
        let mut random = Random::new(20_100_610);
        let mut counts = vec![0u32; usize::try_from(records).unwrap()];
        for _ in 0..DRAWS {
            counts[usize::try_from(chooser.choose(&mut random, records)).unwrap()] += 1;
        }
        counts
    }

    /// Sum of 1 / k^0.99 for k up to `to`: the tail beyond 10^6 as an integral (Euler and Maclaurin).
    fn terms(to: u64) -> f64 {
        let exact = to.min(1_000_000);
        let sum: f64 = (1..=exact).map(|k| float(k).powf(-THETA)).sum();
        let (from, to) = (float(exact), float(to));
        let integral = (to.powf(1.0 - THETA) - from.powf(1.0 - THETA)) / (1.0 - THETA);
        sum + integral + (to.powf(-THETA) - from.powf(-THETA)) / 2.0
    }

    fn float(items: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "numbers of items are far below 2^53")]
        let float = items as f64;
        float
    }

    /// Whether a count is within five standard deviations of a share.
    fn is_share(count: u32, share: f64) -> bool {
        let expected = f64::from(DRAWS) * share;
        (f64::from(count) - expected).abs() < 5.0 * (expected * (1.0 - share)).sqrt()
    }

    #[test]
    fn zipfian_gives_the_first_records_their_probabilities() {
        let counts = counts(Popularity::Zipfian, 1000);
        for first in [1, 2, 10, 100, 500] {
            let drawn: u32 = counts[..usize::try_from(first).unwrap()].iter().sum();
            assert!(is_share(drawn, terms(first) / terms(1000)), "first {first}: {drawn}");
        }
        assert!(counts.iter().all(|count| *count > 0), "every record is asked for");
    }

    #[test]
    fn scrambled_covers_all_records_and_spreads_the_popular_ones() {
        let counts = counts(Popularity::Scrambled, 500);
        assert!(counts.iter().all(|count| *count > 0), "every record is asked for");
        let first = usize::try_from(fnv64(0) % 500).unwrap();
        let second = usize::try_from(fnv64(1) % 500).unwrap();
        assert!(first.abs_diff(second) > 1);
        // The first item's own share, and the shares of others that hash to the same record.
        let own = 1.0 / terms(ITEMS);
        let share = f64::from(counts[first]) / f64::from(DRAWS);
        assert!(share > own * 0.97 && share < own + 0.02, "{share} for {own}");
    }

    #[test]
    fn latest_prefers_the_last_record_and_follows_inserts() {
        let mut chooser = Chooser::new(Popularity::Latest, 100, 0);
        let mut random = Random::new(1);
        for records in [100u64, 150, 1000] {
            let last = (0..20_000).filter(|_| chooser.choose(&mut random, records) == records - 1);
            let share = f64::from(u32::try_from(last.count()).unwrap()) / 20_000.0;
            let expected = 1.0 / terms(records);
            assert!((share - expected).abs() < 0.02, "{records}: {share} for {expected}");
        }
    }

    #[test]
    fn uniform_chooses_all_records_equally_often() {
        assert!(counts(Popularity::Uniform, 100).iter().all(|count| is_share(*count, 0.01)));
    }

    #[test]
    fn a_hotspot_takes_its_share() {
        let counts = counts(Popularity::Hotspot { set_percent: 10, share_percent: 90 }, 1000);
        assert!(is_share(counts[..100].iter().sum(), 0.9));
        assert!(counts[100..].iter().all(|count| *count > 0));
    }

    #[test]
    fn the_hash_is_ycsbs() {
        // FNV-1a of eight zero bytes has its top bit set, so the sign is dropped.
        assert_eq!(fnv64(0), 0xa8c7_f832_281a_39c5u64.wrapping_neg());
    }

    #[test]
    fn names_parse_and_unknown_ones_are_refused() {
        for name in ["zipfian", "scrambled", "latest", "uniform", "hotspot:5:95"] {
            assert_eq!(name.parse::<Popularity>().unwrap().to_string(), name);
        }
        assert_eq!("hotspot".parse(), Ok(Popularity::HOTSPOT));
        for name in ["", "zipf", "hotspot:0:10", "hotspot:101:1", "hotspot:5", "hotspot:a:b"] {
            let refused = name.parse::<Popularity>().unwrap_err().to_string();
            assert!(refused.contains("scrambled"), "{refused}");
        }
    }

    fn any() -> impl Strategy<Value = Popularity> {
        prop_oneof![
            Just(Popularity::Zipfian),
            Just(Popularity::Scrambled),
            Just(Popularity::Latest),
            Just(Popularity::Uniform),
            (1..=100u8, 1..=100u8).prop_map(|(set_percent, share_percent)| Popularity::Hotspot {
                set_percent,
                share_percent
            }),
        ]
    }

    proptest! {
        #[test]
        fn only_existing_records_are_chosen_and_a_seed_determines_them(
            popularity in any(), records in 1u64..300, more in 0u64..50, seed: u64,
        ) {
            let run = || {
                let mut chooser = Chooser::new(popularity, records, more);
                let mut random = Random::new(seed);
                let of = |now| chooser.choose(&mut random, now);
                (records..=records + more).map(of).collect::<Vec<_>>()
            };
            let chosen = run();
            for (now, record) in (records..).zip(&chosen) {
                prop_assert!(*record < now);
            }
            prop_assert_eq!(chosen, run());
        }
    }
}
