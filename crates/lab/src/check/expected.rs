//! What a machine file promises for a mix of reads and writes from one node's CPUs to one node's memory: worked out
//! from the file alone, apart from the timing model that is to be checked.

use crate::machine::Machine;

/// Reads and writes in a mix, in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Lines read.
    pub reads: u32,
    /// Lines written.
    pub writes: u32,
}

/// The mixes that are checked.
pub const MIXES: [Mix; 3] =
    [Mix { reads: 1, writes: 0 }, Mix { reads: 2, writes: 1 }, Mix { reads: 1, writes: 1 }];

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}:{}", self.reads, self.writes))
    }
}

impl Mix {
    fn read_share(self) -> f64 {
        f64::from(self.reads) / f64::from(self.reads + self.writes)
    }
}

/// What can be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Capacity of the narrowest place on the way, for this mix.
    pub capacity_gbps: f64,
    /// What so many CPUs can draw: their lines in flight over the latency under that very load.
    pub drawable_gbps: f64,
}

impl Expected {
    /// The share of the capacity from which on CPUs count as able to saturate it.
    const SATURATES: f64 = 0.95;

    /// What should be measured: the capacity, unless these CPUs can't draw it.
    #[must_use]
    pub fn gbps(self) -> f64 {
        if self.saturates() { self.capacity_gbps } else { self.drawable_gbps }
    }

    /// Whether these CPUs can draw the capacity.
    #[must_use]
    pub fn saturates(self) -> bool {
        self.drawable_gbps >= Self::SATURATES * self.capacity_gbps
    }
}

/// For `cpus` CPUs of `from` and the memory of `to`; none if `from` has no CPUs.
#[must_use]
pub fn expected(
    machine: &Machine,
    (from, to): (u16, u16),
    mix: Mix,
    cpus: u32,
) -> Option<Expected> {
    let latency_ns = machine.latency(from, to)?;
    let capacity_gbps = capacity(machine, (from, to), mix);
    let lines = f64::from(machine.processor.lines_in_flight * cpus);
    // Each line read holds a place for the latency; those written do not, they are posted.
    let drawn =
        |load: f64| lines * 64.0 / (latency_ns * times_idle(machine, load)) / mix.read_share();
    // The load at which what is drawn is what the load means: drawing falls as the load rises.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let load = (low + high) / 2.0;
        if drawn(load) > load * capacity_gbps { low = load } else { high = load }
    }
    Some(Expected { capacity_gbps, drawable_gbps: low * capacity_gbps })
}

/// How many times the idle latency a line takes at this load.
fn times_idle(machine: &Machine, load: f64) -> f64 {
    let shape = &machine.processor;
    let load = load.min(0.9999);
    let times = 1.0 + shape.load_factor * load.powf(shape.load_power) / (1.0 - load);
    times.min(shape.load_limit)
}

fn capacity(machine: &Machine, (from, to): (u16, u16), mix: Mix) -> f64 {
    let (reads, writes) = (mix.read_share(), 1.0 - mix.read_share());
    // Each place limits the whole to one over the time that a byte of the mix takes there.
    let mut narrowest = f64::INFINITY;
    let mut pass = |time: f64| narrowest = narrowest.min(1.0 / time);
    if let Some(node) = machine.nodes.get(usize::from(to)) {
        let (read, write) = (reads / node.read_gbps, writes / node.write_gbps);
        pass(if node.duplex { read.max(write) } else { read + write });
    }
    if let Some(path) = machine.paths.iter().find(|path| (path.from, path.to) == (from, to)) {
        if let Some(gbps) = path.gbps_max {
            pass(1.0 / gbps);
        }
        for (index, link) in (0u16..).zip(&machine.links) {
            let share = |links: &[u16], part: f64| if links.contains(&index) { part } else { 0.0 };
            let part = share(&path.read_links, reads) + share(&path.write_links, writes);
            if part > 0.0 {
                pass(part / link.gbps);
            }
        }
    }
    narrowest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::built_in;

    fn capacities(machine: &str, path: (u16, u16)) -> Vec<f64> {
        let machine = built_in(machine).unwrap();
        let of = |mix| (capacity(&machine, path, mix) * 10.0).round() / 10.0;
        MIXES.map(of).to_vec()
    }

    #[test]
    fn a_shared_node_has_one_capacity_and_a_duplex_one_has_two() {
        assert_eq!(capacities("cxl-2tier", (0, 0)), [54.9, 54.9, 54.9]);
        assert_eq!(capacities("hbm-dram-cxl", (0, 2)), [13.5, 20.3, 27.0]);
    }

    #[test]
    fn a_remote_path_is_as_narrow_as_its_narrowest_place() {
        assert_eq!(capacities("numa-4node", (0, 0)), [5.5, 5.5, 5.5]);
        assert_eq!(capacities("numa-4node", (0, 3)), [2.8, 2.8, 2.8]);
        let mut machine = built_in("numa-4node").unwrap();
        machine.links[1].gbps = 1.0;
        assert!((capacity(&machine, (0, 1), MIXES[1]) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn few_lines_draw_what_latency_allows_and_many_the_capacity() {
        let machine = built_in("cxl-2tier").unwrap();
        let one = expected(&machine, (0, 0), MIXES[0], 1).unwrap();
        assert!(!one.saturates() && (30.0..35.4).contains(&one.gbps()), "{one:?}");
        let four = expected(&machine, (0, 0), MIXES[0], 4).unwrap();
        assert!(four.saturates() && (54.8..55.0).contains(&four.gbps()), "{four:?}");
        assert_eq!(expected(&machine, (1, 0), MIXES[0], 1), None);
    }
}
