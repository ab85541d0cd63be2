//! Expected bandwidth for a mix of reads and writes from one node's CPUs to one node's memory, derived from the machine
//! file alone, independently of the timing model under test.

use crate::machine::Machine;

/// A read:write mix, in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Lines read.
    pub reads: u32,
    /// Lines written.
    pub writes: u32,
}

/// The mixes to check.
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

/// Expected bandwidth of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Capacity of the narrowest point on the path, for this mix.
    pub capacity_gbps: f64,
    /// The most traffic that these CPUs can generate: their outstanding lines over the latency under that load.
    pub drawable_gbps: f64,
}

impl Expected {
    /// Share of the capacity from which on CPUs count as able to saturate it.
    const SATURATES: f64 = 0.95;

    /// The expected result: the capacity, unless these CPUs can't reach it.
    #[must_use]
    pub fn gbps(self) -> f64 {
        if self.saturates() { self.capacity_gbps } else { self.drawable_gbps }
    }

    /// Whether these CPUs can saturate the capacity.
    #[must_use]
    pub fn saturates(self) -> bool {
        self.drawable_gbps >= Self::SATURATES * self.capacity_gbps
    }
}

/// The expectation for `cpus` CPUs of `from` and the memory of `to`; `None` if `from` has no CPUs.
#[must_use]
pub fn expected(
    machine: &Machine,
    (from, to): (u16, u16),
    mix: Mix,
    cpus: u32,
) -> Option<Expected> {
    let latency_ns = machine.latency(from, to)?;
    let capacity_gbps = capacity(machine, (from, to), mix);
    let of_path = machine.path(from, to).and_then(|path| path.curves.as_ref());
    let curves = of_path.or(machine.nodes.get(usize::from(to))?.curves.as_ref());
    let times_idle = |load: f64| match curves {
        Some(curves) => curves.latency_ns(mix.read_share(), load) / curves.idle_ns(),
        None => by_formula(machine, load),
    };
    let lines = f64::from(machine.processor.lines_in_flight * cpus);
    // A line read occupies a slot for its latency; a line written does not, writes are posted.
    let drawn = |load: f64| lines * 64.0 / (latency_ns * times_idle(load)) / mix.read_share();
    // The load is a fixed point: generated traffic falls as the load, and with it the latency, rises.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let load = (low + high) / 2.0;
        if drawn(load) > load * capacity_gbps { low = load } else { high = load }
    }
    Some(Expected { capacity_gbps, drawable_gbps: low * capacity_gbps })
}

/// Loaded latency relative to the idle latency, at this load, by the processor's formula.
fn by_formula(machine: &Machine, load: f64) -> f64 {
    let shape = &machine.processor;
    let load = load.min(0.9999);
    let times = 1.0 + shape.load_factor * load.powf(shape.load_power) / (1.0 - load);
    times.min(shape.load_limit)
}

fn capacity(machine: &Machine, (from, to): (u16, u16), mix: Mix) -> f64 {
    let (reads, writes) = (mix.read_share(), 1.0 - mix.read_share());
    // Each point limits the total to the inverse of the time that a byte of the mix takes there.
    let mut narrowest = f64::INFINITY;
    let mut pass = |time: f64| narrowest = narrowest.min(1.0 / time);
    if let Some(node) = machine.nodes.get(usize::from(to)) {
        let (read, write) = (reads / node.read_gbps, writes / node.write_gbps);
        pass(match &node.curves {
            Some(curves) => 1.0 / curves.peak_gbps(reads),
            None if node.duplex => read.max(write),
            None => read + write,
        });
    }
    if let Some(path) = machine.path(from, to) {
        if let Some(gbps) = path.gbps_max {
            pass(1.0 / gbps);
        }
        if let Some(curves) = &path.curves {
            pass(1.0 / curves.peak_gbps(reads));
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
    fn a_remote_path_has_the_bandwidth_of_its_narrowest_link() {
        assert_eq!(capacities("numa-4node", (0, 0)), [5.5, 5.5, 5.5]);
        assert_eq!(capacities("numa-4node", (0, 3)), [2.8, 2.8, 2.8]);
        let mut machine = built_in("numa-4node").unwrap();
        machine.links[1].gbps = 1.0;
        assert!((capacity(&machine, (0, 1), MIXES[1]) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn few_cpus_are_bound_by_latency_and_many_by_capacity() {
        let machine = built_in("cxl-2tier").unwrap();
        let one = expected(&machine, (0, 0), MIXES[0], 1).unwrap();
        assert!(!one.saturates() && (30.0..35.4).contains(&one.gbps()), "{one:?}");
        let four = expected(&machine, (0, 0), MIXES[0], 4).unwrap();
        assert!(four.saturates() && (54.8..55.0).contains(&four.gbps()), "{four:?}");
        assert_eq!(expected(&machine, (1, 0), MIXES[0], 1), None);
    }
}
