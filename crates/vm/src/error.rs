//! Reasons why a command line or a document is refused: the place, the finding, the remedy.

use nearfar_topology::{Bytes, NodeSetError};

/// A refusal. Nothing is changed or started after one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// A type that is no word and no number.
    #[error(
        "{place}: host-mem-type={text} is unknown; types are cxlram (cxl), dram, hbm, pmem, far, near, tier:N, or nodes such \
         as 0 or 1-2; this machine has {has}"
    )]
    UnknownType {
        /// The option.
        place: String,
        /// The type as written.
        text: String,
        /// The machine's nodes, in words.
        has: String,
    },
    /// A type or nodes that this machine lacks.
    #[error("{place}: {error}")]
    Nodes {
        /// The option.
        place: String,
        /// The reason.
        error: NodeSetError,
    },
    /// A policy that is unknown.
    #[error(
        "{place}: host-mem-policy={text} is unknown; policies are bind, preferred, interleave and weighted-interleave"
    )]
    UnknownPolicy {
        /// The option.
        place: String,
        /// The policy as written.
        text: String,
    },
    /// Two keys or options that exclude each other.
    #[error("{place}: {ours} and {theirs} exclude each other; {remedy}")]
    Conflict {
        /// The option.
        place: String,
        /// Our key.
        ours: String,
        /// The key it conflicts with.
        theirs: String,
        /// The way out.
        remedy: String,
    },
    /// A key that is needed for another one.
    #[error("{place}: {key} is missing; {remedy}")]
    Missing {
        /// The option.
        place: String,
        /// The missing key.
        key: String,
        /// The way out.
        remedy: String,
    },
    /// A value that is invalid.
    #[error("{place}: {key}={text}: {problem}")]
    Value {
        /// The option.
        place: String,
        /// The key.
        key: String,
        /// The value as written.
        text: String,
        /// The reason.
        problem: String,
    },
    /// Nodes with less memory than is to be bound to them.
    #[error(
        "{backends}: {need} are to be bound to {nodes} {room} {sort} {by_node}; use less, other nodes, \
         host-mem-policy=preferred, or --overcommit"
    )]
    NoRoom {
        /// The backends.
        backends: String,
        /// Their size together.
        need: Bytes,
        /// The nodes, with a verb.
        nodes: String,
        /// Available memory of the nodes together.
        room: Bytes,
        /// The sort of available memory.
        sort: String,
        /// Available memory of each, and other nodes that have enough.
        by_node: String,
    },
    /// An id that two backends have.
    #[error("{place}: another object has the id {id}; ids must differ")]
    DuplicateId {
        /// The second option.
        place: String,
        /// The id.
        id: String,
    },
    /// Text that has our keys and can't be understood.
    #[error("{place}: {problem}")]
    Unreadable {
        /// The option or file.
        place: String,
        /// The reason.
        problem: String,
    },
}
