//! Cost of page migration: migrated pages by the kernel's counters, CPU time of the kernel's threads that scan and
//! migrate, and of a tiering daemon. Totals; the difference of two readings covers an interval.

use nearfar_kernel::balancing::Migrations;
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::process;
use serde::{Deserialize, Serialize};

/// Kernel threads that scan or migrate pages, by prefix of their names: DAMON's, and background reclaim, which demotes.
const THREADS: [&str; 2] = ["kdamond", "kswapd"];

/// Totals since a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Effort {
    /// Pages migrated for any reason.
    pub(crate) moved_pages: u64,
    /// Pages whose migration failed.
    pub(crate) failed_pages: u64,
    /// Of the migrated ones, promoted by NUMA balancing.
    pub(crate) promoted_pages: u64,
    /// Of the migrated ones, demoted by reclaim.
    pub(crate) demoted_pages: u64,
    /// CPU time of the kernel's threads, in nanoseconds.
    pub(crate) kernel_cpu_ns: u64,
    /// CPU time of the daemon, in nanoseconds.
    pub(crate) daemon_cpu_ns: u64,
    /// Present memory of the daemon.
    pub(crate) daemon_resident_bytes: u64,
}

impl Effort {
    /// Totals since boot; `daemon` is a sequence of words in the daemon's command line.
    pub(crate) fn now(daemon: Option<&str>) -> anyhow::Result<Self> {
        let fs = RootFs::live()?;
        Ok(Self::read(&fs, daemon, &Migrations::read(&fs)?))
    }

    fn read(fs: &dyn Fs, daemon: Option<&str>, moved: &Migrations) -> Self {
        let mut found = Self {
            moved_pages: moved.pgmigrate_success,
            failed_pages: moved.pgmigrate_fail,
            promoted_pages: moved.pgpromote_success,
            demoted_pages: moved.demoted(),
            ..Self::default()
        };
        for entry in fs.list("proc").ok().flatten().unwrap_or_default() {
            let this = entry.name == std::process::id().to_string();
            if !this && entry.name.starts_with(|c: char| c.is_ascii_digit()) {
                found.add(fs, &entry.name, daemon);
            }
        }
        found
    }

    /// Adds a process; one that has ended meanwhile adds nothing.
    fn add(&mut self, fs: &dyn Fs, pid: &str, daemon: Option<&str>) {
        let read = |file: &str| fs.read(&format!("proc/{pid}/{file}")).ok().flatten();
        let Some(name) = read("comm") else { return };
        let cpu_ns = || process::cpu_ns(fs, pid);
        if THREADS.iter().any(|thread| name.starts_with(thread)) {
            self.kernel_cpu_ns += cpu_ns();
        } else if let Some(daemon) = daemon
            && read("cmdline").is_some_and(|line| has(&line, daemon))
        {
            self.daemon_cpu_ns += cpu_ns();
            let status = read("status").unwrap_or_default();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
            self.daemon_resident_bytes += kib.unwrap_or(0u64) << 10;
        }
    }

    /// The increments since `earlier`; memory is the present value.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            moved_pages: self.moved_pages.saturating_sub(earlier.moved_pages),
            failed_pages: self.failed_pages.saturating_sub(earlier.failed_pages),
            promoted_pages: self.promoted_pages.saturating_sub(earlier.promoted_pages),
            demoted_pages: self.demoted_pages.saturating_sub(earlier.demoted_pages),
            kernel_cpu_ns: self.kernel_cpu_ns.saturating_sub(earlier.kernel_cpu_ns),
            daemon_cpu_ns: self.daemon_cpu_ns.saturating_sub(earlier.daemon_cpu_ns),
            daemon_resident_bytes: self.daemon_resident_bytes,
        }
    }
}

/// Whether words are consecutive in a command line, the first of them possibly with a path.
fn has(cmdline: &str, words: &str) -> bool {
    let line: Vec<_> = cmdline.split('\0').collect();
    let words: Vec<_> = words.split_whitespace().collect();
    let same = |(at, (said, word)): (usize, (&&str, &&str))| {
        said == word || (at == 0 && said.strip_suffix(word).is_some_and(|path| path.ends_with('/')))
    };
    !words.is_empty()
        && line.windows(words.len()).any(|part| part.iter().zip(&words).enumerate().all(same))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fake::FakeFs;
    use nearfar_topology::Tree;

    #[test]
    fn cpu_time_of_kernel_threads_and_the_daemon_excludes_other_processes() {
        let mut tree = Tree::new();
        for (pid, comm, cmdline, ns) in [
            ("5", "kdamond.0\n", "", "1000 5 6\n"),
            ("6", "kswapd0\n", "", "30 0 0\n"),
            ("7", "nearfar\n", "/bin/nearfar\0tier\0start\0", "200 1 1\n"),
            ("8", "nearfar\n", "/bin/nearfar\0bench\0", "9999 1 1\n"),
        ] {
            tree.insert(&format!("proc/{pid}/comm"), comm);
            tree.insert(&format!("proc/{pid}/cmdline"), cmdline);
            tree.insert(&format!("proc/{pid}/schedstat"), ns);
        }
        tree.insert("proc/7/status", "Name:\tnearfar\nVmRSS:\t    2048 kB\n");
        let fs = FakeFs::new(tree);
        let moved = Migrations { pgmigrate_success: 7, pgdemote_kswapd: 2, ..Default::default() };
        let found = Effort::read(&fs, Some("tier start"), &moved);
        assert_eq!((found.kernel_cpu_ns, found.daemon_cpu_ns), (1030, 200));
        assert_eq!((found.moved_pages, found.demoted_pages), (7, 2));
        assert_eq!(found.daemon_resident_bytes, 2 << 20);
        let later = Effort { moved_pages: 10, ..found };
        assert_eq!(later.since(&found).moved_pages, 3);
        assert_eq!(later.since(&found).daemon_resident_bytes, 2 << 20);
        assert_eq!(Effort::read(&fs, None, &moved).daemon_cpu_ns, 0);
        assert!(
            has("/opt/memtierd\0-x\0", "memtierd") && !has("sh\0-c\0tier start\0", "tier start")
        );
    }
}
