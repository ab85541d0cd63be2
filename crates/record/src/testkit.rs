//! Synthetic records, for tests here and in other crates.
//!
//! One fixed record with a moving hot set, whose reductions are known in advance, and a strategy for arbitrary valid
//! records.

use nearfar_topology::NodeId;

use crate::model::{
    Access, Ending, Header, Intervals, Moved, Node, Note, Operations, Pair, Range, Record, Region,
    Residency, Resident, Snapshot, Target,
};

const MIB: u64 = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// An emulated machine with 1 GiB near at 4 GiB and 4 GiB far at 64 GiB.
#[must_use]
pub fn header() -> Header {
    let node = |id, kind: &str, start, mib: u64| Node {
        id: NodeId(id),
        kind: kind.into(),
        near: id == 0,
        ranges: vec![Range { start, end: start + mib * MIB }],
    };
    Header {
        writer: "nearfar 0.1.0".into(),
        machine: "cxl-2tier".into(),
        fingerprint: "0123456789abcdef".into(),
        kernel: "6.12.0".into(),
        emulated: true,
        started_unix_ns: 1_700_000_000 * SECOND_NS,
        target: Target::Machine,
        operations: Operations::Physical,
        intervals: Intervals { sample_us: 5_000, aggregation_us: 100_000 },
        nodes: vec![node(0, "dram", 4096 * MIB, 1024), node(1, "cxl", 65_536 * MIB, 4096)],
    }
}

/// A minute with a hot set of 256 MiB (18 of 20 samples) that begins in far memory, moves within far memory after 30 s,
/// and is promoted within 10 s each time; 128 MiB of near memory are lukewarm (2 of 20) throughout.
#[must_use]
pub fn moving_hot_set() -> Record {
    let mut record = Record::new(header());
    for second in 1..=60 {
        let at_ns = second * SECOND_NS;
        let phase = (second - 1) / 30;
        let into = (second - 1) % 30;
        let promoted = into.min(10) * 256 / 10;
        record.accesses.push(access(at_ns, phase, promoted, into));
        let near = 256 + promoted;
        let resident = |node, mib: u64| Resident { node: NodeId(node), bytes: mib * MIB };
        let nodes = vec![resident(0, near), resident(1, 3584 - near)];
        record.residency.push(Residency { at_ns, nodes });
        if (1..=10).contains(&into) {
            let moved = (promoted - (into - 1) * 256 / 10) * MIB;
            let pair = Pair { from: NodeId(1), to: NodeId(0), bytes: moved, failed_bytes: MIB };
            record.moved.push(Moved { at_ns, pairs: vec![pair] });
        }
    }
    record.notes.push(Note { at_ns: 30 * SECOND_NS, text: "hot set moved".into() });
    record.ending =
        Some(Ending { at_ns: 60 * SECOND_NS, kernel_cpu_ns: 300_000_000, own_cpu_ns: 60_000_000 });
    record
}

/// The hot set is at offset 1 GiB (phase 0) or 3 GiB (phase 1) of far memory; its first `promoted` MiB are at offset
/// 512 MiB of near memory instead.
fn access(at_ns: u64, phase: u64, promoted: u64, into: u64) -> Access {
    let far = 65_536 + 1024 + 2048 * phase;
    let age = u32::try_from(into * 10).unwrap_or(u32::MAX);
    let plan = [
        (4096, 4096 + 128, 2, 600),
        (4096 + 128, 4096 + 512, 0, 600),
        (4096 + 512, 4096 + 512 + promoted, 18, age),
        (4096 + 512 + promoted, 4096 + 1024, 0, 600),
        (65_536, far + promoted, 0, 600),
        (far + promoted, far + 256, 18, age),
        (far + 256, 65_536 + 4096, 0, 600),
    ];
    let regions = plan
        .into_iter()
        .filter(|(start, end, ..)| start < end)
        .map(|(start, end, accesses, age)| Region {
            range: Range { start: start * MIB, end: end * MIB },
            accesses,
            age,
        })
        .collect();
    let intervals = header().intervals;
    Access { at_ns, intervals, targets: vec![Snapshot { target: 0, regions }] }
}

/// The first three seconds of [`moving_hot_set`].
#[must_use]
pub fn short() -> Record {
    let mut record = moving_hot_set();
    record.accesses.truncate(3);
    record.residency.truncate(3);
    record.moved.truncate(2);
    record.notes.clear();
    record.ending = Some(Ending { at_ns: 3 * SECOND_NS, kernel_cpu_ns: 1, own_cpu_ns: 2 });
    record
}

/// Arbitrary records.
#[cfg(test)]
pub(crate) mod arbitrary {
    use super::*;
    use crate::format::Frame;
    use crate::model::Process;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn intervals() -> impl Strategy<Value = Intervals> {
        (1..=u64::MAX, any::<u64>())
            .prop_map(|(a, b)| Intervals { sample_us: a.min(b.max(1)), aggregation_us: a.max(b) })
    }

    fn node() -> impl Strategy<Value = NodeId> {
        (0..=NodeId::MAX.0).prop_map(NodeId)
    }

    /// Sorted and disjoint, from the gaps and lengths of its regions.
    fn snapshot() -> impl Strategy<Value = Snapshot> {
        let region = (0..=1u64 << 40, 1..=1u64 << 40, any::<u32>(), any::<u32>());
        (any::<u32>(), 0u32..13, vec(region, 0..20)).prop_map(|(target, shift, plan)| {
            let mut end = 0;
            let regions = plan.into_iter().map(|(gap, length, accesses, age)| {
                let start = end + (gap << shift);
                end = start + (length << shift);
                Region { range: Range { start, end }, accesses, age }
            });
            Snapshot { target, regions: regions.collect() }
        })
    }

    fn access() -> impl Strategy<Value = Access> {
        (any::<u64>(), intervals(), vec(snapshot(), 0..4))
            .prop_map(|(at_ns, intervals, targets)| Access { at_ns, intervals, targets })
    }

    fn residency() -> impl Strategy<Value = Residency> {
        let one = (node(), any::<u64>()).prop_map(|(node, bytes)| Resident { node, bytes });
        (any::<u64>(), vec(one, 0..5)).prop_map(|(at_ns, nodes)| Residency { at_ns, nodes })
    }

    fn moved() -> impl Strategy<Value = Moved> {
        let pair = (node(), node(), any::<u64>(), any::<u64>())
            .prop_map(|(from, to, bytes, failed_bytes)| Pair { from, to, bytes, failed_bytes });
        (any::<u64>(), vec(pair, 0..5)).prop_map(|(at_ns, pairs)| Moved { at_ns, pairs })
    }

    fn note() -> impl Strategy<Value = Note> {
        (any::<u64>(), any::<String>()).prop_map(|(at_ns, text)| Note { at_ns, text })
    }

    fn process() -> impl Strategy<Value = Process> {
        any::<(u64, u32, u32, String)>().prop_map(|(at_ns, target, pid, command)| Process {
            at_ns,
            target,
            pid,
            command,
        })
    }

    fn ending() -> impl Strategy<Value = Ending> {
        any::<(u64, u64, u64)>().prop_map(|(at_ns, kernel_cpu_ns, own_cpu_ns)| Ending {
            at_ns,
            kernel_cpu_ns,
            own_cpu_ns,
        })
    }

    fn header() -> impl Strategy<Value = Header> {
        let target = prop_oneof![
            Just(Target::Machine),
            any::<String>().prop_map(Target::Cgroup),
            any::<(u32, String)>().prop_map(|(pid, command)| Target::Process { pid, command }),
            Just(Target::Unknown),
        ];
        let operations = prop::sample::select(vec![
            Operations::Virtual,
            Operations::FixedVirtual,
            Operations::Physical,
            Operations::Unknown,
        ]);
        let range =
            (any::<u64>(), 1..=u64::MAX).prop_map(|(a, b)| Range { start: a.min(b - 1), end: b });
        let node = (node(), any::<String>(), any::<bool>(), vec(range, 0..3))
            .prop_map(|(id, kind, near, ranges)| Node { id, kind, near, ranges });
        (
            any::<[String; 4]>(),
            any::<(bool, u64)>(),
            target,
            operations,
            intervals(),
            vec(node, 0..3),
        )
            .prop_map(
                |(texts, (emulated, started_unix_ns), target, operations, intervals, nodes)| {
                    let [writer, machine, fingerprint, kernel] = texts;
                    Header {
                        writer,
                        machine,
                        fingerprint,
                        kernel,
                        emulated,
                        started_unix_ns,
                        target,
                        operations,
                        intervals,
                        nodes,
                    }
                },
            )
    }

    pub(crate) fn frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            header().prop_map(Frame::Header),
            access().prop_map(Frame::Access),
            residency().prop_map(Frame::Residency),
            moved().prop_map(Frame::Moved),
            note().prop_map(Frame::Note),
            ending().prop_map(Frame::Ending),
            process().prop_map(Frame::Process),
        ]
    }

    /// One with an ending, and with its lists in the order of time.
    pub(crate) fn record() -> impl Strategy<Value = Record> {
        let lists = (
            vec(access(), 0..4),
            vec(residency(), 0..4),
            vec(moved(), 0..4),
            vec(note(), 0..4),
            vec(process(), 0..4),
        );
        (header(), lists, ending()).prop_map(|(header, lists, ending)| {
            let (mut accesses, mut residency, mut moved, mut notes, mut processes) = lists;
            processes.sort_by_key(|of| of.at_ns);
            accesses.sort_by_key(|of| of.at_ns);
            residency.sort_by_key(|of| of.at_ns);
            moved.sort_by_key(|of| of.at_ns);
            notes.sort_by_key(|of| of.at_ns);
            let ending = Some(ending);
            Record { header, accesses, residency, moved, notes, processes, ending }
        })
    }
}
