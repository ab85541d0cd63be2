//! One host of the fleet: its machine, its workload, its daily load. All of it is assumed, except the waiting curve and
//! the marginal cost of a line, which are those fitted to Colloid's study ([`crate::published::colloid`]).

use nearfar_topology::Bytes;

use crate::machine::{Builder, Machine, Node, Refusal};
use crate::published::colloid;
use crate::rng::Rng;
use crate::workload::{Antagonist, Region, Worker, Workload};

/// Unit of migration, in bytes.
const PAGE: u64 = 256 << 20;
/// Memory used by a host, in pages.
const PAGES: u32 = 4096;

/// A host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Host {
    /// Size of near memory in pages; far memory can hold everything.
    near: u32,
    far_ns: f64,
    /// Bandwidth of near and of far memory, 10^9 bytes/s.
    gbps: [f64; 2],
    /// Number of hot pages, and their share of accesses.
    hot: u32,
    hot_share: f64,
    reads: f64,
    /// Outstanding lines at the busiest hour, ours and others'.
    lines: f64,
    others: f64,
    /// The share of hours with traffic of others.
    busy: f64,
    /// The busiest hour of the day.
    peak: f64,
}

impl Host {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let mut between = |low: f64, high: f64| low + (high - low) * rng.unit();
        let scale = between(0.5, 2.0);
        let near = between(0.35, 0.8);
        let hot = between(0.1, 0.4);
        let hot_share = between(0.6, 0.95);
        let far_scale = between(0.6, 1.2);
        let [reads, lines, others] = [between(0.6, 1.0), between(0.3, 2.0), between(0.0, 3.0)];
        let [busy, peak] = [between(0.1, 0.9), between(0.0, 24.0)];
        let far_ns = colloid::FAR_NS[rng.below(4) as usize];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part")]
        let pages = |part: f64| (f64::from(PAGES) * part) as u32;
        Self {
            near: pages(near),
            far_ns,
            gbps: [145.0 * scale, 70.0 * scale * far_scale],
            hot: pages(hot),
            hot_share,
            reads,
            lines: colloid::LINES * scale * lines,
            others: colloid::CONTENDING_LINES * scale * others,
            busy,
            peak,
        }
    }

    pub(super) fn machine(&self) -> Result<Machine, Refusal> {
        let node = |pages: u32, gbps: f64| Node {
            size: Bytes(u64::from(pages) * PAGE),
            read_gbps: gbps,
            write_gbps: gbps,
            duplex: false,
            waiting: colloid::CURVE,
        };
        let tiers = vec![
            (70.0, node(self.near, self.gbps[0])),
            (self.far_ns, node(PAGES + PAGES / 8, self.gbps[1])),
        ];
        Builder::tiers("host", 2.8, tiers).build()
    }

    pub(super) fn workload(&self) -> Workload {
        let region = |name: &str, pages| Region {
            name: name.to_owned(),
            pages,
            hot_pages: 0,
            hot_share: 0.0,
            touched_by: vec![1.0],
            reads: self.reads,
        };
        Workload {
            name: "host".into(),
            about: "a host of the fleet".into(),
            page_bytes: PAGE,
            regions: vec![region("hot", self.hot), region("cold", PAGES - self.hot)],
            workers: vec![Worker {
                row: 0,
                lines: self.lines,
                think_ns: 0.0,
                uses: vec![self.hot_share, 1.0 - self.hot_share],
            }],
            antagonists: vec![Antagonist { row: 0, node: 0, lines: 0.0 }],
            huge: false,
            stripe: 0,
            walk_ns: 0.0,
        }
    }

    /// Outstanding lines at this hour of the day, ours and others'.
    pub(super) fn load(&self, hour: u32, rng: &mut Rng) -> (f64, f64) {
        let angle = (f64::from(hour) - self.peak) / 24.0 * std::f64::consts::TAU;
        let day = 0.3 + 0.35 * (1.0 + angle.cos());
        let others = if rng.unit() < self.busy { self.others * rng.unit() } else { 0.0 };
        (self.lines * day, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_host_is_a_machine_that_holds_its_memory() {
        let mut rng = Rng::new(5);
        for _ in 0..200 {
            let host = Host::draw(&mut rng);
            let (machine, workload) = (host.machine().unwrap(), host.workload());
            let pages: u32 = workload.regions.iter().map(|region| region.pages).sum();
            assert!(pages == PAGES && u64::from(PAGES) * PAGE == 1 << 40);
            assert!(machine.nodes[0].size.0 < 1 << 40 && machine.nodes[1].size.0 > 1 << 40);
            let (own, others) = host.load(rng.below(24), &mut rng);
            assert!(own > 0.2 * host.lines && own <= host.lines && others <= host.others);
        }
    }

    #[test]
    fn a_host_has_all_of_its_demand_at_its_peak_and_three_tenths_half_a_day_later() {
        let host = Host { peak: 15.0, busy: 0.0, lines: 200.0, ..Host::draw(&mut Rng::new(1)) };
        for (hour, part) in [(15, 1.0), (9, 0.65), (21, 0.65), (3, 0.3)] {
            let (own, others) = host.load(hour, &mut Rng::new(1));
            assert!((own - 200.0 * part).abs() < 1e-9, "{hour}: {own}");
            assert!(others.abs() < 1e-12, "others are never busy");
        }
        let busy = Host { busy: 1.0, others: 50.0, ..host };
        let mut rng = Rng::new(2);
        let loads: Vec<f64> = (0..24).map(|hour| busy.load(hour, &mut rng).1).collect();
        assert!(loads.iter().all(|lines| (0.0..50.0).contains(lines) && *lines > 0.0), "{loads:?}");
    }
}
