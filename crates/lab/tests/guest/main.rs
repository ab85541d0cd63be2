//! Tests that boot: the lab's promises checked with real kernels in QEMU.
//!
//! A harness of its own, for two reasons: tests share boots where possible, and run two at a time, because a guest
//! keeps more than one of the host's CPUs busy. Arguments are parts of test names. Without any, the tests of [`FIRST`]
//! run; `LAB=all` runs every test, `LAB=off` none. No test starts later than `NEARFAR_TEST_UNTIL`, a time in seconds since
//! the epoch. Here: the list and the runner. `lab.rs` starts guests; the tests are in the other files.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this is a test program"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

mod bad;
mod lab;
mod like;
mod machines;
mod timing;

/// A test: its name states the tested behaviour.
type Test = (&'static str, fn());

/// Names tests as their functions.
#[macro_export]
macro_rules! tests {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        &[$($((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn())),+),+]
    };
}

const TESTS: &[Test] = tests! {
    like: stdin_stdout_stderr_and_status_are_those_of_the_command,
        the_command_sees_the_hosts_files_and_can_not_change_them,
        files_written_to_out_appear_on_the_host,
        a_command_ended_by_a_signal_exits_with_128_plus_its_number,
        a_signal_to_the_lab_reaches_the_command,
        a_command_that_does_not_end_by_a_signal_is_ended_with_the_guest,
        closing_stdout_ends_the_writing_command,
        a_signal_ends_the_lab_while_its_output_is_blocked,
        megabytes_pass_unchanged_in_both_directions,
        environment_and_working_directory_are_passed_to_the_command,
        a_shell_has_a_terminal_of_the_hosts_size;
    bad: a_missing_command_exits_with_127,
        a_file_that_is_not_executable_exits_with_126,
        the_time_limit_ends_the_command_with_124,
        a_command_that_ignores_sigterm_is_ended_with_the_guest,
        a_panic_is_one_message_and_the_console_log_is_kept,
        a_qemu_that_crashes_while_booting_is_tried_three_times,
        a_kernel_that_stops_printing_while_booting_is_tried_three_times,
        a_guest_that_does_not_boot_in_time_is_ended,
        no_qemu_survives_a_killed_lab,
        no_qemu_survives_an_interrupted_boot,
        a_hung_guest_is_reported_and_can_be_ended_by_a_signal,
        usage_errors_are_named_before_anything_boots,
        an_unwritable_download_cache_is_named,
        a_full_disk_is_named_and_leaves_no_partial_files,
        a_filled_download_cache_may_be_read_only;
    machines: the_default_machine_matches_its_file,
        the_default_machine_matches_its_file_on_the_newer_kernel,
        the_three_tier_machine_matches_its_file,
        the_four_socket_machine_matches_its_file,
        a_cxl_device_is_onlined_by_its_driver,
        a_cxl_device_is_onlined_on_the_newer_kernel,
        translations_expire_on_every_cpu_even_if_the_command_kills_all_processes,
        translations_do_not_expire_if_the_machine_file_disables_it;
    timing: statistics_name_the_method_and_count_per_node,
        real_waits_scale_the_latencies_in_the_hmat;
};

/// Beginnings of the names of the tests that run by default: both kernels, what a command in a guest has of the host, and
/// how it ends.
const FIRST: [&str; 9] = [
    "like::stdin",
    "like::the_host_is_there",
    "like::what_is_written_to_out",
    "like::a_signal_that_ends",
    "bad::the_time_limit",
    "bad::bad_usage",
    "bad::no_qemu_survives_a_killed_lab",
    "machines::the_default_machine",
    "timing::statistics",
];

fn main() -> ExitCode {
    let filters: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let lab = std::env::var("LAB").unwrap_or_default();
    let wanted = |name: &str| match filters.is_empty() {
        true => lab == "all" || FIRST.iter().any(|beginning| name.starts_with(beginning)),
        false => filters.iter().any(|part| name.contains(part)),
    };
    let chosen: Vec<Test> = TESTS.iter().copied().filter(|(name, _)| wanted(name)).collect();
    let left_out = TESTS.len() - chosen.len();
    if std::env::args().any(|arg| arg == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    if lab == "off" {
        chosen.iter().for_each(|(name, _)| println!("test {name} ... ignored, LAB=off"));
        println!(
            "\ntest result: ok. 0 passed; 0 failed; {} ignored; 0 measured; {left_out} filtered out",
            chosen.len()
        );
        return ExitCode::SUCCESS;
    }
    lab::prepare();
    let Outcome { failed, ignored } = run(&chosen);
    if !failed.is_empty() {
        println!("\nfailures:");
        failed.iter().for_each(|name| println!("    {name}"));
    }
    println!(
        "\ntest result: {}. {} passed; {} failed; {ignored} ignored; 0 measured; {left_out} filtered out",
        if failed.is_empty() { "ok" } else { "FAILED" },
        chosen.len() - failed.len() - ignored,
        failed.len(),
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const OVER: &str = "the time for this run is over";

/// Whether no test is to start any more.
#[expect(clippy::disallowed_methods, reason = "a limit in the host's time")]
fn is_over() -> bool {
    let Ok(until) = std::env::var("NEARFAR_TEST_UNTIL") else { return false };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    until.parse::<u64>().unwrap() < now + 60
}

/// Tests that did not pass.
#[derive(Default)]
struct Outcome {
    failed: Vec<&'static str>,
    /// Number of tests that can't be run on this machine.
    ignored: usize,
}

/// Runs tests two at a time.
#[expect(clippy::disallowed_methods, reason = "says how long tests take")]
fn run(tests: &[Test]) -> Outcome {
    let next = AtomicUsize::new(0);
    let outcome = Mutex::new(Outcome::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    let ended = catch_unwind(AssertUnwindSafe(|| {
                        if is_over() {
                            std::panic::resume_unwind(Box::new(lab::LeftOut(OVER)));
                        }
                        test();
                    }));
                    let took = began.elapsed().as_secs();
                    let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                    match ended.map_err(|panic| panic.downcast::<lab::LeftOut>()) {
                        Ok(()) => println!("test {name} ({took} s) ... ok"),
                        Err(Ok(reason)) => {
                            println!("test {name} ... ignored, {}", reason.0);
                            outcome.ignored += 1;
                        }
                        Err(Err(_)) => {
                            println!("test {name} ({took} s) ... FAILED");
                            outcome.failed.push(*name);
                        }
                    }
                }
            });
        }
    });
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}
