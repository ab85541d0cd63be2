//! The compared systems: placements of memory, and tiering systems.
//!
//! Every tiering system is started and stopped by a shell command in the lab's guest, following its own documentation,
//! once the data is there; the commands are in the result. All rows begin in the same state: NUMA balancing, demotion
//! by reclaim and the kernel's own DAMON users are off.

use std::path::{Path, PathBuf};

use crate::workload::Placement;

/// A row.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Row {
    /// Near memory for everything: the upper bound
    Dram,
    /// Far memory alone
    Far,
    /// Pages stay where the kernel first allocated them
    None,
    /// The kernel's NUMA balancing in tiering mode, with demotion by reclaim
    Balancing,
    /// damo with the settings HMSDK publishes
    Damo,
    /// memtierd's heat policy over its softdirty tracker
    Memtierd,
    /// nearfar tier
    Nearfar,
}

impl Row {
    /// All of them, in display order.
    pub(crate) const ALL: [Self; 7] = [
        Self::Dram,
        Self::Far,
        Self::None,
        Self::Balancing,
        Self::Damo,
        Self::Memtierd,
        Self::Nearfar,
    ];
    /// The peers that nearfar should exceed.
    pub(crate) const PEERS: [Self; 3] = [Self::Balancing, Self::Damo, Self::Memtierd];

    /// Name as text.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dram => "DRAM only",
            Self::Far => "far only",
            Self::None => "no tiering",
            Self::Balancing => "NUMA balancing",
            Self::Damo => "damo, HMSDK's",
            Self::Memtierd => "memtierd",
            Self::Nearfar => "nearfar tier",
        }
    }

    /// For style sheets.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Far => "farthest",
            Self::None => "none",
            Self::Balancing => "balancing",
            Self::Damo => "damo",
            Self::Memtierd => "memtierd",
            Self::Nearfar => "nearfar",
        }
    }

    /// First placement of the data.
    pub(crate) fn placement(self) -> Placement {
        match self {
            Self::Dram => Placement::Near,
            Self::Far => Placement::Far,
            _ => Placement::Default,
        }
    }

    /// Words of the command line of its daemon.
    pub(crate) fn daemon(self) -> Option<&'static str> {
        match self {
            Self::Memtierd => Some("memtierd"),
            Self::Nearfar => Some("tier start"),
            _ => None,
        }
    }
}

/// Paths of the compared programs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// This binary.
    pub(crate) nearfar: PathBuf,
    /// The directory into which pip installed damo, if it exists.
    pub(crate) damo: Option<PathBuf>,
    /// memtierd, if given.
    pub(crate) memtierd: Option<PathBuf>,
}

/// Shell commands that start and stop a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Commands {
    /// The start command.
    pub(crate) start: Option<String>,
    /// The stop command.
    pub(crate) stop: Option<String>,
}

/// Brings every guest to the same state, before anything else runs. Programs have the same addresses in all guests:
/// conflicts of their lines in the direct-mapped first-level cache would otherwise differ by chance, by about one per
/// cent.
pub(crate) const FIRST: &str = "set -e; echo 0 > /proc/sys/kernel/numa_balancing; \
    echo 0 > /proc/sys/kernel/randomize_va_space; \
    demotion=/sys/kernel/mm/numa/demotion_enabled; [ ! -e $demotion ] || echo 0 > $demotion; \
    for users in damon_stat damon_reclaim damon_lru_sort; do own=/sys/module/$users/parameters/enabled; \
    [ ! -e $own ] || echo N > $own; done";

/// Frees some near memory before programs are timed, in every row: cached files, which may fill half of near memory.
/// Otherwise the kernel places their stacks, sockets and page tables by chance, and these can't be migrated later.
pub(crate) const ROOM: &str = "sync; echo 3 > /proc/sys/vm/drop_caches";

/// HMSDK's settings: both nodes are sampled every 100 ms and evaluated every 2 s. Memory not accessed for 30 s is
/// demoted, memory accessed in at least 5 % of the samples is promoted.
const EVERYWHERE: &str =
    "--monitoring_intervals 100ms 2s 20s --monitoring_nr_regions_range 100 10000";
const QUOTA: &str = "--damos_sz_region 4096 max --damos_quota_space 50GB --damos_quota_interval 20s \
    --damos_quota_weights 0 0 10";
const DEMOTE: &str = "--damos_access_rate 0% 0% --damos_age 30s max --damos_quota_time 1s --damos_filter reject young";
const PROMOTE: &str = "--damos_access_rate 5% 100% --damos_age 0 max --damos_quota_time 2s --damos_filter reject none young";

/// Time limit for the end of memtierd.
const MEMTIERD_ENDS: &str = "kill $(cat /run/memtierd.pid) 2>/dev/null; tail -n 5 memtierd.log";

/// The commands of `row` on a machine with near node `near` and far node `far`; the error gives the reason why it is
/// unavailable.
pub(crate) fn commands(
    row: Row,
    programs: &Programs,
    [near, far]: [u16; 2],
) -> Result<Commands, String> {
    let both = |start: String, stop: &str| Commands { start: Some(start), stop: Some(stop.into()) };
    Ok(match row {
        Row::Dram | Row::Far | Row::None => Commands::default(),
        Row::Balancing => both(
            "set -e; echo 1 > /sys/kernel/mm/numa/demotion_enabled; echo 2 > /proc/sys/kernel/numa_balancing".into(),
            "cat /proc/sys/kernel/numa_balancing /sys/kernel/mm/numa/demotion_enabled",
        ),
        Row::Damo => {
            let dir = programs.damo.as_deref().ok_or("damo is not installed; scripts/setup tiering installs it")?;
            let run = damo(dir);
            let kdamond = |node: u16, action: &str, to: u16, when: &str| {
                format!(
                    "--kdamond --damon_ctx --ops paddr --numa_node {node} {EVERYWHERE} --damon_target --damos_scheme \
                     --damos_action {action} {to} {when} {QUOTA}"
                )
            };
            let start = format!(
                "set -e; {run} version; {run} start {} {}; {SET}",
                kdamond(near, "migrate_cold", far, DEMOTE),
                kdamond(far, "migrate_hot", near, PROMOTE)
            );
            Commands { start: Some(start), stop: Some(format!("{run} stop")) }
        }
        Row::Memtierd => {
            let program = programs.memtierd.as_deref().ok_or("no binary was named; say --memtierd PATH")?;
            both(memtierd(program, [near, far]), MEMTIERD_ENDS)
        }
        Row::Nearfar => {
            let nearfar = quoted(&programs.nearfar);
            Commands {
                start: Some(format!("{nearfar} tier start")),
                stop: Some(format!("{nearfar} tier status --json; {nearfar} tier stop")),
            }
        }
    })
}

/// Prints the settings in force, as the kernel shows them: an unsupported filter or action is missing there.
const SET: &str = "for k in /sys/kernel/mm/damon/admin/kdamonds/[0-9]*; do s=$k/contexts/0/schemes/0; \
    echo kernel: $(cat $s/action $s/target_nid $s/quotas/ms $s/quotas/bytes) filters $(cat $s/*filters/[0-9]*/type) \
    $(cat $k/state); done";

fn damo(dir: &Path) -> String {
    format!("env PYTHONPATH={} PYTHONDONTWRITEBYTECODE=1 python3 -m damo.damo", quoted(dir))
}

/// Its heat policy over written pages: the other trackers need files these kernels lack (idlepage) or bpftrace (damon).
/// The figures are those of memtierd's own test of this policy, with two classes: far and near.
fn memtierd(program: &Path, [near, far]: [u16; 2]) -> String {
    let program = quoted(program);
    format!(
        "cat > memtierd.yaml <<END\npolicy:\n  name: heat\n  config: |\n    intervalms: 4000\n    pidwatcher:\n      \
         name: pidlist\n      config: |\n        pids:\n          - $NEARFAR_DATA_PID\n    heatnumas:\n      0: [{far}]\n      \
         1: [{near}]\n    heatmap:\n      heatmax: 0.01\n      heatretention: 0\n      heatclasses: 2\n    tracker:\n      \
         name: softdirty\n      config: |\n        pagesinregion: 512\n        maxcountperregion: 0\n        \
         scanintervalms: 500\n        regionsupdatems: 0\n    mover:\n      intervalms: 20\n      bandwidth: 100\nEND\n\
         (sleep 1000000 | {program} -config memtierd.yaml -prompt > memtierd.log 2>&1 & echo $! > /run/memtierd.pid)"
    )
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs() -> Programs {
        Programs { nearfar: "/b/near far".into(), damo: Some("/p/damo".into()), memtierd: None }
    }

    #[test]
    fn rows_with_a_missing_program_report_the_remedy() {
        let none = Programs { damo: None, ..programs() };
        assert!(commands(Row::Damo, &none, [0, 1]).unwrap_err().contains("scripts/setup"));
        assert!(commands(Row::Memtierd, &none, [0, 1]).unwrap_err().contains("--memtierd PATH"));
        for row in [Row::Dram, Row::Far, Row::None] {
            assert_eq!(commands(row, &none, [0, 1]), Ok(Commands::default()));
        }
    }

    #[test]
    fn hmsdks_settings_are_in_damos_command() {
        let start = commands(Row::Damo, &programs(), [0, 2]).unwrap().start.unwrap();
        for part in [
            "--numa_node 0 --monitoring_intervals 100ms 2s 20s",
            "migrate_cold 2 --damos_access_rate 0% 0% --damos_age 30s max",
            "migrate_hot 0 --damos_access_rate 5% 100% --damos_age 0 max",
            "--damos_quota_space 50GB --damos_quota_interval 20s",
            "--damos_filter reject none young",
        ] {
            assert!(start.contains(part), "{part}: {start}");
        }
    }

    #[test]
    fn every_command_is_one_that_a_shell_takes() {
        let programs = Programs { memtierd: Some("/m/memtierd".into()), ..programs() };
        for row in Row::ALL {
            let commands = commands(row, &programs, [0, 1]).unwrap();
            for text in
                [Some(FIRST.to_string()), commands.start, commands.stop].into_iter().flatten()
            {
                let done =
                    std::process::Command::new("sh").args(["-n", "-c", &text]).output().unwrap();
                assert!(done.status.success(), "{text}: {done:?}");
            }
        }
    }
}
