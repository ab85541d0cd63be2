//! Unmodified programs under the preload library: each starts, works and ends cleanly, and its memory belongs to the
//! kind.
//!
//! `scripts/setup test` installs them. PyTorch, whose Debian package needs many others, is tested by
//! `artefacts/python/check --torch`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that can't run its tools should stop"
)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

mod common;
use common::{preloaded, text};

/// A directory for one program, in which its processes leave their statistics.
struct Room {
    dir: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command in this directory, with memory from a kind.
    fn command(&self, program: &str) -> Command {
        let conf = format!("heap=bind:0 report={}", self.path("told-%p").display());
        let mut command = preloaded(&conf, Command::new(program));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command, which must succeed; returns its output, and the maximum address space of the kind in any of its
    /// processes.
    fn output(&self, command: &mut Command) -> String {
        let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
        let complaints = text(&output.stderr);
        assert!(output.status.success(), "{command:?}: {}: {complaints}", output.status);
        assert!(!complaints.contains("nearfar"), "{complaints}");
        self.had_memory();
        text(&output.stdout)
    }

    /// Asserts that some process of the program reported memory of the kind.
    fn had_memory(&self) {
        let told = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let told =
            told.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("told-"));
        let set_aside = told.map(|path| {
            let told: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
            told["kinds"][0]["set_aside"].as_u64().unwrap()
        });
        assert!(set_aside.max().unwrap_or(0) > 0, "no process had memory of the kind");
    }
}

/// A server that is killed if the test ends first.
struct Server(Child);

impl Server {
    fn start(command: &mut Command, port: u16) -> Self {
        let server = Self(command.spawn().unwrap());
        soon("a server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    }

    fn end(mut self, with: Option<rustix::process::Signal>) {
        if let Some(signal) = with {
            let pid = rustix::process::Pid::from_child(&self.0);
            rustix::process::kill_process(pid, signal).unwrap();
        }
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn soon(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..2400 {
        if is_so() {
            return;
        }
        let _ =
            rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000_000 });
    }
    panic!("{what}: not in two minutes");
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn plain(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    text(&output.stdout)
}

#[test]
fn bash() {
    let room = Room::new();
    let script = "a=$(seq 1 50000); echo ${#a}; for i in 1 2 3; do (echo $i) | cat; done; f() { local x=$1; echo $x; }; f done";
    assert_eq!(room.output(room.command("bash").args(["-c", script])), "288893\n1\n2\n3\ndone\n");
}

#[test]
fn gcc_and_the_program_it_compiles() {
    let room = Room::new();
    let source = "#include <iostream>\n#include <regex>\nint main() { std::regex r(\"(a+)(b+)\"); std::cout << std::regex_replace(\
                  std::string(\"aabb\"), r, \"$2$1\") << std::endl; }\n";
    fs::write(room.path("it.cpp"), source).unwrap();
    room.output(room.command("c++").args(["-O2", "-o", "it", "it.cpp"]));
    let it = room.path("it");
    assert_eq!(room.output(&mut room.command(it.to_str().unwrap())), "bbaa\n");
}

#[test]
fn python_with_threads_processes_and_numpy() {
    let room = Room::new();
    let script = "
import json, multiprocessing, threading, numpy
texts = [json.dumps({'a': list(range(i))}) for i in range(500)]
def work():
    for size in range(1000): bytearray(size * 100)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
with multiprocessing.Pool(2) as pool: print(sum(pool.map(len, texts)))
matrix = numpy.arange(1000000.0).reshape(1000, 1000)
print(int((matrix @ numpy.eye(1000)).sum()), numpy.linalg.matrix_rank(matrix[:50, :50]))
";
    let said = room.output(room.command("/usr/bin/python3").args(["-c", script]));
    assert_eq!(said, "577357\n499999500000 2\n");
}

#[test]
fn node() {
    let room = Room::new();
    let script = "const all = []; for (let i = 0; i < 200000; i++) all.push({ i, text: 'x'.repeat(i % 100) });
        const buffer = Buffer.alloc(50 << 20, 1); const { Worker } = require('worker_threads');
        new Worker('require(\"worker_threads\").parentPort.postMessage(\"y\".repeat(1e6).length)', { eval: true })
            .on('message', (length) => console.log(all.length, buffer.length, length));";
    assert_eq!(room.output(room.command("node").args(["-e", script])), "200000 52428800 1000000\n");
}

#[test]
fn java() {
    let room = Room::new();
    // A program that is part of every Java and runs for a while: it generates a pair of RSA keys and writes them to a
    // file.
    let make = [
        "-genkeypair",
        "-keyalg",
        "RSA",
        "-keysize",
        "2048",
        "-alias",
        "a",
        "-dname",
        "CN=a",
        "-keystore",
        "keys",
        "-storepass",
        "secret",
    ];
    room.output(room.command("keytool").args(make));
    let list = room.output(room.command("keytool").args([
        "-list",
        "-keystore",
        "keys",
        "-storepass",
        "secret",
    ]));
    assert!(list.contains("PrivateKeyEntry"), "{list}");
}

#[test]
fn redis_with_a_snapshot_by_fork() {
    let (room, port) = (Room::new(), free_port().to_string());
    let options =
        ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no", "--dir", "."];
    let mut command = room.command("redis-server");
    let server = Server::start(command.args(options).stdout(Stdio::null()), port.parse().unwrap());
    let told = plain(
        "redis-benchmark",
        &["-p", &port, "-n", "20000", "-q", "-d", "500", "-r", "5000", "-t", "set,get,lpush"],
    );
    assert!(told.contains("GET:"), "{told}");
    plain("redis-cli", &["-p", &port, "save"]);
    plain("redis-cli", &["-p", &port, "bgsave"]);
    let size = plain("redis-cli", &["-p", &port, "dbsize"]);
    assert!(size.trim().parse::<u32>().unwrap() > 4000, "{size}");
    plain("redis-cli", &["-p", &port, "shutdown", "nosave"]);
    server.end(None);
    assert!(room.path("dump.rdb").exists());
    room.had_memory();
}

#[test]
fn memcached() {
    let (room, port) = (Room::new(), free_port());
    let mut command = room.command("memcached");
    command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-m", "64", "-p", &port.to_string()]);
    let server = Server::start(&mut command, port);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let value = "x".repeat(100_000);
    write!(client, "set a 0 0 100000\r\n{value}\r\nget a\r\nquit\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, format!("STORED\r\nVALUE a 0 100000\r\n{value}\r\nEND\r\n"));
    server.end(Some(rustix::process::Signal::INT));
    room.had_memory();
}

/// The directory of PostgreSQL's own programs in Debian: the newest of its versions.
fn postgres_programs() -> PathBuf {
    let versions =
        fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL: scripts/setup test installs it");
    let newest = versions.map(|version| version.unwrap().path()).max().unwrap();
    newest.join("bin")
}

#[test]
fn postgres() {
    let (room, port) = (Room::new(), free_port());
    // PostgreSQL refuses to be root.
    let (programs, owner) = (postgres_programs(), "postgres");
    std::os::unix::fs::chown(room.dir.path(), Some(id_of(owner)), None).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let mut command = room.command("setpriv");
        command
            .args(["--reuid", owner, "--regid", owner, "--clear-groups"])
            .arg(programs.join(program));
        command.args(arguments);
        command
    };
    room.output(&mut run("initdb", &["-D", "data", "--auth", "trust", "--no-sync"]));
    let dir = room.dir.path().to_str().unwrap();
    let number = port.to_string();
    let options = ["-D", "data", "-p", &number, "-h", "127.0.0.1", "-k", dir, "-F"];
    let mut command = run("postgres", &options);
    let log = fs::File::create(room.path("log")).unwrap();
    let server = Server::start(command.stderr(log), port);
    // It listens before it answers; this line of its file tells, as pg_ctl has it.
    let said = || fs::read_to_string(room.path("data/postmaster.pid")).unwrap_or_default();
    soon("it answers", || said().lines().any(|line| line.trim() == "ready"));
    let client = ["-h", "127.0.0.1", "-p", &number, "-U", owner, "-Atq", "-d", "postgres", "-c"];
    let query = "create table t as select i, repeat('x', i % 100) s from generate_series(1, 200000) i; create index on t (s); \
                 select count(distinct s), sum(i) from t;";
    let psql = programs.join("psql");
    let answer = plain(psql.to_str().unwrap(), &[&client[..], &[query]].concat());
    assert_eq!(answer, "100|20000100000\n");
    server.end(Some(rustix::process::Signal::INT));
    room.had_memory();
}

fn id_of(user: &str) -> u32 {
    plain("id", &["-u", user]).trim().parse().unwrap()
}

#[test]
fn programs_of_every_day() {
    let room = Room::new();
    let numbers = (0..200_000).rev().map(|number| format!("{number}\n")).collect::<String>();
    fs::write(room.path("numbers"), numbers).unwrap();
    room.output(room.command("sort").args([
        "-n",
        "--parallel=4",
        "-S",
        "50M",
        "-o",
        "sorted",
        "numbers",
    ]));
    assert!(fs::read_to_string(room.path("sorted")).unwrap().starts_with("0\n1\n2\n"));
    let hashes = "my %h; $h{$_} = $_ x 3 for 1..100000; print scalar(keys %h)";
    assert_eq!(room.output(room.command("perl").args(["-e", hashes])), "100000");
    room.output(room.command("tar").args(["-cJf", "all.tar.xz", "sorted"]));
    assert!(Path::new(&room.path("all.tar.xz")).metadata().unwrap().len() > 1000);
}
