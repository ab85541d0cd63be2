//! The machine that is not there: what one access costs the vCPU that makes it.
//!
//! An access that misses the first-level cache is looked up in its node's last-level cache, and if it misses that too
//! takes the path to its memory: a place in the vCPU's window, capacity at every station on the way, then the latency,
//! raised by how busy the busiest of those stations has been. What the vCPU waits for depends on the access: a load in
//! no stream waits until the line has come; a line of a stream, or a store, only until it could be asked for. Lines
//! that are written back are posted: they take capacity, and stall the vCPU only when the writes queue too far back.

use crate::cache::{FirstLevel, LINE_SHIFT, LastLevel, Lookup};
use crate::config::{Config, Path, Range};
use crate::pmu::{Answer, Request, Sampled, Step, Tap};
use crate::station::{FULL_LOAD, Station};
use crate::stats::{
    CpuStats, LinkStats, NodeCounts, NodeSample, NodeStats, Sample, Stats, VcpuCounts, ratio,
};
use crate::stream::Streams;
use crate::window::Window;

/// How far posted writes may queue back before the writer stalls: 2 us.
const POSTED_PS: u64 = 2_000_000;
/// Lines of stores past the caches that are gathered at once.
const GATHERED: usize = 8;
/// Steps in the table of loaded latency.
const LOAD_STEPS: usize = 1024;
/// One, in that table.
const LOAD_UNIT: u64 = 1 << 10;

/// What all vCPUs share. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    caches: Vec<LastLevel>,
    stations: Vec<Station>,
    /// By CPU node, then memory node.
    routes: Vec<Vec<Route>>,
    ranges: Vec<Range>,
    cpu_nodes: Vec<u16>,
    /// How many times the idle latency a line takes, by utilisation.
    loaded: Box<[u64]>,
    last_level_ps: u64,
    counts: Vec<VcpuCounts>,
    tap: Tap,
}

/// The way from one node's CPUs to one node's memory.
#[derive(Debug)]
struct Route {
    latency_ps: u64,
    read: Vec<Stop>,
    write: Vec<Stop>,
}

/// A station on the way, and the capacity a line takes there.
#[derive(Clone, Copy, Debug)]
struct Stop {
    station: usize,
    service_ps: u64,
}

/// What one vCPU has to itself; used by its thread alone.
#[derive(Debug)]
pub struct Vcpu {
    index: usize,
    cpu_node: usize,
    /// Its first-level cache: ask it first.
    pub first_level: FirstLevel,
    streams: Streams,
    window: Window,
    /// Virtual lines of stores past the caches that are being gathered.
    gathered: [u64; GATHERED],
    gather_next: usize,
    step: Step,
}

impl Vcpu {
    /// Whether a store past the caches to `address` joins one that is being gathered.
    #[inline]
    #[must_use]
    pub fn gathers(&self, address: u64) -> bool {
        self.gathered.contains(&(address >> LINE_SHIFT))
    }
}

/// An access that missed the first-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What it does.
    pub kind: Kind,
    /// Guest-virtual address.
    pub virtual_address: u64,
    /// Guest-physical address.
    pub physical_address: u64,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Load,
    /// Writes through the caches: the line is read first.
    Store,
    /// Writes past the caches: the line is not read.
    NonTemporalStore,
}

impl Machine {
    /// The machine of `config`.
    ///
    /// # Errors
    /// What is wrong with `config`, in one line.
    pub fn new(config: Config) -> Result<Self, String> {
        config.check()?;
        let mut cpu_nodes = config.cpu_nodes.clone();
        cpu_nodes.sort_unstable();
        cpu_nodes.dedup();
        let (stations, routes) = Roads::lay(&config, &cpu_nodes);
        let counts = || VcpuCounts {
            nodes: config.nodes.iter().map(|_| Default::default()).collect(),
            ..Default::default()
        };
        Ok(Self {
            caches: cpu_nodes.iter().map(|_| LastLevel::new(config.processor.llc_kib)).collect(),
            stations,
            routes,
            ranges: config.ranges.clone(),
            loaded: loaded_latency(&config),
            last_level_ps: picoseconds(config.processor.llc_latency_ns),
            counts: config.cpu_nodes.iter().map(|_| counts()).collect(),
            cpu_nodes,
            config,
            tap: Tap::default(),
        })
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// vCPU `index`, idle and with empty caches; `None` where the settings have no such vCPU.
    #[must_use]
    pub fn vcpu(&self, index: usize) -> Option<Vcpu> {
        let node = self.config.cpu_nodes.get(index)?;
        Some(Vcpu {
            index,
            cpu_node: self.cpu_nodes.iter().position(|cpu_node| cpu_node == node)?,
            first_level: FirstLevel::new(self.config.processor.l1_kib),
            streams: Streams::new(),
            window: Window::new(self.config.processor.lines_in_flight),
            gathered: [u64::MAX; GATHERED],
            gather_next: 0,
            step: Step::of(index),
        })
    }

    /// What `access` by `vcpu` at its time `now_ps` costs it: the picoseconds it stands still.
    pub fn access(&self, vcpu: &mut Vcpu, now_ps: u64, access: Access) -> u64 {
        let line = access.physical_address >> LINE_SHIFT;
        if access.kind == Kind::NonTemporalStore {
            return self.store_past_caches(vcpu, now_ps, access, line);
        }
        let store = access.kind == Kind::Store;
        let cache = &self.caches[vcpu.cpu_node];
        if vcpu.first_level.fill(access.virtual_address, store) {
            // A store to a line that was there but clean: nothing to wait for.
            cache.touch(line, store);
            return 0;
        }
        let counts = &self.counts[vcpu.index];
        counts.first_level_misses.add(1);
        let stream = vcpu.streams.observe(access.virtual_address >> LINE_SHIFT);
        counts.in_streams.add(u64::from(stream));
        let asked_ps = now_ps.max(vcpu.window.free_from());
        let overlaps = stream || store;
        let Lookup::Miss { write_back } = cache.touch(line, store) else {
            return Self::stall(vcpu, now_ps, asked_ps, asked_ps + self.last_level_ps, overlaps);
        };
        counts.last_level_misses.add(1);
        let node = self.node_of(line);
        self.sample_if_due(vcpu, access, node);
        let come_ps = self.travel(&self.routes[vcpu.cpu_node][node], Way::Read, asked_ps);
        let mut stall_ps = Self::stall(vcpu, now_ps, asked_ps, come_ps, overlaps);
        counts.nodes[node].reads.add(1);
        counts.nodes[node].latency_ps.add(come_ps - asked_ps);
        counts.nodes[node].stall_ps.add(stall_ps);
        if let Some(line) = write_back {
            stall_ps += self.write_back(vcpu, now_ps + stall_ps, line);
        }
        counts.stall_ps.add(stall_ps);
        stall_ps
    }

    /// Hands an access that missed all caches to the emulated PMU.
    #[inline]
    fn sample_if_due(&self, vcpu: &mut Vcpu, access: Access, node: usize) {
        self.tap.pass(&mut vcpu.step, || Sampled {
            virtual_address: access.virtual_address,
            physical_address: access.physical_address,
            cpu: u32::try_from(vcpu.index).unwrap_or(u32::MAX),
            node: self.config.nodes[node].id,
            write: access.kind != Kind::Load,
        });
    }

    /// What the emulated PMU answers.
    #[must_use]
    pub fn ask_pmu(&self, request: Request) -> Answer {
        self.tap.answer(request, &self.config.cpu_nodes, &self.sample(0))
    }

    /// Adds to what is known of a vCPU's time: busy for `busy_ps` more (stalls included), at `time_ps` by now.
    pub fn account(&self, vcpu: &Vcpu, busy_ps: u64, time_ps: u64) {
        let counts = &self.counts[vcpu.index];
        counts.busy_ps.add(busy_ps);
        counts.time_ps.add(time_ps.wrapping_sub(counts.time_ps.get()));
    }

    #[inline]
    fn stall(vcpu: &mut Vcpu, now_ps: u64, asked_ps: u64, come_ps: u64, overlaps: bool) -> u64 {
        vcpu.window.take(come_ps);
        (if overlaps { asked_ps } else { come_ps }) - now_ps
    }

    /// When a line asked for at `asked_ps` has come (or has been taken).
    #[inline]
    fn travel(&self, route: &Route, way: Way, asked_ps: u64) -> u64 {
        let (mut served_ps, mut load) = (asked_ps, 0);
        let stops = if way == Way::Read { &route.read } else { &route.write };
        for stop in stops {
            let station = &self.stations[stop.station];
            served_ps = station.take(served_ps, stop.service_ps);
            load = load.max(station.load());
        }
        served_ps + route.latency_ps * self.times_loaded(load) / LOAD_UNIT
    }

    /// How much longer than idle a line takes at this utilisation, in units of `LOAD_UNIT`.
    #[inline]
    fn times_loaded(&self, load: u64) -> u64 {
        let step = (load * LOAD_STEPS as u64 / FULL_LOAD) as usize;
        self.loaded[step.min(LOAD_STEPS)]
    }

    /// Posts a write; the stall if writes queue too far back.
    fn write_back(&self, vcpu: &Vcpu, now_ps: u64, line: u64) -> u64 {
        let node = self.node_of(line);
        let mut served_ps = now_ps;
        for stop in &self.routes[vcpu.cpu_node][node].write {
            served_ps = self.stations[stop.station].take(served_ps, stop.service_ps);
        }
        let stall_ps = served_ps.saturating_sub(now_ps + POSTED_PS);
        let counts = &self.counts[vcpu.index].nodes[node];
        counts.writes.add(1);
        counts.stall_ps.add(stall_ps);
        stall_ps
    }

    /// A store past the caches: one write a line, however many stores make it up.
    fn store_past_caches(&self, vcpu: &mut Vcpu, now_ps: u64, access: Access, line: u64) -> u64 {
        if vcpu.gathers(access.virtual_address) {
            return 0;
        }
        vcpu.gathered[vcpu.gather_next] = access.virtual_address >> LINE_SHIFT;
        vcpu.gather_next = (vcpu.gather_next + 1) % GATHERED;
        vcpu.first_level.drop_line(access.virtual_address);
        self.caches[vcpu.cpu_node].forget(line);
        let node = self.node_of(line);
        self.sample_if_due(vcpu, access, node);
        let asked_ps = now_ps.max(vcpu.window.free_from());
        let taken_ps = self.travel(&self.routes[vcpu.cpu_node][node], Way::Write, asked_ps);
        let stall_ps = Self::stall(vcpu, now_ps, asked_ps, taken_ps, true);
        let counts = &self.counts[vcpu.index];
        counts.nodes[node].writes.add(1);
        counts.nodes[node].stall_ps.add(stall_ps);
        counts.stall_ps.add(stall_ps);
        stall_ps
    }

    /// The index of the node that a physical line belongs to.
    #[inline]
    fn node_of(&self, line: u64) -> usize {
        let address = line << LINE_SHIFT;
        let range = self.ranges.iter().find(|range| (range.start..range.end).contains(&address));
        let id = range.map_or(self.config.nodes[0].id, |range| range.node);
        self.config.nodes.iter().position(|node| node.id == id).unwrap_or(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

fn picoseconds(ns: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked: 0 to 1e6 ns"
    )]
    let ps = (ns * 1000.0).round() as u64;
    ps
}

/// The time 64 bytes take at so many 10^9 bytes per second.
fn line_ps(gbps: f64) -> u64 {
    picoseconds(64.0 / gbps).max(1)
}

/// The shape of the loaded latency, as a table.
fn loaded_latency(config: &Config) -> Box<[u64]> {
    let processor = &config.processor;
    let times = |step: usize| {
        let u = (step as f64 / LOAD_STEPS as f64).min(0.9999);
        let times = 1.0 + processor.load_factor * u.powf(processor.load_power) / (1.0 - u);
        times.min(processor.load_limit) * LOAD_UNIT as f64
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 to load_limit, checked"
    )]
    let table = (0..=LOAD_STEPS).map(|step| times(step).round() as u64).collect();
    table
}

/// Stations as they are laid out from the settings.
#[derive(Default)]
struct Roads {
    stations: Vec<Station>,
}

impl Roads {
    fn lay(config: &Config, cpu_nodes: &[u16]) -> (Vec<Station>, Vec<Vec<Route>>) {
        let mut roads = Self::default();
        let nodes: Vec<(Stop, Stop)> = config
            .nodes
            .iter()
            .map(|node| roads.node(node.read_gbps, node.write_gbps, node.duplex))
            .collect();
        let links: Vec<Stop> =
            config.links.iter().map(|link| roads.stop(line_ps(link.gbps))).collect();
        let routes = cpu_nodes
            .iter()
            .map(|from| {
                let to = config.nodes.iter().zip(&nodes);
                to.filter_map(|(node, ends)| {
                    Some(roads.route(config.path(*from, node.id)?, *ends, &links))
                })
                .collect()
            })
            .collect();
        (roads.stations, routes)
    }

    fn stop(&mut self, service_ps: u64) -> Stop {
        self.stations.push(Station::new(service_ps));
        Stop { station: self.stations.len() - 1, service_ps }
    }

    /// A node's two ends, which are one station where reads and writes share its capacity.
    fn node(&mut self, read_gbps: f64, write_gbps: f64, duplex: bool) -> (Stop, Stop) {
        let (read_ps, write_ps) = (line_ps(read_gbps), line_ps(write_gbps));
        if duplex {
            return (self.stop(read_ps), self.stop(write_ps));
        }
        let station = self.stop(read_ps.max(write_ps)).station;
        (Stop { station, service_ps: read_ps }, Stop { station, service_ps: write_ps })
    }

    fn route(&mut self, path: &Path, (read_end, write_end): (Stop, Stop), links: &[Stop]) -> Route {
        let limit = path.gbps_max.map(|gbps| self.stop(line_ps(gbps)));
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

/// Statistics.
impl Machine {
    /// What the run has come to so far. `clock` and `slow_motion` are what the caller chose.
    #[must_use]
    pub fn stats(&self, clock: &'static str, slow_motion: f64) -> Stats {
        Stats {
            schema: "nearfar.labstats/1",
            complete: false,
            clock,
            clock_reason: None,
            slow_motion,
            nodes: (0..self.config.nodes.len()).map(|node| self.node_stats(node)).collect(),
            cpus: (0..self.counts.len()).map(|cpu| self.cpu_stats(cpu)).collect(),
            links: (0..self.config.links.len()).map(|link| self.link_stats(link)).collect(),
            series: Vec::new(),
        }
    }

    /// What has been counted by now, at the guest's time `at_ns`.
    #[must_use]
    pub fn sample(&self, at_ns: u64) -> Sample {
        let nodes = self.config.nodes.iter().enumerate().map(|(node, of)| {
            let by_cpu = |count: fn(&NodeCounts) -> u64| {
                self.counts.iter().map(|counts| count(&counts.nodes[node])).collect()
            };
            NodeSample {
                id: of.id,
                reads: by_cpu(|counts| counts.reads.get()),
                writes: by_cpu(|counts| counts.writes.get()),
                stall_ns: by_cpu(|counts| counts.stall_ps.get() / 1000),
            }
        });
        Sample { at_ns, nodes: nodes.collect() }
    }

    fn node_stats(&self, node: usize) -> NodeStats {
        let sum = |of: fn(&NodeCounts) -> u64| {
            self.counts.iter().map(|counts| of(&counts.nodes[node])).sum::<u64>()
        };
        let (reads, writes) = (sum(|counts| counts.reads.get()), sum(|counts| counts.writes.get()));
        NodeStats {
            id: self.config.nodes[node].id,
            reads,
            writes,
            bytes: (reads + writes) << LINE_SHIFT,
            stall_ns: sum(|counts| counts.stall_ps.get()) / 1000,
            mean_loaded_latency_ns: ratio(sum(|counts| counts.latency_ps.get()), reads)
                .map(|ps| (ps / 100.0).round() / 10.0),
        }
    }

    fn cpu_stats(&self, cpu: usize) -> CpuStats {
        let counts = &self.counts[cpu];
        let executing_ps = counts.busy_ps.get().saturating_sub(counts.stall_ps.get());
        CpuStats {
            cpu,
            virtual_time_ns: counts.time_ps.get() / 1000,
            instructions: executing_ps.checked_div(self.config.processor.instruction_ps),
            first_level_misses: counts.first_level_misses.get(),
            last_level_misses: counts.last_level_misses.get(),
            stream_share: ratio(counts.in_streams.get(), counts.first_level_misses.get()),
            stall_ns: counts.stall_ps.get() / 1000,
        }
    }

    fn link_stats(&self, link: usize) -> LinkStats {
        let crossings = |links: &[u16]| {
            links.iter().filter(|crossed| usize::from(**crossed) == link).count() as u64
        };
        let lines: u64 = self
            .config
            .cpu_nodes
            .iter()
            .zip(&self.counts)
            .flat_map(|(from, counts)| {
                self.config.nodes.iter().zip(&counts.nodes).filter_map(move |(node, counts)| {
                    let path = self.config.path(*from, node.id)?;
                    Some(
                        counts.reads.get() * crossings(&path.read_links)
                            + counts.writes.get() * crossings(&path.write_links),
                    )
                })
            })
            .sum();
        LinkStats { name: self.config.links[link].name.clone(), bytes: lines << LINE_SHIFT }
    }
}
