//! Tests of the model as a whole: vCPUs that only access memory, in a closed loop, and their latency and bandwidth.
//!
//! Any vCPU up to 30 us ahead of the slowest may run next, as under the emulator.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use nearfar_timing::config::{Clock, Config, Link, MemoryNode, Path, Processor, Range};
use nearfar_timing::{Access, Kind, Machine, Vcpu};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Node 0: 100 ns, 40 GB/s shared by reads and writes; node 1: 250 ns, 13 GB/s each way.
fn two_tiers(cpus: usize) -> Config {
    let node = |id, gbps, duplex| MemoryNode {
        id,
        read_gbps: gbps,
        write_gbps: gbps,
        duplex,
        curves: None,
    };
    Config {
        clock: Clock::Virtual,
        cpu_nodes: vec![0; cpus],
        nodes: vec![node(0, 40.0, false), node(1, 13.0, true)],
        ranges: vec![
            Range { start: 0, end: GIB, node: 0 },
            Range { start: GIB, end: 2 * GIB, node: 1 },
        ],
        paths: vec![path(0, 0, 100.0), path(0, 1, 250.0)],
        links: Vec::new(),
        processor: Processor {
            instruction_ps: 125,
            l1_kib: 64,
            llc_kib: 1024,
            llc_latency_ns: 12.0,
            lines_in_flight: 96,
            loads_in_flight: 10,
            reorder_buffer: 512,
            tlb_entries: 0,
            coherence: false,
            load_factor: 0.02,
            load_power: 4.0,
            load_limit: 3.0,
        },
        stats: None,
        stats_every_ms: None,
        pmu: None,
        begins: None,
    }
}

fn path(from: u16, to: u16, latency_ns: f64) -> Path {
    Path {
        from,
        to,
        latency_ns,
        gbps_max: None,
        curves: None,
        read_links: Vec::new(),
        write_links: Vec::new(),
    }
}

/// A thread of the guest: the accesses it makes, by number.
type Program = Box<dyn FnMut(u64) -> Access>;

struct Cpu {
    vcpu: Vcpu,
    now_ps: u64,
    done: u64,
    program: Program,
}

struct Guest {
    machine: Machine,
    cpus: Vec<Cpu>,
    random: u64,
}

impl Guest {
    fn new(config: Config, program: impl Fn(usize) -> Program) -> Self {
        let machine = Machine::new(config).unwrap();
        let cpus = (0..machine.config().cpu_nodes.len())
            .map(|index| Cpu {
                vcpu: machine.vcpu(index).unwrap(),
                now_ps: 0,
                done: 0,
                program: program(index),
            })
            .collect();
        Self { machine, cpus, random: 88_172_645_463_325_252 }
    }

    /// Runs until all have reached `until_ps`.
    fn run(&mut self, until_ps: u64) {
        loop {
            let slowest = self.cpus.iter().map(|cpu| cpu.now_ps).min().unwrap();
            if slowest >= until_ps {
                return;
            }
            self.random = next(self.random);
            let first = usize::try_from(self.random >> 40).unwrap() % self.cpus.len();
            let mut order = (0..self.cpus.len()).map(|step| (first + step) % self.cpus.len());
            let allowed = |index: &usize| self.cpus[*index].now_ps < slowest + 30_000_000;
            let index = order.find(allowed).unwrap();
            for _ in 0..64 {
                self.step(index);
            }
        }
    }

    fn step(&mut self, index: usize) {
        let cpu = &mut self.cpus[index];
        let access = (cpu.program)(cpu.done);
        cpu.done += 1;
        cpu.now_ps += 500;
        let address = access.virtual_address;
        let hit = match access.kind {
            Kind::Load => cpu.vcpu.first_level.can_load(address),
            Kind::Store => cpu.vcpu.first_level.can_store(address),
            Kind::NonTemporalStore => cpu.vcpu.gathers(address),
        };
        if !hit {
            cpu.now_ps += self.machine.access(&mut cpu.vcpu, cpu.now_ps, access, None);
        }
    }

    /// Nanoseconds per access of CPU 0, after a start of 1.5 ms.
    fn latency(&mut self) -> f64 {
        self.run(1_500_000_000);
        let (now, done) = (self.cpus[0].now_ps, self.cpus[0].done);
        self.run(4_500_000_000);
        (self.cpus[0].now_ps - now) as f64 / (self.cpus[0].done - done) as f64 / 1000.0
    }

    /// GB/s to and from each node, after a start of 1.5 ms.
    fn bandwidths(&mut self) -> [f64; 2] {
        self.run(1_500_000_000);
        let before = self.bytes();
        self.run(4_500_000_000);
        let after = self.bytes();
        std::array::from_fn(|node| (after[node] - before[node]) as f64 / 3e6)
    }

    fn bytes(&self) -> [u64; 2] {
        let stats = self.machine.stats("virtual", 1.0);
        std::array::from_fn(|node| stats.nodes[node].bytes)
    }
}

fn next(mut random: u64) -> u64 {
    random ^= random << 13;
    random ^= random >> 7;
    random ^ random << 17
}

fn access(kind: Kind, address: u64) -> Access {
    Access { kind, virtual_address: address, physical_address: address }
}

/// Dependent loads, each from a random line of 64 MiB from `base` on.
fn chase(base: u64) -> Program {
    let mut random = 0x9e37_79b9_7f4a_7c15;
    Box::new(move |_| {
        random = next(random);
        access(Kind::Load, base + (random >> 20) % MIB * 64)
    })
}

/// Passes over 16 MiB from `base` on: `pattern` lists the accesses per line, each with an offset in units of 512 MiB.
fn scan(base: u64, pattern: &'static [(Kind, u64)]) -> Program {
    Box::new(move |step| {
        let count = pattern.len() as u64;
        let (kind, offset) = pattern[usize::try_from(step % count).unwrap()];
        access(kind, base + offset * 512 * MIB + step / count * 64 % (16 * MIB))
    })
}

const READ: &[(Kind, u64)] = &[(Kind::Load, 0)];
const CHANGE: &[(Kind, u64)] = &[(Kind::Load, 0), (Kind::Store, 0)];
const READ_AND_CHANGE: &[(Kind, u64)] = &[(Kind::Load, 0), (Kind::Load, 1), (Kind::Store, 1)];
const WRITE_PAST: &[(Kind, u64)] = &[(Kind::NonTemporalStore, 0)];

/// Start of CPU `index`'s memory on node `node`.
fn own(node: u64, index: usize) -> u64 {
    node * GIB + index as u64 * 16 * MIB
}

fn assert_within(found: f64, wanted: f64, percent: f64, what: &str) {
    let off = (found / wanted - 1.0) * 100.0;
    assert!(off.abs() <= percent, "{what}: {found:.2}, not {wanted:.2} ({off:+.1} %)");
}

#[test]
fn a_dependent_load_takes_the_idle_latency() {
    for (node, latency) in [(0, 100.0), (1, 250.0)] {
        let found = Guest::new(two_tiers(1), |_| chase(node * GIB)).latency();
        assert_within(found, latency + 0.5, 2.0, &format!("node {node}"));
    }
}

#[test]
fn reads_saturate_at_the_configured_capacity_from_any_number_of_cpus() {
    for cpus in [2, 4, 8] {
        for (node, capacity) in [(0u8, 40.0), (1, 13.0)] {
            let mut guest =
                Guest::new(two_tiers(cpus), |index| scan(own(node.into(), index), READ));
            let found = guest.bandwidths()[usize::from(node)];
            assert_within(found, capacity, 3.0, &format!("node {node}, {cpus} CPUs"));
        }
    }
}

#[test]
fn a_shared_node_has_one_capacity_for_any_mix() {
    for cpus in [2, 4] {
        for (pattern, name) in [(CHANGE, "1:1"), (READ_AND_CHANGE, "2:1")] {
            let mut guest = Guest::new(two_tiers(cpus), |index| scan(own(0, index), pattern));
            assert_within(guest.bandwidths()[0], 40.0, 3.0, &format!("{name}, {cpus} CPUs"));
        }
    }
}

#[test]
fn a_duplex_node_reads_and_writes_at_once() {
    for (pattern, name, capacity) in [(CHANGE, "1:1", 26.0), (READ_AND_CHANGE, "2:1", 19.5)] {
        let mut guest = Guest::new(two_tiers(4), |index| scan(own(1, index), pattern));
        assert_within(guest.bandwidths()[1], capacity, 3.0, name);
    }
}

#[test]
fn stores_past_the_caches_write_without_reading() {
    let mut guest = Guest::new(two_tiers(4), |index| scan(own(1, index), WRITE_PAST));
    assert_within(guest.bandwidths()[1], 13.0, 3.0, "writes");
    assert_eq!(guest.machine.stats("virtual", 1.0).nodes[1].reads, 0);
}

#[test]
fn bytes_of_all_cpus_sum_to_the_total_at_any_moment() {
    let mut guest =
        Guest::new(two_tiers(2), |index| if index == 0 { chase(0) } else { scan(GIB, READ) });
    guest.bandwidths();
    let (sample, stats) = (guest.machine.sample(7), guest.machine.stats("virtual", 1.0));
    assert_eq!(sample.at_ns, 7);
    for (of, all) in sample.nodes.iter().zip(&stats.nodes) {
        assert_eq!((of.id, of.reads.iter().sum::<u64>()), (all.id, all.reads));
        assert_eq!(of.writes.iter().sum::<u64>(), all.writes);
    }
    assert!(sample.nodes[0].reads[0] > 0 && sample.nodes[1].reads[1] > 0, "{sample:?}");
    assert_eq!((sample.nodes[0].reads[1], sample.nodes[1].reads[0]), (0, 0));
}

#[test]
fn one_cpu_draws_its_lines_in_flight_over_the_latency() {
    let mut config = two_tiers(1);
    config.processor.lines_in_flight = 10;
    let mut guest = Guest::new(config, |_| scan(GIB, READ));
    assert_within(guest.bandwidths()[1], 10.0 * 64.0 / 250.0, 2.0, "10 lines");
}

#[test]
fn pointer_chasing_slows_under_load_before_the_node_is_saturated() {
    let mut config = two_tiers(3);
    config.processor.lines_in_flight = 24;
    config.processor.load_factor = 0.2;
    let mut guest = Guest::new(config, |index| match index {
        0 => chase(0),
        _ => scan(own(0, index + 8), READ),
    });
    let latency = guest.latency();
    assert!((105.0..200.0).contains(&latency), "{latency}");
    let read = guest.bytes()[0] as f64 / 4.5e6;
    assert!(read < 36.0, "{read} GB/s is saturation");
}

#[test]
fn both_nodes_give_their_capacity_at_once() {
    // Lines alternate in proportion to bandwidth: three near, one far.
    let both = |index: usize| -> Program {
        Box::new(move |step| {
            let base = own(u64::from(step % 4 == 3), index);
            access(Kind::Load, base + step * 64 % (16 * MIB))
        })
    };
    let [near, far] = Guest::new(two_tiers(8), both).bandwidths();
    assert_within(near, 39.0, 3.0, "near, three times what far gives");
    assert_within(far, 13.0, 3.0, "far");
}

#[test]
fn a_path_and_a_link_have_capacities_of_their_own() {
    let mut config = two_tiers(2);
    config.links = vec![Link { name: "1>0".to_owned(), gbps: 6.0 }];
    config.paths[1].read_links = vec![0];
    let mut guest = Guest::new(config.clone(), |index| scan(own(1, index), READ));
    assert_within(guest.bandwidths()[1], 6.0, 3.0, "link");
    let stats = guest.machine.stats("virtual", 1.0);
    assert_eq!(stats.links[0].bytes, stats.nodes[1].bytes);
    config.paths[1].gbps_max = Some(2.5);
    let mut guest = Guest::new(config, |index| scan(own(1, index), READ));
    assert_within(guest.bandwidths()[1], 2.5, 3.0, "path");
}

#[test]
fn each_cpu_node_has_its_own_distances() {
    let mut config = two_tiers(1);
    config.cpu_nodes = vec![1];
    config.paths = vec![path(1, 0, 300.0), path(1, 1, 90.0)];
    assert_within(Guest::new(config.clone(), |_| chase(GIB)).latency(), 90.5, 2.0, "own");
    assert_within(Guest::new(config, |_| chase(0)).latency(), 300.5, 2.0, "other");
}

#[test]
fn without_latencies_nothing_stalls_below_capacity() {
    let mut config = two_tiers(1);
    config.processor.llc_latency_ns = 0.0;
    for path in &mut config.paths {
        path.latency_ns = 0.0;
    }
    for node in &mut config.nodes {
        (node.read_gbps, node.write_gbps) = (10_000.0, 10_000.0);
    }
    assert_within(Guest::new(config, |_| chase(0)).latency(), 0.5, 1.0, "zero");
}

#[test]
fn vcpus_beyond_the_settings_do_not_exist() {
    assert!(Machine::new(two_tiers(2)).unwrap().vcpu(2).is_none());
}
