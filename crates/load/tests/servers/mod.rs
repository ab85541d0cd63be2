//! Real servers for tests, each on loopback at a free port, or at a socket in a directory of its own; ended by its
//! process id. Tests of `nearfar cache bench` use them, too.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// A process that is killed when dropped.
pub(crate) struct Ends(pub(crate) Child);

pub(crate) struct Server {
    process: Ends,
    /// HOST:PORT, or unix:PATH.
    pub(crate) address: String,
    _dir: tempfile::TempDir,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port without a listener that was not returned to another test here: a port just released may be returned again at
/// once.
fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

/// A server over TCP; `PORT` in the options is replaced by the port.
pub(crate) fn server(program: &str, options: &[&str]) -> Server {
    for _ in 0..5 {
        let port = free_port().to_string();
        let options: Vec<_> = options.iter().map(|word| word.replace("PORT", &port)).collect();
        if let Some(server) = started(program, &options, |_| format!("127.0.0.1:{port}")) {
            return server;
        }
    }
    panic!("{program} ends as soon as it is started, at five ports");
}

/// A server that runs in a directory of its own, and listens at the address. `None` if it ended: the port may have been
/// taken meanwhile.
pub(crate) fn started(
    program: &str,
    options: &[String],
    address: impl FnOnce(&Path) -> String,
) -> Option<Server> {
    let dir = tempfile::tempdir().unwrap();
    // A server started as root may switch to another user, which must be able to create a socket there.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let child = Command::new(program)
        .args(options)
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("starting {program}: {error}; apt-get install {program}"));
    let mut server = Server { process: Ends(child), address: address(dir.path()), _dir: dir };
    for _ in 0..6000 {
        let listens = listens(&server.address);
        if server.process.0.try_wait().unwrap().is_some() {
            return None;
        }
        if listens {
            return Some(server);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{program} does not listen at {}", server.address);
}

fn listens(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(path).is_ok(),
        None => TcpStream::connect(address).is_ok(),
    }
}
