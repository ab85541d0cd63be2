//! `nearfar cache serve` from a user's view: its replies, requests refused before anything is created, and its end.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(["cache", "serve"]).args(arguments).stdin(Stdio::null());
    command
}

/// The message of a run that must fail with `status` and print nothing else.
fn refused(arguments: &[&str], status: i32) -> String {
    let output: Output = serve(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A listening server, and its messages so far.
struct Running {
    child: Child,
    said: String,
    lines: BufReader<ChildStderr>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = serve(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        while !said.contains("threads") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "it has ended: {said}");
        }
        Self { child, said, lines }
    }

    /// Where the first line that begins so says that it is.
    fn address(&self, what: &str) -> String {
        let line = self.said.lines().find_map(|line| line.strip_prefix(what));
        line.unwrap().trim().to_owned()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address("listen")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.wait()
    }

    fn wait(&mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        let mut more = String::new();
        self.lines.read_to_string(&mut more).unwrap();
        assert_eq!(more, "", "nothing more is said");
        status.code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends lines, and gives as many bytes of the answer as are wanted.
fn ask(stream: &mut (impl Read + Write), lines: &str, wanted: &str) {
    stream.write_all(lines.as_bytes()).unwrap();
    let mut answer = vec![0; wanted.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), wanted, "{lines:?}");
}

#[test]
fn clients_read_each_others_items_and_a_signal_ends_the_server_cleanly() {
    let server = Running::start(&["--port", "0", "--memory", "32m", "--threads", "2"]);
    let (mut one, mut other) = (server.connect(), server.connect());
    ask(&mut one, "set a 7 0 3\r\nabc\r\n", "STORED\r\n");
    ask(&mut other, "get a\r\nmg a s v\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\nVA 3 s3\r\nabc\r\n");
    ask(&mut other, "shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n");
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert_eq!(one.read(&mut [0]).unwrap(), 0, "it is closed");
}

#[test]
fn tiers_are_named_by_kind_and_items_are_found_in_each() {
    let tiers = ["--memory", "near=32m", "--memory", "interleave:all=64m"];
    let server = Running::start(&[&["-p", "0", "-I", "64k"][..], &tiers].concat());
    assert!(server.said.contains("tier 0   32 MiB of near memory"), "{}", server.said);
    assert!(server.said.contains("tier 1   64 MiB of interleave:all memory"), "{}", server.said);
    let mut client = server.connect();
    // More than the first tier holds, and less than both.
    let value = "v".repeat(30_000);
    for number in 0..2000 {
        ask(&mut client, &format!("set k{number} 0 0 30000\r\n{value}\r\n"), "STORED\r\n");
    }
    for number in 0..2000 {
        let wanted = format!("VALUE k{number} 0 30000\r\n{value}\r\nEND\r\n");
        ask(&mut client, &format!("get k{number}\r\n"), &wanted);
    }
    let mut stats = String::new();
    client.write_all(b"stats\r\nquit\r\n").unwrap();
    client.read_to_string(&mut stats).unwrap();
    let of = |name: &str| {
        let found = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        found.unwrap().trim().parse::<u64>().unwrap()
    };
    assert_eq!(of("curr_items"), 2000, "{stats}");
    assert!(of("tier_0_items") > 500 && of("tier_1_items") > 500, "{stats}");
    assert_eq!(of("evictions"), 0, "{stats}");
    assert_eq!(server.end(Signal::INT), Some(0));
}

/// How many of these keys are found; each with its own value, which is its number again and again.
fn found(server: &Running, keys: u32) -> u32 {
    let mut client = BufReader::new(server.connect());
    let mut found = 0;
    for number in 0..keys {
        client.get_mut().write_all(format!("get k{number}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        if line != "END\r\n" {
            assert_eq!(line, format!("VALUE k{number} 3 20000\r\n"));
            let mut read = vec![0; 20_007];
            client.read_exact(&mut read).unwrap();
            assert_eq!(String::from_utf8_lossy(&read), format!("{}\r\nEND\r\n", of(number)));
            found += 1;
        }
    }
    found
}

/// Stores such keys until more than `most` of them are found, and returns how many are. Items that the disk can't take in
/// time are lost.
fn stored(server: &Running, client: &mut TcpStream, keys: u32, most: u32) -> u32 {
    let mut count = 0;
    for _ in 0..100 {
        for number in 0..keys {
            let line = format!("set k{number} 3 0 20000\r\n{}\r\n", of(number));
            ask(client, &line, "STORED\r\n");
        }
        count = found(server, keys);
        if count > most {
            break;
        }
    }
    assert!(count > most, "after a hundred rounds the disk has {count} of {keys} items");
    count
}

/// The value of such a key.
fn of(number: u32) -> String {
    format!("{number:08}").repeat(2500)
}

#[test]
fn items_beyond_memory_are_on_disk_and_survive_a_restart() {
    const KEYS: u32 = 4000;
    let dir = tempfile::tempdir().unwrap();
    let disk = format!("{}=400m", dir.path().join("below").display());
    let options = ["-p", "0", "-m", "16m", "-I", "64k", "--disk", &disk];
    let server = Running::start(&options);
    assert!(server.said.contains("tier 1   400 MiB at "), "{}", server.said);
    let mut client = server.connect();
    // Memory has room for some 800 items.
    let before = stored(&server, &mut client, KEYS, 2000);
    // Replaced and deleted items must not be found.
    ask(
        &mut client,
        "set k1 3 0 3\r\nnew\r\nset k2 3 0 3\r\nnew\r\ndelete k2\r\n",
        "STORED\r\nSTORED\r\nDELETED\r\n",
    );
    ask(&mut client, "get k1 k2\r\n", "VALUE k1 3 3\r\nnew\r\nEND\r\n");
    ask(&mut client, &format!("set k1 3 0 20000\r\n{}\r\n", of(1)), "STORED\r\n");
    drop(client);
    assert_eq!(server.end(Signal::TERM), Some(0));

    let server = Running::start(&options);
    let after = found(&server, KEYS);
    assert!(after > 1000, "{after} of {KEYS}, {before} before it ended");
    ask(&mut server.connect(), "get k2\r\n", "END\r\n");
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// The kernel's status of each thread of a server.
fn threads(server: &Running) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
    status.map(Result::unwrap).collect()
}

/// Only root can switch to another user, so this test needs root.
#[test]
fn with_a_user_all_threads_run_as_it_without_capabilities_and_serve_from_both_tiers() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can switch to another user");
        return;
    }
    const KEYS: u32 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let disk = format!("{}=400m", dir.path().join("below").display());
    let socket = dir.path().join("socket");
    let options = ["-p", "0", "-l", "127.0.0.1", "-m", "16m", "-I", "64k", "--disk", &disk];
    let confined = ["-u", "nobody", "--movers", "2", "-s", socket.to_str().unwrap()];
    std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
    let server = Running::start(&[&options[..], &confined].concat());
    assert!(
        server.said.contains("sandbox  user nobody, no new privileges: yes"),
        "{}",
        server.said
    );
    assert!(!server.said.contains("runs as root"), "{}", server.said);
    let threads = threads(&server);
    assert!(threads.len() >= 8, "workers, movers, the acceptor: {}", threads.len());
    for status in threads {
        let of = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("Uid:"), "65534 65534 65534 65534", "{status}");
        assert_eq!(of("Gid:"), "65534 65534 65534 65534", "{status}");
        assert_eq!(of("Groups:"), "65534", "{status}");
        for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(of(capabilities), "0000000000000000", "{status}");
        }
        assert_eq!((of("NoNewPrivs:").as_str(), of("Seccomp:").as_str()), ("1", "2"), "{status}");
    }
    let mut client = server.connect();
    stored(&server, &mut client, KEYS, 1500);
    let mut settings = String::new();
    client.write_all(b"stats settings\r\nstats\r\nquit\r\n").unwrap();
    client.read_to_string(&mut settings).unwrap();
    for line in ["STAT user nobody\r\n", "STAT no_new_privs yes\r\n", "STAT seccomp yes\r\n"] {
        assert!(settings.contains(line), "{settings}");
    }
    assert!(settings.contains("STAT rusage_user "), "{settings}");
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(!socket.exists(), "its socket may be removed still");

    // Root's capabilities are dropped as well.
    let server = Running::start(&options);
    for status in self::threads(&server) {
        for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert!(status.contains(&format!("{capabilities}\t0000000000000000\n")), "{status}");
        }
    }
    assert!(found(&server, KEYS) > 500, "what was closed is found again");
    assert!(server.said.contains("runs as root; -u USER"), "{}", server.said);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn objects_on_disk_after_a_crash_are_discarded_unless_keep_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let disk = format!("{}=400m", dir.path().join("below").display());
    let options = ["-p", "0", "-m", "16m", "-I", "64k", "--disk", &disk];
    let server = Running::start(&options);
    let mut client = BufReader::new(server.connect());
    // Until a region is on disk: how many items that takes depends on how fast it is.
    for round in 0.. {
        assert!(round < 100, "nothing is written to the disk");
        for number in 0..1000 {
            let line = format!("set k{number} 3 0 20000\r\n{}\r\n", of(number));
            client.get_mut().write_all(line.as_bytes()).unwrap();
            assert_eq!(client.by_ref().lines().next().unwrap().unwrap(), "STORED");
        }
        client.get_mut().write_all(b"stats\r\n").unwrap();
        let lines = client.by_ref().lines().map(Result::unwrap).take_while(|line| line != "END");
        let used: Vec<String> = lines.filter(|line| line.contains("disk_regions_used ")).collect();
        assert_eq!(used.len(), 1, "{used:?}");
        if !used[0].ends_with(" 0") {
            break;
        }
    }
    assert_eq!(server.end(Signal::KILL), None);
    let keep = [&options[..], &["--disk-after-crash", "keep"]].concat();
    let server = Running::start(&keep);
    let kept = found(&server, 1000);
    assert!(kept > 0 && !server.said.contains("discarded"), "{kept} {}", server.said);
    assert_eq!(server.end(Signal::KILL), None);
    let server = Running::start(&options);
    assert!(server.said.contains("below: was not closed cleanly"), "{}", server.said);
    assert_eq!(found(&server, 1000), 0);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_socket_file_has_its_mode_and_is_removed_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let at = path.to_str().unwrap();
    let server = Running::start(&["--unix", at, "--unix-mode", "660", "--memory", "32m"]);
    assert!(!server.said.contains("127.0.0.1"), "{}", server.said);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    ask(&mut UnixStream::connect(&path).unwrap(), "mn\r\n", "MN\r\n");
    assert!(refused(&["--unix", at], 1).contains("another server"));
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(!path.exists());
}

#[test]
fn prometheus_can_scrape_the_metrics() {
    let server = Running::start(&["-p", "0", "--metrics", "127.0.0.1:0", "-m", "32m"]);
    ask(&mut server.connect(), "set a 0 0 1\r\na\r\n", "STORED\r\n");
    let url = server.address("metrics");
    let at = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut scraper = TcpStream::connect(at).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut page = String::new();
    scraper.read_to_string(&mut page).unwrap();
    assert!(page.contains("\nnearfar_cache_stores_total 1\n"), "{page}");
    assert!(page.contains("\nnearfar_cache_tier_items{tier=\"0\"} 1\n"), "{page}");
}

#[test]
fn impossible_caches_are_refused_before_anything_is_created() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let error = refused(&["-p", &port], 1);
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
    assert_eq!(error.matches("os error").count(), 1, "the cause stands once: {error}");
    for (arguments, said) in [
        (&["--memory", "cxl=1g"][..], "cxl"),
        (&["--memory", "0=900t"], "node 0 has "),
        (&["--memory", "9=1g"], "9"),
        (&["--memory", "1q"], "1q"),
        (&["--memory", "1k"], "--memory"),
        (&["--memory", "weighted:0=1=1g"], "nearfar weights"),
        (&["--item-max", "1"], "--item-max"),
        (&["--item-max", "1g"], "--item-max"),
        (&["--disk", "/nowhere"], "PATH=SIZE"),
        (&["--disk-writes", "1g"], "--disk"),
        (&["--listen", "no.such.name.invalid"], "--listen no.such.name.invalid"),
        (&["-m", "near=64m,far=64m"], "write -m near=64m -m far=64m"),
        (&["-p", "80x"], "write a whole number, 0 to 65535"),
        (&["-m", "1", "-I", "1m"], "tier 0, which has 1 MiB"),
        (&["-u", "no-such-user"], "--user no-such-user: no such user"),
        (&["-d", "-m", "64"], "supported options of memcached are"),
        (&["-o", "modern"], "supported options of memcached are"),
        (&["-Y", "/nowhere"], "supported options of memcached are"),
        (&["--unix-mode", "999"], "octal"),
        (&["-a", "660"], "--unix"),
        (&["-s", "/nowhere/socket"], "--unix /nowhere/socket: its directory is not there"),
        (&["--threads", "0"], "--threads"),
        (&["--tls-key", "/nowhere"], "--tls-certificate"),
    ] {
        let error = refused(arguments, 2);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    assert!(refused(&["-p", "0", "--disk", "/nowhere/else=1g"], 2).contains("/nowhere/else"));
    let device = ["-m", "64", "--dry-run", "--disk", "/dev/nowhere=1g"];
    assert!(refused(&device, 2).contains("/dev/nowhere: there is no such device"));
    let tls = ["-p", "0", "--tls-certificate", "/nowhere", "--tls-key", "/nowhere"];
    assert!(refused(&tls, 2).contains("/nowhere"));
    assert!(refused(&[&tls[..], &["--dry-run"]].concat(), 2).contains("/nowhere"));
}

#[test]
fn a_dry_run_warns_as_a_start_does() {
    for (arguments, warning) in [
        (&["-l", "0.0.0.0"][..], "no authentication"),
        (&["-s", "/tmp/never-made", "-p", "11311"], "--unix opens no TCP port"),
        (&["-s", "/tmp/never-made", "-p", "0"], ""),
    ] {
        let output = serve(&[&["--dry-run", "-m", "64"], arguments].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(warning) && (said.is_empty() == warning.is_empty()), "{said}");
    }
}

#[test]
fn a_small_cache_accepts_items_of_a_quarter_of_its_size() {
    let server = Running::start(&["-p", "0", "-m", "2", "-t", "1"]);
    let mut client = server.connect();
    let set = |bytes: usize| format!("set a 0 0 {bytes}\r\n{}\r\n", "x".repeat(bytes));
    ask(&mut client, &set((512 << 10) - 100), "STORED\r\n");
    ask(&mut client, &set(512 << 10), "SERVER_ERROR object too large for cache\r\n");
}

#[test]
fn names_lists_and_repeated_addresses_are_all_listened_on() {
    let server =
        Running::start(&["-p", "0", "-m", "64", "-l", "localhost,127.0.0.2", "-l", "127.0.0.3"]);
    assert!(server.said.contains("tier 0   64 MiB of any"), "{}", server.said);
    let listens = server.said.lines().filter_map(|line| line.strip_prefix("listen"));
    let mut hosts = Vec::new();
    for address in listens.map(str::trim) {
        ask(&mut TcpStream::connect(address).unwrap(), "mn\r\n", "MN\r\n");
        hosts.push(address.rsplit_once(':').unwrap().0);
    }
    for host in ["127.0.0.1", "127.0.0.2", "127.0.0.3"] {
        assert!(hosts.contains(&host), "{hosts:?}");
    }
    assert!(!server.said.contains("no authentication"), "{}", server.said);
    let open = Running::start(&["-p", "0", "-m", "64", "-l", "0.0.0.0"]);
    assert_eq!(open.said.matches("there is no authentication").count(), 1, "{}", open.said);
}

#[test]
fn options_are_below_headings_of_their_own() {
    let help = serve(&["--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let heading = |option: &str| {
        let at = help.find(option).unwrap_or_else(|| panic!("{option} in {help}"));
        let mut before = help[..at].lines().rev();
        before.find(|line| line.ends_with(':') && !line.starts_with(' ')).unwrap().to_owned()
    };
    assert_eq!(heading("--item-max <"), "Options:");
    assert_eq!(heading("--dry-run"), "Options:");
    assert_eq!(heading("--disk <"), "Disk:");
    assert_eq!(heading("--sysfs <"), "Machine:");
    assert_eq!(heading("--kind <"), "Machine:");
    assert_eq!(heading("--listen <"), "Sockets:");
}

/// libmemcached's own test of servers, where it is installed (Debian has it in libmemcached-tools).
#[test]
fn memccapable_passes_its_text_tests() {
    let server = Running::start(&["-p", "0", "-m", "64"]);
    let address = server.address("listen");
    let (host, port) = address.rsplit_once(':').unwrap();
    match Command::new("memccapable").args(["-h", host, "-p", port, "-a"]).output() {
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && !said.contains("FAIL"), "{done:?}");
            assert!(said.matches("[pass]").count() >= 27, "{said}");
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
}

#[test]
fn a_dry_run_refuses_an_unavailable_copier() {
    let refuses = !Path::new("/dev/dsa").exists();
    let output = serve(&["--dry-run", "-m", "64", "--copy", "dsa"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!refuses || said.contains("--copy: copying by DSA: no work queue"), "{said}");
    assert_eq!(output.status.code(), Some(refuses.into()), "{said}");
}

#[test]
fn a_dry_run_prints_the_plan_and_listens_nowhere() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = serve(&["--dry-run", "-p", &port, "-m", "near=64m"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("near memory"), "{said}");
}

#[test]
fn a_dry_run_checks_the_disk_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let dry = |name: &str| format!("{}=1g", file(name).display());
    let refused = |name: &str| refused(&["--dry-run", "--disk", &dry(name)], 2);
    assert!(refused("absent/d").contains("--disk: "), "{}", refused("absent/d"));
    assert!(refused("absent/d").contains("absent/d: open: No such file"));
    std::fs::write(file("others"), b"#!/bin/sh\n".repeat(100)).unwrap();
    let said = refused("others");
    assert!(said.contains("others: holds unknown data at byte 0"), "{said}");
    assert_eq!(std::fs::metadata(file("others")).unwrap().len(), 1000);
    std::fs::write(file("zeros"), vec![0; 5000]).unwrap();
    assert!(refused("zeros").contains("--disk-format"));
    let output = serve(&["--dry-run", "--disk", &dry("new")]).output().unwrap();
    assert!(output.status.success() && !file("new").exists());
    let output = serve(&["--dry-run", "--disk", &dry("zeros"), "--disk-format"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::metadata(file("zeros")).unwrap().len(), 5000);
}
