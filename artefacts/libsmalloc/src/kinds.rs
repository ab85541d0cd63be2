//! The kinds that serve allocations: created at first use, recorded, never destroyed.
//!
//! Rules: records are prepended to a list by one compare-and-swap; a record is never changed and never freed. Two
//! threads may create the same kind at the same time; the second destroys its own, which is still unused. So no thread
//! waits, and a child of fork finds the list consistent.
#![expect(unsafe_code, reason = "a list without locks")]

use core::fmt::Write as _;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::nearfar::{self, NF_DEFAULT, nf_free, nf_kind_t, nf_malloc};
use crate::nodes::{self, Memory, Nodes};
use crate::text::{self, Text};

/// The distribution of pages over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// On the nearest node with free memory.
    Nearest,
    /// Interleaved.
    InTurn,
}

/// The properties of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) memory: Memory,
    pub(crate) spread: Spread,
    /// Nodes, all of this type of memory.
    pub(crate) nodes: Nodes,
}

/// A record of a kind.
#[derive(Debug)]
struct Made {
    plan: Plan,
    kind: nf_kind_t,
    /// The previous record.
    next: *const Self,
}

static LAST: AtomicPtr<Made> = AtomicPtr::new(null_mut());

/// For each type the kind of all its nodes; the default means that it was not created yet.
static WHOLE: [AtomicU32; 2] = [const { AtomicU32::new(NF_DEFAULT) }; 2];

/// The kind of all nodes of a type; `None`, with errno set, if there are no such nodes.
pub(crate) fn whole(memory: Memory) -> Option<nf_kind_t> {
    match WHOLE[memory.index()].load(Ordering::Acquire) {
        NF_DEFAULT => make_whole(memory),
        kind => Some(kind),
    }
}

#[cold]
fn make_whole(memory: Memory) -> Option<nf_kind_t> {
    let kind = get(&Plan { memory, spread: Spread::Nearest, nodes: nodes::of(memory)? })?;
    WHOLE[memory.index()].store(kind, Ordering::Release);
    Some(kind)
}

/// The kind of those of `nodes` that are of a type; `None`, with errno set, if there are none.
pub(crate) fn of_nodes(memory: Memory, nodes: &Nodes) -> Option<nf_kind_t> {
    let plan = Plan { memory, spread: Spread::Nearest, nodes: *nodes };
    // A recorded kind's nodes were checked when it was created, so the machine need not be read.
    if let Some(kind) = find(LAST.load(Ordering::Acquire), &plan) {
        return Some(kind);
    }
    let nodes = nodes::of(memory)?.and(nodes);
    if nodes.is_empty() {
        return text::none(libc::ENODEV);
    }
    get(&Plan { nodes, ..plan })
}

/// The kind for a plan, created if necessary; `None`, with errno set, on failure.
pub(crate) fn get(plan: &Plan) -> Option<nf_kind_t> {
    find(LAST.load(Ordering::Acquire), plan).or_else(|| make(plan))
}

#[cold]
fn make(plan: &Plan) -> Option<nf_kind_t> {
    // The longest specification lists 1,024 nodes, separated by commas.
    let mut words = Text::<5120>::new();
    let policy = if plan.spread == Spread::Nearest { "bind" } else { "interleave" };
    let written = write!(words, "{policy}:{}", plan.nodes);
    let kind = nearfar::create(words.as_c_str().filter(|_| written.is_ok())?)?;
    let made: *mut Made = nf_malloc(NF_DEFAULT, size_of::<Made>()).cast();
    if made.is_null() {
        nearfar::destroy_unused(kind);
        return text::none(libc::ENOMEM);
    }
    loop {
        let last = LAST.load(Ordering::Acquire);
        if let Some(other) = find(last, plan) {
            // SAFETY: allocated above, and not published.
            unsafe { nf_free(made.cast()) };
            nearfar::destroy_unused(kind);
            return Some(other);
        }
        // SAFETY: allocated above with room for one, aligned as malloc's memory is, and not published yet.
        unsafe { made.write(Made { plan: *plan, kind, next: last }) };
        if LAST.compare_exchange(last, made, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(kind);
        }
    }
}

/// The type of a kind; `None` if it was not created here.
pub(crate) fn memory_of(kind: nf_kind_t) -> Option<Memory> {
    walk(LAST.load(Ordering::Acquire)).find(|made| made.kind == kind).map(|made| made.plan.memory)
}

/// Bytes allocated and not given back, of all kinds of a type.
pub(crate) fn allocated(memory: Memory) -> u64 {
    let all = walk(LAST.load(Ordering::Acquire)).filter(|made| made.plan.memory == memory);
    all.map(|made| nearfar::allocated(made.kind)).sum()
}

fn find(last: *const Made, plan: &Plan) -> Option<nf_kind_t> {
    walk(last).find(|made| made.plan == *plan).map(|made| made.kind)
}

/// The records of the list from `last` on.
fn walk(last: *const Made) -> impl Iterator<Item = &'static Made> {
    let at = |made: *const Made| -> Option<&'static Made> {
        // SAFETY: records are never changed or freed.
        unsafe { made.as_ref() }
    };
    core::iter::successors(at(last), move |made| at(made.next))
}
