//! The page mover port: migration of single pages at a limited rate.
//!
//! The balancing loop queues moves ([`PageMover::ask`]); the machine carries them out in batches as its rate allows
//! ([`PageMover::work`]) and reports where each page is then. Crates daemon and sim implement the port.

use alloc::vec::Vec;

use nearfar_topology::{Nanoseconds, NodeId};

use super::sensor::Targets;
use crate::traffic::{Memory, Page, Process};

/// A requested move of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The page; the first piece of a huge one.
    pub page: Page,
    /// Whether it is a huge one.
    pub huge: bool,
    /// It moves only if it is on this node; `None`: from any node.
    pub from: Option<NodeId>,
    /// The target node.
    pub to: NodeId,
}

/// The result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The request.
    pub asked: Move,
    /// The node it is on now; `None` if unknown, for example because the page is gone.
    pub on: Option<NodeId>,
    /// Whether the request has migrated it.
    pub moved: bool,
}

/// A machine that migrates single pages.
pub trait PageMover {
    /// An error of the machine.
    type Error;

    /// The present scope.
    ///
    /// # Errors
    /// Errors of the machine; there is nothing left to balance.
    fn targets(&mut self) -> Result<Targets, Self::Error>;

    /// Present memory of the nodes, in the order of the layout.
    ///
    /// # Errors
    /// Errors of the machine.
    fn memory(&mut self) -> Result<Vec<Memory>, Self::Error>;

    /// Queues moves behind those that wait.
    fn ask(&mut self, moves: Vec<Move>);

    /// Splits a huge page into small ones. Returns whether it is split.
    fn split(&mut self, page: Page) -> bool;

    /// Migrates pages as the rate allows now, at most a batch. Returns the results.
    fn work(&mut self, now: Nanoseconds) -> Vec<Placed>;

    /// Time until the next batch; `None` if nothing waits.
    fn next(&self) -> Option<Nanoseconds>;

    /// Number of moves that wait.
    fn waiting(&self) -> usize;

    /// Drops all moves that wait.
    fn forget(&mut self);

    /// Whether a process must not be touched, such as the caller.
    fn leaves_alone(&self, process: Process) -> bool;
}
