//! Regions for the policy, out of samples: pages that the CPUs of one node use, by node, and pages that several use.
//!
//! Every other sample says which pages are hot and whose they are; the others say how much these have. Were it the same
//! samples, pages that look hottest would be so by chance in part, and moving them would move less than was thought.
//!
//! A page is a row's own if nine tenths of its samples are that row's. What all of a region would be to move, hottest first,
//! is twice the hottest pages that have half of its accesses. A node can serve at most what the hottest pages have that fit
//! what is free there and what we have there. A huge page counts as one, by its first piece.

use std::collections::BTreeMap;

use nearfar_policy::traffic::balance::Region;
use nearfar_topology::Bytes;

use super::super::{Readings, Sample};
use super::part;

/// Samples that halve as new ones come.
#[derive(Debug)]
pub(super) struct Heat {
    /// What pages are chosen by, by page and row.
    chosen: Vec<f64>,
    /// What they are measured by.
    measured: Vec<f64>,
    rows: usize,
    since: f64,
    half_life: f64,
    /// Whether the next sample measures.
    measures: bool,
}

/// Samples after which counts are halved, and how many there are for each page at least.
const HALF_LIFE: f64 = 100_000.0;
const OF_A_PAGE: f64 = 16.0;
/// A row with so much of a page's samples has it alone.
const ALONE: f64 = 0.9;
/// Of less of all accesses no region is made: few samples look like one row's by chance.
const REGION_LEAST: f64 = 0.02;

impl Heat {
    pub(super) fn new(pages: usize, rows: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a count of pages")]
        let half_life = HALF_LIFE.max(OF_A_PAGE * pages as f64);
        let none = vec![0.0; pages * rows];
        let (chosen, measured) = (none.clone(), none);
        Self { chosen, measured, rows, since: 0.0, half_life, measures: false }
    }

    pub(super) fn add(&mut self, samples: &[Sample]) {
        for sample in samples {
            let at = sample.page as usize * self.rows + usize::from(sample.row);
            let counts = if self.measures { &mut self.measured } else { &mut self.chosen };
            if let Some(count) = counts.get_mut(at) {
                (*count, self.since) = (*count + 1.0, self.since + 1.0);
            }
            self.measures = !self.measures;
        }
        if self.since >= self.half_life {
            self.chosen.iter_mut().chain(&mut self.measured).for_each(|count| *count *= 0.5);
            self.since = 0.0;
        }
    }

    /// What pages are chosen by and measured by, by row, of all these together.
    fn sum(&self, pages: std::ops::Range<usize>, sums: &mut [Vec<f64>; 2]) {
        for (counts, sums) in [&self.chosen, &self.measured].into_iter().zip(sums) {
            sums.fill(0.0);
            for page in pages.clone() {
                let own = &counts[page * self.rows..(page + 1) * self.rows];
                sums.iter_mut().zip(own).for_each(|(sum, count)| *sum += count);
            }
        }
    }
}

/// A page as it may move.
#[derive(Clone, Copy, Debug)]
pub(super) struct One {
    pub(super) page: u32,
    pub(super) bytes: u64,
    /// How hot it is, to choose by.
    pub(super) looks: f64,
    /// And how hot it is measured to be.
    heat: f64,
    node: usize,
}

/// A region, and its pages, hottest for their size first.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) region: Region,
    pages: Vec<One>,
    heat: f64,
}

impl Class {
    /// The hottest pages on a node that have this share of the region's accesses together, or the first of them.
    pub(super) fn hottest(&self, node: usize, share: f64) -> impl Iterator<Item = &One> {
        let mut left = share * self.heat;
        self.pages.iter().filter(move |one| one.node == node && one.looks > 0.0).filter(
            move |one| {
                // What is hotter than what is to go would overshoot.
                let fits = one.heat <= left * 1.5;
                left -= if fits { one.heat } else { 0.0 };
                fits
            },
        )
    }

    /// Pages on a node, coldest first, that are colder than the region is on average.
    pub(super) fn coldest(&self, node: usize) -> impl Iterator<Item = &One> {
        let bytes = self.pages.iter().map(|one| one.bytes).sum::<u64>();
        #[expect(clippy::cast_precision_loss, reason = "bytes, for a mean")]
        let mean = self.pages.iter().map(|one| one.looks).sum::<f64>() / bytes.max(1) as f64;
        self.pages.iter().rev().filter(move |one| one.node == node && one.density() < mean)
    }

    /// These are somewhere else from now on.
    pub(super) fn gone(&mut self, pages: &BTreeMap<u32, u16>) {
        for one in &mut self.pages {
            one.node = pages.get(&one.page).map_or(one.node, |to| usize::from(*to));
        }
    }

    /// What we have on a node.
    pub(super) fn on_node(&self, node: usize) -> Bytes {
        Bytes(self.pages.iter().filter(|one| one.node == node).map(|one| one.bytes).sum())
    }
}

impl One {
    #[expect(clippy::cast_precision_loss, reason = "bytes of a page")]
    fn density(&self) -> f64 {
        self.looks / self.bytes.max(1) as f64
    }
}

/// Classes by what was sampled; pages that wait to be moved count where they will be.
pub(super) fn of(heat: &Heat, readings: &Readings<'_>, pending: &BTreeMap<u32, u16>) -> Vec<Class> {
    let (on, rows) = (readings.on(), heat.rows);
    let mut pages: Vec<Vec<One>> = vec![Vec::new(); rows + 1];
    let mut by = vec![vec![0.0; rows]; rows + 1];
    let mut sums = [vec![0.0; rows], vec![0.0; rows]];
    let mut page = 0;
    while page < on.len() {
        let whole = readings.whole(page);
        heat.sum(whole.clone(), &mut sums);
        let [looks, measured] = &sums;
        let all: f64 = looks.iter().sum();
        let alone = looks.iter().position(|count| all > 0.0 && *count >= ALONE * all);
        let class = if rows > 1 { alone.unwrap_or(rows) } else { rows };
        by[class].iter_mut().zip(measured).for_each(|(sum, count)| *sum += count);
        let number = u32::try_from(page).unwrap_or(u32::MAX);
        pages[class].push(One {
            page: number,
            bytes: whole.len() as u64 * readings.page_bytes(),
            looks: all,
            heat: measured.iter().sum(),
            node: usize::from(pending.get(&number).copied().unwrap_or(on[page])),
        });
        page = whole.end;
    }
    merge_few(&mut pages, &mut by);
    let of_row: Vec<f64> = (0..rows).map(|row| by.iter().map(|by| by[row]).sum()).collect();
    let classes = pages.into_iter().zip(&by).filter(|(pages, _)| !pages.is_empty());
    let mut classes: Vec<Class> = classes
        .map(|(mut pages, by)| {
            pages.sort_by(|a, b| b.density().total_cmp(&a.density()).then(a.page.cmp(&b.page)));
            let share = |(sum, all): (&f64, &f64)| part(if *all > 0.0 { sum / all } else { 0.0 });
            let region =
                Region { by: by.iter().zip(&of_row).map(share).collect(), ..Region::default() };
            Class { region, heat: by.iter().sum(), pages }
        })
        .collect();
    // Of what nobody was seen to use nothing can be said.
    classes.retain(|class| class.heat > 0.0);
    let nodes = readings.free.len();
    let ours: Vec<u64> =
        (0..nodes).map(|node| classes.iter().map(|class| class.on_node(node).0).sum()).collect();
    for class in &mut classes {
        class.measure(&readings.free, &ours);
    }
    classes
}

/// Adds rows' own pages to those of all where few accesses go to them.
fn merge_few(pages: &mut [Vec<One>], by: &mut [Vec<f64>]) {
    let all: f64 = by.iter().flatten().sum();
    let (Some((shared, own)), Some((shared_by, own_by))) =
        (pages.split_last_mut(), by.split_last_mut())
    else {
        return;
    };
    for (few, their) in own.iter_mut().zip(own_by) {
        if their.iter().sum::<f64>() < REGION_LEAST * all {
            shared.append(few);
            for (sum, more) in shared_by.iter_mut().zip(their) {
                *sum += std::mem::take(more);
            }
        }
    }
}

impl Class {
    /// Says where the region is and where it may be.
    fn measure(&mut self, free: &[u64], ours: &[u64]) {
        let of = |heat: f64| if self.heat > 0.0 { heat / self.heat } else { 0.0 };
        let at = |node: usize| {
            let there = self.pages.iter().filter(|one| one.node == node);
            of(there.map(|one| one.heat).sum())
        };
        let most = |room: u64| {
            let mut left = room;
            let fit = self.pages.iter().take_while(|one| {
                let fits = one.bytes <= left;
                left = left.saturating_sub(one.bytes);
                fits
            });
            of(fit.map(|one| one.heat).sum())
        };
        let mut half = 0.5 * self.heat;
        let hot = self.pages.iter().take_while(|one| {
            let more = half > 0.0;
            half -= one.heat;
            more
        });
        let hot: u64 = hot.map(|one| one.bytes).sum();
        let nodes = 0..free.len();
        self.region.at = nodes.clone().map(|node| part(at(node))).collect();
        self.region.least = nodes.clone().map(|_| part(0.0)).collect();
        self.region.most = nodes.map(|node| part(most(free[node] + ours[node]))).collect();
        self.region.bytes = Bytes(2 * hot);
    }
}
