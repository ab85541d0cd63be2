//! Policies of the balancing loop, and the requests that carry out their decisions.
//!
//! Carrefour decides about single pages: to move them, or to split huge ones; replicas are counted only. The balancing
//! controller decides about bytes per region and pair of nodes (a shift); `shift` selects the pages of each shift, or,
//! once no gain is left, restores interleaving (`tidy.rs`). Requests are queued at a [`PageMover`], which reports
//! results later. Not here: the decisions (crate policy).

use std::collections::{BTreeMap, BTreeSet};

use nearfar_policy::traffic::balance::{self, Balance, Candidate};
use nearfar_policy::traffic::carrefour::{self, Action, Carrefour, Sampling};
use nearfar_policy::traffic::{PAGE, PIECES, Page, Table};
use nearfar_topology::{Bytes, Nanoseconds};

use super::part::Part;
use super::regions;
use super::tidy::Tidy;
use super::turns::Home;
use nearfar_policy::ports::{Move, PageMover};

use super::Layout;
use nearfar_policy::ports::{Reading, Targets};

/// Above this number, waiting moves are of outdated decisions and are dropped.
const WAITING_MAX: usize = 120_000;
/// Pages with samples, for policies that need only shares.
const PAGES_MAX: usize = 30_000;

/// The policy.
#[derive(Debug)]
pub enum Law {
    /// Carrefour.
    Carrefour(Box<Carrefour>),
    /// Marginal costs or equal latencies.
    Balance(Box<Balanced>),
}

/// The controller of marginal costs or equal latencies, with its record of moved pages.
#[derive(Debug)]
pub struct Balanced {
    pub(super) policy: Balance,
    pub(super) pages: balance::Pages,
    tidy: Tidy,
    /// The last decision, while it is not carried out, and the parts that it is based on.
    pub(super) last: Option<(balance::Decision, Vec<Part>)>,
}

/// Number of requests to the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Pages to move; a huge page counts as one.
    pub moves: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Huge pages that could not be split.
    pub unsplit: u64,
    /// Pages worth a replica. Not requested: other processes' memory can't have replicas.
    pub replicas: u64,
}

/// A decision, and the requests made for it.
#[derive(Clone, Debug)]
pub enum Decided {
    /// Of Carrefour.
    Carrefour {
        /// The decision.
        decision: Box<carrefour::Decision>,
        /// The requests.
        wanted: Wanted,
    },
    /// Of the controller of marginal costs or equal latencies.
    Balance {
        /// The decision.
        decision: Box<balance::Decision>,
        /// The requests.
        wanted: Wanted,
    },
}

/// A reading and its scope.
pub(super) struct Counted<'a> {
    pub(super) reading: &'a Reading,
    /// Time since the previous reading.
    pub(super) elapsed: Nanoseconds,
    pub(super) targets: &'a Targets,
    /// Whether lines of all processes are counted, not only of those in scope.
    pub(super) everyone: bool,
}

impl Law {
    /// Carrefour, without replicas, which other programs' memory can't have.
    #[must_use]
    pub fn carrefour(config: &carrefour::Config) -> Self {
        let config = carrefour::Config { replicas_first: usize::MAX, ..config.clone() };
        Self::Carrefour(Box::new(Carrefour::new(config)))
    }

    /// The balancing controller.
    #[must_use]
    pub fn balance(policy: Balance) -> Self {
        let pages = balance::Pages::new();
        Self::Balance(Box::new(Balanced { policy, pages, tidy: Tidy::default(), last: None }))
    }

    pub(super) fn pages_max(&self) -> usize {
        match self {
            Self::Carrefour(carrefour) => carrefour.pages_max(),
            Self::Balance(_) => PAGES_MAX,
        }
    }

    pub(super) fn sampling(&self) -> Sampling {
        match self {
            Self::Carrefour(carrefour) => carrefour.sampling(),
            Self::Balance(one) if one.policy.is_settled() => Sampling::Sparse,
            Self::Balance(_) => Sampling::Dense,
        }
    }
}

impl Decided {
    /// The requests.
    #[must_use]
    pub const fn wanted(&self) -> &Wanted {
        match self {
            Self::Carrefour { wanted, .. } | Self::Balance { wanted, .. } => wanted,
        }
    }

    /// Whether the decision may have moved pages.
    pub(super) fn acted(&self) -> bool {
        match self {
            Self::Carrefour { decision, .. } => decision.hold.is_none(),
            Self::Balance { decision, .. } => !decision.shifts.is_empty(),
        }
    }
}

/// Queues the requests of a Carrefour decision.
pub(super) fn carry_out<P: PageMover>(
    decision: &carrefour::Decision,
    table: &Table,
    pages: &mut P,
) -> Wanted {
    let mut wanted = Wanted::default();
    if pages.waiting() > WAITING_MAX {
        pages.forget();
    }
    let (mut small, mut whole, mut gone) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut moves = Vec::new();
    for (action, _) in &decision.actions {
        match action {
            Action::Replicate { .. } => wanted.replicas += 1,
            Action::Split { page } if pages.split(*page) => {
                small.insert(page.whole());
                wanted.splits += 1;
            }
            Action::Split { page } => {
                whole.insert(page.whole());
                wanted.unsplit += 1;
            }
            Action::Move { page, to } => {
                let first = page.whole();
                let stays_whole = whole.contains(&first);
                let huge = !small.contains(&first) && (stays_whole || is_huge(table, *page));
                // A page that could not be split moves whole, once, to the target of its first piece.
                if huge && !gone.insert(first) {
                    continue;
                }
                let page = if huge { first } else { *page };
                moves.push(Move { page, huge, from: None, to: *to });
            }
        }
    }
    wanted.moves = moves.len() as u64;
    pages.ask(moves);
    wanted
}

fn is_huge(table: &Table, page: Page) -> bool {
    let first = page.whole();
    let end = Page { number: first.number.saturating_add(PIECES), ..first };
    table.pages().range(first..end).any(|(_, sampled)| sampled.huge)
}

/// Queues moves for each shift: pages of its region on the source node, selected by heat. After a while without gains,
/// queues moves that restore interleaving instead.
pub(super) fn shift<P: PageMover>(
    decision: &balance::Decision,
    one: &mut Balanced,
    layout: &Layout,
    parts: &[Part],
    pages: &mut P,
) -> Wanted {
    one.pages.tick();
    if one.policy.is_settled() {
        // Moves that wait already have priority.
        let is_free = pages.waiting() == 0;
        let moves = is_free.then(|| one.tidy.moves(parts, layout, &decision.weights));
        return ask(moves.unwrap_or_default(), pages);
    }
    // Moves that wait are of a decision that this one replaces.
    pages.forget();
    let (mut moves, mut stuck) = (Vec::new(), BTreeMap::new());
    for shift in &decision.shifts {
        let (Some(from), Some(to)) = (layout.memory(shift.from), layout.memory(shift.to)) else {
            continue;
        };
        let weights = decision.weights.get(shift.region).map(Vec::as_slice).unwrap_or_default();
        let find =
            |home: Option<&Home>, may: fn(&Part) -> bool| -> BTreeMap<Page, (&Part, Candidate)> {
                regions::of_region(parts, layout, shift.region)
                    .filter(|part| may(part))
                    .filter_map(|part| Some((part, part.leaves(from, home)?)))
                    .map(|(part, candidate)| (candidate.page, (part, candidate)))
                    .collect()
            };
        // A shift back has no weights: then any page will do.
        let is_undone = weights.is_empty();
        let home = Home::new(weights, (shift.from, shift.to));
        let mut home = (!is_undone).then_some(&home);
        let mut of = find(home, |_| true);
        if of.is_empty() {
            // All pages of this home are there already, and that is too little: other whole parts move, too, but not
            // interleaved ones.
            home = None;
            of = find(home, Part::goes_whole);
        }
        let found: u64 = of.values().map(|(_, candidate)| candidate.bytes.0).sum();
        if !is_undone && found * 2 < shift.bytes.0 {
            *stuck.entry(shift.region).or_default() +=
                usize::try_from(shift.bytes.0 / PAGE).unwrap_or(usize::MAX);
            continue;
        }
        let candidates: Vec<Candidate> = of.values().map(|(_, candidate)| *candidate).collect();
        // Nothing smaller than the smallest part can move.
        let least = candidates.iter().map(|one| one.bytes.0).min().unwrap_or(0);
        let bytes = shift.bytes.0.next_multiple_of(PAGE);
        let bytes = Bytes(if 2 * bytes >= least { bytes.max(least) } else { bytes });
        let chosen = one.pages.select((shift.region, shift.from, shift.to), bytes, &candidates);
        moves.extend(chosen.iter().filter_map(|page| of.get(page)).flat_map(|(part, _)| {
            part.pages_of(home).map(move |page| Move {
                page,
                huge: part.huge,
                from: Some(from),
                to,
            })
        }));
    }
    moves.extend(one.tidy.unstick(parts, layout, &decision.weights, &stuck));
    ask(moves, pages)
}

fn ask<P: PageMover>(moves: Vec<Move>, pages: &mut P) -> Wanted {
    let wanted = Wanted { moves: moves.len() as u64, ..Wanted::default() };
    pages.ask(moves);
    wanted
}
