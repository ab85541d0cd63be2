//! Finds the one node that uses a part of memory (its owner) from samples: nearly all are of that node, and hardly by
//! chance.
//!
//! If four nodes use memory alike, three samples are of one node in six cases of a hundred; if two do, in 25. All
//! parts of a process together show how much of its memory is owned: among parts with a few samples, more agree than
//! would by chance. A part has an owner if that is [`SURE`] times as likely as chance (Bayes' rule, with the owned
//! share as the prior). If a single node uses the memory of a process, nothing has to be proved, and fewer samples are
//! enough ([`fewest`]).

/// Least number of samples that can show an owner,
const TELLS: u64 = 3;
/// and the percentage of them that must be of one node.
const NEARLY: u64 = 90;
/// Least ratio of the likelihoods of ownership and chance.
const SURE: f64 = 4.0;
/// Lower limit of the owned share of a process's parts.
const OWNED_LEAST: f64 = 0.01;
/// From this owned share on, another part probably has an owner, too.
const MOSTLY: f64 = 0.5;

/// Statistics of all parts of a process, by which each is judged.
#[derive(Clone, Debug)]
pub(super) struct Owners {
    /// The share of samples by the place of the requesting node.
    mix: Vec<f64>,
    /// The share of parts with an owner.
    owned: f64,
    /// Number of samples that shows the owner of a part: at most [`TELLS`].
    tells: u64,
}

impl Owners {
    /// Statistics of parts, each given as samples by the place of the requesting node.
    pub(super) fn of<'a>(parts: impl Iterator<Item = &'a [u64]> + Clone) -> Self {
        let mut by: Vec<u64> = Vec::new();
        for part in parts.clone() {
            by.resize(part.len().max(by.len()), 0);
            by.iter_mut().zip(part).for_each(|(sum, samples)| *sum += samples);
        }
        let all: u64 = by.iter().sum();
        let mix = by.iter().map(|one| real(*one) / real(all.max(1))).collect();
        let mut this = Self { mix, owned: 1.0, tells: TELLS };
        if by.iter().any(|one| *one * 100 >= all * NEARLY) {
            // One node owns all of it. If no other uses any of it, nothing has to be proved.
            if by.contains(&all) {
                this.tells = fewest(all, &parts);
            }
            return this;
        }
        let (mut told, mut agree, mut chance) = (0.0, 0.0, 0.0);
        for part in parts {
            if part.iter().sum::<u64>() >= TELLS {
                told += 1.0;
                agree += f64::from(u8::from(nearly(part, TELLS).is_some()));
                chance += this.by_chance(part.iter().sum());
            }
        }
        if told > 0.0 {
            this.owned = ((agree - chance) / (told - chance)).clamp(OWNED_LEAST, 1.0);
        }
        this
    }

    /// The place of the node that owns a part; `None` if it is shared or unknown.
    pub(super) fn owner(&self, part: &[u64]) -> Option<usize> {
        let (place, samples) = nearly(part, self.tells)?;
        let chance = (1.0 - self.owned) * self.by_chance(samples);
        (self.owned >= SURE * chance).then_some(place)
    }

    /// Whether a part may have an owner that is not proved yet: most parts have one, and its samples agree.
    pub(super) fn may_be_owned(&self, part: &[u64]) -> bool {
        let (all, most) = (part.iter().sum::<u64>(), part.iter().copied().max().unwrap_or(0));
        self.owned >= MOSTLY && most * 100 >= all * NEARLY && self.owner(part).is_none()
    }

    /// The probability that all samples of shared memory are of one node.
    fn by_chance(&self, samples: u64) -> f64 {
        let samples = i32::try_from(samples).unwrap_or(i32::MAX);
        self.mix.iter().map(|share| share.powi(samples)).sum()
    }
}

/// The number of samples, up to [`TELLS`], that parts with at least half of all samples have: if memory is large for the
/// sampling rate, few parts would have more. Parts with fewer samples are not the hottest.
fn fewest<'a>(all: u64, parts: &(impl Iterator<Item = &'a [u64]> + Clone)) -> u64 {
    let with = |least: u64| -> u64 {
        let samples = parts.clone().map(|part| part.iter().sum::<u64>());
        samples.filter(|samples| *samples >= least).sum()
    };
    (1..=TELLS).rev().find(|least| with(*least) * 2 >= all).unwrap_or(1)
}

/// The place of the node with nearly all samples, if these are enough, and the number of its samples.
fn nearly(part: &[u64], tells: u64) -> Option<(usize, u64)> {
    let all: u64 = part.iter().sum();
    let (place, most) = part.iter().enumerate().max_by_key(|(_, samples)| **samples)?;
    (all >= tells && *most * 100 >= all * NEARLY).then_some((place, *most))
}

#[expect(clippy::cast_precision_loss, reason = "samples are few")]
const fn real(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owners(parts: &[Vec<u64>]) -> Vec<Option<usize>> {
        let owners = Owners::of(parts.iter().map(Vec::as_slice));
        parts.iter().map(|part| owners.owner(part)).collect()
    }

    /// A part with that number of samples; `of` returns the node of each.
    fn part(samples: u64, of: impl Fn(u64) -> usize) -> Vec<u64> {
        let mut part = vec![0; 4];
        (0..samples).for_each(|sample| part[of(sample)] += 1);
        part
    }

    /// A pseudo-random node of four.
    pub(in super::super) fn any(seed: u64) -> usize {
        usize::try_from(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62).unwrap_or(0)
    }

    #[test]
    fn three_agreeing_samples_suffice_if_all_parts_have_owners() {
        let parts: Vec<_> = (0..40_usize).map(|index| part(3, |_| index % 4)).collect();
        assert!(owners(&parts).iter().enumerate().all(|(at, owner)| *owner == Some(at % 4)));
        assert_eq!(owners(&[vec![2, 0], vec![0, 2]]), [None; 2]);
        // One node owns all, except for a page now and then.
        let mut parts = vec![vec![5, 0]; 99];
        parts.push(vec![2, 2]);
        assert_eq!(owners(&parts)[..2], [Some(0); 2]);
        assert_eq!(owners(&[]), []);
    }

    #[test]
    fn with_a_single_user_few_samples_establish_ownership() {
        let owned = |samples: &[u64]| -> Vec<bool> {
            let parts: Vec<_> = samples.iter().map(|one| vec![*one, 0]).collect();
            owners(&parts).iter().map(Option::is_some).collect()
        };
        assert_eq!(owned(&[3, 2, 1]), [true, false, false]);
        assert_eq!(owned(&[2, 2, 1, 1, 1]), [true, true, false, false, false]);
        assert_eq!(owned(&[1, 1, 0]), [true, true, false]);
        // A single sample of another node, and owners have to be proved.
        let mut parts = vec![vec![2, 0]; 99];
        parts.push(vec![0, 1]);
        assert_eq!(owners(&parts), [None; 100]);
    }

    #[test]
    fn shared_memory_is_rarely_attributed_to_one_owner() {
        for samples in 3..12 {
            let parts: Vec<_> =
                (0..4000).map(|index| part(samples, |sample| any(index * 100 + sample))).collect();
            let owned = owners(&parts).iter().flatten().count();
            assert!(owned <= 40, "{owned} of 4000 by {samples} samples");
        }
    }

    #[test]
    fn rare_owned_parts_are_found_with_more_samples() {
        let mut parts: Vec<_> =
            (0..950).map(|index| part(8, |sample| any(index * 100 + sample))).collect();
        parts.extend((0..50).map(|_| part(8, |_| 2)));
        let owners = owners(&parts);
        assert_eq!(owners[950..], [Some(2); 50]);
        assert!(owners[..950].iter().flatten().count() < 5);
    }

    #[test]
    fn in_mostly_owned_memory_agreeing_samples_defer_the_decision() {
        let mut parts: Vec<_> = (0..40_usize).map(|index| part(3, |_| index % 4)).collect();
        parts.extend([vec![0, 2, 0, 0], vec![1, 1, 0, 0], vec![0; 4]]);
        let owners = Owners::of(parts.iter().map(Vec::as_slice));
        let waits: Vec<_> = parts[39..].iter().map(|part| owners.may_be_owned(part)).collect();
        assert_eq!(waits, [false, true, false, true]);
        // In shared memory, two samples agree by chance.
        let shared: Vec<_> = (0..400)
            .map(|index| part(2 + 4 * (index % 2), |sample| any(index * 100 + sample)))
            .collect();
        let owners = Owners::of(shared.iter().map(Vec::as_slice));
        assert!(!shared.iter().any(|part| owners.may_be_owned(part)));
    }

    proptest! {
        #[test]
        fn any_samples_are_accepted_without_panic(parts in prop::collection::vec(
            prop::collection::vec(0..u64::from(u32::MAX), 0..5), 0..20)) {
            for (owner, part) in owners(&parts).iter().zip(&parts) {
                if let Some(owner) = owner {
                    prop_assert!(part[*owner] * 10 >= part.iter().sum::<u64>() * 9);
                }
            }
        }
    }
}
