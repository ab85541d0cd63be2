//! CPU time of the machine and of this process: `/proc/stat` (proc_stat(5)) and getrusage(2).

use std::time::Duration;

use crate::fs::Fs;
use crate::sys::{clock, process};

/// CPU time: of the machine since boot, of this process since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Of all programs and of the kernel.
    pub busy: Duration,
    /// Of the host's other guests, while this machine wanted to run.
    pub stolen: Duration,
    /// Of this process and of its descendants that have ended.
    pub own: Duration,
    /// Number of CPUs.
    pub cpus: u32,
}

/// The CPU time until now; `None` where the kernel does not report it.
#[must_use]
pub fn now(fs: &dyn Fs) -> Option<CpuTime> {
    let text = fs.read("proc/stat").ok().flatten()?;
    let own = Duration::from_nanos(clock::own_cpu().0) + process::cpu_of_children();
    understand(&text, rustix::param::clock_ticks_per_second().max(1))
        .map(|time| CpuTime { own, ..time })
}

fn understand(stat: &str, ticks_per_second: u64) -> Option<CpuTime> {
    let mut time = CpuTime::default();
    let mut is_known = false;
    for line in stat.lines() {
        let Some((name, figures)) = line.split_once(' ') else { continue };
        match name.strip_prefix("cpu") {
            Some("") => {}
            Some(_) => {
                time.cpus += 1;
                continue;
            }
            None => continue,
        }
        let figures: Vec<u64> =
            figures.split_whitespace().map_while(|one| one.parse().ok()).collect();
        // Time of guests is part of that of programs.
        let &[user, nice, system, _idle, _waiting, interrupts, soft, stolen, ..] = &figures[..]
        else {
            return None;
        };
        let seconds =
            |ticks: u64| Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_second);
        time.busy = [user, nice, system, interrupts, soft].into_iter().map(seconds).sum();
        time.stolen = seconds(stolen);
        is_known = true;
    }
    is_known.then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RootFs;

    #[test]
    fn figures_of_all_cpus_are_added_up_without_idle_time() {
        let text = "cpu  100 20 30 4000 500 6 7 80 9 0\ncpu0 50 10 15 2000 250 3 3 40 5 0\n\
            cpu1 50 10 15 2000 250 3 4 40 4 0\nintr 1 2\nctxt 5\n";
        let time = understand(text, 100).unwrap();
        let [busy, stolen] = [1630, 800].map(Duration::from_millis);
        assert_eq!(time, CpuTime { busy, stolen, own: Duration::ZERO, cpus: 2 });
        assert_eq!(understand("cpu 1 2 3\n", 100), None);
        assert_eq!(understand("intr 1\n", 100), None);
    }

    #[test]
    fn the_time_of_this_process_is_known() {
        let time = now(&RootFs::live().unwrap()).unwrap();
        assert!(
            time.own > Duration::ZERO && time.busy >= time.own / 2 && time.cpus > 0,
            "{time:?}"
        );
    }
}
