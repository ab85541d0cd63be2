//! For tests: sources with known bytes, destinations with gaps between that must stay as they are, and jobs from one to the
//! other.
#![expect(unsafe_code, reason = "jobs are made of memory that the test owns")]

use super::{Copier, Failure, Job, Outcome};

const GAP: usize = 64;
const UNTOUCHED: u8 = 0xee;

/// Sources and destinations.
pub(super) struct Memory {
    sources: Vec<u8>,
    destinations: Vec<u8>,
    /// Where each begins in both, and how long it is.
    spans: Vec<(usize, usize, usize)>,
    overlap: Option<(usize, usize)>,
    node: Option<u32>,
}

fn content(item: usize, at: usize) -> u8 {
    (item.wrapping_mul(131) ^ at.wrapping_mul(7) ^ (at >> 8)).to_le_bytes()[0]
}

impl Memory {
    pub(super) fn new(lengths: &[usize]) -> Self {
        Self::shifted(lengths, 0, 0)
    }

    /// Items begin so many bytes after a line: the sources, the destinations.
    pub(super) fn shifted(lengths: &[usize], source: usize, destination: usize) -> Self {
        let total: usize = lengths.iter().map(|length| length + 3 * GAP).sum::<usize>() + 4 * GAP;
        let (mut sources, destinations) = (vec![0; total], vec![UNTOUCHED; total]);
        let base = |memory: &Vec<u8>| memory.as_ptr().addr().wrapping_neg() % GAP;
        let (from, to) = (base(&sources) + source, base(&destinations) + GAP + destination);
        let mut at = 0;
        let mut spans = Vec::new();
        for (item, length) in lengths.iter().enumerate() {
            spans.push((from + at, to + at, *length));
            for byte in 0..*length {
                sources[from + at + byte] = content(item, byte);
            }
            at += length.next_multiple_of(GAP) + GAP;
        }
        Self { sources, destinations, spans, overlap: None, node: None }
    }

    /// All jobs say that their destination is on this node.
    pub(super) fn on_node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Has item `item`'s destination begin `by` bytes after its source.
    pub(super) fn overlap(&mut self, item: usize, by: usize) {
        self.overlap = Some((item, by));
    }

    pub(super) fn jobs(&mut self) -> Vec<Job> {
        let (from, to) = (self.sources.as_mut_ptr(), self.destinations.as_mut_ptr());
        let spans = self.spans.iter().enumerate();
        spans
            .map(|(item, (source, destination, length))| {
                let destination = match self.overlap {
                    Some((overlapping, by)) if overlapping == item => {
                        from.wrapping_add(source + by)
                    }
                    _ => to.wrapping_add(*destination),
                };
                // SAFETY: `new` made both buffers large enough for all spans, which are apart, and gaps after each, into which
                // an overlapping job reaches; nobody else is at them while jobs are, and tests keep them until jobs are settled.
                let job = unsafe { Job::new(from.wrapping_add(*source), destination, *length) };
                match self.node {
                    Some(node) => job.to_node(node),
                    None => job,
                }
            })
            .collect()
    }

    pub(super) fn copy(&mut self, copier: &mut dyn Copier) -> Vec<Outcome> {
        let jobs = self.jobs();
        let mut outcomes = vec![Outcome::Failed(Failure::Overlap)];
        copier.copy(&jobs, &mut outcomes);
        outcomes
    }

    /// Each job that is done arrived whole, sources are as they were, and nothing beside destinations was written.
    pub(super) fn assert_copied(&self, outcomes: &[Outcome]) {
        assert_eq!(outcomes.len(), self.spans.len(), "an outcome for each job");
        let mut expected = vec![UNTOUCHED; self.destinations.len()];
        for (item, (source, destination, length)) in self.spans.iter().enumerate() {
            let is_content = |(at, byte): (usize, &u8)| *byte == content(item, at);
            assert!(self.sources[*source..source + length].iter().enumerate().all(is_content));
            let to = *destination..destination + length;
            match outcomes[item] {
                Outcome::Done
                    if self.overlap.is_none_or(|(overlapping, _)| overlapping != item) =>
                {
                    expected[to]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(at, byte)| *byte = content(item, at));
                }
                Outcome::Failed(Failure::Unfinished) => {
                    expected[to.clone()].copy_from_slice(&self.destinations[to]);
                }
                _ => {}
            }
        }
        let wrong = expected.iter().zip(&self.destinations).position(|(one, other)| one != other);
        assert_eq!(
            wrong, None,
            "the first byte that is not as it should be; spans {:?}",
            self.spans
        );
    }

    /// Whether the destination of an item has not been written at all.
    pub(super) fn is_untouched(&self, item: usize) -> bool {
        let (_, destination, length) = self.spans[item];
        self.destinations[destination..destination + length].iter().all(|byte| *byte == UNTOUCHED)
    }

    /// Whether the destination of an item has all its bytes.
    pub(super) fn is_copied(&self, item: usize) -> bool {
        let (_, destination, length) = self.spans[item];
        let there = self.destinations[destination..destination + length].iter().enumerate();
        there.clone().all(|(at, byte)| *byte == content(item, at))
    }
}
