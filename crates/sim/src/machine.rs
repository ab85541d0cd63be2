//! A simulated machine: controllers, directed links, routes, latencies.
//!
//! # Latency
//! A cache line from node j to the CPUs of node i takes `latency_ns[i][j] + concurrent_ns`, which includes one
//! uncontended service, plus waiting at j's controller and at each directed link of the route. A controller serves
//! reads and writes with one shared capacity (half duplex, as DRAM) or one for each (full duplex, as CXL). Each access
//! also sends coherence probes, `probe_lines` line-equivalents spread evenly over all directed links: they load links
//! but are not waited for.
//!
//! Not here: waiting times ([`crate::flow`]), demand ([`crate::workload`]), files. A machine is built by [`Builder`],
//! which rejects invalid figures.

use std::sync::Arc;

use nearfar_topology::{Bytes, Curves};

/// Bytes per cache line.
pub const LINE: f64 = 64.0;

/// Model of waiting at a station.
#[derive(Clone, Debug, PartialEq)]
pub enum Waiting {
    /// Waiting for the lines in front: a queue in a closed network.
    Queue,
    /// By the station's utilisation u: `factor_ns` u^`power` / (1 - u), a loaded-latency curve as measured by a probe.
    Curve {
        /// Scale of the curve, in nanoseconds.
        factor_ns: f64,
        /// Exponent: the higher, the later the curve rises.
        power: f64,
    },
    /// As measured, by the station's bandwidth and share of reads, which also determine its capacity.
    Points(Arc<Curves>),
}

/// Memory of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its size.
    pub size: Bytes,
    /// Read capacity, 10^9 bytes/s.
    pub read_gbps: f64,
    /// Write capacity; half-duplex memory has `read_gbps` for both together.
    pub write_gbps: f64,
    /// Whether reads and writes have separate capacities.
    pub duplex: bool,
    /// Model of waiting.
    pub waiting: Waiting,
}

/// One direction of an interconnect link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name, such as `0>1`.
    pub name: String,
    /// Capacity, 10^9 bytes/s.
    pub gbps: f64,
}

/// Path from CPUs to a node's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Links crossed by read data, in order.
    pub read_links: Vec<usize>,
    /// Links crossed by written data.
    pub write_links: Vec<usize>,
}

/// Parts of a machine, unchecked.
#[derive(Clone, Debug, PartialEq)]
pub struct Builder {
    /// Its name.
    pub name: String,
    /// Clock frequency in GHz: cycles per nanosecond.
    pub clock_ghz: f64,
    /// All nodes, by id.
    pub nodes: Vec<Node>,
    /// Directed links.
    pub links: Vec<Link>,
    /// Ids of nodes with CPUs.
    pub cpu_nodes: Vec<usize>,
    /// A row for each of `cpu_nodes`, a column for each node.
    pub latency_ns: Vec<Vec<f64>>,
    /// Same shape as `latency_ns`.
    pub routes: Vec<Vec<Route>>,
    /// Latency that concurrent operation adds to every access.
    pub concurrent_ns: f64,
    /// Coherence probes per access, in lines.
    pub probe_lines: f64,
}

/// A machine with checked figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine(Builder);

/// Reason why a machine is rejected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("machine {machine}: {what} = {value}: {allowed}")]
pub struct Refusal {
    /// Name of the machine.
    pub machine: String,
    /// The rejected property.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// The allowed values.
    pub allowed: &'static str,
}

impl Builder {
    /// CPUs on the first node alone, and memory of several tiers with these latencies, without links.
    #[must_use]
    pub fn tiers(name: &str, clock_ghz: f64, tiers: Vec<(f64, Node)>) -> Self {
        let (latency_ns, nodes): (Vec<f64>, Vec<Node>) = tiers.into_iter().unzip();
        Self {
            name: name.to_owned(),
            clock_ghz,
            routes: vec![vec![Route::default(); nodes.len()]],
            nodes,
            links: Vec::new(),
            cpu_nodes: vec![0],
            latency_ns: vec![latency_ns],
            concurrent_ns: 0.0,
            probe_lines: 0.0,
        }
    }

    /// Checks all figures.
    ///
    /// # Errors
    /// The first invalid figure.
    pub fn build(self) -> Result<Machine, Refusal> {
        let (rows, columns) = (self.cpu_nodes.len(), self.nodes.len());
        self.count("nodes", columns, 1..=64)?;
        self.count("nodes with CPUs", rows, 1..=columns)?;
        for node in &self.cpu_nodes {
            self.count("id of a node with CPUs", *node, 0..=columns - 1)?;
        }
        self.count("rows of latencies", self.latency_ns.len(), rows..=rows)?;
        self.count("rows of routes", self.routes.len(), rows..=rows)?;
        for row in &self.latency_ns {
            self.count("latencies in a row", row.len(), columns..=columns)?;
            for figure in row {
                self.figure("latency in ns", *figure, 0.1..=1e6)?;
            }
        }
        let crossed =
            |route: &Route| route.read_links.iter().chain(&route.write_links).max().copied();
        for row in &self.routes {
            self.count("routes in a row", row.len(), columns..=columns)?;
            if let Some(most) = row.iter().filter_map(crossed).max() {
                self.count("link of a route", most + 1, 0..=self.links.len())?;
            }
        }
        for node in &self.nodes {
            self.figure("read GB/s", node.read_gbps, 1e-3..=1e6)?;
            self.figure("write GB/s", node.write_gbps, 1e-3..=1e6)?;
            if let Waiting::Curve { factor_ns, power } = node.waiting {
                self.figure("ns of a curve", factor_ns, 0.0..=1e6)?;
                self.figure("power of a curve", power, 0.0..=100.0)?;
            }
        }
        for link in &self.links {
            self.figure("link GB/s", link.gbps, 1e-3..=1e6)?;
        }
        self.figure("clock in GHz", self.clock_ghz, 0.01..=100.0)?;
        self.figure("concurrent ns", self.concurrent_ns, 0.0..=1e6)?;
        self.figure("probe lines", self.probe_lines, 0.0..=16.0)?;
        Ok(Machine(self))
    }

    fn refuse(&self, what: &str, value: f64, allowed: &'static str) -> Refusal {
        Refusal { machine: self.name.clone(), what: what.to_owned(), value, allowed }
    }

    fn count(
        &self,
        what: &str,
        value: usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<(), Refusal> {
        #[expect(clippy::cast_precision_loss, reason = "a small count, in an error")]
        let shown = value as f64;
        if range.contains(&value) {
            Ok(())
        } else {
            Err(self.refuse(what, shown, "not consistent with the other parts"))
        }
    }

    fn figure(
        &self,
        what: &str,
        value: f64,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<(), Refusal> {
        if range.contains(&value) { Ok(()) } else { Err(self.refuse(what, value, "out of bounds")) }
    }
}

impl std::ops::Deref for Machine {
    type Target = Builder;

    fn deref(&self) -> &Builder {
        &self.0
    }
}

impl Machine {
    /// The row of a node with CPUs; `None` for other nodes.
    #[must_use]
    pub fn row(&self, node: usize) -> Option<usize> {
        self.cpu_nodes.iter().position(|with_cpus| *with_cpus == node)
    }

    /// Converts nanoseconds to cycles.
    #[must_use]
    pub fn cycles(&self, ns: f64) -> f64 {
        ns * self.clock_ghz
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> Builder {
        let node = Node {
            size: Bytes(1 << 30),
            read_gbps: 5.5,
            write_gbps: 5.5,
            duplex: false,
            waiting: Waiting::Queue,
        };
        Builder {
            name: "two".into(),
            clock_ghz: 2.0,
            nodes: vec![node; 2],
            links: vec![Link { name: "1>0".into(), gbps: 8.0 }],
            cpu_nodes: vec![0],
            latency_ns: vec![vec![100.0, 200.0]],
            routes: vec![vec![
                Route::default(),
                Route { read_links: vec![0], write_links: vec![] },
            ]],
            concurrent_ns: 10.0,
            probe_lines: 0.8,
        }
    }

    #[test]
    fn an_invalid_machine_is_rejected_with_the_name_of_the_value() {
        type Spoil = fn(&mut Builder);
        let cases: [(Spoil, &str); 9] = [
            (|of| of.nodes.clear(), "nodes = 0"),
            (|of| of.cpu_nodes = vec![2], "id of a node with CPUs = 2"),
            (|of| of.latency_ns[0][1] = f64::NAN, "latency in ns = NaN"),
            (|of| of.latency_ns[0].truncate(1), "latencies in a row = 1"),
            (|of| of.routes[0][1].read_links = vec![1], "link of a route = 2"),
            (|of| of.nodes[1].read_gbps = 0.0, "read GB/s = 0"),
            (|of| of.links[0].gbps = -1.0, "link GB/s = -1"),
            (|of| of.probe_lines = f64::INFINITY, "probe lines = inf"),
            (
                |of| of.nodes[0].waiting = Waiting::Curve { factor_ns: -1.0, power: 2.0 },
                "ns of a curve = -1",
            ),
        ];
        assert!(builder().build().is_ok());
        for (spoil, part) in cases {
            let mut of = builder();
            spoil(&mut of);
            let refused = of.build().unwrap_err().to_string();
            assert!(refused.contains(part) && refused.contains("machine two"), "{part}: {refused}");
        }
    }
}
