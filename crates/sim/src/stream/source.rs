//! Sources of individual accesses: generators, and recorded access counts by region.

use crate::alias::Alias;
use crate::rng::Rng;

/// Maximal number of pages: 256 GiB of 4 KiB pages.
pub const PAGES_MAX: u32 = 1 << 26;

/// Consecutive pages with a common access weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The first page.
    pub first: u32,
    /// Number of pages.
    pub pages: u32,
    /// Total weight of the span, relative to other spans.
    pub weight: f64,
}

/// Reason why there is no such source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSource {
    /// Too few or too many pages.
    #[error("{0} pages: allowed are 1 to {PAGES_MAX}")]
    Pages(u32),
    /// A share or exponent out of bounds.
    #[error("{0}: allowed is a number from 0 to {1}")]
    Number(&'static str, u32),
    /// A hot set with an invalid size.
    #[error("a hot set of {hot} pages of {pages}: allowed are 1 to all of them")]
    HotSet {
        /// Pages in it.
        hot: u32,
        /// Number of all pages.
        pages: u32,
    },
    /// No recorded snapshot has an access.
    #[error("the trace has no snapshot with an access: nothing to play back")]
    Silent,
}

/// A stream of accesses over pages 0 to `pages`; its distribution may change from epoch to epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pages: u32,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Uniform,
    /// Zipfian, with ranks assigned to pages at random.
    Zipf(Alias),
    /// A share of all accesses goes to a window that moves every `move_epochs` epochs.
    HotSet {
        hot: u32,
        share: f64,
        move_epochs: u64,
    },
    /// Snapshots played in a loop, `epochs_each` epochs each.
    Trace {
        snapshots: Vec<(Vec<Span>, Alias)>,
        epochs_each: u64,
    },
}

impl Source {
    /// Uniform accesses over all pages.
    ///
    /// # Errors
    /// [`NoSource::Pages`] for a number of pages out of bounds.
    pub fn uniform(pages: u32) -> Result<Self, NoSource> {
        Self::with(pages, Kind::Uniform)
    }

    /// Zipf's law: the page of rank r is accessed in proportion to r^-`exponent`; `seed` assigns ranks to pages.
    ///
    /// # Errors
    /// [`NoSource`] for a number out of bounds.
    pub fn zipf(pages: u32, exponent: f64, seed: u64) -> Result<Self, NoSource> {
        if !(0.0..=4.0).contains(&exponent) {
            return Err(NoSource::Number("exponent", 4));
        }
        let mut weights: Vec<f64> =
            (1..=Self::checked(pages)?).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let mut rng = Rng::new(seed);
        for last in (1..pages).rev() {
            weights.swap(last as usize, rng.below(last + 1) as usize);
        }
        let alias = Alias::of(&weights).ok_or(NoSource::Pages(pages))?;
        Self::with(pages, Kind::Zipf(alias))
    }

    /// `share` of all accesses goes to `hot` consecutive pages, which move by their length every `move_epochs` epochs
    /// (0: never); the others are uniform.
    ///
    /// # Errors
    /// [`NoSource`] for a number out of bounds.
    pub fn hot_set(pages: u32, hot: u32, share: f64, move_epochs: u64) -> Result<Self, NoSource> {
        if !(0.0..=1.0).contains(&share) {
            return Err(NoSource::Number("share of the hot set", 1));
        }
        if hot == 0 || hot > pages {
            return Err(NoSource::HotSet { hot, pages });
        }
        Self::with(pages, Kind::HotSet { hot, share, move_epochs })
    }

    /// A recorded trace: snapshots of access weights, played for `epochs_each` epochs each. Spans beyond `pages` and
    /// invalid weights are left out.
    ///
    /// # Errors
    /// [`NoSource`] for a number of pages out of bounds, or if nothing is left to play.
    pub fn trace(pages: u32, snapshots: &[Vec<Span>], epochs_each: u64) -> Result<Self, NoSource> {
        Self::checked(pages)?;
        let sound = |span: &&Span| {
            let end = span.first.checked_add(span.pages);
            span.pages > 0
                && end.is_some_and(|end| end <= pages)
                && span.weight.is_finite()
                && span.weight > 0.0
        };
        let playable = snapshots.iter().filter_map(|spans| {
            let spans: Vec<Span> = spans.iter().filter(sound).copied().collect();
            let weights: Vec<f64> = spans.iter().map(|span| span.weight).collect();
            Alias::of(&weights).map(|alias| (spans, alias))
        });
        let snapshots: Vec<_> = playable.collect();
        if snapshots.is_empty() {
            return Err(NoSource::Silent);
        }
        Self::with(pages, Kind::Trace { snapshots, epochs_each: epochs_each.max(1) })
    }

    fn checked(pages: u32) -> Result<u32, NoSource> {
        if (1..=PAGES_MAX).contains(&pages) { Ok(pages) } else { Err(NoSource::Pages(pages)) }
    }

    fn with(pages: u32, kind: Kind) -> Result<Self, NoSource> {
        Ok(Self { pages: Self::checked(pages)?, kind })
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Draws `accesses` accesses of this epoch and counts each for its page; `counts` has an entry for each page.
    pub fn count(&self, epoch: u64, accesses: u64, rng: &mut Rng, counts: &mut [u32]) {
        match &self.kind {
            Kind::Uniform => tally(accesses, rng, counts, |rng| rng.below(self.pages)),
            Kind::Zipf(alias) => tally(accesses, rng, counts, |rng| alias.draw(rng)),
            Kind::HotSet { hot, share, move_epochs } => {
                let moves = epoch.checked_div(*move_epochs).unwrap_or(0);
                let start = moves.wrapping_mul(u64::from(*hot)) % u64::from(self.pages);
                let (start, pages) = (u32::try_from(start).unwrap_or_default(), self.pages);
                tally(accesses, rng, counts, |rng| {
                    if rng.unit() < *share {
                        let page = start + rng.below(*hot);
                        if page < pages { page } else { page - pages }
                    } else {
                        rng.below(pages)
                    }
                });
            }
            Kind::Trace { snapshots, epochs_each } => {
                let at = (epoch / epochs_each) % snapshots.len() as u64;
                let (spans, alias) = &snapshots[usize::try_from(at).unwrap_or_default()];
                tally(accesses, rng, counts, |rng| {
                    let span = spans[alias.draw(rng) as usize];
                    span.first + rng.below(span.pages)
                });
            }
        }
    }
}

/// The loop itself, instantiated for each kind so that it contains no dispatch.
#[inline]
fn tally(accesses: u64, rng: &mut Rng, counts: &mut [u32], mut page: impl FnMut(&mut Rng) -> u32) {
    for _ in 0..accesses {
        counts[page(rng) as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(source: &Source, epoch: u64, accesses: u64) -> Vec<u32> {
        let mut counts = vec![0; source.pages() as usize];
        source.count(epoch, accesses, &mut Rng::new(1), &mut counts);
        assert_eq!(counts.iter().map(|count| u64::from(*count)).sum::<u64>(), accesses);
        counts
    }

    #[test]
    fn zipf_gives_the_second_page_half_as_much_as_the_first() {
        let mut counts = counts(&Source::zipf(1000, 1.0, 7).unwrap(), 0, 1_000_000);
        counts.sort_unstable();
        let ratio = f64::from(counts[998]) / f64::from(counts[999]);
        assert!((ratio - 0.5).abs() < 0.02, "{ratio}");
        let even = Source::zipf(1000, 0.0, 7).unwrap();
        let mut rng = Rng::new(3);
        let mut all = vec![0; 1000];
        even.count(0, 1_000_000, &mut rng, &mut all);
        assert!(all.iter().all(|count| (800..1200).contains(count)), "exponent 0 is no preference");
    }

    #[test]
    fn a_hot_set_advances_and_wraps_around() {
        let source = Source::hot_set(100, 30, 0.9, 10).unwrap();
        for (epoch, start) in [(0, 0), (9, 0), (10, 30), (30, 90), (40, 20)] {
            let counts = counts(&source, epoch, 100_000);
            let hot: Vec<u32> = (0..30).map(|page| counts[(start + page) % 100]).collect();
            assert!(hot.iter().all(|count| (2700..3500).contains(count)), "epoch {epoch}: {hot:?}");
            let hot: u32 = hot.into_iter().sum();
            // Nine tenths, plus three tenths of the rest.
            assert!((f64::from(hot) / 1e5 - 0.93).abs() < 0.01, "epoch {epoch}: {hot}");
        }
        let still = Source::hot_set(100, 30, 1.0, 0).unwrap();
        assert!(counts(&still, 1 << 40, 1000)[30..].iter().all(|count| *count == 0));
    }

    #[test]
    fn a_trace_is_played_snapshot_by_snapshot() {
        let span = |first, pages, weight| Span { first, pages, weight };
        let first =
            vec![span(0, 10, 3.0), span(50, 10, 1.0), span(95, 10, 9.0), span(0, 1, f64::NAN)];
        let silent = vec![span(0, 10, 0.0)];
        let source = Source::trace(100, &[first, silent, vec![span(20, 5, 1.0)]], 2).unwrap();
        let one = counts(&source, 1, 40_000);
        assert!((f64::from(one[..10].iter().sum::<u32>()) / 40_000.0 - 0.75).abs() < 0.02);
        assert!(one[95..].iter().all(|count| *count == 0), "a span beyond the end is left out");
        assert_eq!(counts(&source, 2, 1000)[20..25].iter().sum::<u32>(), 1000);
        assert_eq!(counts(&source, 4, 1000)[20..25].iter().sum::<u32>(), 0, "over and over");
    }

    #[test]
    fn an_invalid_source_is_rejected() {
        assert_eq!(Source::uniform(0), Err(NoSource::Pages(0)));
        assert_eq!(Source::uniform(PAGES_MAX + 1), Err(NoSource::Pages(PAGES_MAX + 1)));
        assert!(Source::zipf(10, f64::NAN, 1).is_err() && Source::zipf(0, 1.0, 1).is_err());
        assert!(
            Source::hot_set(10, 11, 0.5, 1).is_err() && Source::hot_set(10, 1, 1.5, 1).is_err()
        );
        assert_eq!(Source::trace(10, &[], 1), Err(NoSource::Silent));
        assert_eq!(
            Source::trace(10, &[vec![Span { first: u32::MAX, pages: 9, weight: 1.0 }]], 1),
            Err(NoSource::Silent)
        );
    }
}
