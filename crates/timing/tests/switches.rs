//! Address translation and coherence, each on and off: the cost of mixed accesses of four vCPUs on two nodes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use nearfar_timing::config::Config;
use nearfar_timing::flow::Flow;
use nearfar_timing::{Access, Kind, Machine, Origin, Vcpu};

const GIB: u64 = 1 << 30;

/// Two nodes with two vCPUs each, 100 ns to the own memory and 160 to the other; more processor settings in `more`.
fn machine(more: &str) -> Machine {
    let text = format!(
        r#"{{"clock": "virtual", "cpu_nodes": [0, 0, 1, 1], "stats": null,
        "nodes": [{{"id": 0, "read_gbps": 40, "write_gbps": 40, "duplex": false}},
                  {{"id": 1, "read_gbps": 20, "write_gbps": 10, "duplex": true}}],
        "ranges": [{{"start": 0, "end": {GIB}, "node": 0}}, {{"start": {GIB}, "end": {}, "node": 1}}],
        "paths": [
            {{"from": 0, "to": 0, "latency_ns": 100, "gbps_max": null, "read_links": [], "write_links": []}},
            {{"from": 0, "to": 1, "latency_ns": 160, "gbps_max": null, "read_links": [0], "write_links": []}},
            {{"from": 1, "to": 0, "latency_ns": 160, "gbps_max": null, "read_links": [], "write_links": [0]}},
            {{"from": 1, "to": 1, "latency_ns": 100, "gbps_max": null, "read_links": [], "write_links": []}}],
        "links": [{{"name": "1>0", "gbps": 8}}],
        "processor": {{"instruction_ps": 125, "l1_kib": 64, "llc_kib": 1024, "llc_latency_ns": 20,
            "lines_in_flight": 48, "load_factor": 0.02, "load_power": 4, "load_limit": 3 {more}}}}}"#,
        2 * GIB
    );
    Machine::new(Config::parse(&text).unwrap()).unwrap()
}

struct Cpu {
    vcpu: Vcpu,
    now_ps: u64,
}

impl Cpu {
    /// An access as the plugin makes it; `origin` if the load may overlap others.
    fn access(
        &mut self,
        machine: &Machine,
        kind: Kind,
        address: u64,
        origin: Option<Origin<'_>>,
    ) -> u64 {
        let vcpu = &mut self.vcpu;
        self.now_ps += 125;
        let hit = match kind {
            Kind::Load => vcpu.first_level.can_load(address),
            Kind::Store => vcpu.first_level.can_store(address),
            Kind::NonTemporalStore => vcpu.gathers(address),
        };
        if hit {
            return 0;
        }
        let access = Access { kind, virtual_address: address, physical_address: address };
        let stall_ps = machine.access(vcpu, self.now_ps, access, origin);
        self.now_ps += stall_ps;
        stall_ps
    }
}

fn cpus(machine: &Machine) -> Vec<Cpu> {
    (0..4).map(|index| Cpu { vcpu: machine.vcpu(index).unwrap(), now_ps: 1_000_000 }).collect()
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random >> 11
}

/// A number that depends on each stall of 200,000 accesses, of which `shared` of 8 are to lines that all vCPUs use.
fn fingerprint(machine: &Machine, shared: u64) -> u64 {
    let mut cpus = cpus(machine);
    let mut random = 88_172_645_463_325_252;
    let load: &[u8] = &[0x48, 0x8b, 0x00];
    let flow = Flow::of([load]);
    let mut fingerprint = 0u64;
    for step in 0..200_000u64 {
        let index = usize::try_from(next(&mut random) % 4).unwrap();
        let cpu = &mut cpus[index];
        let own = index as u64 * (GIB / 2);
        let address = match next(&mut random) % 8 {
            part if part < shared => 0x3000_0000 + next(&mut random) % 64 * 64,
            part if part % 2 == 0 => own + step * 64 % (8 << 20),
            _ => own + next(&mut random) % (64 << 20),
        };
        let kind = match next(&mut random) % 16 {
            0 => Kind::NonTemporalStore,
            1..=5 => Kind::Store,
            _ => Kind::Load,
        };
        if step % 3 == 0 && cpu.vcpu.is_ahead(cpu.now_ps) {
            let stall_ps = machine.begin(&mut cpu.vcpu, cpu.now_ps, &flow);
            cpu.now_ps += stall_ps;
            fingerprint = fingerprint.rotate_left(5) ^ stall_ps;
        }
        let origin = (step % 2 == 0).then_some(Origin { flow: &flow, at: 0 });
        let stall_ps = cpu.access(machine, kind, address, origin);
        fingerprint = fingerprint.rotate_left(5) ^ stall_ps;
    }
    fingerprint
}

/// The value is that of the model before it had either.
const BEFORE: u64 = 3755054455838525167;

#[test]
fn without_coherence_and_tlb_costs_are_unchanged() {
    let off = r#", "tlb_entries": 0, "coherence": false"#;
    assert_eq!(fingerprint(&machine(off), 2), BEFORE);
}

const COHERENT: &str = r#", "tlb_entries": 0, "coherence": true"#;

#[test]
fn coherence_changes_nothing_while_no_vcpu_uses_another_s_lines() {
    assert_eq!(
        fingerprint(&machine(COHERENT), 0),
        fingerprint(&machine(r#", "tlb_entries": 0"#), 0)
    );
}

#[test]
fn without_page_tables_a_tlb_changes_nothing() {
    let small = r#", "tlb_entries": 16"#;
    assert_eq!(fingerprint(&machine(small), 2), BEFORE);
}

/// Nanoseconds of an increment of the line at `address(vcpu)` by each of `writers`, which take turns of `turn`
/// increments.
fn increment_ns(machine: &Machine, writers: &[usize], turn: u32, address: fn(usize) -> u64) -> f64 {
    let mut cpus = cpus(machine);
    let increments = 20_000;
    for _ in 0..increments / turn {
        for writer in writers {
            for _ in 0..turn {
                let cpu = &mut cpus[*writer];
                cpu.access(machine, Kind::Load, address(*writer), None);
                cpu.access(machine, Kind::Store, address(*writer), None);
            }
        }
    }
    let last_ps = writers.iter().map(|writer| cpus[*writer].now_ps - 1_000_000).max().unwrap();
    last_ps as f64 / 1000.0 / f64::from(increments)
}

#[test]
fn writers_of_one_line_wait_for_each_other_and_of_two_lines_do_not() {
    let machine = || machine(COHERENT);
    for turn in [1, 20] {
        // Two look-ups of the last-level cache; one, and the way to the other node.
        let near_ns = increment_ns(&machine(), &[0, 1], turn, |_| 0x5000);
        assert!((40.0..44.0).contains(&near_ns), "{near_ns}, turns of {turn}");
        let far_ns = increment_ns(&machine(), &[1, 2], turn, |_| 0x5000);
        assert!((175.0..185.0).contains(&far_ns), "{far_ns}, turns of {turn}");
    }
    let apart_ns = increment_ns(&machine(), &[0, 1], 20, |writer| 0x5000 + 64 * writer as u64);
    assert!(apart_ns < 0.3, "{apart_ns}");
    let alone_ns = increment_ns(&machine(), &[2], 20, |_| 0x5000);
    assert!(alone_ns < 0.3, "{alone_ns}");
}

#[test]
fn a_line_comes_once_from_the_cache_that_has_written_it() {
    let machine = machine(COHERENT);
    let mut cpus = cpus(&machine);
    let mut cost = |index: usize, kind, address| {
        cpus.iter_mut().for_each(|cpu| cpu.now_ps += 1_000_000_000);
        cpus[index].access(&machine, kind, address, None)
    };
    cost(0, Kind::Store, 0x9000);
    // From node 0's cache, although the memory is on node 0 as well: the look-up and the way.
    assert_eq!(cost(2, Kind::Load, 0x9000), 180_000);
    assert_eq!(cost(2, Kind::Load, 0x9000), 0);
    // Its own node's cache.
    assert_eq!(cost(3, Kind::Load, 0x9000), 20_000);
    // The line is clean by now; a store takes it from both readers, and the next load comes from there.
    cost(1, Kind::Store, 0x9000);
    assert_eq!(cost(3, Kind::Load, 0x9000), 180_000);
    let transfers: Vec<_> =
        machine.stats("virtual", 1.0).cpus.iter().map(|cpu| cpu.transfers).collect();
    assert_eq!(transfers, [Some(0), Some(1), Some(1), Some(1)]);
}

#[test]
fn a_line_that_has_left_the_cache_of_its_writer_comes_from_memory() {
    let machine = machine(COHERENT);
    let mut cpus = cpus(&machine);
    cpus[0].access(&machine, Kind::Store, 0x9000, None);
    for line in 0..1 << 16 {
        cpus[0].access(&machine, Kind::Load, 0x10_0000 + line * 64, None);
    }
    cpus[2].now_ps = cpus[0].now_ps + 1_000_000_000;
    let stall_ps = cpus[2].access(&machine, Kind::Load, 0x9000, None);
    assert!((160_000..170_000).contains(&stall_ps), "{stall_ps}");
}

/// Nanoseconds of an increment of one line by each of `writers`, which run as vCPUs do: any may run next for a while,
/// until it is `slack_ps` ahead of the slowest.
fn racing_ns(machine: &Machine, writers: &[usize], slack_ps: u64) -> f64 {
    let mut cpus = cpus(machine);
    let mut random = 88_172_645_463_325_252;
    let mut done = vec![0u64; cpus.len()];
    while writers.iter().any(|writer| done[*writer] < 50_000) {
        let slowest_ps = writers.iter().map(|writer| cpus[*writer].now_ps).min().unwrap();
        let index = writers[usize::try_from(next(&mut random)).unwrap() % writers.len()];
        for _ in 0..next(&mut random) % 1000 {
            if cpus[index].now_ps > slowest_ps + slack_ps {
                break;
            }
            cpus[index].access(machine, Kind::Load, 0x5000, None);
            cpus[index].access(machine, Kind::Store, 0x5000, None);
            done[index] += 1;
        }
    }
    let time_ns: u64 = writers.iter().map(|writer| (cpus[*writer].now_ps - 1_000_000) / 1000).sum();
    time_ns as f64 / writers.iter().map(|writer| done[*writer]).sum::<u64>() as f64
}

#[test]
fn writers_that_run_separately_pay_as_if_alternating() {
    for slack_ps in [1_500_000, 15_000_000] {
        let near_ns = racing_ns(&machine(COHERENT), &[0, 1], slack_ps);
        assert!((36.0..42.0).contains(&near_ns), "{near_ns}, {slack_ps} ps apart");
        let far_ns = racing_ns(&machine(COHERENT), &[0, 2], slack_ps);
        assert!((165.0..185.0).contains(&far_ns), "{far_ns}, {slack_ps} ps apart");
    }
}

#[test]
fn a_third_writer_slows_the_others_down() {
    let two_ns = racing_ns(&machine(COHERENT), &[0, 2], 1_500_000);
    let three_ns = racing_ns(&machine(COHERENT), &[0, 2, 3], 1_500_000);
    assert!(three_ns > 1.2 * two_ns, "{three_ns} against {two_ns}");
}
