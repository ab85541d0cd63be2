//! Tests of loads that overlap: small loops of real code, block by block, with the addresses that they access.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use nearfar_timing::config::{Clock, Config, MemoryNode, Path, Processor, Range};
use nearfar_timing::flow::Flow;
use nearfar_timing::{Access, Kind, Machine, Origin, Vcpu};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const LATENCY: f64 = 100.0;
const INSTRUCTION_PS: u64 = 125;

fn config(reorder_buffer: u32) -> Config {
    Config {
        clock: Clock::Virtual,
        cpu_nodes: vec![0],
        nodes: vec![MemoryNode {
            id: 0,
            read_gbps: 400.0,
            write_gbps: 400.0,
            duplex: false,
            curves: None,
        }],
        ranges: vec![Range { start: 0, end: 8 * GIB, node: 0 }],
        paths: vec![Path {
            from: 0,
            to: 0,
            latency_ns: LATENCY,
            gbps_max: None,
            curves: None,
            read_links: Vec::new(),
            write_links: Vec::new(),
        }],
        links: Vec::new(),
        processor: Processor {
            instruction_ps: INSTRUCTION_PS,
            l1_kib: 64,
            llc_kib: 1024,
            llc_latency_ns: 12.0,
            lines_in_flight: 64,
            loads_in_flight: 10,
            reorder_buffer,
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

/// An instruction and its access.
type Step = (&'static [u8], Option<(Kind, u64)>);

struct Core {
    machine: Machine,
    vcpu: Vcpu,
    now_ps: u64,
    random: u64,
}

impl Core {
    fn new(reorder_buffer: u32) -> Self {
        let machine = Machine::new(config(reorder_buffer)).unwrap();
        let vcpu = machine.vcpu(0).unwrap();
        Self { machine, vcpu, now_ps: 0, random: 88_172_645_463_325_252 }
    }

    /// A random line of 4 GiB.
    fn anywhere(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        GIB + (self.random >> 20) % (4 * GIB) / 64 * 64
    }

    /// Runs a block as the plugin has it run.
    fn block(&mut self, steps: &[Step]) {
        let flow = Flow::of(steps.iter().map(|(bytes, _)| *bytes));
        self.now_ps += steps.len() as u64 * INSTRUCTION_PS;
        if self.vcpu.is_ahead(self.now_ps) {
            self.now_ps += self.machine.begin(&mut self.vcpu, self.now_ps, &flow);
        }
        for (at, (_, accessed)) in steps.iter().enumerate() {
            let Some((kind, address)) = *accessed else { continue };
            let origin = Origin { flow: &flow, at };
            let hit = match kind {
                Kind::Store => {
                    self.vcpu.pass_on(self.now_ps, address, origin);
                    self.vcpu.first_level.can_store(address)
                }
                _ => self.vcpu.first_level.can_load(address),
            };
            if !hit {
                let access = Access { kind, virtual_address: address, physical_address: address };
                let vcpu = &mut self.vcpu;
                self.now_ps += self.machine.access(vcpu, self.now_ps, access, Some(origin));
            } else if kind == Kind::Load {
                self.vcpu.take_over(self.now_ps, address, origin);
            }
        }
    }

    /// Nanoseconds a round.
    fn rounds(&mut self, round: impl Fn(&mut Self)) -> f64 {
        (0..200).for_each(|_| round(self));
        let before = self.now_ps;
        (0..2000).for_each(|_| round(self));
        (self.now_ps - before) as f64 / 2_000_000.0
    }
}

/// `mov (%r),%r` for fifteen registers.
const CHASES: [&[u8]; 15] = [
    &[0x48, 0x8b, 0x00],
    &[0x48, 0x8b, 0x1b],
    &[0x48, 0x8b, 0x09],
    &[0x48, 0x8b, 0x12],
    &[0x48, 0x8b, 0x36],
    &[0x48, 0x8b, 0x3f],
    &[0x48, 0x8b, 0x6d, 0x00],
    &[0x4d, 0x8b, 0x00],
    &[0x4d, 0x8b, 0x09],
    &[0x4d, 0x8b, 0x12],
    &[0x4d, 0x8b, 0x1b],
    &[0x4d, 0x8b, 0x24, 0x24],
    &[0x4d, 0x8b, 0x6d, 0x00],
    &[0x4d, 0x8b, 0x36],
    &[0x4d, 0x8b, 0x3f],
];
const NOP: Step = (&[0x90], None);
/// `mov (%rax),%rax`, `mov 8(%rax),%rbx`, `mov (%rdi,%rcx,8),%rax`.
const NEXT: &[u8] = &[0x48, 0x8b, 0x00];
const FIELD: &[u8] = &[0x48, 0x8b, 0x58, 0x08];
/// `mov %rax,(%rax)`, `lfence`.
const STORE: &[u8] = &[0x48, 0x89, 0x00];
const FENCE: &[u8] = &[0x0f, 0xae, 0xe8];
const INDEXED: &[u8] = &[0x48, 0x8b, 0x04, 0xcf];

fn load(bytes: &'static [u8], address: u64) -> Step {
    (bytes, Some((Kind::Load, address)))
}

fn assert_near(found: f64, wanted: f64, what: &str) {
    assert!((found / wanted - 1.0).abs() < 0.05, "{what}: {found:.1} ns, not {wanted:.1}");
}

#[test]
fn a_chain_takes_its_latency_and_many_chains_share_the_fill_buffers() {
    for (chains, wanted) in [(1, LATENCY), (2, LATENCY), (5, LATENCY), (10, LATENCY), (15, 150.0)] {
        let found = Core::new(512).rounds(|core| {
            let steps: Vec<Step> = (0..chains).map(|n| load(CHASES[n], core.anywhere())).collect();
            core.block(&steps);
        });
        assert_near(found, wanted, &format!("a load in each of {chains} chains"));
    }
}

#[test]
fn independent_loads_overlap_across_blocks() {
    let found = Core::new(512).rounds(|core| {
        let address = core.anywhere();
        core.block(&[NOP, NOP, load(INDEXED, address)]);
    });
    assert_near(found, LATENCY / 10.0, "independent loads");
}

#[test]
fn in_order_every_load_waits() {
    let found = Core::new(0).rounds(|core| {
        let address = core.anywhere();
        let access =
            Access { kind: Kind::Load, virtual_address: address, physical_address: address };
        core.now_ps += core.machine.access(&mut core.vcpu, core.now_ps, access, None);
    });
    assert_near(found, LATENCY, "in order");
}

#[test]
fn execution_passes_a_load_by_no_more_than_the_reorder_buffer() {
    let found = Core::new(256).rounds(|core| {
        let address = core.anywhere();
        core.block(&[load(INDEXED, address)]);
        (0..60).for_each(|_| core.block(&[NOP; 10]));
    });
    // 601 instructions take 75.1 ns; 32 ns after the load, execution waits for it.
    assert_near(found, 75.1 + LATENCY - 32.0, "600 instructions between loads");
}

#[test]
fn a_second_word_of_a_line_in_flight_waits_for_the_line() {
    let found = Core::new(512).rounds(|core| {
        let node = core.anywhere();
        core.block(&[load(FIELD, node + 8), load(NEXT, node)]);
    });
    assert_near(found, LATENCY, "a list whose nodes are read by their second word first");
    // mov %rcx,8(%rax)
    let found = Core::new(512).rounds(|core| {
        let node = core.anywhere();
        core.block(&[(&[0x48, 0x89, 0x48, 0x08], Some((Kind::Store, node + 8))), load(NEXT, node)]);
    });
    assert_near(found, LATENCY, "a list whose nodes are marked first");
}

#[test]
fn a_pointer_kept_in_memory_forms_a_chain_too() {
    // mov -8(%rbp),%rax; mov (%rax),%rax; mov %rax,-8(%rbp)
    let found = Core::new(512).rounds(|core| {
        let address = core.anywhere();
        core.block(&[
            load(&[0x48, 0x8b, 0x45, 0xf8], 0x1000),
            load(NEXT, address),
            (&[0x48, 0x89, 0x45, 0xf8], Some((Kind::Store, 0x1000))),
        ]);
    });
    assert_near(found, LATENCY, "in a variable");
    // mov 8(%rsp),%rax; mov (%rax),%rax; mov %rax,8(%rsp): the plugin sees no near stack accesses.
    let found = Core::new(512).rounds(|core| {
        let address = core.anywhere();
        core.block(&[
            (&[0x48, 0x8b, 0x44, 0x24, 0x08], None),
            load(NEXT, address),
            (&[0x48, 0x89, 0x44, 0x24, 0x08], None),
        ]);
    });
    assert_near(found, LATENCY, "in a stack slot");
    // mov (%rax),%rax; push %rax; xor %eax,%eax || pop %rax
    let found = Core::new(512).rounds(|core| {
        let address = core.anywhere();
        core.block(&[load(NEXT, address), (&[0x50], None), (&[0x31, 0xc0], None)]);
        core.block(&[(&[0x58], None)]);
    });
    assert_near(found, LATENCY, "pushed and popped");
}

#[test]
fn a_pointer_pushed_while_nothing_was_in_flight_is_waited_for() {
    // mov (%rdi,%rcx,8),%rax; push %rax || pop %rax; mov (%rax),%rax
    let found = Core::new(512).rounds(|core| {
        (0..200).for_each(|_| core.block(&[NOP; 10]));
        let (first, second) = (core.anywhere(), core.anywhere());
        core.block(&[load(INDEXED, first), (&[0x50], None)]);
        core.block(&[(&[0x58], None), load(NEXT, second)]);
        core.block(&[(FENCE, None)]);
    });
    // 2,005 instructions take 250.6 ns, and each load its latency after the one before.
    assert_near(found, 250.6 + 2.0 * LATENCY, "pushed, popped and followed");
}

#[test]
fn an_overwritten_register_has_no_dependency() {
    // xor %eax,%eax; mov (%rax),%rax: cleared registers need nothing.
    let found = Core::new(512).rounds(|core| {
        let address = core.anywhere();
        core.block(&[(&[0x31, 0xc0], None), load(NEXT, address)]);
    });
    assert_near(found, LATENCY / 10.0, "after a cleared register");
    // lea 8(%rax),%rbx; mov (%rbx),%rax: through another register.
    let found = Core::new(512).rounds(|core| {
        let address = core.anywhere();
        core.block(&[(&[0x48, 0x8d, 0x58, 0x08], None), load(&[0x48, 0x8b, 0x03], address)]);
    });
    assert_near(found, LATENCY, "through another register");
}

#[test]
fn fences_and_locked_instructions_wait_for_all_loads() {
    let fences: [&'static [u8]; 3] =
        [&[0x0f, 0xae, 0xe8], &[0x0f, 0xa2], &[0xf0, 0x48, 0x83, 0x45, 0x00, 0x01]];
    for fence in fences {
        let found = Core::new(512).rounds(|core| {
            let address = core.anywhere();
            core.block(&[(fence, None)]);
            core.block(&[load(INDEXED, address)]);
        });
        assert_near(found, LATENCY, "a load between two");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However code is mixed, it takes no less than its instructions, and no more than if every load waited.
    #[test]
    fn overlap_never_costs_time(
        blocks in proptest::collection::vec(
            proptest::collection::vec((0usize..18, 0u64..4096), 1..12),
            1..80,
        ),
    ) {
        let steps = |block: &Vec<(usize, u64)>| -> Vec<Step> {
            block.iter().map(|(what, line)| {
                let address = GIB + line * 4160;
                match what {
                    15 => NOP,
                    16 => (STORE, Some((Kind::Store, address))),
                    17 => (FENCE, None),
                    chase => load(CHASES[*chase], address),
                }
            }).collect()
        };
        let mut ahead = Core::new(512);
        let mut count = 0;
        for block in &blocks {
            ahead.block(&steps(block));
            count += block.len() as u64;
        }
        let mut in_order = Core::new(512);
        for (_, accessed) in blocks.iter().flat_map(steps) {
            in_order.now_ps += INSTRUCTION_PS;
            let Some((kind, address)) = accessed else { continue };
            let hit = match kind {
                Kind::Store => in_order.vcpu.first_level.can_store(address),
                _ => in_order.vcpu.first_level.can_load(address),
            };
            if !hit {
                let access = Access { kind, virtual_address: address, physical_address: address };
                let Core { machine, vcpu, now_ps, .. } = &mut in_order;
                *now_ps += machine.access(vcpu, *now_ps, access, None);
            }
        }
        prop_assert!(ahead.now_ps >= count * INSTRUCTION_PS);
        prop_assert!(
            ahead.now_ps as f64 <= in_order.now_ps as f64 * 1.02 + 100_000.0,
            "{} and in order {}", ahead.now_ps, in_order.now_ps
        );
    }
}
