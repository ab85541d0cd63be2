//! Tests on real kernels: this program runs itself inside guests of the lab, as root.
//!
//! A test is a function with the machines and kernels it is for. Each pair is booted once: all its tests run in that
//! guest one after another, and their results return line by line. Two guests run at a time, because most tests wait for
//! the kernel half of their time. The tests cover system calls, sysfs and page placement, so timing is off except in guests
//! that need it; these run alone, at the end. Arguments are parts of test names, or of guests' names (with an `@`).
//! Without any, the tests of [`FIRST`] run; `LAB=all` runs every test, `LAB=off` boots nothing and prints a message. A test
//! that is chosen by name runs on all its guests. `NEARFAR_TEST_UNTIL`, a time in seconds since the epoch, ends the whole
//! run: tests that were not reached by then are ignored, by name.
//!
//! Here: the machines and the list. `runner.rs` boots guests and counts results.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "this is a test program")]

use std::process::ExitCode;

mod alloc;
mod balance;
mod budget;
#[path = "../documents/commands.rs"]
mod commands;
mod compared;
mod daemon;
mod damon;
mod documents;
mod goals;
mod inside;
mod moving;
#[path = "../units/notified.rs"]
mod notified;
mod placement;
mod pods;
mod races;
mod readme;
mod record;
mod replicated;
mod runner;
mod scope;
mod sense;
#[path = "../documents/shown.rs"]
mod shown;
mod tier;
mod tiers;
mod topo;
mod vm;
mod weights;
mod workload;

/// The command under test.
const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");

/// A machine and a kernel of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guest {
    machine: &'static str,
    kernel: &'static str,
    timing: &'static str,
}

impl Guest {
    fn name(&self) -> String {
        let timing = if self.timing == "off" { "" } else { " with timing" };
        format!("{}@{}{timing}", self.machine, self.kernel)
    }
}

const OLD: Guest = Guest { machine: "cxl-2tier", kernel: "6.12", timing: "off" };
const TIMED: Guest = Guest { timing: "auto", ..OLD };
const NEW: Guest = Guest { machine: "cxl-2tier", kernel: "7.2", ..OLD };
const THREE: Guest = Guest { machine: "hbm-dram-cxl", kernel: "7.2", ..OLD };
const SMALL_OLD: Guest = Guest { machine: "cxl-2tier-small", kernel: "6.12", ..OLD };
const SMALL_NEW: Guest = Guest { machine: "cxl-2tier-small", kernel: "7.2", ..OLD };
const THREE_OLD: Guest = Guest { machine: "hbm-dram-cxl-small", kernel: "6.12", ..OLD };
const THREE_NEW: Guest = Guest { machine: "hbm-dram-cxl-small", kernel: "7.2", ..OLD };
const SOCKETS_OLD: Guest = Guest { machine: "cxl-2socket-small", kernel: "6.12", ..OLD };
const SOCKETS_NEW: Guest = Guest { machine: "cxl-2socket-small", kernel: "7.2", ..OLD };
const FOUR_OLD: Guest = Guest { machine: "numa-4node", kernel: "6.12", ..OLD };
const FOUR_NEW: Guest = Guest { machine: "numa-4node", kernel: "7.2", ..OLD };
const FOUR_TIMED: Guest = Guest { timing: "auto", ..FOUR_NEW };
const DEVICE_OLD: Guest = Guest { machine: "cxl-device", kernel: "6.12", ..OLD };
const DEVICE_NEW: Guest = Guest { machine: "cxl-device", kernel: "7.2", ..OLD };
const IDLE_OLD: Guest = Guest { machine: "cxl-idle", kernel: "6.12", ..OLD };
const IDLE_NEW: Guest = Guest { machine: "cxl-idle", kernel: "7.2", ..OLD };
const GUESTS: [Guest; 3] = [OLD, NEW, THREE];
const ALL: [Guest; 17] = [
    OLD,
    TIMED,
    NEW,
    THREE,
    SMALL_OLD,
    SMALL_NEW,
    THREE_OLD,
    THREE_NEW,
    SOCKETS_OLD,
    SOCKETS_NEW,
    DEVICE_OLD,
    DEVICE_NEW,
    IDLE_OLD,
    IDLE_NEW,
    FOUR_OLD,
    FOUR_NEW,
    FOUR_TIMED,
];

/// Beginnings of the names of the tests that run by default: of each part of nearfar what users meet first.
const FIRST: [&str; 9] = [
    "readme::",
    "record::memory_that_a_program_uses",
    "weights::applied_weights",
    "placement::bound_memory",
    "placement::automatic_weights",
    "placement::weights_set_for_a_run",
    "tier::used_memory",
    "balance::faults_alone",
    "alloc::a_program_that_knows_nothing",
];

/// The guests of these tests: as few machines as they take, each with both kernels.
const FIRST_GUESTS: [Guest; 6] = [OLD, NEW, SMALL_OLD, SMALL_NEW, FOUR_OLD, FOUR_NEW];

/// Its name, the guests it is for, and the test.
type Test = (&'static str, &'static [Guest], fn());

/// Names tests as their functions.
macro_rules! tests {
    ($($module:ident: $($name:ident on $guests:expr),+ $(,)?;)+) => {
        &[$($((concat!(stringify!($module), "::", stringify!($name)), &$guests, $module::$name as fn())),+),+]
    };
}

/// Tests that leave memory of this program on far nodes come last, because others check the share of used memory there.
const TESTS: &[Test] = tests! {
    record: memory_that_a_program_uses_is_found_accessed_and_placed on [OLD, NEW],
        memory_of_a_program_alone_on_its_cpu_is_found_accessed on [OLD, NEW],
        an_interrupted_recording_is_whole_and_another_one_beside_it_is_refused on [OLD, NEW],
        what_a_recorded_command_starts_is_recorded_with_it on [OLD, NEW],
        of_more_processes_than_can_be_watched_the_record_says_so on [OLD, NEW],
        intervals_are_tuned_where_the_kernel_can on [OLD, NEW],
        on_a_terminal_a_line_shows_how_far_it_is on [NEW],
        what_a_killed_recording_left_is_put_back_by_the_next on [NEW],
        damon_that_the_kernel_holds_stays_with_it_if_asked on [NEW];
    weights: writing_a_weight_turns_the_automatic_ones_off_and_auto_brings_them_back on [NEW, THREE],
        what_is_no_weight_is_refused_by_the_kernel on [OLD, NEW],
        applied_weights_are_in_force_and_restore_undoes_them on GUESTS,
        without_root_nothing_is_set_and_the_capability_is_named on [OLD];
    placement: bound_memory_is_where_it_was_bound on [OLD, NEW],
        preferred_and_interleaved_memory_is_where_it_should_be on [OLD],
        a_report_has_seen_what_the_program_held on [OLD],
        automatic_weights_spread_pages_as_bandwidths_stand on GUESTS,
        weights_set_for_a_run_are_put_back_when_it_ends on [OLD],
        weights_of_a_killed_run_are_put_back_by_the_next on [OLD],
        two_runs_share_weights_and_the_last_puts_them_back on [OLD],
        a_run_without_a_parent_leaves_weights_to_restore on [OLD],
        without_root_a_run_uses_weights_that_suit_and_refuses_others on [OLD],
        weights_of_a_programs_own_hold_for_stack_static_data_and_children on [OLD, NEW];
    tier: used_memory_comes_near_and_all_is_put_back on [SMALL_OLD, SMALL_NEW],
        however_it_is_ended_the_system_is_as_before on [SMALL_OLD, SMALL_NEW],
        what_can_not_be_tiered_is_refused_and_nothing_is_changed on [SMALL_OLD, SMALL_NEW],
        room_for_new_pages_is_kept_between_looks on [SMALL_OLD, SMALL_NEW],
        of_a_cgroup_only_its_own_memory_moves_and_when_it_goes_tiering_ends on [SMALL_OLD, SMALL_NEW],
        what_someone_else_has_changed_is_left_alone on [SMALL_OLD],
        it_says_when_it_is_ready_alive_and_stopping on [SMALL_NEW];
    tiers: what_is_hot_in_the_slowest_tier_ends_in_the_fastest_and_what_is_cold_goes_down on [THREE_OLD, THREE_NEW],
        tiers_are_those_that_are_named on [THREE_OLD, THREE_NEW],
        a_socket_demotes_to_its_own_far_node_first on [SOCKETS_OLD, SOCKETS_NEW],
        memory_goes_offline_and_comes_back_while_it_is_tiered on [THREE_OLD, THREE_NEW],
        without_its_last_far_node_tiering_ends_and_says_so on [DEVICE_OLD];
    budget: two_cgroups_under_load_stay_within_two_per_cent_of_their_budgets on [OLD, NEW],
        budgets_of_attributes_come_and_go_with_them on [SMALL_OLD, SMALL_NEW],
        budgets_that_cannot_be_are_refused_before_anything_is_set on [SMALL_NEW],
        they_say_when_they_are_ready_alive_and_stopping on [SMALL_NEW];
    moving: pages_of_another_process_go_where_they_should_and_are_counted_right on [SMALL_OLD, SMALL_NEW],
        memory_of_a_program_is_moved_by_a_command_and_back_to_where_it_was on [SMALL_OLD, SMALL_NEW],
        a_full_node_takes_no_more_and_nothing_is_lost on [SMALL_OLD, SMALL_NEW],
        a_process_that_ends_or_becomes_another_while_it_is_moved_is_left on [SMALL_OLD, SMALL_NEW],
        a_huge_page_of_another_process_is_split_joined_and_moved_whole on [SMALL_OLD, SMALL_NEW],
        what_is_bound_stays_where_it_is_bound on [SMALL_OLD, SMALL_NEW],
        a_cpuset_is_kept_to on [SMALL_OLD, SMALL_NEW];
    balance: faults_alone_show_what_is_used_and_settings_are_put_back on [FOUR_OLD, FOUR_NEW],
        a_process_is_balanced_alone_and_when_it_ends_balancing_does on [FOUR_TIMED],
        of_a_cgroup_its_processes_are_watched_and_no_others on [FOUR_OLD, FOUR_NEW],
        what_can_not_be_balanced_is_refused_and_nothing_is_changed on [FOUR_OLD, FOUR_NEW],
        however_balancing_is_ended_settings_are_as_before on [FOUR_OLD, FOUR_NEW],
        it_says_when_it_is_ready_alive_and_stopping on [FOUR_NEW];
    compared: programs_run_under_each_row_and_what_is_set_is_put_back on [FOUR_NEW],
        what_a_killed_comparison_has_set_is_put_back_by_the_next on [FOUR_OLD];
    scope: options_are_shown_changed_while_it_runs_saved_and_taken_from_a_file on [SMALL_OLD, SMALL_NEW],
        a_file_of_options_that_is_wrong_is_refused_with_its_line_and_nothing_is_changed on [SMALL_NEW],
        a_process_tree_is_tiered_by_its_cgroup_if_that_holds_nothing_else on [SMALL_OLD, SMALL_NEW],
        what_it_does_is_recorded_and_if_that_fails_tiering_goes_on on [SMALL_OLD, SMALL_NEW],
        a_run_is_tiered_alone_as_long_as_it_lasts_and_ends_as_its_program_does on [SMALL_OLD, SMALL_NEW],
        what_can_not_be_run_with_tiering_is_refused_and_nothing_is_changed on [SMALL_OLD, SMALL_NEW],
        what_a_killed_run_with_tiering_has_set_is_put_back on [SMALL_OLD, SMALL_NEW],
        tiering_goes_on_for_what_a_run_leaves_and_can_be_stopped_without_the_run on [SMALL_OLD, SMALL_NEW];
    races: whoever_wins_a_race_of_starts_stops_and_kills_all_is_as_before on [SMALL_OLD, SMALL_NEW],
        a_stop_ends_a_start_that_is_under_way on [SMALL_OLD, SMALL_NEW],
        another_users_lock_ends_in_an_error_with_its_holder_and_settings_are_put_back on [SMALL_OLD];
    readme: plain_commands_work_and_leave_nothing on [OLD, NEW],
        off_ends_and_restores_all_after_any_end_of_a_service on [OLD, NEW];
    documents: commands_succeed_and_leave_nothing on [OLD, NEW],
        sessions_print_what_the_documents_show on [TIMED];
    goals: goals_are_taken_where_the_kernel_has_them_and_refused_whole_elsewhere on [OLD, NEW],
        a_quota_holds_from_the_start_for_a_scheme_that_slept_its_first_interval on [OLD, NEW],
        what_the_user_tells_steers_the_quota_in_steps_from_a_byte on [OLD, NEW],
        a_goal_of_free_memory_moves_what_it_may_and_then_nothing on [NEW],
        a_goal_of_a_cgroups_memory_fades_once_it_is_reached on [NEW],
        a_goal_of_memory_that_fits_is_a_share_of_the_pages_that_are_watched on [NEW],
        pages_of_a_process_are_spread_by_weight on [NEW];
    sense: faults_tell_pages_nodes_and_writes_of_a_program_and_the_setting_is_put_back on [OLD, NEW],
        what_a_killed_sensor_has_set_is_put_back_by_the_next on [OLD, NEW],
        the_doctor_tells_which_sensors_can_be_used_and_why_others_can_not on [OLD, NEW],
        damon_shows_how_much_of_a_program_is_used_and_is_left_as_it_was on [OLD],
        the_labs_pmu_tells_lines_and_pages_of_a_program_and_is_named_as_emulated on [TIMED],
        latency_of_both_nodes_is_the_machines_and_repeats on [TIMED];
    workload: a_program_waits_with_its_memory_and_finds_its_hot_pages_where_they_were_placed on [OLD, NEW];
    damon: the_fake_kernel_answers_as_this_one_does on [OLD, NEW],
        types_tell_of_damon_what_a_trial_finds on [OLD, NEW],
        the_kernels_own_statistics_are_named_and_paused_and_go_on on [NEW],
        somebody_elses_kdamond_is_named_and_left_alone on [OLD],
        each_nodes_memory_is_seen_in_regions_and_all_is_put_back on [OLD, NEW],
        changes_take_effect_while_damon_runs on [OLD, NEW],
        a_killed_session_is_put_back_by_the_next on [OLD, NEW],
        cold_memory_of_a_cgroup_goes_far_and_hot_memory_comes_back on [OLD, NEW];
    alloc: what_is_of_a_kind_is_on_its_nodes_and_no_others on [OLD, NEW],
        weights_of_a_kind_hold_whatever_the_machines_are on [OLD, NEW],
        one_object_may_have_weights_of_its_own on [OLD],
        what_a_kind_has_no_room_for_is_on_the_nodes_of_its_spill on [OLD],
        a_program_that_knows_nothing_of_it_has_its_heap_where_it_is_to_be on [OLD, NEW],
        programs_of_hmsdk_and_smdk_have_their_memory_where_they_ask_for_it on [OLD];
    replicated: each_copy_is_on_its_node_and_read_from_there on [FOUR_OLD, FOUR_NEW],
        copies_are_made_where_they_are_read_and_nowhere_else on [FOUR_OLD, FOUR_NEW],
        a_node_without_cpus_has_a_copy_only_if_it_is_named on [OLD],
        more_than_a_node_has_is_refused_by_its_name on [FOUR_NEW],
        threads_on_all_nodes_see_rows_whole_and_never_older on [FOUR_OLD, FOUR_NEW];
    placement: programs_run_in_memory_of_an_emulated_cxl_device on [DEVICE_OLD, DEVICE_NEW];
    topo: printed_commands_make_a_node_of_cxl_memory_that_is_not_in_use on [IDLE_OLD, IDLE_NEW],
        pages_with_memory_errors_are_counted on [OLD, NEW];
    vm: a_backend_of_cxl_memory_is_on_the_cxl_node_and_verified
            on [THREE, THREE_OLD, DEVICE_OLD, DEVICE_NEW],
        weights_of_three_to_one_are_three_to_one_within_a_huge_page on [OLD, NEW],
        huge_pages_have_weights_by_a_preloaded_library on [OLD, NEW],
        a_kind_that_is_absent_is_refused_before_qemu_starts on [OLD, NEW],
        two_machines_have_their_memory_on_two_cxl_nodes on [SOCKETS_OLD, SOCKETS_NEW],
        a_running_machine_moves_to_far_memory_and_back_with_its_contents on [OLD, NEW],
        all_of_a_machine_moves_and_its_policies_are_rebound_by_its_cpuset on [OLD, NEW];
    daemon: each_node_is_told_of_and_nothing_is_left on [OLD, NEW],
        memory_that_is_used_heavily_is_under_pressure_and_the_rest_is_not on [TIMED];
    pods: redis_in_a_pod_is_placed_by_each_annotation_and_nothing_is_left on [NEW],
        policies_that_a_runtime_ignores_are_found_out on [NEW];
};

/// Tests of this module run only if they are named: they need programs that `make kubernetes` builds.
const NAMED: &str = "pods::";

fn main() -> ExitCode {
    if std::env::var_os(inside::HOLD).is_some() {
        inside::hold();
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(damon::KILLED).is_some() {
        damon::killed();
    }
    let words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let (only, filters): (Vec<String>, Vec<String>) = words.partition(|word| word.contains('@'));
    let lab = std::env::var("LAB").unwrap_or_default();
    let is_named = filters.iter().any(|part| part.starts_with(NAMED));
    let is_first = filters.is_empty() && only.is_empty() && lab != "all";
    let wanted = |name: &str| {
        if is_first {
            return FIRST.iter().any(|beginning| name.starts_with(beginning));
        }
        let is_any = filters.is_empty() || filters.iter().any(|part| name.contains(part));
        is_any && (is_named || !name.starts_with(NAMED))
    };
    let tests: Vec<&Test> = TESTS.iter().filter(|test| wanted(test.0)).collect();
    let of = |guest: &Guest| -> Vec<&str> {
        tests.iter().filter(|test| test.1.contains(guest)).map(|test| test.0).collect()
    };
    if let Ok(guest) = std::env::var("NEARFAR_TEST_GUEST") {
        let here = ALL.iter().find(|of| of.name() == guest).unwrap();
        runner::run_inside(&guest, &of(here));
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|word| word == "--list") {
        tests.iter().for_each(|test| println!("{}: test", test.0));
        return ExitCode::SUCCESS;
    }
    let all: &[Guest] = if is_first { &FIRST_GUESTS } else { &ALL };
    let is_wanted =
        |guest: &&Guest| only.is_empty() || only.iter().any(|part| guest.name().contains(part));
    let all = all.iter().filter(is_wanted).map(|guest| (guest, of(guest)));
    let guests: Vec<(&Guest, Vec<&str>)> = all.filter(|(_, tests)| !tests.is_empty()).collect();
    let total: usize = guests.iter().map(|(_, tests)| tests.len()).sum();
    println!("\nrunning {total} tests");
    let outcome = if lab == "off" {
        let mut outcome = runner::Outcome::default();
        guests.iter().for_each(|(guest, tests)| outcome.ignore(guest, tests, "LAB=off"));
        outcome
    } else {
        let (alone, together) = guests.into_iter().partition(|(guest, _)| guest.timing != "off");
        runner::boot_all(together, 2) + runner::boot_all(alone, 1)
    };
    if is_first {
        println!("those of users' first steps; LAB=all runs all {}", TESTS.len());
    }
    outcome.end()
}
