//! The compared programs, and the policies for the placement of their memory.
//!
//! A row is a command line as a user would type it, and a setting of the kernel. Nodes are those of a machine with
//! four, or of one with near and far memory, depending on the program (`Shape`).

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::demo::line::Line;
use crate::demo::placements;
use nearfar_daemon::balance::options::Policy;

/// A program; its source and behaviour are documented in the head of its file (`lab/programs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Program {
    /// All threads read all memory, which one thread has allocated
    Streamcluster,
    /// Rows of the covariances of a matrix, by NumPy: all threads read all of it
    Pca,
    /// Each thread uses its own part of memory, which one thread has allocated
    Kmeans,
    /// Each thread reads and writes its own rows of a grid, which one thread has allocated
    Jacobi,
    /// A Redis server on each node with a client beside it, all filled on the first node
    Redis,
    /// The same grid, each part allocated by its thread: there is nothing to decide
    Settled,
    /// streamcluster on all CPUs of the only node with CPUs, of two: near memory is saturated
    Contended,
    /// The same on one CPU: near memory is not saturated
    Uncontended,
}

/// The kind of machine, as far as rows name its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nodes 0 to 3, all with CPUs.
    FourNodes,
    /// Node 0 with CPUs, and node 1 without.
    NearAndFar,
}

impl Shape {
    /// The lab's machine of this kind.
    pub(crate) fn machine(self) -> &'static str {
        match self {
            Self::FourNodes => "numa-4node",
            Self::NearAndFar => "cxl-2tier",
        }
    }

    /// Its nodes, and whether they have CPUs.
    pub(crate) fn nodes(self) -> &'static [(u16, bool)] {
        match self {
            Self::FourNodes => &[(0, true), (1, true), (2, true), (3, true)],
            Self::NearAndFar => &[(0, true), (1, false)],
        }
    }

    /// Description as text.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::FourNodes => "nodes 0 to 3, all with CPUs",
            Self::NearAndFar => "node 0 with CPUs and node 1 without",
        }
    }
}

impl Program {
    /// Those for a machine with four nodes, in display order.
    pub(crate) const ALL: [Self; 6] =
        [Self::Streamcluster, Self::Pca, Self::Kmeans, Self::Jacobi, Self::Redis, Self::Settled];

    /// Description as text.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Streamcluster => "streamcluster: all threads read all data of one thread",
            Self::Pca => "pca (NumPy): all threads read a whole matrix of one thread",
            Self::Kmeans => "kmeans: each thread reads its part of the data of one thread",
            Self::Jacobi => {
                "jacobi: each thread reads and writes its part of the data of one thread"
            }
            Self::Redis => {
                "redis: a server on each node with a client beside it, filled on one node"
            }
            Self::Settled => {
                "settled: jacobi, each part allocated by its thread: nothing to improve"
            }
            Self::Contended => "contended: streamcluster on all CPUs of the near node",
            Self::Uncontended => "uncontended: streamcluster on one CPU of the near node",
        }
    }

    /// Its name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Streamcluster => "streamcluster",
            Self::Pca => "pca",
            Self::Kmeans => "kmeans",
            Self::Jacobi => "jacobi",
            Self::Redis => "redis",
            Self::Settled => "settled",
            Self::Contended => "contended",
            Self::Uncontended => "uncontended",
        }
    }

    /// The kind of machine it needs.
    pub(crate) fn shape(self) -> Shape {
        match self {
            Self::Contended | Self::Uncontended => Shape::NearAndFar,
            _ => Shape::FourNodes,
        }
    }

    /// Whether it counts in means over programs: placement matters to it, and others run on the same machine.
    pub(crate) fn is_one_of_many(self) -> bool {
        self != Self::Settled && self.shape() == Shape::FourNodes
    }

    /// Whether each thread has its own part of memory; else all use all of it.
    pub(crate) fn has_parts(self) -> bool {
        matches!(self, Self::Kmeans | Self::Jacobi | Self::Redis | Self::Settled)
    }

    /// Its memory, in MiB.
    pub(crate) fn mib(self) -> u64 {
        match self {
            Self::Streamcluster | Self::Pca => 16,
            Self::Kmeans | Self::Jacobi | Self::Settled => 32,
            Self::Redis | Self::Contended | Self::Uncontended => 64,
        }
    }

    /// Its rows, among those requested.
    pub(crate) fn rows(self, wanted: &[Row]) -> Vec<Row> {
        let kinds = |kind: Kind| match self {
            // It always allocates in parallel; rows differ only in whether a service monitors it.
            Self::Settled => kind == Kind::FirstTouch || kind.policy().is_some(),
            _ => true,
        };
        let fits = |row: &&Row| row.kind.fits(self.shape()) && kinds(row.kind);
        wanted.iter().filter(fits).cloned().collect()
    }

    /// Its command line, for this size.
    pub(crate) fn line(self, files: &Files, row: &Row, size: Size) -> Line {
        let Files { dir, load } = files;
        let python = |file: &str| Line::new(["/usr/bin/python3".into(), format!("{dir}/{file}")]);
        let command = match self {
            Self::Streamcluster | Self::Contended | Self::Uncontended => {
                Line::new([format!("{dir}/streamcluster")])
            }
            Self::Pca => python("pca.py"),
            Self::Kmeans => Line::new([format!("{dir}/kmeans")]),
            Self::Jacobi | Self::Settled => Line::new([format!("{dir}/jacobi")]),
            Self::Redis => python("redis.py").and(&Line::new([load])),
        };
        let parallel = row.kind == Kind::Local || self == Self::Settled;
        // Redis disables huge pages for itself.
        let huge = size.huge && self != Self::Redis;
        let alone = self == Self::Uncontended;
        let options = [(parallel, " parallel=1"), (huge, " huge=1"), (alone, " threads=1")];
        let options: String = options.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
        let mib = self.mib() * size.times;
        command.and(&Line::words(&format!("mb={mib} seconds={}{options}", size.seconds)))
    }
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The directory with compiled programs and scripts.
    pub(crate) dir: String,
    /// `nearfar-load`.
    pub(crate) load: String,
}

/// Memory size and run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Seconds of the machine's time.
    pub(crate) seconds: u64,
    /// Factor on the default amount of memory.
    pub(crate) times: u64,
    /// Whether memory is in huge pages.
    pub(crate) huge: bool,
}

/// Warm-up time of static placements.
const STAYS_S: u64 = 1;

/// The policy for the placement of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// On the node of the allocating thread
    FirstTouch,
    /// Interleaved over all nodes
    Interleave,
    /// Node 0 alone
    #[value(name = "node-0")]
    #[serde(rename = "node-0")]
    Node0,
    /// Node 3 alone
    #[value(name = "node-3")]
    #[serde(rename = "node-3")]
    Node3,
    /// Interleaved over nodes 0 and 1
    #[value(name = "nodes-01")]
    #[serde(rename = "nodes-01")]
    Nodes01,
    /// Interleaved over nodes 0 and 3
    #[value(name = "nodes-03")]
    #[serde(rename = "nodes-03")]
    Nodes03,
    /// Interleaved over nodes 1, 2 and 3
    #[value(name = "nodes-123")]
    #[serde(rename = "nodes-123")]
    Nodes123,
    /// Each thread allocates its own part
    Local,
    /// Node 1, the far one
    Far,
    /// Interleaved by weights in proportion to the nodes' bandwidths
    Weighted,
    /// The kernel's NUMA balancing
    NumaBalancing,
    /// nearfar run --balance=carrefour
    Carrefour,
    /// nearfar run --balance=balanced
    Balanced,
}

impl Kind {
    /// All, in display order.
    pub(crate) const ALL: [Self; 13] = [
        Self::FirstTouch,
        Self::Interleave,
        Self::Node0,
        Self::Node3,
        Self::Nodes01,
        Self::Nodes03,
        Self::Nodes123,
        Self::Local,
        Self::Far,
        Self::Weighted,
        Self::NumaBalancing,
        Self::Carrefour,
        Self::Balanced,
    ];

    /// Whether it applies to this kind of machine.
    pub(crate) fn fits(self, shape: Shape) -> bool {
        match self {
            Self::Node0
            | Self::Node3
            | Self::Nodes01
            | Self::Nodes03
            | Self::Nodes123
            | Self::Local => shape == Shape::FourNodes,
            Self::Far | Self::Weighted => shape == Shape::NearAndFar,
            _ => true,
        }
    }

    /// Nearfar's policy.
    pub(crate) fn policy(self) -> Option<Policy> {
        match self {
            Self::Carrefour => Some(Policy::Carrefour),
            Self::Balanced => Some(Policy::Balanced),
            _ => None,
        }
    }

    /// Whether pages are never migrated.
    pub(crate) fn is_static(self) -> bool {
        self != Self::NumaBalancing && self.policy().is_none()
    }

    /// Of so many seconds that are left to settle, those that it needs: where nothing moves, caches are all that has to settle.
    pub(crate) fn settle_s(self, settle_s: u64) -> u64 {
        if self.is_static() { settle_s.min(STAYS_S) } else { settle_s }
    }

    fn name(self) -> &'static str {
        match self {
            Self::FirstTouch => "first touch",
            Self::Interleave => "interleave",
            Self::Node0 => "node 0",
            Self::Node3 => "node 3",
            Self::Nodes01 => "nodes 0,1",
            Self::Nodes03 => "nodes 0,3",
            Self::Nodes123 => "nodes 1-3",
            Self::Local => "parallel first touch",
            Self::Far => "far",
            Self::Weighted => "weighted",
            Self::NumaBalancing => "numa_balancing=1",
            Self::Carrefour => "carrefour",
            Self::Balanced => "balanced",
        }
    }

    fn placement(self) -> &'static str {
        match self {
            Self::Interleave => "-i all",
            Self::Node0 => "-m 0",
            Self::Node3 => "-m 3",
            Self::Nodes01 => "-i 0,1",
            Self::Nodes03 => "-i 0,3",
            Self::Nodes123 => "-i 1-3",
            Self::Far => "-m 1",
            Self::Weighted => "-w auto",
            _ => "",
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Who decides.
    pub(crate) kind: Kind,
    /// By which sensors, where others are named than balancing would choose.
    pub(crate) sensors: Vec<String>,
}

impl From<Kind> for Row {
    fn from(kind: Kind) -> Self {
        Self { kind, sensors: Vec::new() }
    }
}

impl Row {
    /// For people.
    pub(crate) fn name(&self) -> String {
        let name = self.kind.name();
        if self.sensors.is_empty() {
            name.into()
        } else {
            format!("{name} by {}", self.sensors.join("+"))
        }
    }

    /// The program under it.
    pub(crate) fn line(&self, program: &Line) -> Line {
        let policy = self.kind.policy().filter(|_| self.sensors.is_empty());
        let prefix = match policy {
            Some(policy) => placements::prefix(&format!("--balance={}", policy.word())),
            None => placements::prefix(self.kind.placement()),
        };
        prefix.and(program)
    }

    /// What is started before the program and ended after it, where that is not the program's own line: sensors can be named
    /// to `nearfar balance` alone. It is about what process `ours` starts, and so ends with it in any case.
    pub(crate) fn around(&self, ours: &str) -> Option<[Line; 2]> {
        let policy = self.kind.policy().filter(|_| !self.sensors.is_empty())?;
        let sensors: String = self.sensors.iter().map(|name| format!(" --sensor {name}")).collect();
        let start =
            format!("nearfar balance start --policy {} --pid {ours}{sensors}", policy.word());
        Some([Line::words(&start), Line::words("nearfar balance stop")])
    }
}

/// The rows that are asked for: those of `kinds`, each of nearfar's by each set of `sensors`; `full` is what it chooses itself.
///
/// # Errors
/// A set that is empty or has an empty name.
pub(crate) fn rows(kinds: &[Kind], sensors: &[String]) -> anyhow::Result<Vec<Row>> {
    let mut sets = Vec::new();
    for set in sensors {
        let names: Vec<String> = set.split('+').map(Into::into).collect();
        anyhow::ensure!(
            names.iter().all(|name| !name.is_empty()),
            "--sensors {set:?}: a name is empty; say names with + between them, or full"
        );
        sets.push(if set == FULL { Vec::new() } else { names });
    }
    let of = |kind: &Kind| -> Vec<Row> {
        match kind.policy() {
            None => vec![(*kind).into()],
            Some(_) => sets.iter().map(|set| Row { kind: *kind, sensors: set.clone() }).collect(),
        }
    };
    Ok(kinds.iter().flat_map(of).collect())
}

/// The sensors that balancing chooses itself.
pub(crate) const FULL: &str = "full";

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { seconds: 9, times: 1, huge: false };

    fn files() -> Files {
        Files { dir: "/p".into(), load: "/l".into() }
    }

    fn line(program: Program, row: &Row) -> String {
        row.line(&program.line(&files(), row, SIZE)).to_string()
    }

    #[test]
    fn rows_are_lines_that_a_user_would_type() {
        let of = |program, kind: Kind| line(program, &kind.into());
        assert_eq!(
            of(Program::Streamcluster, Kind::FirstTouch),
            "/p/streamcluster mb=16 seconds=9"
        );
        assert_eq!(
            of(Program::Kmeans, Kind::Nodes123),
            "nearfar run -i 1-3 -- /p/kmeans mb=32 seconds=9"
        );
        assert_eq!(of(Program::Jacobi, Kind::Local), "/p/jacobi mb=32 seconds=9 parallel=1");
        assert_eq!(
            of(Program::Pca, Kind::Balanced),
            "nearfar run --balance=balanced -- /usr/bin/python3 /p/pca.py mb=16 seconds=9"
        );
        let size = Size { times: 4, huge: true, ..SIZE };
        let huge = Program::Pca.line(&files(), &Kind::FirstTouch.into(), size).to_string();
        assert!(huge.ends_with("mb=64 seconds=9 huge=1"), "{huge}");
        let redis = Program::Redis.line(&files(), &Kind::Local.into(), size).to_string();
        assert_eq!(redis, "/usr/bin/python3 /p/redis.py /l mb=256 seconds=9 parallel=1");
    }

    #[test]
    fn sensors_are_passed_as_options_to_the_balancing_service() {
        let sets = ["full", "hint-faults+latency"].map(Into::into);
        let rows = rows(&[Kind::FirstTouch, Kind::Balanced], &sets).unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[1].around("7"), rows[0].around("7")), (None, None));
        let [start, stop] = rows[2].around("7").unwrap().map(|line| line.to_string());
        assert_eq!(
            start,
            "nearfar balance start --policy balanced --pid 7 --sensor hint-faults --sensor latency"
        );
        assert_eq!(stop, "nearfar balance stop");
        assert_eq!(line(Program::Kmeans, &rows[2]), "/p/kmeans mb=32 seconds=9");
        assert_eq!(rows[2].name(), "balanced by hint-faults+latency");
        for wrong in ["", "lab+"] {
            assert!(super::rows(&Kind::ALL, &[wrong.into()]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn eight_rows_are_static_and_settled_has_three_rows() {
        let all = rows(&Kind::ALL, &[FULL.into()]).unwrap();
        let jacobi = Program::Jacobi.rows(&all);
        assert_eq!(jacobi.iter().filter(|row| row.kind.is_static()).count(), 8);
        assert_eq!(jacobi.len(), 11);
        let settled: Vec<_> = Program::Settled.rows(&all).iter().map(|row| row.kind).collect();
        assert_eq!(settled, [Kind::FirstTouch, Kind::Carrefour, Kind::Balanced]);
        let line = line(Program::Settled, &all[0]);
        assert!(line.ends_with("jacobi mb=32 seconds=9 parallel=1"), "{line}");
    }

    #[test]
    fn near_and_far_memory_have_rows_of_their_own() {
        let all = rows(&Kind::ALL, &[FULL.into()]).unwrap();
        let lines: Vec<_> = Program::Uncontended
            .rows(&all)
            .iter()
            .map(|row| line(Program::Uncontended, row))
            .collect();
        let program = "/p/streamcluster mb=64 seconds=9 threads=1";
        assert_eq!(
            lines,
            [
                "",
                "-i all -- ",
                "-m 1 -- ",
                "-w auto -- ",
                "",
                "--balance=carrefour -- ",
                "--balance=balanced -- "
            ]
            .map(|how| match how {
                "" => program.to_owned(),
                how => format!("nearfar run {how}{program}"),
            })
        );
    }
}
