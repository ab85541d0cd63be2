//! The two types of work: a chase, counted in loads, and a stream at a mix, counted in lines read and written.

use nearfar_topology::Mix;

use crate::loops::{self, Chase, LINE, Line};
use crate::pacer::Pacer;
use crate::team::Work;

/// Lines per iteration of the loops.
const GROUP: usize = 8;

impl Work for Chase<'_> {
    fn portion(&mut self, units: u64) -> u64 {
        self.run(units)
    }
}

/// A stream over its own lines, repeated from the start.
///
/// A round of the mix R:W reads (R - W) groups of lines of one array and modifies W groups of another: R reads and W
/// writes per round, because a modified line is read once and written back once.
/// writes a round, since a modified line is read once and written back once.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    read: &'a [Line],
    modify: &'a mut [Line],
    /// Lines of each array in a round.
    round: (usize, usize),
    rounds: usize,
    at: usize,
    /// Lines read and written in a round.
    counted: u64,
    pacer: Pacer,
}

impl<'a> Stream<'a> {
    /// A stream at `mix`, which has no more writes than reads. `None` if there are too few lines for one round.
    pub(crate) fn new(lines: &'a mut [Line], mix: Mix, pacer: Pacer) -> Option<Self> {
        let (reads, writes) = (usize::from(mix.reads()), usize::from(mix.writes()));
        let round = (reads.checked_sub(writes)? * GROUP, writes * GROUP);
        let rounds = lines.len() / (round.0 + round.1);
        let (read, modify) = lines.split_at_mut(rounds * round.0);
        let counted = Self::burst_lines(mix);
        (rounds > 0).then_some(Self { read, modify, round, rounds, at: 0, counted, pacer })
    }

    /// Lines read and written in a round of `mix`, the unit of a pacer.
    pub(crate) fn burst_lines(mix: Mix) -> u64 {
        (u64::from(mix.reads()) + u64::from(mix.writes())) * GROUP as u64
    }

    fn one_round(&mut self) {
        let (reads, writes) = self.round;
        loops::read(&self.read[self.at * reads..][..reads]);
        loops::modify(&mut self.modify[self.at * writes..][..writes]);
        self.at = if self.at + 1 == self.rounds { 0 } else { self.at + 1 };
    }
}

impl Work for Stream<'_> {
    fn portion(&mut self, units: u64) -> u64 {
        let rounds = units.div_ceil(self.counted);
        let spins = self.pacer.spins();
        for _ in 0..rounds {
            self.one_round();
            if spins > 0 {
                loops::spin(spins);
            }
        }
        rounds * self.counted
    }

    fn took(&mut self, units: u64, elapsed_ns: u64) {
        self.pacer.took(units / self.counted, elapsed_ns);
    }
}

/// Divides `lines` into `count` equal parts; the remainder stays unused.
pub(crate) fn parts(lines: &mut [Line], count: usize) -> impl Iterator<Item = &mut [Line]> {
    // Whole pages, so that no two streams share one.
    const PAGE_LINES: usize = 4096 / LINE;
    let each = (lines.len() / count.max(1) / PAGE_LINES * PAGE_LINES).max(1);
    lines.chunks_exact_mut(each).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn touched(lines: &[Line]) -> usize {
        lines.iter().filter(|line| line.0[0] > 0).count()
    }

    proptest! {
        #[test]
        fn a_pass_modifies_the_mixs_share_of_lines_once_and_counts_reads_and_writes(
            (reads, writes) in (1u16..6).prop_flat_map(|reads| (Just(reads), 0..=reads)), extra in 0usize..40,
        ) {
            let mix = Mix::new(reads, writes).unwrap();
            let (r, w) = (usize::from(mix.reads()), usize::from(mix.writes()));
            let mut lines = vec![Line::default(); r * GROUP * 5 + extra.min(r * GROUP - 1)];
            let mut stream = Stream::new(&mut lines, mix, Pacer::FLAT_OUT).unwrap();
            let counted = stream.portion((5 * (r + w) * GROUP) as u64);
            prop_assert_eq!(counted, (5 * (r + w) * GROUP) as u64);
            prop_assert_eq!(touched(&lines), 5 * w * GROUP);
            prop_assert!(lines.iter().all(|line| line.0[0] <= 1), "none twice in one pass");
        }
    }

    #[test]
    fn a_stream_starts_over_at_its_end() {
        let mut lines = vec![Line::default(); 3 * GROUP];
        let mut stream = Stream::new(&mut lines, Mix::ONE_TO_ONE, Pacer::FLAT_OUT).unwrap();
        stream.portion(7 * 2 * GROUP as u64);
        let times: Vec<u64> = lines.chunks(GROUP).map(|group| group[0].0[0]).collect();
        assert_eq!(times, [3, 2, 2]);
    }

    #[test]
    fn too_few_lines_or_too_many_writes_give_no_stream() {
        let mut lines = vec![Line::default(); GROUP - 1];
        assert!(Stream::new(&mut lines, Mix::READS, Pacer::FLAT_OUT).is_none());
        let mut lines = vec![Line::default(); 1000];
        assert!(Stream::new(&mut lines, "1:2".parse().unwrap(), Pacer::FLAT_OUT).is_none());
    }

    #[test]
    fn parts_consist_of_disjoint_whole_pages() {
        let mut lines = vec![Line::default(); 1000];
        let sizes: Vec<usize> = parts(&mut lines, 3).map(|part| part.len()).collect();
        assert_eq!(sizes, [320, 320, 320]);
    }
}
