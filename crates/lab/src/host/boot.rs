//! Signs of life of a guest that boots: what its kernel prints on the console.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Deadline;

/// The first words of every Linux kernel.
const FIRST: &str = "Linux version ";

/// How often to look.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// The console of a guest that boots.
#[derive(Debug)]
pub(super) struct Boot {
    console: PathBuf,
    patience: Option<Duration>,
    printed: usize,
    silent: Deadline,
}

impl Boot {
    /// A boot whose kernel hangs if it prints nothing for `patience`. (A kernel prints some forty lines a second; on
    /// emulated CPUs the longest silence was 2.4 s.) One with the parameter `quiet` is not watched: it prints its first
    /// lines before it reads its parameters, and perhaps no more.
    pub(super) fn new(console: PathBuf, parameters: &str, patience: Duration) -> Self {
        let is_quiet = parameters.split_whitespace().any(|word| word == "quiet");
        let patience = (!is_quiet).then_some(patience);
        Self { console, patience, printed: 0, silent: Deadline::default() }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Whether the kernel has printed nothing for too long.
    pub(super) fn hangs(&mut self) -> bool {
        let text = self.text();
        if text.len() != self.printed {
            self.printed = text.len();
            if text.contains(FIRST) {
                self.silent = Deadline::after(self.patience);
            }
        }
        self.silent.passed()
    }

    /// How far the boot got: the kernel's last line, for messages.
    pub(super) fn last(&self) -> String {
        let text = self.text();
        match text.lines().rev().map(str::trim).find(|line| line.starts_with('[')) {
            Some(line) => format!("its kernel's last line was `{line}`"),
            None => "its kernel printed nothing".to_owned(),
        }
    }
}

/// Whether the emulator made the boot fail: by a kernel panic due to a temporary breakpoint in the kernel's own code, executed
/// by another CPU after its removal; or by a timer that woke no CPU, for so long that RCU reported its thread (the kernel's
/// work then comes late, and the port without its name).
pub(super) fn is_the_emulators(console: &str) -> bool {
    console.contains("Oops: int3:") && console.contains("Kernel panic - not syncing:")
        || console.contains("rcu_preempt kthread timer wakeup didn't happen")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leftover_breakpoint_is_an_emulator_fault_and_other_panics_are_not() {
        let of = |oops: &str| {
            format!(
                "[    1.426346] {oops}: 0000 [#1] SMP NOPTI\n\
                 [    1.427225] Kernel panic - not syncing: Fatal exception in interrupt\n"
            )
        };
        assert!(is_the_emulators(&of("Oops: int3")));
        assert!(!is_the_emulators(&of("Oops: general protection fault")));
        let no_init = "[    1.2] Kernel panic - not syncing: No working init found.\n";
        assert!(!is_the_emulators(no_init));
    }

    #[test]
    fn a_lost_timer_is_an_emulator_fault_and_a_stall_with_timers_is_not() {
        let stall = "[   23.873889] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n";
        let lost = "[   23.898316] rcu: rcu_preempt kthread timer wakeup didn't happen for 5257 jiffies! g-1011 f0x0\n";
        assert!(is_the_emulators(&[stall, lost].concat()));
        assert!(!is_the_emulators(stall));
    }

    #[test]
    fn a_kernel_that_stops_printing_counts_as_hung() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |parameters, patience| Boot::new(file.path().to_owned(), parameters, patience);
        let mut boot = of("nokaslr", Duration::ZERO);
        assert!(!boot.hangs());
        fs::write(file.path(), "SeaBIOS\r\nBooting from ROM..").unwrap();
        assert!(!boot.hangs(), "firmware is not a kernel");
        assert_eq!(boot.last(), "its kernel printed nothing");
        fs::write(
            file.path(),
            "Booting from ROM..[    0.0] Linux version 6.12\r\n[ 0.1] smp: up\r\n",
        )
        .unwrap();
        assert!(boot.hangs());
        assert_eq!(boot.last(), "its kernel's last line was `[ 0.1] smp: up`");
        assert!(!of("", Duration::from_secs(3600)).hangs());
        assert!(!of("nokaslr quiet", Duration::ZERO).hangs(), "it was told to print nothing");
    }
}
