//! Heat of pages, estimated from samples: counts are halved as new samples arrive, so that former heat decays.

use super::Sample;

/// Counts by page.
#[derive(Clone, Debug, PartialEq)]
pub struct Heat {
    counts: Vec<f64>,
    sum: f64,
    since: f64,
    /// Samples after which counts are halved.
    half_life: f64,
}

impl Heat {
    /// No samples of `pages` pages yet.
    #[must_use]
    pub fn new(pages: usize, half_life: f64) -> Self {
        Self { counts: vec![0.0; pages], sum: 0.0, since: 0.0, half_life }
    }

    /// Adds samples.
    pub fn add(&mut self, samples: &[Sample]) {
        for sample in samples {
            if let Some(count) = self.counts.get_mut(sample.page as usize) {
                *count += 1.0;
                self.sum += 1.0;
                self.since += 1.0;
            }
        }
        if self.since >= self.half_life {
            self.counts.iter_mut().for_each(|count| *count *= 0.5);
            (self.sum, self.since) = (0.5 * self.sum, 0.0);
        }
    }

    /// A page's share of all accesses.
    #[must_use]
    pub fn share(&self, page: usize) -> f64 {
        if self.sum > 0.0 {
            self.counts.get(page).copied().unwrap_or_default() / self.sum
        } else {
            0.0
        }
    }

    /// The share of all accesses that goes to pages on `node`, these being on the nodes `on`.
    #[must_use]
    pub fn share_of_node(&self, node: usize, on: &[u16]) -> f64 {
        let counts = self.counts.iter().zip(on).filter(|(_, at)| usize::from(**at) == node);
        let there: f64 = counts.map(|(count, _)| count).sum();
        if self.sum > 0.0 { there / self.sum } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_recent_samples_and_old_ones_decay() {
        let mut heat = Heat::new(2, 100.0);
        let seen = |page| vec![Sample { page, row: 0, write: false }; 100];
        assert!(heat.share(0).abs() < 1e-12, "nothing was seen");
        heat.add(&seen(0));
        assert!((heat.share(0) - 1.0).abs() < 1e-12);
        (0..5).for_each(|_| heat.add(&seen(1)));
        assert!(heat.share(0) < 0.05 && heat.share_of_node(3, &[0, 3]) > 0.95);
        heat.add(&seen(7));
        assert!(heat.share(7).abs() < 1e-12, "a page that is not there");
    }
}
