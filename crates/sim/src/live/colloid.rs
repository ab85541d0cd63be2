//! Colloid's search (Vuppalapati and Agarwal, SOSP 2024), as its port to HeMem does it: pages move until both tiers have the
//! same loaded latency.
//!
//! Each tick the policy's search ([`nearfar_policy::traffic::colloid`]) returns the wanted change of the near share of
//! accesses; where the paper reads latencies from counters, it gets [`Readings::loaded_ns`]. Then the hottest pages
//! that fit into that change move, up to a limit of bytes per tick. As in HeMem, only hot pages move, and only others
//! are displaced by them: a page is hot if it has more than its share of accesses. Near is the node with the lowest
//! latency without load.

use nearfar_policy::traffic::colloid::{self as search, Wish};
use nearfar_topology::{BasisPoints, Nanoseconds};

use super::heat::Heat;
use super::{Act, Controller, Readings};

/// Most bytes requested at once.
const ROUND_BYTES: u64 = 100_000_000;
/// Samples after which heat is halved.
const HALF_LIFE: f64 = 100_000.0;

/// The search.
#[derive(Clone, Debug)]
pub struct Colloid {
    search: search::Colloid,
    /// The last readings.
    latency_ns: [Option<f64>; 2],
    heat: Option<Heat>,
}

impl Default for Colloid {
    fn default() -> Self {
        let search = search::Colloid::new(search::Config::default());
        Self { search, latency_ns: [None; 2], heat: None }
    }
}

impl Controller for Colloid {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        let heat = self.heat.get_or_insert_with(|| Heat::new(readings.on().len(), HALF_LIFE));
        heat.add(&readings.samples);
        let tiers = tiers(readings);
        let seen = readings.loaded_ns.first();
        for (last, node) in self.latency_ns.iter_mut().zip(tiers) {
            *last = seen.and_then(|row| row.get(node).copied().flatten()).or(*last);
        }
        let [Some(near), Some(far)] = self.latency_ns.map(|ns| ns.map(whole_ns)) else {
            return Vec::new();
        };
        if readings.waiting > 0 {
            self.search.feel(near, far);
            return Vec::new();
        }
        let share = basis_points(heat.share_of_node(tiers[0], readings.on()));
        let wish = match self.search.step(near, far, share) {
            Wish::Stay => return Vec::new(),
            Wish::Near(by) => f64::from(by.0) / 10_000.0,
            Wish::Far(by) => -f64::from(by.0) / 10_000.0,
        };
        choose(readings, heat, tiers, wish)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
const fn whole_ns(ns: f64) -> Nanoseconds {
    Nanoseconds(ns.round() as u64)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
const fn basis_points(share: f64) -> BasisPoints {
    BasisPoints((share * 10_000.0).round() as u32)
}

/// The nearest node, and the nearest of the others.
fn tiers(readings: &Readings<'_>) -> [usize; 2] {
    let row = &readings.machine.latency_ns[0];
    let mut nodes: Vec<usize> = (0..row.len()).collect();
    nodes.sort_by(|a, b| row[*a].total_cmp(&row[*b]));
    [nodes.first().copied().unwrap_or_default(), nodes.get(1).copied().unwrap_or_default()]
}

/// Hottest pages first, as far as they fit into `wish`; a full node first gives up its coldest page, if that is
/// colder.
fn choose(readings: &Readings<'_>, heat: &Heat, tiers: [usize; 2], wish: f64) -> Vec<Act> {
    let [from, to] = if wish > 0.0 { [tiers[1], tiers[0]] } else { tiers };
    let (pages, page_bytes) = (readings.on().len(), readings.page_bytes());
    let on = |node: usize| (0..pages).filter(move |page| usize::from(readings.on()[*page]) == node);
    #[expect(clippy::cast_precision_loss, reason = "a count of pages")]
    let hot = 1.0 / pages.max(1) as f64;
    let mut coming: Vec<usize> = on(from).filter(|page| heat.share(*page) > hot).collect();
    coming.sort_by(|a, b| heat.share(*b).total_cmp(&heat.share(*a)));
    let mut going: Vec<usize> = on(to).filter(|page| heat.share(*page) <= hot).collect();
    going.sort_by(|a, b| heat.share(*b).total_cmp(&heat.share(*a)));
    let used = on(to).count() as u64 * page_bytes;
    let mut free = readings.machine.nodes[to].size.0.saturating_sub(used);
    let (mut moves, mut left, mut bytes) = (Vec::new(), wish.abs(), 0);
    let go = |page: usize, to: usize| Act::Move {
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
    use crate::live::testkit::{pages, readings, tiers as machine};
    use crate::live::{Sample, testkit};
    use crate::machine::Builder;

    const MIB: u64 = 1 << 20;

    /// Samples: as many of each page as given.
    fn samples(of: &[(u32, usize)]) -> Vec<Sample> {
        let all = of.iter().flat_map(|(page, count)| {
            std::iter::repeat_n(Sample { page: *page, row: 0, write: false }, *count)
        });
        all.collect()
    }

    fn heat(pages: usize, of: &[(u32, usize)]) -> Heat {
        let mut heat = Heat::new(pages, HALF_LIFE);
        heat.add(&samples(of));
        heat
    }

    fn moves(of: &[(u32, u16)]) -> Vec<Act> {
        of.iter().map(|(page, to)| Act::Move { page: *page, to: *to }).collect()
    }

    #[test]
    fn near_is_the_node_of_the_lowest_latency_and_not_of_the_lowest_number() {
        let nodes = [300.0, 90.0, 200.0].map(|ns| (ns, testkit::node(1 << 30)));
        let machine = Builder::tiers("unsorted", 2.0, nodes.to_vec()).build().unwrap();
        assert_eq!(tiers(&readings(&machine, &pages(&[0], MIB))), [1, 2]);
    }

    #[test]
    fn the_hottest_pages_that_fit_the_requested_shift_are_moved() {
        let (machine, pages) = (machine(&[1 << 30, 1 << 30]), pages(&[1; 10], MIB));
        let heat = heat(10, &[(3, 50), (7, 30), (1, 20)]);
        let chosen = |wish| choose(&readings(&machine, &pages), &heat, [0, 1], wish);
        // 30 % do not fit beside 50 % into 75 %, 20 % do.
        assert_eq!(chosen(0.75), moves(&[(3, 0), (1, 0)]));
        assert_eq!(chosen(1.0), moves(&[(3, 0), (7, 0), (1, 0)]));
        assert_eq!(chosen(0.1), []);
        assert_eq!(chosen(-1.0), [], "near memory has no page to give up");
    }

    #[test]
    fn a_full_near_node_demotes_its_coldest_page_for_each_promotion() {
        let (machine, pages) = (machine(&[2 * MIB, 1 << 30]), pages(&[0, 0, 1, 1], MIB));
        let heat = heat(4, &[(0, 2), (2, 60), (3, 38)]);
        let chosen = |wish| choose(&readings(&machine, &pages), &heat, [0, 1], wish);
        assert_eq!(chosen(1.0), moves(&[(1, 1), (2, 0), (0, 1), (3, 0)]));
        // Page 2 would gain 60 %.
        assert_eq!(chosen(0.5), moves(&[(1, 1), (3, 0)]));
    }

    #[test]
    fn hot_near_pages_move_to_far_memory_if_the_near_share_must_fall() {
        let (machine, pages) = (machine(&[1 << 30, 1 << 30]), pages(&[0, 0, 0, 1], MIB));
        let heat = heat(4, &[(0, 40), (1, 35), (2, 25)]);
        // Page 2 has exactly the mean share, so it is not hot.
        assert_eq!(
            choose(&readings(&machine, &pages), &heat, [0, 1], -1.0),
            moves(&[(0, 1), (1, 1)])
        );
    }

    #[test]
    fn a_round_requests_at_most_a_hundred_megabytes() {
        let (machine, pages) = (machine(&[1 << 30, 1 << 30]), pages(&[1; 200], MIB));
        let all: Vec<(u32, usize)> = (0..100).map(|page| (page, 1)).collect();
        let chosen = choose(&readings(&machine, &pages), &heat(200, &all), [0, 1], 1.0);
        // 95 MiB are 99.6 MB.
        assert_eq!(chosen.len(), 95);
    }

    #[test]
    fn the_search_starts_with_both_latencies_and_keeps_the_latest() {
        let (machine, pages) = (machine(&[1 << 30, 1 << 30]), pages(&[1; 10], MIB));
        let mut controller = Colloid::default();
        let mut tick = |loaded_ns: [Option<f64>; 2], waiting| {
            let mut readings = readings(&machine, &pages);
            readings.samples = samples(&[(0, 40), (1, 60)]);
            (readings.loaded_ns, readings.waiting) = (vec![loaded_ns.to_vec()], waiting);
            controller.tick(&readings)
        };
        assert_eq!(tick([Some(100.0), None], 0), []);
        // With all accesses far, the middle of the range is half of them: page 0, as page 1 has 60 %.
        assert_eq!(tick([None, Some(300.0)], 0), moves(&[(0, 0)]));
        assert_eq!(tick([None, None], 1), [], "moves are waiting");
        assert_eq!(tick([None, None], 0), moves(&[(0, 0)]));
    }
}
