//! Redis, under a fixed number of requests from its own benchmark client, over a private Unix socket.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::{Running, Used};
use crate::clock;
use crate::ways::Way;

/// Number of keys.
const KEYS: &str = "200000";
/// How often to check, 10 ms apart, whether the server listens.
const LOOKS: usize = 1000;

/// Starts a server and returns its resource usage up to the last reply.
pub(crate) fn run(way: &Way, requests: u32, dir: &Path) -> Result<Used, String> {
    let socket = dir.join("redis.sock");
    // Left by an interrupted run.
    let _ = std::fs::remove_file(&socket);
    let mut command = way.command("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    command.arg("--unixsocket").arg(&socket).arg("--dir").arg(dir);
    let server = Running::start(&mut command)?;
    let listens = || UnixStream::connect(&socket).is_ok();
    if !(0..LOOKS).any(|_| listens() || clock::sleep(Duration::from_millis(10)).is_zero()) {
        return Err(format!("redis-server does not listen on {}", socket.display()));
    }
    for test in ["set", "get"] {
        let mut client = Command::new("redis-benchmark");
        client.arg("-s").arg(&socket).args(["-t", test, "-n", &requests.to_string()]);
        client.args(["-r", KEYS, "-d", "100", "-P", "16", "-c", "20", "-q"]);
        let status = client.stdout(Stdio::null()).env_remove("LD_PRELOAD").status();
        let status = status.map_err(|error| format!("redis-benchmark: {error}"))?;
        if !status.success() {
            return Err(format!("redis-benchmark: {status}"));
        }
    }
    let peak_kib = server.peak_kib()?;
    server.terminate();
    Ok(Used { peak_kib, ..server.end()? })
}
