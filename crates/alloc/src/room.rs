//! Checks whether the nodes that a kind is bound to have memory left.
//!
//! When the nodes that a program is bound to are full, the kernel reclaims memory where it can and then kills a
//! process. So a kind that grows, by a few MiB at a time, checks the free memory of its nodes from time to time. When
//! they are almost full, a kind with a spill hands requests on to that, and one without prints a warning once. Requests
//! served from memory that the kind already has are not affected and cause no check.
//!
//! Runs within jemalloc, so nothing here allocates.

use core::ffi::CStr;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use nearfar_kernel::meminfo::Meminfo;
use nearfar_topology::{NodeId, NodeSet};

use crate::line::Line;
use crate::{haste, sys};

/// A node is almost full below this, or below a 64th of its memory.
const LOW_LEAST: u64 = 64 << 20;
const LOW_PART: u64 = 64;
const LOW_MOST: u64 = 1 << 30;
/// The most bytes by which a kind grows between two checks.
const STEP_MOST: u64 = 64 << 20;
/// How long a node that was found full is treated as full.
const FULL_MS: u64 = 100;
/// The longest meminfo that is read.
const TEXT: usize = 4096;

/// The nodes that a kind depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    pub(crate) nodes: NodeSet,
    /// Whether it needs memory on each of them, not on any.
    pub(crate) each: bool,
}

/// A kind's knowledge of its nodes' free memory. All zeroes is none.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Bytes set aside at which the nodes are checked again.
    next: AtomicUsize,
    full_until_ms: AtomicU64,
    said: AtomicBool,
}

/// A kind's request for more memory of its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need<'a> {
    /// The nodes.
    pub(crate) bound: &'a Bound,
    pub(crate) bytes: usize,
    /// Bytes set aside for the kind, with these.
    pub(crate) aside: usize,
    /// Whether another kind can serve the request.
    pub(crate) spills: bool,
    /// The text that the kind was made from.
    pub(crate) text: &'a str,
}

impl Room {
    /// Clears the knowledge.
    pub(crate) fn reset(&self) {
        self.next.store(0, Ordering::Relaxed);
        self.full_until_ms.store(0, Ordering::Relaxed);
        self.said.store(false, Ordering::Relaxed);
    }

    /// Whether `need` can be met; false only if another kind can serve it. `drop_kept` frees kept memory, and returns
    /// whether there was any.
    pub(crate) fn has(&self, need: Need<'_>, drop_kept: impl FnOnce() -> bool) -> bool {
        let Need { bound, bytes, aside, spills, .. } = need;
        let now = haste::now_ms();
        if now < self.full_until_ms.load(Ordering::Relaxed) {
            return !spills;
        }
        if aside < self.next.load(Ordering::Relaxed) {
            return true;
        }
        let Some(mut left) = left(bound) else { return true };
        // Kept freed memory is given up first.
        if left < bytes as u64 && drop_kept() {
            left = self::left(bound).unwrap_or(0);
        }
        if let Some(behind) = left.checked_sub(bytes as u64).filter(|_| left > 0) {
            let step = usize::try_from((behind / 8).min(STEP_MOST)).unwrap_or(0);
            self.next.store(aside.saturating_add(step), Ordering::Relaxed);
            return true;
        }
        self.next.store(0, Ordering::Relaxed);
        if left > 0 {
            // A single object that is too large says nothing about the next.
            return !spills;
        }
        self.full_until_ms.store(now + FULL_MS, Ordering::Relaxed);
        if !self.said.swap(true, Ordering::Relaxed) {
            need.say_full();
        }
        !spills
    }
}

impl Need<'_> {
    fn say_full(&self) {
        let what = if self.spills {
            "memory comes from the kind's spill until there is room again"
        } else {
            "a full node makes the kernel kill a process: give the kind a spill= or a limit="
        };
        let (text, nodes) = (self.text, &self.bound.nodes);
        let (s, are) = if nodes.len() == 1 { ("", "is") } else { ("s", "are") };
        let mut line = Line::new();
        let _ = writeln!(line, "nearfar: kind {text}: node{s} {nodes} {are} almost full; {what}");
        sys::say(line.text());
    }
}

/// Bytes that nodes can give before they are almost full; `None` if that is not known.
fn left(bound: &Bound) -> Option<u64> {
    let mut of_nodes = bound.nodes.iter().filter_map(|node| Some(room(&meminfo(node)?)));
    if bound.each {
        // Each takes its share of the bytes, in the worst case all.
        of_nodes.min()
    } else {
        let first = of_nodes.next()?;
        Some(of_nodes.fold(first, u64::saturating_add))
    }
}

/// Bytes that a node can give before it is almost full. File pages count as free: the kernel drops them for programs'
/// memory.
fn room(found: &Meminfo) -> u64 {
    let low = (found.total.0 / LOW_PART).clamp(LOW_LEAST, LOW_MOST);
    found.free.0.saturating_add(found.cached.0).saturating_sub(low)
}

fn meminfo(node: NodeId) -> Option<Meminfo> {
    let mut path = Line::new();
    write!(path, "/sys/devices/system/node/node{node}/meminfo\0").ok()?;
    let mut text = [0; TEXT];
    let path = CStr::from_bytes_until_nul(path.text().as_bytes()).ok()?;
    let length = sys::read_file(path, &mut text)?;
    Some(Meminfo::parse(core::str::from_utf8(&text[..length]).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::Bytes;

    #[test]
    fn a_node_is_almost_full_before_the_kernel_kills() {
        let node = |total: u64, free: u64, cached: u64| Meminfo {
            total: Bytes(total << 20),
            free: Bytes(free << 20),
            cached: Bytes(cached << 20),
            ..Meminfo::default()
        };
        assert_eq!(room(&node(1024, 1000, 0)), 936 << 20);
        assert_eq!(room(&node(1024, 64, 0)), 0);
        assert_eq!(room(&node(1024, 10, 100)), 46 << 20, "pages with files go");
        assert_eq!(room(&node(16 << 10, 300, 0)), 44 << 20);
        assert_eq!(room(&node(1 << 20, 2048, 0)), 1024 << 20, "large nodes keep a GiB");
        assert_eq!(room(&Meminfo::default()), 0);
    }

    #[test]
    fn a_node_of_this_machine_is_read_without_an_allocation() {
        assert!(meminfo(NodeId(0)).is_some_and(|found| found.total.0 > 0));
        assert!(meminfo(NodeId(1023)).is_none());
        let bound = |nodes: &[u16], each| Bound {
            nodes: nodes.iter().copied().map(NodeId).collect(),
            each,
        };
        assert!(left(&bound(&[0], false)).is_some() && left(&bound(&[0, 1023], true)).is_some());
        assert_eq!(left(&bound(&[1023], false)), None);
    }
}
