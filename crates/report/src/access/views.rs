//! The content of a report, ready for layout: rows of bars, bands over time, and a sentence that explains them.

use nearfar_record::Record;
use nearfar_record::reduce::areas::Which;
use nearfar_record::reduce::heatmap::{Heatmap, Shape, heatmap};
use nearfar_record::reduce::residency::{Over, residency};
use nearfar_record::reduce::temperature::temperature;
use nearfar_record::reduce::{hot, wss};
use nearfar_topology::{Bytes, NodeId};

use super::{Options, words};

/// Shades of heat, idle included.
pub(super) const LEVELS: u16 = 9;

/// The shade of an access rate: only rate 0 gets shade 0.
pub(super) fn level(permille: u16) -> u16 {
    if permille == 0 { 0 } else { 1 + (permille - 1).min(999) * (LEVELS - 1) / 1000 }
}

/// A bar with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Name.
    pub(super) name: String,
    /// Value, as text.
    pub(super) value: String,
    /// Length, in thousandths of the longest.
    pub(super) permille: u64,
}

/// Rows under a heading.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// The heading.
    pub(super) title: &'static str,
    /// A sentence that explains the rows.
    pub(super) sentence: String,
    /// The rows.
    pub(super) rows: Vec<Row>,
}

fn rows(all: Vec<(String, u64)>, of: u64) -> Vec<Row> {
    let longest = all.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let row = |(name, bytes): (String, u64)| Row {
        name,
        value: format!("{} · {}", Bytes(bytes), words::percent(words::permille(bytes, of))),
        permille: words::permille(bytes, longest),
    };
    all.into_iter().map(row).collect()
}

/// The heatmap, with the requested number of cells or as many as fit.
pub(super) fn heat(record: &Record, options: Options, fits: (usize, usize)) -> Option<Heatmap> {
    let columns = options.columns.unwrap_or(fits.0);
    heatmap(record, Shape { columns, rows: options.rows.unwrap_or(fits.1), which: options.which })
}

/// The heatmap of a picture, where time runs across: its columns are time, and its rows addresses.
pub(super) fn heat_over_time(record: &Record, options: Options) -> Option<Heatmap> {
    let turned = Options { columns: options.rows, rows: options.columns, ..options };
    heat(record, turned, (80, 160))
}

/// Describes the addresses that a heatmap leaves out, and how to show them.
pub(super) fn left_out(map: &Heatmap, options: Options) -> Option<String> {
    let hidden = map.left_out_bytes > 0 && options.which == Which::Accessed;
    hidden.then(|| {
        format!(
            "{} of addresses with few or no accesses are left out; --all shows them. They are summed over the whole record, so \
             they may exceed the memory monitored at one time.",
            Bytes(map.left_out_bytes)
        )
    })
}

/// The working set's percentiles.
pub(super) fn working_set(record: &Record, options: Options) -> Option<Rows> {
    let found = wss::wss(record, options.threshold_permille)?;
    let (_, hot_bytes) = hot::hot(record);
    let counted = match options.threshold_permille {
        0 => "with any access at all".into(),
        least => format!("found accessed at {} of the looks or more", words::percent(least)),
    };
    let sentence = format!(
        "Memory {counted} in one snapshot: {} on average, {} of the {} monitored at one time. Nine tenths of all accesses go to {} \
         (median).",
        Bytes(found.mean_bytes),
        words::percent(words::permille(found.mean_bytes, found.monitored_bytes)),
        Bytes(found.monitored_bytes),
        Bytes(hot_bytes),
    );
    let named = |(percent, bytes)| {
        let name = match percent {
            0 => "least".into(),
            50 => "median".into(),
            100 => "most".into(),
            percent => format!("P{percent}"),
        };
        (name, bytes)
    };
    let rows = rows(found.percentiles.into_iter().map(named).collect(), found.monitored_bytes);
    Some(Rows { title: "Working set by percentile of the snapshots", sentence, rows })
}

/// Working-set size over time.
pub(super) fn working_set_over_time(record: &Record, options: Options) -> Vec<(u64, Vec<u64>)> {
    let found = wss::wss(record, options.threshold_permille);
    found.into_iter().flat_map(|of| of.series).map(|(at, bytes)| (at, vec![bytes])).collect()
}

/// Bytes by access rate, accessed bytes by age, and idle bytes by age.
pub(super) fn warmth(record: &Record) -> Option<[Rows; 3]> {
    let found = temperature(record)?;
    let all = found.by_rate.iter().fold(0u64, |sum, of| sum.saturating_add(of.bytes));
    let idle = found.by_rate.first().map_or(0, |of| of.bytes);
    let rate = found.by_rate.iter().map(|of| {
        let name = match of.from_permille {
            0 => "not accessed".into(),
            1 => format!("up to {}", words::percent(of.to_permille)),
            from => format!("{} to {}", words::percent(from - 1), words::percent(of.to_permille)),
        };
        (name, of.bytes)
    });
    let age = |from: u64, to: Option<u64>| match to {
        Some(to) if from == 0 => format!("under {}", words::time(to)),
        Some(to) => format!("{} to {}", words::time(from), words::time(to)),
        None => format!("{} and more", words::time(from)),
    };
    let accessed = found.by_age.iter().map(|of| (age(of.from_ns, of.to_ns), of.accessed_bytes));
    let cold = found.by_age.iter().map(|of| (age(of.from_ns, of.to_ns), of.idle_bytes));
    let (mut below, mut tail) = (0, Vec::new());
    for of in found.by_age.iter().rev() {
        below = of.idle_bytes.saturating_add(below);
        tail.push((of.from_ns, below));
    }
    let minute =
        tail.iter().find(|(from, _)| *from == 60_000_000_000).map_or(0, |(_, bytes)| *bytes);
    Some([
        Rows {
            title: "By access rate",
            sentence: format!(
                "The share of looks that found an access; {} of {} had none, on average over snapshots.",
                Bytes(idle),
                Bytes(all)
            ),
            rows: rows(rate.collect(), all),
        },
        Rows {
            title: "Accessed memory, by how long it had been accessed alike",
            sentence: "A young hot set moves; an old one stays.".into(),
            rows: rows(accessed.collect(), all),
        },
        Rows {
            title: "Idle memory, by how long it had been idle",
            sentence: format!("{} had been idle for a minute or more.", Bytes(minute)),
            rows: rows(cold.collect(), all),
        },
    ])
}

/// Bytes per node over time, and sentences on migrations.
pub(super) fn places(record: &Record) -> Option<(Over, Vec<String>)> {
    let over = residency(record);
    if over.series.is_empty() && over.moved.is_empty() {
        return None;
    }
    let mut sentences = Vec::new();
    if let Some((_, last)) = over.series.last() {
        let sum = last.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let parts = over.nodes.iter().zip(last).map(|(node, bytes)| {
            let share = words::percent(words::permille(*bytes, sum));
            format!("{} {} ({share})", words::node(record, *node), Bytes(*bytes))
        });
        sentences.push(format!("At the end: {}.", parts.collect::<Vec<_>>().join(", ")));
    }
    for pair in &over.moved {
        let failed = match pair.failed_bytes {
            0 => String::new(),
            bytes => format!("; {} were tried and stayed", Bytes(bytes)),
        };
        let (from, to) = (pair.from, pair.to);
        sentences
            .push(format!("Moved from node {from} to node {to}: {}{failed}.", Bytes(pair.bytes)));
    }
    Some((over, sentences))
}

/// The share of the hot set that was in near memory at the end, if known.
pub(super) fn hot_near(record: &Record) -> Option<String> {
    let (sets, _) = hot::hot(record);
    let last = sets.last().filter(|set| !set.nodes.is_empty() && set.bytes > 0)?;
    let near = |id: NodeId| record.header.nodes.iter().any(|node| node.id == id && node.near);
    let bytes = last.nodes.iter().filter(|of| near(of.node)).map(|of| of.bytes).sum::<u64>();
    Some(format!(
        "At the end, {} of the hot set ({}) were in near memory.",
        words::percent(words::permille(bytes, last.bytes)),
        Bytes(last.bytes)
    ))
}

/// The colour class of a node: near, or one shade per far node.
pub(super) fn node_class(record: &Record, id: NodeId) -> &'static str {
    let nodes = &record.header.nodes;
    let known = nodes.iter().any(|node| node.id == id);
    let far: Vec<NodeId> = nodes.iter().filter(|node| !node.near).map(|node| node.id).collect();
    match far.iter().position(|far| *far == id) {
        None if known => "near",
        None => "default",
        Some(0) => "far",
        Some(1) => "far2",
        Some(_) => "far3",
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn only_idle_memory_has_the_idle_shade() {
        assert_eq!([0, 1, 125, 126, 1000].map(level), [0, 1, 1, 2, LEVELS - 1]);
    }

    #[test]
    fn sentences_state_the_values_of_the_record() {
        let record = sample().record;
        let set = working_set(&record, Options::default()).unwrap();
        assert!(
            set.sentence.contains("384 MiB on average, 7.5 % of the 5 GiB"),
            "{}",
            set.sentence
        );
        assert!(set.sentence.contains("go to 243.1 MiB"), "{}", set.sentence);
        assert_eq!(set.rows[4].name, "median");
        let (_, places) = places(&record).unwrap();
        assert_eq!(
            places[0],
            "At the end: node 0 (near, dram) 512 MiB (14.2 %), node 1 (far, cxl) 3 GiB (85.7 %)."
        );
        assert_eq!(
            places[1],
            "Moved from node 1 to node 0: 512 MiB; 20 MiB were tried and stayed."
        );
        assert!(hot_near(&record).unwrap().contains("100 % of the hot set"));
        let [rate, _, idle] = warmth(&record).unwrap();
        assert_eq!(rate.rows[0].name, "not accessed");
        assert_eq!(rate.rows[2].name, "10 % to 20 %");
        assert!(idle.sentence.starts_with("4.6 GiB"), "{}", idle.sentence);
    }
}
