//! A service under a service manager's eyes (sd_notify(3)): ready, alive, stopping.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Starts a service with a socket of a service manager, and follows it from ready, with `status`, to its end by SIGTERM.
pub(crate) fn notifies(service: &mut Command, status: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    service.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    service.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut service = service.spawn().unwrap();
    let heard = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    // A service that takes long to start says that it is alive before.
    let ready = (0..1000).map(|_| heard()).find(|said| said.contains("READY=1")).unwrap();
    assert!(ready.contains(status), "{ready}");
    assert!(heard().contains("WATCHDOG=1"));
    kill_process(Pid::from_child(&service), Signal::TERM).unwrap();
    assert!((0..100).any(|_| heard().contains("STOPPING=1")));
    assert!(service.wait().unwrap().success());
}
