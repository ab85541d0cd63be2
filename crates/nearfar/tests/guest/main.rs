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
    record: a_programs_accesses_and_nodes_are_recorded on [OLD, NEW],
        a_program_alone_on_its_cpu_has_its_accesses_recorded on [OLD, NEW],
        an_interrupted_recording_is_complete_and_a_concurrent_one_is_refused on [OLD, NEW],
        children_of_a_recorded_command_are_recorded on [OLD, NEW],
        a_record_states_that_some_processes_could_not_be_monitored on [OLD, NEW],
        intervals_are_tuned_if_the_kernel_supports_it on [OLD, NEW],
        on_a_terminal_a_status_line_shows_progress on [NEW],
        settings_of_a_killed_recording_are_restored_by_the_next on [NEW],
        damon_stat_keeps_running_on_request on [NEW];
    weights: writing_a_weight_disables_automatic_ones_and_auto_enables_them on [NEW, THREE],
        the_kernel_refuses_invalid_weights on [OLD, NEW],
        applied_weights_are_in_force_and_restore_undoes_them on GUESTS,
        without_root_nothing_is_set_and_the_capability_is_named on [OLD];
    placement: bound_memory_is_on_its_nodes on [OLD, NEW],
        preferred_and_interleaved_memory_is_on_its_nodes on [OLD],
        a_report_has_the_programs_peak_memory on [OLD],
        automatic_weights_distribute_pages_by_bandwidth on GUESTS,
        weights_set_for_a_run_are_restored_when_it_ends on [OLD],
        weights_of_a_killed_run_are_restored_by_the_next on [OLD],
        two_runs_share_weights_and_the_last_restores_them on [OLD],
        a_run_without_a_parent_leaves_weights_to_restore on [OLD],
        without_root_a_run_uses_matching_weights_and_refuses_others on [OLD],
        a_programs_own_weights_apply_to_stack_static_data_and_children on [OLD, NEW];
    tier: used_memory_is_promoted_and_settings_are_restored on [SMALL_OLD, SMALL_NEW],
        the_system_is_restored_after_any_end_of_tiering on [SMALL_OLD, SMALL_NEW],
        impossible_tiering_is_refused_and_changes_nothing on [SMALL_OLD, SMALL_NEW],
        free_near_memory_is_maintained_between_scans on [SMALL_OLD, SMALL_NEW],
        only_the_cgroups_memory_is_tiered_and_tiering_ends_with_it on [SMALL_OLD, SMALL_NEW],
        settings_changed_by_others_are_left_alone on [SMALL_OLD],
        balancing_notifies_systemd_when_ready_alive_and_stopping on [SMALL_NEW];
    tiers: hot_pages_of_the_slowest_tier_reach_the_fastest_and_cold_ones_are_demoted on [THREE_OLD, THREE_NEW],
        tiering_uses_the_named_tiers on [THREE_OLD, THREE_NEW],
        a_socket_demotes_to_its_own_far_node_first on [SOCKETS_OLD, SOCKETS_NEW],
        memory_can_go_offline_and_online_during_tiering on [THREE_OLD, THREE_NEW],
        without_its_last_far_node_tiering_ends_with_a_message on [DEVICE_OLD];
    budget: two_cgroups_under_load_stay_within_two_per_cent_of_their_budgets on [OLD, NEW],
        budgets_of_cgroup_attributes_are_set_and_removed_with_them on [SMALL_OLD, SMALL_NEW],
        impossible_budgets_are_refused_before_anything_is_set on [SMALL_NEW],
        the_budget_service_notifies_systemd_when_ready_alive_and_stopping on [SMALL_NEW];
    moving: pages_of_another_process_reach_their_nodes_and_are_counted on [SMALL_OLD, SMALL_NEW],
        the_move_command_moves_a_programs_memory_and_reverts_it on [SMALL_OLD, SMALL_NEW],
        a_move_to_a_full_node_stops_and_loses_nothing on [SMALL_OLD, SMALL_NEW],
        a_move_stops_if_the_process_ends_or_its_pid_is_reused on [SMALL_OLD, SMALL_NEW],
        a_huge_page_of_another_process_is_split_joined_and_moved_whole on [SMALL_OLD, SMALL_NEW],
        bound_memory_stays_on_its_nodes on [SMALL_OLD, SMALL_NEW],
        a_move_respects_the_cpuset on [SMALL_OLD, SMALL_NEW];
    balance: hint_faults_alone_find_used_pages_and_settings_are_restored on [FOUR_OLD, FOUR_NEW],
        balancing_of_one_process_ends_with_it on [FOUR_TIMED],
        only_processes_of_the_cgroup_are_sampled on [FOUR_OLD, FOUR_NEW],
        impossible_balancing_is_refused_and_changes_nothing on [FOUR_OLD, FOUR_NEW],
        settings_are_restored_after_any_end_of_balancing on [FOUR_OLD, FOUR_NEW],
        balancing_notifies_systemd_when_ready_alive_and_stopping on [FOUR_NEW];
    compared: programs_run_under_each_row_and_settings_are_restored on [FOUR_NEW],
        settings_of_a_killed_comparison_are_restored_by_the_next on [FOUR_OLD];
    scope: options_are_shown_changed_at_run_time_saved_and_loaded on [SMALL_OLD, SMALL_NEW],
        an_invalid_option_file_is_refused_with_its_line_and_changes_nothing on [SMALL_NEW],
        a_process_tree_is_tiered_by_its_cgroup_if_it_is_alone_there on [SMALL_OLD, SMALL_NEW],
        tiering_is_recorded_and_continues_if_recording_fails on [SMALL_OLD, SMALL_NEW],
        tiering_of_a_run_is_limited_to_it_and_ends_with_its_program on [SMALL_OLD, SMALL_NEW],
        an_impossible_run_with_tiering_is_refused_and_changes_nothing on [SMALL_OLD, SMALL_NEW],
        settings_of_a_killed_run_with_tiering_are_restored on [SMALL_OLD, SMALL_NEW],
        tiering_continues_for_children_of_an_ended_run_and_can_be_stopped on [SMALL_OLD, SMALL_NEW];
    races: settings_are_restored_after_any_race_of_starts_stops_and_kills on [SMALL_OLD, SMALL_NEW],
        a_stop_ends_a_start_in_progress on [SMALL_OLD, SMALL_NEW],
        another_users_lock_is_an_error_with_its_holder_and_settings_are_restored on [SMALL_OLD];
    readme: plain_commands_succeed_and_leave_nothing on [OLD, NEW],
        off_stops_and_restores_everything_after_any_end_of_a_service on [OLD, NEW];
    documents: documented_commands_succeed_and_leave_nothing on [OLD, NEW],
        documented_sessions_print_the_shown_output on [TIMED];
    goals: goals_are_accepted_if_the_kernel_has_them_and_else_refused_entirely on [OLD, NEW],
        a_quota_holds_from_the_start_for_a_scheme_that_slept_its_first_interval on [OLD, NEW],
        user_input_steers_the_quota_in_steps_from_one_byte on [OLD, NEW],
        a_goal_of_free_memory_migrates_up_to_its_quota_and_then_stops on [NEW],
        the_quota_of_a_cgroup_goal_shrinks_once_it_is_reached on [NEW],
        a_goal_of_eligible_memory_is_a_share_of_the_monitored_pages on [NEW],
        pages_of_a_process_are_spread_by_weight on [NEW];
    sense: hint_faults_show_a_programs_pages_nodes_and_writes_and_are_restored on [OLD, NEW],
        settings_of_a_killed_sensor_are_restored_by_the_next on [OLD, NEW],
        doctor_lists_usable_sensors_and_the_reason_for_others on [OLD, NEW],
        damon_measures_a_programs_used_memory_and_is_restored on [OLD],
        the_labs_pmu_counts_a_programs_lines_and_pages_and_is_marked_emulated on [TIMED],
        the_measured_latency_of_both_nodes_is_the_machines_and_repeatable on [TIMED];
    workload: a_waiting_program_keeps_its_memory_and_finds_its_hot_pages_as_placed on [OLD, NEW];
    damon: the_fake_kernel_answers_like_the_real_one on [OLD, NEW],
        btf_types_show_the_same_features_of_damon_as_a_trial on [OLD, NEW],
        damon_stat_is_named_paused_and_resumed on [NEW],
        another_programs_kdamond_is_named_and_left_alone on [OLD],
        each_nodes_memory_is_monitored_in_regions_and_settings_are_restored on [OLD, NEW],
        changes_take_effect_while_damon_runs on [OLD, NEW],
        settings_of_a_killed_session_are_restored_by_the_next on [OLD, NEW],
        cold_memory_of_a_cgroup_is_demoted_and_hot_memory_promoted on [OLD, NEW];
    alloc: objects_of_a_kind_are_on_its_nodes_only on [OLD, NEW],
        weights_of_a_kind_override_the_machines on [OLD, NEW],
        a_single_object_may_have_its_own_weights on [OLD],
        objects_beyond_a_kinds_capacity_are_on_its_spill_nodes on [OLD],
        an_unmodified_programs_heap_is_on_the_requested_nodes on [OLD, NEW],
        programs_for_hmsdk_and_smdk_get_memory_on_the_requested_nodes on [OLD];
    replicated: each_copy_is_on_its_node_and_read_from_there on [FOUR_OLD, FOUR_NEW],
        copies_are_created_only_on_nodes_that_read_them on [FOUR_OLD, FOUR_NEW],
        a_node_without_cpus_has_a_copy_only_if_named on [OLD],
        a_region_larger_than_a_node_is_refused_and_the_node_named on [FOUR_NEW],
        threads_on_all_nodes_read_consistent_rows_that_never_go_back on [FOUR_OLD, FOUR_NEW];
    placement: programs_run_in_the_memory_of_an_emulated_cxl_device on [DEVICE_OLD, DEVICE_NEW];
    topo: the_printed_commands_turn_unused_cxl_memory_into_a_node on [IDLE_OLD, IDLE_NEW],
        pages_with_memory_errors_are_counted on [OLD, NEW];
    vm: a_cxl_backend_is_on_the_cxl_node_and_verified
            on [THREE, THREE_OLD, DEVICE_OLD, DEVICE_NEW],
        weights_of_three_to_one_apply_within_a_huge_page on [OLD, NEW],
        huge_pages_have_weights_by_a_preloaded_library on [OLD, NEW],
        an_absent_kind_is_refused_before_qemu_starts on [OLD, NEW],
        two_machines_have_their_memory_on_two_cxl_nodes on [SOCKETS_OLD, SOCKETS_NEW],
        a_running_machine_moves_to_far_memory_and_back_with_its_contents on [OLD, NEW],
        a_whole_machine_moves_and_its_cpuset_rebinds_its_policies on [OLD, NEW];
    daemon: each_node_is_published_and_no_files_remain on [OLD, NEW],
        heavily_used_memory_is_under_pressure_and_other_memory_is_not on [TIMED];
    pods: redis_in_a_pod_is_placed_by_each_annotation_and_leaves_nothing on [NEW],
        policies_ignored_by_the_runtime_are_detected on [NEW];
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
