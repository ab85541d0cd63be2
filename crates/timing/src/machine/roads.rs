//! Paths to memory: the stations that a line passes, each with its capacity and its response to load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nearfar_topology::Curves;

use super::picoseconds;
use crate::config::{Config, MemoryNode, Path};
use crate::response::{ALL_READS, Response, UNIT};
use crate::station::Station;

/// Weight of a counted line in the running share of reads: 2^-11, so it covers about 14,000 lines.
const READS_SHIFT: u32 = 11;

/// Direction of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
}

/// All stations, and the paths over them.
#[derive(Debug)]
pub(super) struct Roads {
    places: Vec<Place>,
    /// By CPU node, then memory node.
    routes: Vec<Vec<Route>>,
}

/// A station and its response to load.
#[derive(Debug)]
struct Place {
    station: Station,
    response: Arc<Response>,
    /// Running share of reads, of [`ALL_READS`].
    reads: AtomicU64,
}

/// The path from one node's CPUs to one node's memory.
#[derive(Debug)]
struct Route {
    latency_ps: u64,
    read: Vec<Stop>,
    write: Vec<Stop>,
}

/// A place on the path, and the capacity that a line takes there unless its response says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stop {
    place: usize,
    service_ps: u64,
}

impl Place {
    /// Takes the capacity for a line; returns the time of service and the ratio of loaded to idle latency.
    #[inline]
    fn serve(&self, way: Way, time_ps: u64, service_ps: u64, counted: bool) -> (u64, u64) {
        let reads = self.reads.load(Relaxed);
        if counted && self.response.is_measured() {
            // Another vCPU's update may be lost; the mean stays a mean.
            let full = if way == Way::Read { ALL_READS >> READS_SHIFT } else { 0 };
            self.reads.store(reads - (reads >> READS_SHIFT) + full, Relaxed);
        }
        let service_ps = self.response.service_ps(reads).unwrap_or(service_ps);
        let served_ps = self.station.take(time_ps, service_ps);
        (served_ps, self.response.ratio(reads, self.station.load()))
    }
}

impl Roads {
    /// Stations and paths as configured.
    pub(super) fn lay(config: &Config, cpu_nodes: &[u16]) -> Self {
        let formula = Arc::new(Response::by_formula(&config.processor));
        let mut roads = Self { places: Vec::new(), routes: Vec::new() };
        let nodes: Vec<(Stop, Stop)> =
            config.nodes.iter().map(|node| roads.node(node, &formula)).collect();
        let links: Vec<Stop> =
            config.links.iter().map(|link| roads.stop(line_ps(link.gbps), &formula)).collect();
        let routes = cpu_nodes
            .iter()
            .map(|from| {
                let to = config.nodes.iter().zip(&nodes);
                to.filter_map(|(node, ends)| {
                    let path = config.path(*from, node.id)?;
                    Some(roads.route(path, *ends, &links, &formula))
                })
                .collect()
            })
            .collect();
        roads.routes = routes;
        roads
    }

    /// Serves a line at every station of its path; returns the time of the last service, and the highest ratio of
    /// loaded to idle latency.
    #[inline]
    pub(super) fn serve(
        &self,
        (cpu_node, node): (usize, usize),
        way: Way,
        asked_ps: u64,
        counted: bool,
    ) -> (u64, u64) {
        let route = &self.routes[cpu_node][node];
        let stops = if way == Way::Read { &route.read } else { &route.write };
        let (mut served_ps, mut most) = (asked_ps, UNIT);
        for stop in stops {
            let place = &self.places[stop.place];
            let (at_ps, ratio) = place.serve(way, served_ps, stop.service_ps, counted);
            served_ps = at_ps;
            most = most.max(ratio);
        }
        (served_ps, most)
    }

    /// Time at which a line requested at `asked_ps` arrives, or is accepted.
    #[inline]
    pub(super) fn travel(
        &self,
        from_to: (usize, usize),
        way: Way,
        asked_ps: u64,
        counted: bool,
    ) -> u64 {
        let (served_ps, ratio) = self.serve(from_to, way, asked_ps, counted);
        served_ps + self.routes[from_to.0][from_to.1].latency_ps * ratio / UNIT
    }

    /// How long a line takes from a cache of the node that a memory belongs to: the path without the memory itself.
    pub(super) fn to_cache(&self, from_to: (usize, usize), asked_ps: u64) -> u64 {
        let route = &self.routes[from_to.0][from_to.1];
        let links = route.read.split_last().map_or(&[][..], |(_, links)| links);
        let served_ps = links.iter().fold(asked_ps, |served_ps, stop| {
            self.places[stop.place].serve(Way::Read, served_ps, stop.service_ps, false).0
        });
        served_ps - asked_ps + route.latency_ps
    }

    fn stop(&mut self, service_ps: u64, response: &Arc<Response>) -> Stop {
        self.places.push(Place {
            station: Station::new(service_ps),
            response: Arc::clone(response),
            reads: AtomicU64::new(ALL_READS),
        });
        Stop { place: self.places.len() - 1, service_ps }
    }

    fn measured(&mut self, curves: &Curves) -> Stop {
        let response = Arc::new(Response::measured(curves));
        self.stop(response.longest_service_ps(), &response)
    }

    /// A node's stops for reads and writes, which are the same place where both share its capacity.
    fn node(&mut self, node: &MemoryNode, formula: &Arc<Response>) -> (Stop, Stop) {
        if let Some(curves) = &node.curves {
            let stop = self.measured(curves);
            return (stop, stop);
        }
        let (read_ps, write_ps) = (line_ps(node.read_gbps), line_ps(node.write_gbps));
        if node.duplex {
            return (self.stop(read_ps, formula), self.stop(write_ps, formula));
        }
        let place = self.stop(read_ps.max(write_ps), formula).place;
        (Stop { place, service_ps: read_ps }, Stop { place, service_ps: write_ps })
    }

    fn route(
        &mut self,
        path: &Path,
        (read_end, write_end): (Stop, Stop),
        links: &[Stop],
        formula: &Arc<Response>,
    ) -> Route {
        let limit = match &path.curves {
            Some(curves) => Some(self.measured(curves)),
            None => path.gbps_max.map(|gbps| self.stop(line_ps(gbps), formula)),
        };
        let way = |end: Stop, crossed: &[u16]| {
            let crossed = crossed.iter().map(|link| links[usize::from(*link)]);
            limit.into_iter().chain(crossed).chain([end]).collect()
        };
        Route {
            latency_ps: picoseconds(path.latency_ns),
            read: way(read_end, &path.read_links),
            write: way(write_end, &path.write_links),
        }
    }
}

/// The time for 64 bytes at this many 10^9 bytes per second.
fn line_ps(gbps: f64) -> u64 {
    picoseconds(64.0 / gbps).max(1)
}
