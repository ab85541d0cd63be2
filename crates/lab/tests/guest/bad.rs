//! Each failure gives one message with the request, the finding and the remedy, and its exit status, and leaves no
//! process running.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::{Pid, Signal};

use crate::lab::{Ended, LAB, alive, in_own_mounts, lab, qemu_of, run, sh, text, wait_until};

pub(crate) fn a_missing_command_exits_with_127() {
    let ended = Ended::from(run("", &["no-such-command", "x"]).output().unwrap());
    assert_eq!((ended.status, ended.out.as_str()), (127, ""));
    assert_eq!(ended.err, "nearfar lab: no-such-command: command not found\n");
}

pub(crate) fn a_file_that_is_not_executable_exits_with_126() {
    let ended = Ended::from(run("", &["/etc/passwd"]).output().unwrap());
    assert_eq!(ended.status, 126);
    assert!(ended.err.starts_with("nearfar lab: /etc/passwd: Permission denied"), "{ended:?}");
}

pub(crate) fn the_time_limit_ends_the_command_with_124() {
    let ended = sh("--timeout 5", "echo started; sleep 1000; echo not reached");
    assert_eq!((ended.status, ended.out.as_str()), (124, "started\n"), "{ended:?}");
    assert!(ended.err.contains("time limit of 5 s"), "{ended:?}");
}

pub(crate) fn a_command_that_ignores_sigterm_is_ended_with_the_guest() {
    let ended = sh("--timeout 0.5", "trap '' TERM; while :; do sleep 1; done");
    assert_eq!(ended.status, 124);
    assert!(ended.err.contains("SIGTERM did not end the command"), "{ended:?}");
    let log = ended.err.trim().rsplit("the stacks of its processes: ").next().unwrap();
    let stacks = fs::read_to_string(log).unwrap();
    assert!(stacks.contains("task:sleep") && stacks.contains("do_nanosleep"), "{log}");
    assert!(stacks.contains("Kernel panic"), "{log}: the kernel did not print all of them");
    fs::remove_file(log).unwrap();
}

pub(crate) fn a_panic_is_one_message_and_the_console_log_is_kept() {
    let ended = sh("", "echo before; sleep 0.2; echo c >/proc/sysrq-trigger; sleep 100");
    assert_eq!((ended.status, ended.out.as_str()), (125, "before\n"), "{ended:?}");
    assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    assert!(
        ended.err.contains("kernel panicked (not syncing: sysrq triggered crash)"),
        "{ended:?}"
    );
    let log = ended.err.trim().rsplit("its console: ").next().unwrap();
    assert!(fs::read_to_string(log).unwrap().contains("Kernel panic"), "{log}");
    fs::remove_file(log).unwrap();
}

pub(crate) fn a_guest_that_does_not_boot_in_time_is_ended() {
    // The kernel waits for a root device that never appears, and says nothing.
    let mut command = lab(&["run", "--timing", "off", "--boot-timeout", "4", "--append"]);
    command.args(["quiet rdinit=/none root=/dev/none rootwait", "--", "true"]);
    let ended = Ended::from(command.output().unwrap());
    assert_eq!((ended.status, ended.err.lines().count()), (125, 1), "{ended:?}");
    assert!(
        ended
            .err
            .contains("did not come up within 4 s (--boot-timeout gives it more), and its kernel"),
        "{ended:?}"
    );
    let _ = fs::remove_file(ended.err.trim().rsplit("its console: ").next().unwrap());
}

pub(crate) fn a_qemu_that_crashes_while_booting_is_tried_three_times() {
    let dir = tempfile::tempdir().unwrap();
    let (qemu, boots) = (dir.path().join("qemu"), dir.path().join("boots"));
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo QEMU emulator && exit\n\
         echo boot >>'{}'; echo some assertion failed >&2; kill -ABRT $$\n",
        boots.display()
    );
    fs::write(&qemu, script).unwrap();
    fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = lab(&["run", "--timing", "off", "--qemu"]);
    let ended = Ended::as_printed(command.arg(&qemu).args(["--", "true"]).output().unwrap());
    assert_eq!((ended.status, ended.err.lines().count()), (125, 3), "{ended:?}");
    assert!(ended.err.contains("QEMU ended: some assertion failed; booting again"), "{ended:?}");
    assert!(ended.err.contains("QEMU ended: some assertion failed; its console: "), "{ended:?}");
    assert_eq!(fs::read_to_string(boots).unwrap(), "boot\n".repeat(3));
    let _ = fs::remove_file(ended.err.trim().rsplit("its console: ").next().unwrap());
}

pub(crate) fn a_kernel_that_stops_printing_while_booting_is_tried_three_times() {
    let dir = tempfile::tempdir().unwrap();
    let qemu = dir.path().join("qemu");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo QEMU emulator && exit\n\
         for arg; do case $arg in file,id=console,path=*) console=${arg#*path=};; esac; done\n\
         printf '[ 0.0] Linux version 1\\n[ 0.1] smp: up\\n' >$console; exec sleep 1000\n";
    fs::write(&qemu, script).unwrap();
    fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = lab(&["run", "--timing", "off", "--boot-timeout", "12", "--qemu"]);
    let ended = Ended::as_printed(command.arg(&qemu).args(["--", "true"]).output().unwrap());
    assert_eq!((ended.status, ended.err.lines().count()), (125, 3), "{ended:?}");
    let hangs = "the guest hangs: nothing for 6 s, and its kernel's last line was `[ 0.1] smp: up`";
    assert!(ended.err.contains(&format!("{hangs}; booting again")), "{ended:?}");
    assert!(ended.err.contains(&format!("{hangs}; its console: ")), "{ended:?}");
    let _ = fs::remove_file(ended.err.trim().rsplit("its console: ").next().unwrap());
}

pub(crate) fn no_qemu_survives_a_killed_lab() {
    let mut child = run("", &["sh", "-c", "echo up; sleep 1000"]).spawn().unwrap();
    let qemu = qemu_of(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("QEMU to end with its parent", || !alive(qemu));
}

pub(crate) fn no_qemu_survives_an_interrupted_boot() {
    let mut child = run("", &["true"]).spawn().unwrap();
    let qemu = qemu_of(&child);
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    wait_until("QEMU to end", || !alive(qemu));
}

pub(crate) fn a_hung_guest_is_reported_and_can_be_ended_by_a_signal() {
    let mut child = run("", &["sh", "-c", "echo up; sleep 1000"]).spawn().unwrap();
    let qemu = qemu_of(&child);
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "up");
    let stopped = Pid::from_raw(i32::try_from(qemu).unwrap()).unwrap();
    rustix::process::kill_process(stopped, Signal::STOP).unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let report = messages.find(|line| line.contains("does not answer")).unwrap();
    assert!(report.contains("SIGTERM ends it"), "{report}");
    rustix::process::kill_process(stopped, Signal::CONT).unwrap();
    assert!(messages.any(|line| line.contains("the guest answers again")));
    rustix::process::kill_process(stopped, Signal::STOP).unwrap();
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let end = messages.find(|line| line.contains("did not answer the signal")).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143), "{end}");
    wait_until("QEMU to end", || !alive(qemu));
    let _ = fs::remove_file(end.rsplit("its console: ").next().unwrap());
}

pub(crate) fn usage_errors_are_named_before_anything_boots() {
    let cases: [(&[&str], i32, &str); 12] = [
        (
            &["run", "-M", "/dev/zero", "--", "true"],
            2,
            "machine file /dev/zero: not a regular file",
        ),
        (&["run", "-M", "/proc/self/fd", "--", "true"], 2, "machine file /proc/self/fd: "),
        (
            &["run", "--out", "/nonexistent/a/b", "--", "true"],
            125,
            "/nonexistent/a/b: No such file",
        ),
        (
            &["run", "-K", "5.4", "--", "true"],
            2,
            "kernel 5.4: neither a series nor a kernel image; known series are 6.12 and 7.2",
        ),
        (&["run", "-K", "/etc/passwd", "--", "true"], 2, "kernel /etc/passwd: neither"),
        (
            &["run", "-M", "none", "--", "true"],
            2,
            "machine none: neither a built-in machine nor a file",
        ),
        (
            &["run", "--cpus", "99", "--", "true"],
            2,
            "99 CPUs on machine cxl-2tier: it takes 1 to 16",
        ),
        (
            &["run", "--qemu", "/nonexistent/qemu", "--", "true"],
            125,
            "QEMU /nonexistent/qemu: No such file",
        ),
        (
            &["run", "--qemu", "/bin/true", "--", "true"],
            125,
            "QEMU /bin/true: it does not say it is QEMU",
        ),
        (&["run", "--out", "/proc/none", "--", "true"], 125, "/proc/none: No such file"),
        (
            &["run", "--stats", "/nonexistent/s", "--", "true"],
            125,
            "writing statistics to /nonexistent/s",
        ),
        (&["run", "-e", "=x", "--", "true"], 2, "-e =x: not NAME=VALUE"),
    ];
    for (args, status, part) in cases {
        let ended = Ended::from(lab(args).output().unwrap());
        assert_eq!((ended.status, ended.err.lines().count()), (status, 1), "{args:?} {ended:?}");
        assert!(ended.err.contains(part), "{args:?} {ended:?}");
    }
    for option in [&["--timeout", "-1"][..], &["--dry-run"]] {
        let ended =
            Ended::from(lab(&[&["run"], option, &["--", "true"]].concat()).output().unwrap());
        assert_eq!(ended.status, 2, "{ended:?}");
        assert!(ended.err.contains(option[option.len() - 1]), "{ended:?}");
    }
}

pub(crate) fn an_unwritable_download_cache_is_named() {
    let ended = Ended::from(
        lab(&["run", "--", "true"]).env("NEARFAR_CACHE", "/proc/nearfar").output().unwrap(),
    );
    assert_eq!((ended.status, ended.err.lines().count()), (125, 1), "{ended:?}");
    assert!(ended.err.contains("creating /proc/nearfar: No such file or directory"), "{ended:?}");
    assert!(ended.err.contains("NEARFAR_CACHE names another"), "{ended:?}");
}

pub(crate) fn a_full_disk_is_named_and_leaves_no_partial_files() {
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=1m none \"$1\" && NEARFAR_CACHE=\"$1\" \"$2\" fetch; \
                  echo $? $(ls \"$1\")";
    let output = in_own_mounts(script).args([text(dir.path()), LAB]).output();
    let ended = Ended::from(output.unwrap());
    assert_eq!(ended.out, "1 lock\n", "{ended:?}");
    assert!(ended.err.contains("QEMU with its libraries needs about 350 MB in /"), "{ended:?}");
    assert!(ended.err.contains("which has 1 MB free; make room"), "{ended:?}");
}

pub(crate) fn a_filled_download_cache_may_be_read_only() {
    let cache = std::env::var_os("NEARFAR_CACHE").map_or_else(
        || Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/nearfar"),
        Into::into,
    );
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && NEARFAR_CACHE=\"$1\" \
                  \"$2\" run --timing off --cpus 1 -- echo it runs";
    let output = in_own_mounts(script).args([text(&cache), LAB]).output();
    let ended = Ended::from(output.unwrap());
    assert_eq!((ended.status, ended.out.as_str()), (0, "it runs\n"), "{ended:?}");
}
