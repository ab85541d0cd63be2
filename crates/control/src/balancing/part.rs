//! A sampled page's use, and the unit of memory that is judged and moved: a huge page, a block of small ones, or one.

use nearfar_policy::traffic::balance::Candidate;
use nearfar_policy::traffic::{PAGE, PIECES, Page};
use nearfar_topology::{Bytes, NodeId};

use super::turns::Home;

/// The samples of a page.
#[derive(Clone, Debug)]
pub(super) struct Heat {
    pub(super) node: NodeId,
    pub(super) huge: bool,
    /// Samples by the place of the requesting node.
    pub(super) by: Vec<u32>,
}

impl Heat {
    pub(super) fn all(&self) -> u64 {
        self.by.iter().map(|samples| u64::from(*samples)).sum()
    }
}

/// The unit of memory that is judged and moved: a huge page, a block of small ones, or one.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Its first page, and the number of pages.
    pub(super) first: Page,
    pub(super) pages: u64,
    pub(super) huge: bool,
    /// Samples by the place of the requesting node.
    pub(super) by: Vec<u64>,
    /// The place of the node that owns it; `None` if it is shared.
    pub(super) owner: Option<usize>,
    /// It counts as shared but may have an owner: it stays in place until there are more samples.
    pub(super) waits: bool,
    /// The sampled pages: their numbers, nodes and samples.
    pub(super) sampled: Vec<(u64, NodeId, u64)>,
}

impl Part {
    pub(super) fn of(first: Page, pages: u64, sampled: Sampled<'_>) -> Self {
        let by = asked(sampled);
        let huge = sampled.iter().any(|(_, heat)| heat.huge);
        let one = |(page, heat): &(&Page, &Heat)| (page.number, heat.node, heat.all());
        let sampled = sampled.iter().map(one).collect();
        Self { first, pages, huge, by, owner: None, waits: false, sampled }
    }

    pub(super) const fn bytes(&self) -> Bytes {
        Bytes(self.pages * PAGE)
    }

    /// The amount that should leave a node, of the whole part or of its pages with this home, estimated from the
    /// sampled pages: those with that home, else those that should leave, else any. `None` if none of them is on the
    /// node.
    pub(super) fn leaves(&self, node: NodeId, home: Option<&Home>) -> Option<Candidate> {
        // Three kinds of pages; of each the number sampled, the number on the node, and the samples of the latter.
        let mut kinds = [(0, 0, 0); 3];
        for (number, on, samples) in &self.sampled {
            let tells = home.map_or([true; 3], |home| {
                let at = home.at(self.turn(*number));
                [at == home.of, at != home.from, true]
            });
            for ((told, there, sum), _) in kinds.iter_mut().zip(tells).filter(|(_, tells)| *tells) {
                *told += 1;
                if on == &node {
                    (*there, *sum) = (*there + 1, *sum + samples);
                }
            }
        }
        let (told, there, accesses) = kinds.into_iter().find(|(told, ..)| *told > 0)?;
        let ours = self.pages_of(home).count() as u64;
        let pages = (ours * there).div_ceil(told);
        let bytes = Bytes(pages * if self.huge { PAGE * PIECES } else { PAGE });
        // Pages with different homes are separate candidates, and back off separately.
        let page = self.pages_of(home).next()?;
        (pages > 0).then_some(Candidate { page, bytes, accesses: accesses.max(1) })
    }

    /// The pages to move, all or those with one home. The first page of a huge one represents it.
    pub(super) fn pages_of(&self, home: Option<&Home>) -> impl Iterator<Item = Page> + use<> {
        let (first, home) = (self.first, home.copied());
        let (pages, by) = if self.huge { (1, PIECES) } else { (self.pages, 1) };
        (first.number..first.number + pages)
            .filter(move |number| home.is_none_or(|home| home.at(number / by) == home.of))
            .map(move |number| Page { number, ..first })
    }

    /// The node and the samples of each sampled page.
    pub(super) fn on(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.sampled.iter().map(|(_, node, samples)| (*node, *samples))
    }

    /// Whether it is one page, which moves as a whole.
    pub(super) const fn goes_whole(&self) -> bool {
        self.huge || self.pages == 1
    }

    /// The number of a page in units of its size.
    const fn turn(&self, number: u64) -> u64 {
        if self.huge { number / PIECES } else { number }
    }
}

/// Sampled pages, in order.
pub(super) type Sampled<'a> = &'a [(&'a Page, &'a Heat)];

/// Sums of samples by the place of the requesting node.
pub(super) fn asked(sampled: Sampled<'_>) -> Vec<u64> {
    let mut by = vec![0; sampled.first().map_or(0, |(_, heat)| heat.by.len())];
    for (_, heat) in sampled {
        by.iter_mut().zip(&heat.by).for_each(|(sum, more)| *sum += u64::from(*more));
    }
    by
}
