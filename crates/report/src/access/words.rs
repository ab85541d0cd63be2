//! Describes a record in words.

use nearfar_record::reduce::areas::Area;
use nearfar_record::{Node, Operations, Process, Record, Target};
use nearfar_topology::{Bytes, NodeId};

/// Disclaimer for emulated records.
pub(super) const EMULATED: &str =
    "The machine is emulated: this shows its behaviour and is no measurement of hardware.";

/// The machine, and whether it was a real one.
pub(super) fn machine(record: &Record) -> String {
    let header = &record.header;
    let kernel = if header.kernel.is_empty() {
        String::new()
    } else {
        format!(", kernel {}", header.kernel)
    };
    match (header.machine.as_str(), header.emulated) {
        ("", true) => format!("EMULATED machine{kernel}"),
        (name, true) => format!("EMULATED machine {name}{kernel}"),
        ("", false) if header.writer == "damo" => {
            "imported from damo, which names no machine".into()
        }
        ("", false) => format!("recorded on a machine without a name{kernel}"),
        (name, false) => format!("recorded on {name}{kernel}"),
    }
}

/// The target, and the type of its addresses.
pub(super) fn target(record: &Record) -> String {
    let whose = match &record.header.target {
        Target::Machine => "the whole machine".into(),
        Target::Cgroup(path) => format!("cgroup {path}"),
        Target::Process { pid, command } if command.is_empty() => format!("process {pid}"),
        Target::Process { pid, command } => format!("process {pid} ({command})"),
        Target::Unknown => "an unnamed target".into(),
    };
    let whose = match (&record.header.target, record.processes.len()) {
        (_, 0) | (Target::Process { .. }, 1) => whose,
        (Target::Process { .. }, 2) => format!("{whose} and one that it started"),
        (Target::Process { .. }, all) => format!("{whose} and {} that it started", all - 1),
        (_, 1) => format!("{whose}, one process"),
        (_, all) => format!("{whose}, {all} processes"),
    };
    match record.header.operations {
        Operations::Virtual | Operations::FixedVirtual => format!("{whose}, by virtual address"),
        Operations::Physical => format!("{whose}, by physical address"),
        Operations::Unknown => whose,
    }
}

/// Duration and settings of the recording.
pub(super) fn extent(record: &Record) -> String {
    let given = record.header.intervals;
    let found = || record.accesses.iter().map(|access| access.intervals);
    let span = |all: &mut dyn Iterator<Item = u64>, given: u64| {
        let (least, most) = all.fold((u64::MAX, 0), |(a, b), us| (a.min(us), b.max(us)));
        let (least, most) = if most == 0 { (given, given) } else { (least, most) };
        let [least, most] = [least, most].map(|us| time(us.saturating_mul(1000)));
        if least == most { least } else { format!("{least} to {most}") }
    };
    format!(
        "{} snapshots over {}; a sample each {}, aggregated over {}",
        record.accesses.len(),
        time(record.duration_ns()),
        span(&mut found().map(|of| of.sample_us), given.sample_us),
        span(&mut found().map(|of| of.aggregation_us), given.aggregation_us),
    )
}

/// Name of a target: the process, if the record has it.
pub(super) fn target_name(record: &Record, target: u32) -> String {
    match record.processes.iter().rfind(|process| process.target == target) {
        None => format!("target {target}"),
        Some(Process { pid, command, .. }) if command.is_empty() => format!("process {pid}"),
        Some(Process { pid, command, .. }) => format!("process {pid} ({command})"),
    }
}

/// Cost of the recording; `None` if the record has no ending.
pub(super) fn overhead(record: &Record) -> Option<String> {
    let ending = record.ending?;
    let share = |ns: u64| {
        let percent = u128::from(ns) * 10_000 / u128::from(ending.at_ns.max(1));
        format!("{}.{:02} % of a CPU", percent / 100, percent % 100)
    };
    (ending.kernel_cpu_ns > 0 || ending.own_cpu_ns > 0).then(|| {
        format!(
            "Recording took {} in the kernel and {} in nearfar.",
            share(ending.kernel_cpu_ns),
            share(ending.own_cpu_ns)
        )
    })
}

/// `near, dram`.
pub(super) fn node(record: &Record, id: NodeId) -> String {
    match record.header.nodes.iter().find(|node| node.id == id) {
        Some(Node { kind, near, .. }) => {
            format!("node {id} ({}, {kind})", if *near { "near" } else { "far" })
        }
        None => format!("node {id}"),
    }
}

/// Location of an area: its addresses, its size, its target if there are several, its nodes if known.
pub(super) fn area(record: &Record, area: &Area, several: bool) -> String {
    let range = area.range;
    let mut text = format!("{:#x}-{:#x}, {}", range.start, range.end, Bytes(range.bytes()));
    if several {
        text = format!("{}, {text}", target_name(record, area.target));
    }
    let nodes = record.header.nodes.iter().filter(|node| {
        record.header.operations == Operations::Physical
            && node.ranges.iter().any(|of| of.shared(range) > 0)
    });
    let nodes: Vec<String> = nodes.map(|of| node(record, of.id)).collect();
    if nodes.is_empty() { text } else { format!("{text}, {}", nodes.join(", ")) }
}

/// `5 ms`, `1.5 s`, `2 min 5 s`, `3 h`.
pub(super) fn time(ns: u64) -> String {
    let tenths = |ns: u64, unit: u64, name: &str| {
        let tenths = ns / (unit / 10);
        if tenths.is_multiple_of(10) {
            format!("{} {name}", tenths / 10)
        } else {
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
    };
    match ns {
        0 => "0 s".into(),
        1..1_000_000 => tenths(ns, 1_000, "µs"),
        1_000_000..1_000_000_000 => tenths(ns, 1_000_000, "ms"),
        1_000_000_000..60_000_000_000 => tenths(ns, 1_000_000_000, "s"),
        60_000_000_000..3_600_000_000_000 => {
            let seconds = ns / 1_000_000_000;
            match (seconds / 60, seconds % 60) {
                (minutes, 0) => format!("{minutes} min"),
                (minutes, rest) => format!("{minutes} min {rest} s"),
            }
        }
        _ => {
            let minutes = ns / 60_000_000_000;
            match (minutes / 60, minutes % 60) {
                (hours, 0) => format!("{hours} h"),
                (hours, rest) => format!("{hours} h {rest} min"),
            }
        }
    }
}

/// `12.5 %`.
pub(super) fn percent(permille: u64) -> String {
    if permille.is_multiple_of(10) {
        format!("{} %", permille / 10)
    } else {
        format!("{}.{} %", permille / 10, permille % 10)
    }
}

/// `part` of `whole` in thousandths.
pub(super) fn permille(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 1000 / u128::from(whole.max(1))).unwrap_or(1000).min(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_with_at_most_two_units() {
        for (ns, text) in [
            (0, "0 s"),
            (5_000_000, "5 ms"),
            (1_500_000_000, "1.5 s"),
            (60_000_000_000, "1 min"),
            (125_000_000_000, "2 min 5 s"),
            (10_860_000_000_000, "3 h 1 min"),
            (3_600_000_000_000, "1 h"),
        ] {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn a_target_is_named_after_its_process() {
        let mut record = nearfar_record::testkit::short();
        let process =
            |target, pid, command: &str| Process { at_ns: 0, target, pid, command: command.into() };
        record.header.target = Target::Process { pid: 7, command: "make".into() };
        record.processes = vec![process(0, 7, "make"), process(1, 8, "cc1"), process(2, 9, "")];
        let called = |target| target_name(&record, target);
        assert_eq!(
            [0, 1, 2, 3].map(called),
            ["process 7 (make)", "process 8 (cc1)", "process 9", "target 3"]
        );
        assert!(target(&record).starts_with("process 7 (make) and 2 that it started, by"));
    }

    #[test]
    fn tuned_intervals_are_shown_as_a_range() {
        let mut record = nearfar_record::testkit::short();
        assert!(extent(&record).ends_with("a sample each 5 ms, aggregated over 100 ms"));
        record.accesses[1].intervals.sample_us = 20_000;
        record.accesses[1].intervals.aggregation_us = 400_000;
        assert!(
            extent(&record)
                .ends_with("a sample each 5 ms to 20 ms, aggregated over 100 ms to 400 ms")
        );
    }

    #[test]
    fn an_emulated_machine_is_labelled_and_overhead_is_stated() {
        let record = nearfar_record::testkit::moving_hot_set();
        assert_eq!(machine(&record), "EMULATED machine cxl-2tier, kernel 6.12.0");
        assert_eq!(
            overhead(&record).unwrap(),
            "Recording took 0.50 % of a CPU in the kernel and 0.10 % of a CPU in nearfar."
        );
    }
}
