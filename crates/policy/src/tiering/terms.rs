//! What a tiering controller is told and what it says: goals, sides, looks, decisions and their reasons.

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

use super::{SECOND_NS, Tiering};

/// What is allowed and wanted. `Default` but for traffic, which depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goals {
    /// The share of near memory that stays free for new pages.
    pub headroom: BasisPoints,
    /// The most that moves, promotion and demotion together.
    pub traffic: BytesPerSecond,
    /// The share of one CPU that looking and moving may take.
    pub cpu: BasisPoints,
    /// The shortest and the longest window.
    pub window: (Nanoseconds, Nanoseconds),
}

impl Goals {
    /// The usual goals for this much traffic: 2 % headroom, 5 % of a CPU, windows of 50 ms to 2 s. CPUs remember translations
    /// and set accessed bits when they look them up anew: a shorter window finds nothing.
    #[must_use]
    pub const fn with_traffic(traffic: BytesPerSecond) -> Self {
        Self {
            headroom: BasisPoints(200),
            traffic,
            cpu: BasisPoints(500),
            window: (Nanoseconds(SECOND_NS / 20), Nanoseconds(2 * SECOND_NS)),
        }
    }
}

impl Tiering {
    /// Goes on with other goals; what it has learned stays.
    pub fn set_goals(&mut self, goals: Goals) {
        self.goals = goals;
    }
}

/// One side of the boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// All its memory.
    pub total: Bytes,
    /// What is free of it.
    pub free: Bytes,
}

impl Side {
    pub(super) fn taken(self) -> u64 {
        self.total.0.saturating_sub(self.free.0)
    }
}

/// How a look is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// From the pass that forgets to the one that counts.
    pub window: Nanoseconds,
    /// Near pages are judged by age: they stay as they are until demotion comes by, which it does in the order of their
    /// addresses, round and round. What was used since it last came by stays near. Only those that it has just come by, of
    /// which nothing is lost, are forgotten and counted: a sample.
    pub by_age: bool,
}

/// What the second pass of a look came upon, and what was moved since the look before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Pages looked at.
    pub at: Bytes,
    /// Of these, found used.
    pub used: Bytes,
    /// Moved from here to the other side since the last look.
    pub moved: Bytes,
}

/// What a step is decided from: a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Time since the last look.
    pub elapsed: Nanoseconds,
    /// CPU time that looking and moving took since the last look.
    pub cpu: Nanoseconds,
    /// The faster tier.
    pub near: Side,
    /// The slower tier.
    pub far: Side,
    /// What was found in near memory, and demoted.
    pub near_look: Looked,
    /// What was found in far memory, and promoted.
    pub far_look: Looked,
}

impl Observation {
    /// Whether pages of both sides were counted; of near ones most, not a sample.
    pub(super) fn both(&self) -> bool {
        self.sampled() && self.near_look.at.0 >= self.near.taken() / 2
    }

    /// Whether some pages of both sides were counted.
    pub(super) fn sampled(&self) -> bool {
        self.near_look.at.0 > 0 && self.far_look.at.0 > 0
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// So much of what is found used in far memory is promoted, after demotion.
    pub promote: Bytes,
    /// In so short a time.
    pub promote_window: Nanoseconds,
    /// So much of what is found unused in near memory is demoted: room for new pages, and for what is promoted.
    pub demote: Bytes,
    /// Whether near pages are demoted by their age.
    pub by_age: bool,
    /// What is demoted has been unused for at least so long.
    pub idle: Nanoseconds,
    /// From the start of this look to the start of the next; at least a window.
    pub period: Nanoseconds,
    /// Why, for people.
    pub reason: Reason,
}

/// What is to hold from one look to the next: near memory is filled, but new pages find room. Nothing is looked at for it;
/// pages are taken as they come, used or unused since they were last seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// While less of near memory is free, unused pages leave it.
    pub free_least: Bytes,
    /// While more of it is free, used pages come; `None` if there is nothing in far memory that is worth it.
    pub free_most: Option<Bytes>,
    /// So much is tried in a second, each way.
    pub rate: BytesPerSecond,
    /// The share of one CPU that each way may take.
    pub cpu: BasisPoints,
}

/// Why a decision is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is being found out how often a page must be used to be among those that near memory holds.
    Seeks,
    /// Nothing in far memory is used.
    Fits,
    /// Used pages in far memory move to room that there is in near memory.
    Fills,
    /// Used pages in far memory change places with unused ones in near memory.
    Exchange,
    /// Near memory holds what is used most; few pages move.
    Settled,
    /// Exchanging has not made near pages the more used ones; it rests.
    NoGain {
        /// Until it is tried again.
        again_in: Nanoseconds,
    },
}

impl Reason {
    /// One word for JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Seeks => "seeks",
            Self::Fits => "fits",
            Self::Fills => "fills",
            Self::Exchange => "exchange",
            Self::Settled => "settled",
            Self::NoGain { .. } => "no_gain",
        }
    }
}

/// What is known by now, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// What is used within a window, near and far.
    pub hot: Bytes,
    /// Share of near pages that were found used.
    pub near_used: BasisPoints,
    /// Share of far pages that were found used.
    pub far_used: BasisPoints,
    /// The window.
    pub window: Nanoseconds,
}
