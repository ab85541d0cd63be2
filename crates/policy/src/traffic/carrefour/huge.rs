//! Carrefour's extension for huge pages: when to split them, when to join them again, and whether actions were
//! effective.
//!
//! Two problems cannot be solved by placing huge pages: nodes that use different pieces of one page, and a single hot
//! page. Both show in samples. The share of local accesses is estimated for three cases: the present placement, every
//! page moved whole, and every page split; a page used by one node then counts as local, one used by several as local
//! for one part in the number of nodes.
//! - Shared huge pages are split if splitting beats moving by 5 points, two rounds in a row, unless moving alone makes
//!   local accesses grow by 15 %.
//! - A shared huge page with more than 6 % of all samples is split at once, and its pieces are spread over all nodes in
//!   turn.
//! - Splitting takes at most 3 % of a round. A huge page is moved once at most.
//! - An action that improved neither locality nor balance by 10 % was ineffective: the next round is skipped, and
//!   rounds last 5 s from then on.

use alloc::collections::{BTreeMap, BTreeSet};

use nearfar_topology::BasisPoints;

use super::{Decision, Effect, Hold, Huge, Left, Locality, Pages, WHOLE, Why, part_of, share};
use crate::traffic::carrefour::Action;
use crate::traffic::{Metrics, Page, Sampled, Table};

/// State kept between rounds.
#[derive(Clone, Debug)]
pub(super) struct Splitter {
    /// Consecutive rounds in which splitting appeared worthwhile.
    wished: u32,
    /// Huge pages that have been moved.
    moved: BTreeSet<Page>,
    /// Metrics of the round before the last action.
    before: Option<Metrics>,
    /// The last action was ineffective, and rounds are long.
    slow: bool,
}

impl Splitter {
    pub(super) const fn new() -> Self {
        Self { wished: 0, moved: BTreeSet::new(), before: None, slow: false }
    }

    pub(super) fn moved(&mut self, page: Page) {
        self.moved.insert(page);
    }

    pub(super) fn has_moved(&self, page: Page) -> bool {
        self.moved.contains(&page)
    }

    pub(super) fn acted(&mut self, metrics: Metrics, any: bool) {
        self.before = any.then_some(metrics);
    }

    /// Judges the last action by this round, and holds if it was ineffective.
    pub(super) fn judge(&mut self, huge: &Huge, now: Metrics, decision: &mut Decision) {
        if let Some(before) = self.before.take() {
            let effect = effect(huge, before, now);
            self.slow = effect != Effect::Worth;
            decision.effect = Some(effect);
            if self.slow {
                decision.hold = decision.hold.or(Some(Hold::NotWorthIt));
            }
        }
        if self.slow {
            decision.period = huge.period_long;
        }
    }

    /// Splits the pages due to be split, and returns the remaining candidates: huge pages whole.
    pub(super) fn split(
        &mut self,
        huge: &Huge,
        table: &Table,
        pages: &mut Pages<'_>,
        decision: &mut Decision,
    ) -> BTreeMap<Page, Sampled> {
        let mut whole = table.whole_pages();
        let all: u64 = whole.values().map(Sampled::all).sum();
        let locality = locality(table, &whole, pages);
        decision.locality = Some(locality);
        let gain = BasisPoints(locality.split.0.saturating_sub(locality.whole.0));
        let moving = u64::from(locality.now.0) * (WHOLE + u64::from(huge.moving_gains.0)) / WHOLE;
        let wished = locality.now >= huge.local_least
            && gain >= huge.split_gains
            && u64::from(locality.whole.0) < moving;
        self.wished = if wished { self.wished.saturating_add(1) } else { 0 };
        let period = decision.period;
        let mut splits = part_of(period, huge.time_most) / huge.split_takes.0.max(1);
        whole.retain(|page, sampled| {
            let of_all = share(sampled.all(), all);
            let shared = sampled.huge && sampled.lone().is_none();
            let hot = shared && of_all > huge.hot_above;
            if !(hot || shared && self.wished >= huge.rounds) {
                return true;
            }
            if splits == 0 {
                pages.leave(Left::NoTimeToSplit);
            } else if hot {
                pages.split_and_spread(*page, sampled, Why::Hot { share: of_all });
            } else {
                let action = Action::Split { page: *page };
                pages.actions.push((action, Why::FalselyShared { gain }));
            }
            splits = splits.saturating_sub(1);
            false
        });
        whole
    }
}

fn effect(huge: &Huge, before: Metrics, now: Metrics) -> Effect {
    let by = |change: u32, of: BasisPoints| share(change.into(), of.0.max(1).into());
    let more_local = by(now.local.0.saturating_sub(before.local.0), before.local);
    let less_local = by(before.local.0.saturating_sub(now.local.0), before.local);
    let more_even = by(before.imbalance.0.saturating_sub(now.imbalance.0), before.imbalance);
    if less_local > huge.harm_above {
        Effect::Harm
    } else if more_local >= huge.worth_least || more_even >= huge.worth_least {
        Effect::Worth
    } else {
        Effect::None
    }
}

/// Local share of accesses by samples: now, with pages moved whole, and with huge pages split.
fn locality(table: &Table, whole: &BTreeMap<Page, Sampled>, pages: &Pages<'_>) -> Locality {
    let pieces = table.pages();
    let all: u64 = pieces.values().map(Sampled::all).sum();
    let placed = |sampled: &BTreeMap<Page, Sampled>| {
        let stays_local =
            |(page, one): &(&Page, &Sampled)| one.lone().is_some() || pages.replicates(**page, one);
        let local: u64 = sampled.iter().filter(stays_local).map(|(_, one)| one.all()).sum();
        share(local + (all - local) / pages.nodes_with_memory(), all)
    };
    let now = pieces.values().map(|one| pages.local(one)).sum();
    Locality { now: share(now, all), whole: placed(whole), split: placed(pieces) }
}

#[cfg(test)]
mod tests;
