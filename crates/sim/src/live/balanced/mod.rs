//! The balance controller, the policy's ([`nearfar_policy::traffic::balance`]), on the machine that is not there.
//!
//! Every 100 ms what sensors say becomes an [`Observation`]: latencies as probed last, own traffic as counted, regions as
//! sampled (`classes.rs`). What the policy wants to shift becomes pages: the hottest of the region on that node, as many as
//! have that share of accesses and are no more than those bytes, as its [`Pages`] chooses them. Where they go and there is no
//! room, our coldest pages there make some. The policy's model of the machine is made of idle latencies and capacities
//! (`model.rs`); it knows neither coherence probes nor how the simulated machine is solved.
//!
//! Huge pages of which nodes use different pieces, and those that are hot by themselves, are split by the rules for that which
//! Carrefour's version for huge pages has; what it would move is left to the balance.

use std::collections::BTreeMap;

use nearfar_policy::traffic::balance::{Balance, Candidate, Config, Observation, Pages, Shift};
use nearfar_policy::traffic::{Page, Process};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

use super::carrefour::{Carrefour, Replicas};
use super::{Act, Controller, Readings};
use crate::machine::LINE;

mod classes;
mod model;

use classes::{Class, Heat};

/// From observation to observation.
const STEP_MS: u64 = 100;

/// The controller.
#[derive(Debug, Default)]
pub struct Balanced {
    begun: bool,
    at_work: Option<AtWork>,
    /// Who says which huge pages are split, where there are any.
    splits: Option<Carrefour>,
}

#[derive(Debug)]
struct AtWork {
    policy: Balance,
    period_ms: u64,
    pages: Pages,
    heat: Heat,
    classes: Vec<Class>,
    /// Since the last step, since classes were made, since a latency was seen.
    since_ms: u64,
    classed_ms: u64,
    unseen_ms: u64,
    /// Own lines a microsecond by row and node: sums and counts since the last step, and means of the one before.
    own: Vec<Vec<(f64, f64)>>,
    own_before: Option<Vec<Vec<f64>>>,
    /// Samples that read, and all.
    reads: [f64; 2],
    /// Where pages are to be that still wait.
    pending: BTreeMap<u32, u16>,
}

impl Controller for Balanced {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        if !self.begun {
            self.begun = true;
            self.at_work = AtWork::begin(readings);
            self.splits = readings.has_huge().then(|| Carrefour::new(Replicas::None));
        }
        let splits = self.splits.iter_mut().flat_map(|splits| splits.tick(readings));
        let mut acts: Vec<Act> =
            splits.filter(|act| matches!(act, Act::Split { .. } | Act::Join { .. })).collect();
        acts.extend(self.at_work.iter_mut().flat_map(|work| work.tick(readings)));
        acts
    }
}

impl AtWork {
    /// None on a machine that the policy can't model.
    fn begin(readings: &Readings<'_>) -> Option<Self> {
        let rate = BytesPerSecond(whole(readings.rate_gbps * 1e9));
        let config = Config { rate, ..Config::default() };
        let rows = readings.machine.cpu_nodes.len();
        Some(Self {
            policy: Balance::new(config, model::of(readings.machine)?),
            period_ms: config.period.0 / 1_000_000,
            pages: Pages::new(),
            heat: Heat::new(readings.on().len(), rows),
            classes: Vec::new(),
            since_ms: 0,
            classed_ms: 0,
            unseen_ms: 0,
            own: vec![vec![(0.0, 0.0); readings.machine.nodes.len()]; rows],
            own_before: None,
            reads: [0.0; 2],
            pending: BTreeMap::new(),
        })
    }

    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        self.take_in(readings);
        if self.since_ms < STEP_MS {
            return Vec::new();
        }
        let since_ms = std::mem::take(&mut self.since_ms);
        self.classed_ms += since_ms;
        if self.classes.is_empty() || self.classed_ms >= self.period_ms {
            self.classed_ms = 0;
            self.pages.tick();
            let on = readings.on();
            if readings.waiting == 0 {
                self.pending.clear();
            }
            self.pending.retain(|page, to| on[*page as usize] != *to);
            self.classes = classes::of(&self.heat, readings, &self.pending);
        }
        let seen = self.observe(readings, since_ms);
        let decision = self.policy.step(&seen);
        let mut acts = Vec::new();
        for shift in &decision.shifts {
            let go = self.pages_of(readings, shift);
            let to = go.iter().filter_map(|act| match *act {
                Act::Move { page, to } => Some((page, to)),
                _ => None,
            });
            let to: BTreeMap<u32, u16> = to.collect();
            self.classes.iter_mut().for_each(|class| class.gone(&to));
            self.pending.extend(to);
            acts.extend(go);
        }
        acts
    }

    fn take_in(&mut self, readings: &Readings<'_>) {
        self.since_ms += u64::from(readings.tick_ms);
        self.unseen_ms += u64::from(readings.tick_ms);
        if readings.loaded_ns.iter().flatten().any(Option::is_some) {
            self.unseen_ms = u64::from(readings.tick_ms);
        }
        self.heat.add(&readings.samples);
        for sample in &readings.samples {
            self.reads[0] += f64::from(u8::from(!sample.write));
            self.reads[1] += 1.0;
        }
        for (sums, row) in self.own.iter_mut().zip(&readings.own_per_us) {
            for ((sum, count), per_us) in sums.iter_mut().zip(row) {
                if let Some(per_us) = per_us {
                    (*sum, *count) = (*sum + per_us, *count + 1.0);
                }
            }
        }
    }

    fn observe(&mut self, readings: &Readings<'_>, since_ms: u64) -> Observation {
        let own = self.own_traffic();
        let latency = |row: &Vec<Option<f64>>| {
            row.iter().map(|ns| ns.map(|ns| Nanoseconds(whole(ns)))).collect()
        };
        let room = |(node, free): (usize, &u64)| {
            let own = self.classes.iter().map(|class| class.on_node(node).0).sum::<u64>();
            Bytes(free + own)
        };
        let [reads, all] = self.reads;
        Observation {
            elapsed: Nanoseconds(since_ms * 1_000_000),
            latency: readings.loaded_ns.iter().map(latency).collect(),
            age: Nanoseconds(self.unseen_ms * 1_000_000),
            used: model::used(readings),
            own,
            reads: part(if all > 0.0 { reads / all } else { 1.0 }),
            regions: self.classes.iter().map(|class| class.region.clone()).collect(),
            room: readings.free.iter().enumerate().map(room).collect(),
        }
    }

    /// Means since the last step; what was lost is as it was before. None where nothing was ever counted.
    fn own_traffic(&mut self) -> Option<Vec<Vec<BytesPerSecond>>> {
        let before = self.own_before.take();
        let mean = |(row, sums): (usize, &Vec<(f64, f64)>)| {
            let of = |(node, (sum, count)): (usize, &(f64, f64))| {
                let last = before.as_ref().map(|before| before[row][node]);
                if *count > 0.0 { Some(sum / count) } else { last }
            };
            sums.iter().enumerate().map(of).collect::<Option<Vec<f64>>>()
        };
        let found: Option<Vec<Vec<f64>>> = self.own.iter().enumerate().map(mean).collect();
        self.own.iter_mut().flatten().for_each(|of| *of = (0.0, 0.0));
        self.own_before = found.clone().or(before);
        let bytes = |per_us: &f64| BytesPerSecond(whole(per_us * LINE * 1e6));
        Some(found?.iter().map(|row| row.iter().map(bytes).collect()).collect())
    }

    /// The pages that go, and those that make room for them.
    fn pages_of(&mut self, readings: &Readings<'_>, shift: &Shift) -> Vec<Act> {
        let Some(class) = self.classes.get(shift.region) else { return Vec::new() };
        let goes = |page: u32, to: usize| Act::Move { page, to: u16::try_from(to).unwrap_or(0) };
        let share = f64::from(shift.share.0) / 10_000.0;
        let candidates: Vec<Candidate> = class
            .hottest(shift.from, share)
            .map(|one| Candidate {
                page: Page { process: Process(0), number: u64::from(one.page) },
                bytes: Bytes(one.bytes),
                // Whole numbers, in thousandths of a sample.
                accesses: whole(one.looks * 1000.0),
            })
            .collect();
        let chosen =
            self.pages.select((shift.region, shift.from, shift.to), shift.bytes, &candidates);
        let waiting: i128 = self.pending_bytes(readings, shift.to);
        let mut free = i128::from(readings.free[shift.to]) - waiting;
        let mut cold = self.classes.iter().flat_map(|class| class.coldest(shift.to));
        let mut acts = Vec::new();
        let mut bytes = 0;
        for page in chosen {
            let Ok(page) = u32::try_from(page.number) else { continue };
            let size = readings.whole(page as usize).len() as u64 * readings.page_bytes();
            while free < i128::from(size) {
                let Some(away) = cold.next() else { return acts };
                free += i128::from(away.bytes);
                bytes += away.bytes;
                acts.push(goes(away.page, shift.from));
            }
            (free, bytes) = (free - i128::from(size), bytes + size);
            if bytes > shift.bytes.0.max(size) && !acts.is_empty() {
                break;
            }
            acts.push(goes(page, shift.to));
        }
        acts
    }

    /// What is on its way to a node already.
    fn pending_bytes(&self, readings: &Readings<'_>, to: usize) -> i128 {
        let size = |page: u32| readings.whole(page as usize).len() as u64 * readings.page_bytes();
        self.pending
            .iter()
            .filter(|(page, at)| {
                usize::from(**at) == to && usize::from(readings.on()[**page as usize]) != to
            })
            .map(|(page, _)| i128::from(size(*page)))
            .sum()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
const fn whole(count: f64) -> u64 {
    count.round() as u64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
const fn part(share: f64) -> BasisPoints {
    BasisPoints((share.clamp(0.0, 1.0) * 10_000.0).round() as u32)
}
