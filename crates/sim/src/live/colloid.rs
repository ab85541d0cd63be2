//! Colloid's search (Vuppalapati and Agarwal, SOSP 2024), as its port to HeMem does it: pages move until both tiers have the
//! same loaded latency.
//!
//! Each tick: if latencies differ by less than 5 %, rest. Else the near tier's share p of accesses is a bound: a lower one
//! if near memory is the faster, an upper one if it is the slower. The wish is half-way between the bounds. Bounds that
//! have crossed, or are closer than 1 %, tell that the world has changed, and the side towards which to go is opened.
//! Then the hottest pages that fit into the wish go where they are wanted, for as many bytes a tick as are allowed. As in
//! HeMem, only hot pages move and only others give way to them: a page is hot if it has more than its share of accesses.
//!
//! Latencies are smoothed by 1/16; where the paper reads them from counters, here are [`Readings::loaded_ns`]. Near is the
//! node with the lowest latency without load.

use super::heat::Heat;
use super::{Controller, PageMove, Readings};

/// Latencies that differ by less are equal.
const EQUAL: f64 = 0.05;
/// Bounds closer than this tell nothing.
const CLOSE: f64 = 0.01;
const SMOOTHING: f64 = 1.0 / 16.0;
/// The most bytes that are asked for at once.
const ROUND_BYTES: u64 = 100_000_000;
/// Samples by which heat is forgotten by half.
const HALF_LIFE: f64 = 100_000.0;

/// The search.
#[derive(Clone, Debug)]
pub struct Colloid {
    low: f64,
    high: f64,
    latency_ns: [Option<f64>; 2],
    heat: Option<Heat>,
}

impl Default for Colloid {
    fn default() -> Self {
        Self { low: 0.0, high: 1.0, latency_ns: [None; 2], heat: None }
    }
}

impl Controller for Colloid {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<PageMove> {
        let heat = self.heat.get_or_insert_with(|| Heat::new(readings.on.len(), HALF_LIFE));
        heat.add(&readings.samples);
        let tiers = tiers(readings);
        let seen = readings.loaded_ns.first();
        for (smooth, node) in self.latency_ns.iter_mut().zip(tiers) {
            if let Some(ns) = seen.and_then(|row| row.get(node).copied().flatten()) {
                *smooth = Some(smooth.map_or(ns, |old| old + SMOOTHING * (ns - old)));
            }
        }
        let [Some(near_ns), Some(far_ns)] = self.latency_ns else { return Vec::new() };
        if readings.waiting > 0 || (near_ns - far_ns).abs() <= EQUAL * near_ns.max(far_ns) {
            return Vec::new();
        }
        let near = heat.share_of_node(tiers[0], readings.on);
        let wish = self.bound(near, near_ns < far_ns) - near;
        let heat = self.heat.as_ref();
        heat.map_or_else(Vec::new, |heat| choose(readings, heat, tiers, wish))
    }
}

impl Colloid {
    /// The share that near memory should have, it having `near` now.
    fn bound(&mut self, near: f64, near_is_faster: bool) -> f64 {
        if near_is_faster {
            self.low = near
        } else {
            self.high = near
        }
        // Crossed or close.
        if self.high - self.low < CLOSE {
            if near_is_faster { self.high = 1.0 } else { self.low = 0.0 }
        }
        0.5 * (self.low + self.high)
    }
}

/// The nearest node, and the nearest of the others.
fn tiers(readings: &Readings<'_>) -> [usize; 2] {
    let row = &readings.machine.latency_ns[0];
    let mut nodes: Vec<usize> = (0..row.len()).collect();
    nodes.sort_by(|a, b| row[*a].total_cmp(&row[*b]));
    [nodes.first().copied().unwrap_or_default(), nodes.get(1).copied().unwrap_or_default()]
}

/// Hottest pages first, as long as they fit into the wish; a full node first gives up its coldest, if that is colder.
fn choose(readings: &Readings<'_>, heat: &Heat, tiers: [usize; 2], wish: f64) -> Vec<PageMove> {
    let [from, to] = if wish > 0.0 { [tiers[1], tiers[0]] } else { tiers };
    let (pages, page_bytes) = (readings.on.len(), readings.page_bytes);
    let on = |node: usize| (0..pages).filter(move |page| usize::from(readings.on[*page]) == node);
    #[expect(clippy::cast_precision_loss, reason = "a count of pages")]
    let hot = 1.0 / pages.max(1) as f64;
    let mut coming: Vec<usize> = on(from).filter(|page| heat.share(*page) > hot).collect();
    coming.sort_by(|a, b| heat.share(*b).total_cmp(&heat.share(*a)));
    let mut going: Vec<usize> = on(to).filter(|page| heat.share(*page) <= hot).collect();
    going.sort_by(|a, b| heat.share(*b).total_cmp(&heat.share(*a)));
    let used = on(to).count() as u64 * page_bytes;
    let mut free = readings.machine.nodes[to].size.0.saturating_sub(used);
    let (mut moves, mut left, mut bytes) = (Vec::new(), wish.abs(), 0);
    let go = |page: usize, to: usize| PageMove {
        page: u32::try_from(page).unwrap_or_default(),
        to: u16::try_from(to).unwrap_or_default(),
    };
    for page in coming {
        if bytes + page_bytes > ROUND_BYTES {
            break;
        }
        let mut gain = heat.share(page);
        let swap = if free >= page_bytes { None } else { going.last().copied() };
        gain -= swap.map_or(0.0, |cold| heat.share(cold));
        if gain <= 0.0 {
            break;
        }
        if gain > left {
            continue;
        }
        match swap {
            Some(cold) => {
                going.pop();
                moves.push(go(cold, from));
                bytes += page_bytes;
            }
            None if free < page_bytes => break,
            None => free -= page_bytes,
        }
        moves.push(go(page, to));
        bytes += page_bytes;
        left -= gain;
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_close_in_and_reopen_when_the_world_changes() {
        let mut search = Colloid::default();
        assert!((search.bound(0.9, false) - 0.45).abs() < 1e-12, "near is slower: less of it");
        assert!((search.bound(0.45, true) - 0.675).abs() < 1e-12, "near is faster: half-way back");
        assert!(
            (search.bound(0.449, false) - 0.2245).abs() < 1e-12,
            "bounds have crossed: all below is open"
        );
        let mut close = Colloid { low: 0.5, high: 0.505, ..Colloid::default() };
        assert!(
            (close.bound(0.502, true) - 0.751).abs() < 1e-12,
            "close bounds open towards where to go"
        );
    }
}
