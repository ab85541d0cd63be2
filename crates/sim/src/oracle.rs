//! The oracle: the best placement without migration and replication, by search on the model with all heat known.
//!
//! # Approach
//! Pages with the same use form a *class*: the same main region, about the same heat, small or huge. The search decides
//! how many pages of each class each node holds, so regions have weights of their own. It moves part of a class from
//! one node to another, or swaps parts of two classes, while throughput rises, in steps from a whole class down to a
//! thousandth of it. It starts from first touch, from interleaving, and from each class on the node of its main user,
//! and keeps the best result. Huge pages may be split, all of them or class by class, at the cost of translation.
//!
//! # Limits
//! Each page has one copy: a policy that replicates pages may be better. The search is local, and [`TRIES_MAX`]
//! placements are evaluated at most, so it is a lower bound of the optimum; the tests hold every policy without replicas to
//! at most 0.5 % more.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::flow::{self, Demand};
use crate::machine::Machine;
use crate::metrics::steady;
use crate::pages::{PIECES, Pages};
use crate::workload::Workload;

/// Largest number of placements that one search evaluates.
const TRIES_MAX: u32 = 12_000;
/// Steps of the search: the whole of a class, its half, and so on.
const LEVELS: u32 = 11;
/// Relative rise of throughput that counts.
const RISE: f64 = 1e-7;
/// Heat of a page over the mean of its region from which it counts as hot; below the inverse it counts as cold.
const HOTTER: f64 = 1.5;
/// Splitting is tried for this many classes of huge pages one by one.
const SPLITS_MAX: usize = 6;

/// Places all pages.
pub(crate) fn place(pages: &mut Pages, workload: &Workload, machine: &Machine) {
    let gbps = |pages: &Pages| steady(machine, workload, pages).gbps;
    let mut best = pages.clone();
    best.first_touch(workload, machine);
    let mut most = gbps(&best);
    let mut offer = |tried: Pages| {
        let now = gbps(&tried);
        let is_better = now > most * (1.0 + RISE);
        if is_better {
            (best, most) = (tried, now);
        }
        is_better
    };
    let mut even = pages.clone();
    even.interleave(&vec![1; machine.nodes.len()], machine);
    offer(even);
    offer(searched(pages.clone(), workload, machine));
    if pages.huge.contains(&true) {
        let mut small = pages.clone();
        small.huge.fill(false);
        offer(searched(small, workload, machine));
        let mut split = pages.clone();
        for class in huge_classes(pages).into_iter().take(SPLITS_MAX) {
            let mut tried = split.clone();
            class.iter().for_each(|first| tried.huge[first / PIECES] = false);
            if offer(searched(tried.clone(), workload, machine)) {
                split = tried;
            }
        }
    }
    *pages = best;
}

/// First pages of the huge pages of each class, fewest first: splitting a single hot one costs least.
fn huge_classes(pages: &Pages) -> Vec<Vec<usize>> {
    let classes = classes(pages).into_iter().filter(|class| class.units[0].len() > 1);
    let mut found: Vec<Vec<usize>> =
        classes.map(|class| class.units.into_iter().map(|unit| unit.start).collect()).collect();
    found.sort_by_key(Vec::len);
    found
}

/// The pages as huge and small as they are, with the best placement found.
fn searched(mut pages: Pages, workload: &Workload, machine: &Machine) -> Pages {
    let classes = classes(&pages);
    let mut starts = Vec::new();
    pages.first_touch(workload, machine);
    starts.push(counts(&classes, &pages, machine));
    pages.interleave(&vec![1; machine.nodes.len()], machine);
    starts.push(counts(&classes, &pages, machine));
    let demands = pages.demands(workload, machine);
    let mut search = Search { machine, workload, classes: &classes, demands, left: 0 };
    starts.extend(search.at_users());
    let mut best = (0.0, Vec::new());
    for start in starts {
        search.left = TRIES_MAX;
        let found = search.climb(start);
        if found.0 > best.0 {
            best = found;
        }
    }
    for (class, on) in classes.iter().zip(&best.1) {
        class.put(&mut pages, on);
    }
    pages
}

/// Pages with the same use.
struct Class {
    /// The pages that move together: a huge page, or a single one.
    units: Vec<Range<usize>>,
    /// The mean share of each region's accesses that goes to a unit.
    heat: Vec<f64>,
    /// Bytes of a unit.
    bytes: u64,
}

/// Pages by size, main region and heat.
fn classes(pages: &Pages) -> Vec<Class> {
    let regions = pages.region.iter().max().map_or(0, |last| usize::from(*last) + 1);
    let mut sizes = vec![0.0_f64; regions];
    pages.region.iter().for_each(|region| sizes[usize::from(*region)] += 1.0);
    let mut found = BTreeMap::<(bool, usize, u8), Class>::new();
    let mut page = 0;
    while page < pages.count() {
        let unit = pages.whole(page);
        let mut heat = vec![0.0; regions];
        for piece in unit.clone() {
            heat[usize::from(pages.region[piece])] += pages.heat[piece];
        }
        let main = (0..regions).fold(0, |main, at| if heat[at] > heat[main] { at } else { main });
        let over_mean = heat[main] * sizes[main] / real(unit.len());
        let warmth = u8::from(over_mean > 1.0 / HOTTER) + u8::from(over_mean > HOTTER);
        let class = found.entry((unit.len() > 1, main, warmth)).or_insert_with(|| Class {
            units: Vec::new(),
            heat: vec![0.0; regions],
            bytes: pages.page_bytes * unit.len() as u64,
        });
        class.heat.iter_mut().zip(&heat).for_each(|(sum, heat)| *sum += heat);
        page = unit.end;
        class.units.push(unit);
    }
    let mut classes: Vec<Class> = found.into_values().collect();
    for class in &mut classes {
        let units = real(class.units.len());
        class.heat.iter_mut().for_each(|heat| *heat /= units);
    }
    classes
}

/// Units of each class on each node.
type Counts = Vec<Vec<usize>>;

/// The present placement of pages.
fn counts(classes: &[Class], pages: &Pages, machine: &Machine) -> Counts {
    let of = |class: &Class| {
        let mut on = vec![0; machine.nodes.len()];
        class.units.iter().for_each(|unit| on[usize::from(pages.node[unit.start])] += 1);
        on
    };
    classes.iter().map(of).collect()
}

impl Class {
    /// Places units in turn, as many on each node as `on` says.
    fn put(&self, pages: &mut Pages, on: &[usize]) {
        let mut put = vec![0.0; on.len()];
        for (at, unit) in self.units.iter().enumerate() {
            let part = real(at + 1) / real(self.units.len());
            let due = |node: &usize| real(on[*node]) * part - put[*node];
            let node = (0..on.len()).max_by(|a, b| due(a).total_cmp(&due(b))).unwrap_or(0);
            put[node] += 1.0;
            unit.clone().for_each(|page| pages.put(page, node));
        }
    }
}

/// A search over the numbers of units.
struct Search<'a> {
    machine: &'a Machine,
    workload: &'a Workload,
    classes: &'a [Class],
    /// Demands of any placement; their shares are replaced.
    demands: Vec<Demand>,
    /// Placements that may still be evaluated.
    left: u32,
}

impl Search<'_> {
    /// Throughput of a placement, lines per nanosecond.
    fn rate(&mut self, at: &Counts) -> f64 {
        self.left = self.left.saturating_sub(1);
        let workers = self.workload.workers.len();
        for (demand, worker) in self.demands.iter_mut().zip(&self.workload.workers) {
            demand.shares.fill(0.0);
            for (class, on) in self.classes.iter().zip(at) {
                let used: f64 = class.heat.iter().zip(&worker.uses).map(|(h, use_)| h * use_).sum();
                for (share, units) in demand.shares.iter_mut().zip(on) {
                    *share += used * real(*units);
                }
            }
        }
        let flow = flow::solve(self.machine, &self.demands, &[]);
        flow.served.iter().take(workers).map(|served| served.per_ns).sum()
    }

    /// Each class on the node of the row that uses it most; `None` if it does not fit there.
    fn at_users(&self) -> Option<Counts> {
        let lines = |class: &Class, row: usize| -> f64 {
            let of_row = self.workload.workers.iter().filter(|worker| worker.row == row);
            let used = |uses: &[f64]| class.heat.iter().zip(uses).map(|(h, u)| h * u).sum::<f64>();
            of_row.map(|worker| worker.lines * used(&worker.uses)).sum()
        };
        let rows = 0..self.machine.cpu_nodes.len();
        let of = |class: &Class| {
            let mut on = vec![0; self.machine.nodes.len()];
            let main = rows
                .clone()
                .max_by(|a, b| lines(class, *a).total_cmp(&lines(class, *b)).then(b.cmp(a)));
            on[self.machine.cpu_nodes[main.unwrap_or(0)]] = class.units.len();
            on
        };
        let all: Counts = self.classes.iter().map(of).collect();
        (0..self.machine.nodes.len()).all(|node| self.room(&all, node) >= 0).then_some(all)
    }

    /// Free bytes of a node, negative if it holds more than it has.
    fn room(&self, at: &Counts, node: usize) -> i128 {
        let used = self.classes.iter().zip(at).map(|(class, on)| {
            i128::from(class.bytes) * i128::try_from(on[node]).unwrap_or(i128::MAX)
        });
        i128::from(self.machine.nodes[node].size.0) - used.sum::<i128>()
    }

    /// The local optimum from a start, and its throughput.
    fn climb(&mut self, mut at: Counts) -> (f64, Counts) {
        let mut found = self.rate(&at);
        for level in 0..LEVELS {
            while self.left > 0 {
                let before = found;
                self.transfer(level, &mut at, &mut found);
                if found <= before {
                    self.swap(level, &mut at, &mut found);
                }
                if found <= before * (1.0 + RISE) {
                    break;
                }
            }
        }
        (found, at)
    }

    /// Units of a step.
    fn step(&self, class: usize, level: u32) -> usize {
        (self.classes[class].units.len() >> level).max(1)
    }

    /// Moves a step of one class from one node to another wherever throughput rises.
    fn transfer(&mut self, level: u32, at: &mut Counts, found: &mut f64) {
        let nodes = self.machine.nodes.len();
        for class in 0..self.classes.len() {
            for (from, to) in pairs(nodes) {
                let units = self.step(class, level).min(at[class][from]);
                let bytes = i128::from(self.classes[class].bytes) * units as i128;
                if units == 0 || bytes > self.room(at, to) || self.left == 0 {
                    continue;
                }
                shift(&mut at[class], (from, to), units);
                self.keep(at, found, |at| shift(&mut at[class], (to, from), units));
            }
        }
    }

    /// Swaps a step of one class with as many bytes of another wherever throughput rises.
    fn swap(&mut self, level: u32, at: &mut Counts, found: &mut f64) {
        let nodes = self.machine.nodes.len();
        for (one, other) in pairs(self.classes.len()) {
            for (from, to) in pairs(nodes) {
                let units = self.step(one, level).min(at[one][from]);
                let [bytes, other_bytes] =
                    [one, other].map(|class| i128::from(self.classes[class].bytes).max(1));
                let back = usize::try_from(units as i128 * bytes / other_bytes).unwrap_or(0).max(1);
                let back = back.min(at[other][to]);
                let more = units as i128 * bytes - back as i128 * other_bytes;
                let fits = more <= self.room(at, to) && -more <= self.room(at, from);
                if units == 0 || back == 0 || !fits || self.left == 0 {
                    continue;
                }
                shift(&mut at[one], (from, to), units);
                shift(&mut at[other], (to, from), back);
                self.keep(at, found, |at| {
                    shift(&mut at[one], (to, from), units);
                    shift(&mut at[other], (from, to), back);
                });
            }
        }
    }

    /// Keeps a changed placement if throughput rises, else undoes the change.
    fn keep(&mut self, at: &mut Counts, found: &mut f64, undo: impl FnOnce(&mut Counts)) {
        let now = self.rate(at);
        if now > *found * (1.0 + RISE) {
            *found = now;
        } else {
            undo(at);
        }
    }
}

fn shift(on: &mut [usize], (from, to): (usize, usize), units: usize) {
    on[from] -= units;
    on[to] += units;
}

/// All ordered pairs of different numbers below `count`.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..count).flat_map(move |from| (0..count).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

#[expect(clippy::cast_precision_loss, reason = "counts of pages")]
const fn real(count: usize) -> f64 {
    count as f64
}
