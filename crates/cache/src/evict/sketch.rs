//! Approximate recent frequency of keys: a count-min sketch of four-bit counters that are halved periodically.
//!
//! The four counters of a key are in one cache line; the least of them is the estimate. Einziger et al., TinyLFU, ACM
//! TOS 2017.
#![expect(clippy::cast_possible_truncation, reason = "a part of a hash is what is wanted")]

const MOST: u64 = 15;

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Line([u64; 8]);

#[derive(Debug, Default)]
pub(super) struct Sketch {
    lines: Vec<Line>,
    seen: usize,
}

impl Sketch {
    /// Sizes the sketch for about this many keys.
    pub(super) fn fit(&mut self, keys: usize) {
        super::double_until(&mut self.lines, keys.div_ceil(32), || vec![Line::default()]);
    }

    /// The line, and the four counters in it as word and bit.
    fn places(&self, hash: u32) -> (usize, [(usize, u32); 4]) {
        let spread = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let line = ((spread >> 32) * self.lines.len() as u64) >> 32;
        let counter = |n: usize| {
            let bits = (spread >> (n * 7)) as usize & 0x1f;
            (n * 2 + bits / 16, (bits % 16) as u32 * 4)
        };
        (line as usize, core::array::from_fn(counter))
    }

    pub(super) fn count(&self, hash: u32) -> u64 {
        let (line, places) = self.places(hash);
        let Some(line) = self.lines.get(line) else { return 0 };
        places.iter().map(|(word, bit)| line.0[*word] >> bit & MOST).min().unwrap_or(0)
    }

    pub(super) fn add(&mut self, hash: u32) {
        let (line, places) = self.places(hash);
        let Some(line) = self.lines.get_mut(line) else { return };
        for (word, bit) in places {
            if line.0[word] >> bit & MOST < MOST {
                line.0[word] += 1 << bit;
            }
        }
        self.seen += 1;
        if self.seen > self.lines.len() * 32 * 10 {
            self.seen /= 2;
            self.lines
                .iter_mut()
                .flat_map(|line| &mut line.0)
                .for_each(|word| *word = *word >> 1 & 0x7777_7777_7777_7777);
        }
    }
}
