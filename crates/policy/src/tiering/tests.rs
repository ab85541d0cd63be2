//! Tiering on a simulated machine whose pages are accessed at random, each at its own rate.
//!
//! A scan finds a page referenced with the probability given by its rate and the window; the scanned pages are drawn at
//! random. *Simulated*: rates, capacities and time are invented.

use super::*;
use nearfar_topology::BytesPerSecond;
use proptest::prelude::*;
use std::vec::Vec;

const PAGE: u64 = 4096;

struct Page {
    per_second: f64,
    /// Lines requested from memory per access.
    lines: f64,
    near: bool,
    /// Time at which its accessed bit was last cleared.
    forgotten: f64,
}

impl Page {
    fn asks(&self) -> f64 {
        self.per_second * self.lines
    }
}

/// Near memory of `near` pages, far memory of twice all pages.
struct Machine {
    pages: Vec<Page>,
    near: u64,
    random: u64,
    moved: u64,
    seconds: f64,
    /// Index at which the next demotion by age begins, and the pages that the last one passed.
    hand: usize,
    behind: Vec<usize>,
}

impl Machine {
    /// Pages with these rates; the first ones fill near memory except `free` pages, as a kernel without tiering does.
    fn new(rates: impl IntoIterator<Item = f64>, near: u64, free: u64) -> Self {
        let page = |(at, per_second): (usize, f64)| Page {
            per_second,
            lines: 1.0,
            near: (at as u64) < near - free,
            forgotten: 0.0,
        };
        let pages = rates.into_iter().enumerate().map(page).collect();
        let random = 0x9e37_79b9_7f4a_7c15;
        Self { pages, near, random, moved: 0, seconds: 0.0, hand: 0, behind: Vec::new() }
    }

    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    fn taken(&self, near: bool) -> u64 {
        self.pages.iter().filter(|page| page.near == near).count() as u64
    }

    /// Tests and clears the accessed bit of a page.
    fn is_used(&mut self, at: usize, now: f64) -> bool {
        let unused = now - std::mem::replace(&mut self.pages[at].forgotten, now);
        self.random() < 1.0 - (-self.pages[at].per_second * unused).exp()
    }

    /// Counts the referenced pages of one side, among `pages`.
    fn count(&mut self, near: bool, now: f64, pages: impl IntoIterator<Item = usize>) -> Scanned {
        let (mut looked, mut used) = (0, 0);
        for at in pages {
            if self.pages[at].near == near {
                looked += 1;
                used += u64::from(self.is_used(at, now));
            }
        }
        Scanned { at: Bytes(looked * PAGE), used: Bytes(used * PAGE), moved: Bytes(0) }
    }

    /// Migrates up to `bytes` of unreferenced near or referenced far pages, as free memory allows.
    fn shift(&mut self, from_near: bool, bytes: Bytes, by_age: bool, now: f64) -> Bytes {
        let room = if from_near { u64::MAX } else { self.near - self.taken(true) };
        let (most, mut moved) = ((bytes.0 / PAGE).min(room), 0);
        self.random();
        let anywhere = usize::try_from(self.random % self.pages.len() as u64).unwrap();
        let start = if by_age { self.hand } else { anywhere };
        if by_age {
            self.behind.clear();
        }
        for at in (start..self.pages.len()).chain(0..start) {
            if moved == most {
                break;
            }
            if by_age {
                self.behind.push(at);
            }
            self.hand = if by_age { (at + 1) % self.pages.len() } else { self.hand };
            if self.pages[at].near == from_near && self.is_used(at, now) != from_near {
                self.pages[at].near = !from_near;
                moved += 1;
            }
        }
        self.moved += moved;
        Bytes(moved * PAGE)
    }

    /// Clears the accessed bits of far pages at time `then`.
    fn forget_far(&mut self, then: f64) {
        for page in self.pages.iter_mut().filter(|page| !page.near) {
            page.forgotten = page.forgotten.max(then);
        }
    }

    /// Carries out the decision and makes the next scan.
    fn step(&mut self, decision: Option<Decision>, tiering: &Tiering) -> Observation {
        let mut seen = Observation::default();
        let seconds = |window: Nanoseconds| window.0 as f64 / 1e9;
        let mut moved = [Bytes(0); 2];
        let began = self.seconds;
        if let Some(decision) = decision {
            let now = began + if decision.by_age { 0.0 } else { seconds(decision.idle) };
            moved[0] = self.shift(true, decision.demote, decision.by_age, now);
            let now = now.max(began + seconds(decision.promote_window));
            self.forget_far(now - seconds(decision.promote_window));
            moved[1] = self.shift(false, decision.promote, false, now);
            seen.elapsed = decision.period;
        }
        // The period is from one count to the next.
        let Scan { window, by_age } = tiering.scan();
        if by_age && seen.elapsed.0 > 0 {
            // The duration of three passes.
            seen.elapsed.0 = seen.elapsed.0.max(window.0 / 2 * 5);
        }
        self.seconds = began + seconds(seen.elapsed).max(seconds(window));
        let forget = self.seconds - seconds(window);
        for near in [false, true] {
            let all = (0..self.pages.len()).collect();
            let pages = if near && by_age { self.behind.clone() } else { all };
            self.count(near, forget, pages.iter().copied());
            let found = self.count(near, self.seconds, pages);
            *(if near { &mut seen.near_scan } else { &mut seen.far_scan }) = found;
        }
        (seen.near_scan.moved, seen.far_scan.moved) = (moved[0], moved[1]);
        // Half a microsecond a page and pass, five for a move.
        let moves = (moved[0].0 + moved[1].0) / PAGE;
        seen.cpu = Nanoseconds(self.pages.len() as u64 * 1_500 + moves * 5_000);
        let near_taken = self.taken(true);
        let all = self.pages.len() as u64;
        let side = |total: u64, taken: u64| TierUsage {
            total: Bytes(total * PAGE),
            free: Bytes((total - taken) * PAGE),
        };
        seen.near = side(self.near, near_taken);
        seen.far = side(2 * all, all - near_taken);
        seen
    }

    /// Share of accesses served by near memory.
    fn near_share(&self) -> f64 {
        let sum = |of: &dyn Fn(&Page) -> bool| {
            self.pages.iter().filter(|page| of(page)).map(Page::asks).sum::<f64>()
        };
        sum(&|page| page.near) / sum(&|_| true)
    }

    /// The largest possible share.
    fn best_share(&self) -> f64 {
        let mut rates: Vec<f64> = self.pages.iter().map(Page::asks).collect();
        rates.sort_by(|a, b| b.total_cmp(a));
        let near =
            rates.iter().take(usize::try_from(self.near - self.near / 50).unwrap()).sum::<f64>();
        near / rates.iter().sum::<f64>()
    }

    /// Runs for a minute; returns the part of the possible improvement of the near share that was reached.
    fn recovered_in_a_minute(&mut self, tiering: &mut Tiering) -> f64 {
        let before = self.near_share();
        self.run(tiering, 60);
        (self.near_share() - before) / (self.best_share() - before)
    }

    /// Reasons of the decisions, each with its duration in seconds.
    fn run(&mut self, tiering: &mut Tiering, seconds: u32) -> Vec<(Reason, f64)> {
        let until = self.seconds + f64::from(seconds);
        let mut seen = self.step(None, tiering);
        let mut reasons = Vec::new();
        while self.seconds < until {
            let decision = tiering.step(&seen);
            reasons.push((decision.reason, decision.period.0 as f64 / 1e9));
            seen = self.step(Some(decision), tiering);
        }
        reasons
    }
}

/// Zipfian rates, the hottest page anywhere.
fn zipf(pages: usize, per_second: f64, shift: usize) -> Vec<f64> {
    let sum: f64 = (1..=pages).map(|rank| (rank as f64).powf(-0.99)).sum();
    let rank = |at: usize| ((at + shift) * 7919 + 13) % pages + 1;
    (0..pages).map(|at| per_second * (rank(at) as f64).powf(-0.99) / sum).collect()
}

/// A store of records as an allocator with size classes lays them out: each record has a piece in a page of each class,
/// and neighbours in a page are unrelated. Pages that are never accessed come first.
fn store(records: usize, per_second: f64, idle: usize, near: u64) -> Machine {
    // A zipfian over ten thousand million items, hashed over the records: half of all requests are for items so rare
    // that their records are accessed uniformly.
    let (items_zeta, ranks) = (26.469_028_201_783_02, 1_000_000);
    let of_rank = |rank: u32| f64::from(rank).powf(-0.99) / items_zeta;
    let rest = 1.0 - (1..=ranks).map(of_rank).sum::<f64>();
    let mut of_record = std::vec![rest / records as f64; records];
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for rank in 1..=ranks {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // The hottest records are in CPU caches, and request memory no more often than the next ones.
        of_record[(random >> 33) as usize % records] += of_rank(rank.max(150));
    }
    of_record.iter_mut().for_each(|share| *share *= per_second);
    let mut machine = Machine::new(std::iter::repeat_n(0.0, idle), near, 0);
    // The layout of a Redis hash of ten fields of 100 bytes.
    let classes = [
        (1360, 20.0),
        (240, 4.5),
        (128, 2.0),
        (80, 2.0),
        (64, 1.0),
        (32, 1.0),
        (24, 1.0),
        (16, 1.0),
        (16, 1.0),
    ];
    for (bytes, lines) in classes {
        let first = machine.pages.len();
        for (at, per_second) in of_record.iter().enumerate() {
            let page = first + at * bytes / 4096;
            if page == machine.pages.len() {
                machine.pages.push(Page { per_second: 0.0, lines, near: false, forgotten: 0.0 });
            }
            machine.pages[page].per_second += per_second;
        }
    }
    // All classes are filled at the same time.
    let used = machine.pages.len() - idle;
    let rest = usize::try_from(near).unwrap() - idle - 600;
    for at in 0..used {
        machine.pages[idle + at].near = at * rest / used != (at + 1) * rest / used;
    }
    machine
}

#[test]
fn a_store_of_small_items_is_served_near_as_far_as_its_pages_differ() {
    // At any request rate; with the best placement seven tenths would be served near.
    for per_second in [3e3, 1e4, 6e4] {
        let mut machine = store(171_000, per_second, 21_500, 43_000);
        let (before, best) = (machine.near_share(), machine.best_share());
        assert!((0.2..0.3).contains(&before) && (0.7..0.78).contains(&best), "{before}, {best}");
        let mut tiering = Tiering::new(Goals::with_traffic(BytesPerSecond(1_350 << 20)));
        let recovered = machine.recovered_in_a_minute(&mut tiering);
        assert!(recovered > 0.86, "{per_second}/s: {recovered:.3}, {tiering:?}");
        let moved = machine.moved;
        machine.run(&mut tiering, 60);
        assert!(
            machine.moved - moved < 43_000 * 3 / 4,
            "{per_second}/s: {}",
            machine.moved - moved
        );
    }
}

const PAGES: usize = 60_013;
const NEAR: u64 = 30_000;

/// Here pages are found referenced in arbitrarily short windows.
fn tiering() -> Tiering {
    let goals = Goals::with_traffic(BytesPerSecond(200 << 20));
    Tiering::new(Goals { window: (Nanoseconds(20_000_000), goals.window.1), ..goals })
}

#[test]
fn a_zipfian_working_set_of_twice_near_memory_converges_within_a_minute() {
    for per_second in [2e5, 6e5, 6e6] {
        let mut machine = Machine::new(zipf(PAGES, per_second, 0), NEAR, 600);
        let mut tiering = tiering();
        let recovered = machine.recovered_in_a_minute(&mut tiering);
        assert!(recovered > 0.8, "{per_second}/s: {recovered:.3}, {tiering:?}");
    }
}

#[test]
fn pages_referenced_less_than_once_a_window_are_ranked_by_age() {
    // The page in the middle is used once in 140 s, 35 s, 14 s.
    for per_second in [5e3, 2e4, 5e4] {
        let mut machine = Machine::new(zipf(PAGES, per_second, 0), NEAR, 600);
        let mut tiering = tiering();
        let recovered = machine.recovered_in_a_minute(&mut tiering);
        assert!(recovered > 0.85, "{per_second}/s: {recovered:.3}, {tiering:?}");
    }
}

#[test]
fn a_hot_set_that_moves_is_followed() {
    let mut machine = Machine::new(zipf(PAGES, 6e5, 0), NEAR, 600);
    let mut tiering = tiering();
    machine.run(&mut tiering, 60);
    for (page, per_second) in machine.pages.iter_mut().zip(zipf(PAGES, 6e5, 9_000)) {
        page.per_second = per_second;
    }
    let recovered = machine.recovered_in_a_minute(&mut tiering);
    assert!(recovered > 0.8, "{recovered:.3} {tiering:?}");
}

#[test]
fn tiering_backs_off_if_all_pages_are_equally_hot() {
    let mut machine = Machine::new((0..PAGES).map(|_| 10.0), NEAR, 600);
    let mut tiering = tiering();
    let reasons = machine.run(&mut tiering, 600);
    let rest = reasons.iter().filter(|(reason, _)| matches!(reason, Reason::NoGain { .. }));
    let resting: f64 = rest.map(|(_, seconds)| seconds).sum();
    assert!(resting > 450.0, "{resting} of 600 s; moved {} pages", machine.moved);
    assert!(machine.moved < 6 * NEAR, "{}", machine.moved);
}

#[test]
fn the_backoff_ends_when_a_hot_set_appears() {
    let mut machine = Machine::new((0..PAGES).map(|_| 10.0), NEAR, 600);
    let mut tiering = tiering();
    machine.run(&mut tiering, 400);
    for (page, per_second) in machine.pages.iter_mut().zip(zipf(PAGES, 6e5, 0)) {
        page.per_second = if page.near { per_second / 4.0 } else { per_second };
    }
    let recovered = machine.recovered_in_a_minute(&mut tiering);
    assert!(recovered > 0.8, "{recovered:.3} {tiering:?}");
}

#[test]
fn scans_become_rare_and_migration_small_once_the_hot_set_is_near() {
    let mut machine = Machine::new(zipf(PAGES, 6e5, 0), NEAR, 600);
    let mut tiering = tiering();
    machine.run(&mut tiering, 120);
    let moved = machine.moved;
    let looks = machine.run(&mut tiering, 160).len();
    assert!(looks <= 12, "{looks}");
    assert!(machine.moved - moved < NEAR / 4, "{}", machine.moved - moved);
}

#[test]
fn free_near_memory_left_by_promotion_triggers_an_early_scan() {
    let mut machine = Machine::new(zipf(PAGES, 2e4, 0), NEAR, 600);
    let mut tiering = tiering();
    machine.run(&mut tiering, 60);
    let side = |free: u64| TierUsage { total: Bytes(NEAR * PAGE), free: Bytes(free * PAGE) };
    let (far, later) = (side(NEAR / 2), Nanoseconds(60 * SECOND_NS));
    let is_off = |free: u64, since| tiering.is_off(side(free), far, since);
    assert!(is_off(NEAR / 5, later));
    assert!(!is_off(600, later) && !is_off(1200, later));
    assert!(!is_off(NEAR / 5, Nanoseconds(SECOND_NS / 2)), "not at once");
    let unused = TierUsage { free: Bytes(NEAR * PAGE), ..far };
    assert!(!tiering.is_off(side(NEAR / 5), unused, later), "nothing is in far memory");
}

#[test]
fn low_free_memory_demotes_by_age_at_once_or_else_schedules_a_scan() {
    let side = |free: u64| TierUsage { total: Bytes(NEAR * PAGE), free: Bytes(free * PAGE) };
    let (far, later) = (side(NEAR / 2), Nanoseconds(60 * SECOND_NS));
    // Used once in several seconds: by age.
    let mut machine = Machine::new(zipf(PAGES, 4e3, 0), NEAR, 600);
    let mut aged = tiering();
    machine.run(&mut aged, 60);
    assert!(aged.scan().by_age);
    let headroom = aged.headroom(side(0));
    assert_eq!(aged.relief(side(1), far, later), Bytes(headroom - PAGE));
    assert!(!aged.is_off(side(1), far, later));
    assert_eq!(aged.relief(side(NEAR / 50), far, later), Bytes(0), "there is room");
    assert_eq!(aged.relief(side(1), side(0), later), Bytes(0), "there is nowhere to go");
    assert_eq!(aged.relief(side(1), far, Nanoseconds(SECOND_NS / 2)), Bytes(0), "not at once");
    // Used constantly: a scan separates hot from cold.
    let mut sought = tiering();
    Machine::new(zipf(PAGES, 4e6, 0), NEAR, 600).run(&mut sought, 60);
    assert!(!sought.scan().by_age);
    assert_eq!(sought.relief(side(1), far, later), Bytes(0));
    assert!(sought.is_off(side(1), far, later));
}

/// A hot set of a quarter of near memory, in far memory; all other pages are used uniformly and much less.
fn hot_quarter() -> Vec<f64> {
    (0..PAGES).map(|at| if at >= PAGES - 7_500 { 145.0 } else { 2.3 }).collect()
}

#[test]
fn cold_pages_are_rarely_migrated_once_the_hot_set_is_near() {
    let mut machine = Machine::new(hot_quarter(), NEAR, 600);
    let mut tiering = tiering();
    machine.run(&mut tiering, 15);
    let hot = machine.pages.iter().filter(|page| page.near && page.per_second > 100.0).count();
    assert!(hot > 7_400, "{hot} of 7500 after 15 s");
    let moved = machine.moved;
    machine.run(&mut tiering, 100);
    assert!(machine.moved - moved < NEAR / 3, "{} then {}", moved, machine.moved - moved);
}

#[test]
fn near_memory_full_of_hot_pages_admits_no_promotions() {
    let mut machine = Machine::new(std::iter::repeat_n(1e6, 60_000), NEAR, 0);
    let reasons = machine.run(&mut tiering(), 20);
    assert!(reasons.iter().any(|(reason, _)| *reason == Reason::NoRoom), "{reasons:?}");
    assert!(machine.moved < NEAR / 16, "{}", machine.moved);
}

#[test]
fn a_working_set_that_fits_near_memory_is_never_migrated() {
    let mut machine = Machine::new(zipf(25_000, 1e5, 0), NEAR, 600);
    let reasons = machine.run(&mut tiering(), 60);
    assert_eq!(machine.moved, 0);
    assert!(reasons.iter().all(|(reason, _)| *reason == Reason::Fits), "{reasons:?}");
}

#[test]
fn cold_near_pages_are_demoted_until_near_memory_has_headroom() {
    let cold = std::iter::repeat_n(0.0, 15_000).chain(std::iter::repeat_n(50.0, 15_000));
    let mut machine = Machine::new(cold, NEAR, 0);
    machine.run(&mut tiering(), 30);
    let free = NEAR - machine.taken(true);
    assert!((450..=4_000).contains(&free), "{free} pages free");
    let hot_far = machine.pages.iter().filter(|page| !page.near && page.per_second > 0.0).count();
    assert!(hot_far < 300, "{hot_far} hot pages were demoted");
}

#[test]
fn the_window_grows_until_the_hot_set_fills_half_of_near_memory_and_is_then_interpolated() {
    let seen = |near: u64, far: u64| {
        let scan = |used| Scanned { at: Bytes(8_000), used: Bytes(used), moved: Bytes(0) };
        Observation {
            elapsed: Nanoseconds(SECOND_NS),
            near: TierUsage { total: Bytes(8_192), free: Bytes(192) },
            far: TierUsage { total: Bytes(16_000), free: Bytes(8_000) },
            near_scan: scan(near),
            far_scan: scan(far),
            ..Observation::default()
        }
    };
    let mut tiering = Tiering::new(Goals::with_traffic(BytesPerSecond(1 << 30)));
    let mut window = |near, far| {
        tiering.step(&seen(near, far));
        (tiering.scan().window.0 / 100_000, tiering.seek == Seek::Found)
    };
    // The hot set is to be half of 8192 less 163 of headroom: 4014. Found are 800 at 50 ms; 50 ms x 4014 / 800.
    assert_eq!(window(400, 400), (2_508, false));
    // 6000 at 250.8 ms: 50 ms + 200.8 ms x (4014 - 800) / (6000 - 800).
    assert_eq!(window(4_000, 2_000), (1_741, true));
    let mut tiering = Tiering::new(Goals::with_traffic(BytesPerSecond(1 << 30)));
    tiering.step(&seen(100, 100));
    assert_eq!(tiering.scan().window, Nanoseconds(400_000_000), "eight times at most");
    tiering.step(&seen(1_900, 2_000));
    assert_eq!(tiering.scan().window, Nanoseconds(800_000_000), "and at least twice");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn migration_traffic_stays_within_its_limit(
        per_second in 1e3f64..1e6, near in 1_000u64..4_000, mib in 1u64..20, free in 0u64..500,
    ) {
        let mut machine = Machine::new(zipf(5_003, per_second, 0), near, free);
        let mut tiering = Tiering::new(Goals::with_traffic(BytesPerSecond(mib << 20)));
        machine.run(&mut tiering, 5);
        let before = machine.moved;
        machine.run(&mut tiering, 40);
        let per_second = (machine.moved - before) * PAGE / 40;
        prop_assert!(per_second <= (mib << 20) * 5 / 4, "{} MiB/s of {mib}", per_second >> 20);
    }

    #[test]
    fn any_observation_gives_a_decision_within_bounds(
        numbers in prop::collection::vec(prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>(), 0..1u64 << 40], 13),
        steps in 1usize..6,
    ) {
        let mut tiering = tiering();
        let side = |at: usize| TierUsage { total: Bytes(numbers[at]), free: Bytes(numbers[at + 1]) };
        let looked = |at: usize| Scanned {
            at: Bytes(numbers[at]), used: Bytes(numbers[at + 1]), moved: Bytes(numbers[at + 2] >> 8),
        };
        let seen = Observation {
            elapsed: Nanoseconds(numbers[0]), cpu: Nanoseconds(numbers[1]), idle_cpu: Nanoseconds(numbers[12]),
            near: side(2), far: side(4), far_scan: looked(6), near_scan: looked(9),
        };
        for _ in 0..steps {
            let decision = tiering.step(&seen);
            let look = tiering.scan();
            prop_assert!(look.window >= tiering.goals.window.0 && look.window <= tiering.goals.window.1);
            prop_assert!(decision.period >= look.window && decision.idle >= decision.promote_window);
            prop_assert!(decision.promote <= seen.far.total && decision.demote <= seen.near.total);
        }
    }
}
