//! Popularity of keys from a table of objects and requests, as in cachebench's popularity files.
//!
//! A row of the table is a number of objects and their number of requests, most popular first. Its objects are
//! stretched over the workload's keys, its requests divided into [`BUCKETS`] buckets of equal weight; a key is drawn by
//! a uniform bucket, then uniformly within that. A bucket's edges may lie within an object, so that one with more than
//! a bucket's share keeps all of it (cachebench rounds each bucket up to a whole object, which spreads such an object
//! over several keys).

use super::Unusable;
use crate::random::Random;

/// Buckets of equal weight.
pub const BUCKETS: usize = 2048;
/// Name for errors.
const WHAT: &str = "popularity";

/// The edges of buckets, in keys: one more than the number of buckets.
#[derive(Clone, Debug)]
pub struct Buckets {
    edges: Vec<f64>,
    keys: u64,
}

impl Buckets {
    /// From numbers of objects and of requests, over this many keys.
    ///
    /// # Errors
    /// The lists have different lengths, or invalid numbers.
    pub fn new(objects: &[f64], requests: &[f64], keys: u64) -> Result<Self, Unusable> {
        if objects.len() != requests.len() || objects.is_empty() {
            let (values, weights) = (objects.len(), requests.len());
            return Err(Unusable::Lengths { what: WHAT, values, weights });
        }
        if !(1..=super::synthetic::KEYS_MAX).contains(&keys) {
            return Err(Unusable::Keys(keys));
        }
        let wrong = |found| Unusable::Weight { what: WHAT, found };
        for number in objects.iter().chain(requests) {
            if !number.is_finite() || *number < 0.0 {
                return Err(wrong(*number));
            }
        }
        let (objects_all, requests_all): (f64, f64) = (objects.iter().sum(), requests.iter().sum());
        for sum in [objects_all, requests_all] {
            if !sum.is_finite() || sum <= 0.0 {
                return Err(wrong(sum));
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53, checked above")]
        let scale = keys as f64 / objects_all;
        let edges = cut(objects, requests, requests_all);
        Ok(Self { edges: edges.into_iter().map(|edge| edge * scale).collect(), keys })
    }

    /// Draws a key's number.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let bucket = usize::try_from(random.below(BUCKETS as u64)).unwrap_or(0);
        let (from, to) = (self.edges[bucket], self.edges[bucket + 1]);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "edges are 0 to keys; a float out of range becomes the nearest there is"
        )]
        let key = (from + random.unit() * (to - from)) as u64;
        key.min(self.keys - 1)
    }
}

/// Start of each bucket, in objects, and end of the last.
fn cut(objects: &[f64], requests: &[f64], requests_all: f64) -> Vec<f64> {
    let share = requests_all / BUCKETS as f64;
    let mut edges = Vec::with_capacity(BUCKETS + 1);
    edges.push(0.0);
    // Sums over the rows before the current one.
    let (mut objects_before, mut requests_before) = (0.0, 0.0);
    for (count, weight) in objects.iter().zip(requests) {
        while edges.len() < BUCKETS {
            let due = share * edges.len() as f64;
            if due > requests_before + weight {
                break;
            }
            let within = if *weight > 0.0 { (due - requests_before) / weight } else { 0.0 };
            edges.push(objects_before + within.clamp(0.0, 1.0) * count);
        }
        objects_before += count;
        requests_before += weight;
    }
    // Rows without requests at the end are never drawn.
    edges.resize(BUCKETS, objects_before);
    let drawn = requests.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
    edges.push(objects[..=drawn].iter().sum());
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drawn(buckets: &Buckets, keys: usize, times: u32) -> Vec<u32> {
        let (mut random, mut drawn) = (Random::new(5), vec![0; keys]);
        for _ in 0..times {
            drawn[usize::try_from(buckets.draw(&mut random)).unwrap()] += 1;
        }
        drawn
    }

    #[test]
    fn keys_are_drawn_in_proportion_to_the_tables_weights() {
        // One object with half of all requests, ten with a quarter, a hundred with a quarter.
        let buckets = Buckets::new(&[1.0, 10.0, 100.0], &[50.0, 25.0, 25.0], 111).unwrap();
        let drawn = drawn(&buckets, 111, 100_000);
        assert!((49_000..51_000).contains(&drawn[0]), "{}", drawn[0]);
        let [ten, rest]: [u32; 2] = [drawn[1..11].iter().sum(), drawn[11..].iter().sum()];
        assert!((24_000..26_000).contains(&ten) && (24_000..26_000).contains(&rest));
        assert!(drawn[1..11].iter().all(|count| (2200..2800).contains(count)), "{drawn:?}");
    }

    #[test]
    fn a_table_is_scaled_to_the_keys_of_the_workload() {
        let table = |keys| Buckets::new(&[1.0, 3.0], &[3.0, 1.0], keys).unwrap();
        let drawn = drawn(&table(400), 400, 40_000);
        let first: u32 = drawn[..100].iter().sum();
        assert!((29_300..30_700).contains(&first), "{first}");
        assert!(drawn.iter().all(|count| *count > 0));
        // Fewer keys than objects: none is out of range.
        assert_eq!(super::tests::drawn(&table(1), 1, 10), [10]);
    }

    #[test]
    fn invalid_tables_are_refused() {
        assert!(Buckets::new(&[1.0], &[], 1).is_err() && Buckets::new(&[], &[], 1).is_err());
        assert!(
            Buckets::new(&[1.0], &[-1.0], 1).is_err() && Buckets::new(&[0.0], &[1.0], 1).is_err()
        );
        assert!(Buckets::new(&[1.0], &[f64::INFINITY], 1).is_err());
        assert_eq!(Buckets::new(&[1.0], &[1.0], 0).unwrap_err(), Unusable::Keys(0));
    }

    proptest! {
        #[test]
        fn edges_are_sorted_and_draws_stay_below_the_number_of_keys(
            rows in prop::collection::vec((0.0..1e6f64, 0.0..1e9f64), 1..40), keys in 1u64..1 << 45,
        ) {
            let (objects, requests): (Vec<f64>, Vec<f64>) = rows.into_iter().unzip();
            prop_assume!(objects.iter().sum::<f64>() > 0.0 && requests.iter().sum::<f64>() > 0.0);
            let buckets = Buckets::new(&objects, &requests, keys).unwrap();
            prop_assert_eq!(buckets.edges.len(), BUCKETS + 1);
            prop_assert!(buckets.edges.is_sorted_by(|a, b| a <= &(b * (1.0 + 1e-9))), "{:?}", buckets.edges);
            prop_assert!(buckets.draw(&mut Random::new(1)) < keys);
        }
    }
}
