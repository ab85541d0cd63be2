//! `nearfar-lab run -- CMD` behaves like running CMD.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::lab::{Ended, fed, lab, run, sh, text, wait_until};

pub(crate) fn stdin_stdout_stderr_and_status_are_those_of_the_command() {
    let command = run("", &["sh", "-c", "read line; echo out $line; echo err $line >&2; exit 7"]);
    let ended = Ended::from(fed(command, b"hello\nmore\n".to_vec()));
    assert_eq!(
        (ended.status, ended.out.as_str(), ended.err.as_str()),
        (7, "out hello\n", "err hello\n")
    );
}

pub(crate) fn the_command_sees_the_hosts_files_and_can_not_change_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("of-the-host");
    fs::write(&file, "untouched").unwrap();
    let script = format!(
        "cat {file}; echo changed >{file}; cat {file}; rm -f /bin/true; touch /etc/new /new && echo wrote; \
         id -u; cat /etc/hostname >/dev/null; ping_lo=$(cat /sys/class/net/lo/operstate); echo $ping_lo",
        file = text(&file)
    );
    let ended = sh("", &script);
    assert_eq!(ended.out, "untouchedchanged\nwrote\n0\nunknown\n", "{ended:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "untouched");
    assert!(!fs::exists("/etc/new").unwrap() && !fs::exists("/new").unwrap());
    assert!(fs::exists("/bin/true").unwrap());
}

pub(crate) fn files_written_to_out_appear_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("made,with a comma");
    let mut command = lab(&["run", "--timing", "off", "--cpus", "1", "--out", text(&out), "--"]);
    command.args(["sh", "-c", "seq 100000 >/out/numbers; mkdir /out/d; ln -s x /out/d/link"]);
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.status, 0, "{ended:?}");
    let numbers = fs::read_to_string(out.join("numbers")).unwrap();
    assert_eq!(numbers.lines().last(), Some("100000"));
    assert_eq!(fs::read_link(out.join("d/link")).unwrap().to_str(), Some("x"));
}

pub(crate) fn a_command_ended_by_a_signal_exits_with_128_plus_its_number() {
    let ended = sh("", "echo before; kill -SEGV $$");
    assert_eq!((ended.status, ended.out.as_str(), ended.err.as_str()), (139, "before\n", ""));
}

pub(crate) fn a_signal_to_the_lab_reaches_the_command() {
    let script = "trap 'echo got it; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let mut child = run("", &["sh", "-c", script]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "got it");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

pub(crate) fn a_command_that_does_not_end_by_a_signal_is_ended_with_the_guest() {
    for (signals, status) in [(&[Signal::TERM][..], 143), (&[Signal::INT, Signal::INT], 130)] {
        let script = "trap '' TERM INT; echo ready; while :; do sleep 1; done";
        let mut child = run("", &["sh", "-c", script]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        for signal in signals {
            rustix::process::kill_process(Pid::from_child(&child), *signal).unwrap();
            assert!(std::process::Command::new("sleep").arg("0.5").status().unwrap().success());
        }
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(status), "{signals:?}: {said}");
        assert!(said.contains("did not end by the signal; ended the guest"), "{said}");
        std::fs::remove_file(said.trim().rsplit("processes: ").next().unwrap()).unwrap();
    }
}

pub(crate) fn closing_stdout_ends_the_writing_command() {
    let script = "yes; echo $? >&2";
    let mut child = run("", &["bash", "-c", script]).spawn().unwrap();
    let mut some = [0; 8];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    // The pipe is closed here; `yes` must notice.
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(err.lines().last(), Some("141"), "{err}");
}

pub(crate) fn a_signal_ends_the_lab_while_its_output_is_blocked() {
    let mut child = run("", &["yes"]).spawn().unwrap();
    let unread = child.stdout.take().unwrap();
    wait_until("a full pipe", || rustix::io::ioctl_fionread(&unread).unwrap() >= 65_536);
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

pub(crate) fn megabytes_pass_unchanged_in_both_directions() {
    let input: Vec<u8> = (0u32..1_500_000).flat_map(u32::to_le_bytes).collect();
    let output = fed(run("", &["sh", "-c", "tee /dev/stderr"]), input.clone());
    assert!(output.status.success());
    assert!(output.stdout == input, "{} bytes came back of {}", output.stdout.len(), input.len());
    assert!(output.stderr == input, "{} bytes came on the other stream", output.stderr.len());
}

pub(crate) fn environment_and_working_directory_are_passed_to_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let script = "pwd; echo $GIVEN; echo $KEPT; echo ${DISPLAY-unset}; echo $NEARFAR_LAB $NEARFAR_LAB_TIMING; \
                  command -v nearfar-lab >&2";
    let mut command = run("-e GIVEN=a=b", &["sh", "-c", script]);
    command.current_dir(dir.path()).env("KEPT", "here").env("DISPLAY", ":0");
    let ended = Ended::from(command.output().unwrap());
    let cwd = fs::canonicalize(dir.path()).unwrap();
    assert_eq!(
        ended.out,
        format!("{}\na=b\nhere\nunset\ncxl-2tier off\n", cwd.display()),
        "{ended:?}"
    );
    assert!(ended.err.contains("/nearfar-lab"), "found though not installed: {ended:?}");
}

pub(crate) fn a_shell_has_a_terminal_of_the_hosts_size() {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let size = Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&ours, size).unwrap();
    let theirs: OwnedFd =
        rustix::pty::ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    let before = rustix::termios::tcgetattr(&theirs).unwrap();
    let script = "test -t 0 && test -t 1 && echo terminal; stty size; read a; echo read $a; exit 5";
    let mut command = lab(&["shell", "--timing", "off", "--cpus", "1", "--", "bash", "-c", script]);
    let copy = || Stdio::from(theirs.try_clone().unwrap());
    let mut child = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn().unwrap();
    drop(command);
    let mut terminal = fs::File::from(ours);
    let mut said = String::new();
    let mut buffer = [0; 4096];
    let mut typed = false;
    while !said.contains("read typed") {
        let count = terminal.read(&mut buffer).unwrap();
        said.push_str(&String::from_utf8_lossy(&buffer[..count]));
        if said.contains("33 111") && !typed {
            std::io::Write::write_all(&mut terminal, b"typed\r").unwrap();
            typed = true;
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(5), "{said}");
    assert!(said.contains("terminal\r\n"), "{said}");
    let after = rustix::termios::tcgetattr(&theirs).unwrap();
    assert_eq!(after.local_modes, before.local_modes, "the terminal is as it was");
}
