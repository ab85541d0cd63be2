//! A client of QEMU's monitor protocol (QMP): one command, one result, over a Unix socket.
//!
//! QEMU serves one client of a monitor at a time and leaves others waiting without an answer, so each step has a
//! deadline, and the error says that another client, as libvirt, may hold it. A line is at most 16 MiB. Events
//! are skipped. Commands are sent one at a time, so results need no ids. Source: docs/interop/qmp-spec.rst of QEMU.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfar_kernel::clock::{Stopwatch, sleep};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

use crate::qemu::{keyval, words};

/// Maximum length of a line from QEMU.
const LINE: u64 = 16 << 20;
/// Maximum lines that are skipped as events before a result.
const EVENTS: usize = 10_000;

/// A connection in command mode.
#[derive(Debug)]
pub struct Qmp {
    path: PathBuf,
    reader: BufReader<UnixStream>,
    pid: Option<u32>,
    serves: Option<u32>,
}

/// Reasons why a command has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The socket can't be used.
    #[error("QMP socket {}: {source}{}", .path.display(), way_out(source))]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// QEMU does not answer.
    #[error(
        "QMP socket {}: no answer within {} s; a monitor serves one client at a time, and another one, as libvirt, may \
         hold it: add a second one to QEMU's command line (-qmp unix:PATH,server=on,wait=off)", .path.display(), .after.as_secs()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The deadline.
        after: Duration,
    },
    /// The answer is not QMP.
    #[error("QMP socket {}: it does not speak QMP ({found})", .path.display())]
    NotQmp {
        /// The socket.
        path: PathBuf,
        /// The finding.
        found: String,
    },
    /// QEMU refuses the command.
    #[error("QEMU refuses {command}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's words.
        reason: String,
    },
}

fn way_out(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; it needs QEMU's user, or root",
        io::ErrorKind::ConnectionRefused => "; no QEMU listens on it any more",
        _ => "",
    }
}

impl Qmp {
    /// Connects and negotiates; each later command has the same deadline. `own` is the path by the name that QEMU has for it.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn connect(path: &Path, own: &Path, deadline: Duration) -> Result<Self, QmpError> {
        let failed = |source| QmpError::Socket { path: path.to_owned(), source };
        let stream = open(path, deadline).map_err(|source| match source.kind() {
            io::ErrorKind::TimedOut => QmpError::Silent { path: path.to_owned(), after: deadline },
            _ => failed(source),
        })?;
        stream.set_read_timeout(Some(deadline)).map_err(failed)?;
        stream.set_write_timeout(Some(deadline)).map_err(failed)?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok();
        let pid = peer.and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
        let serves = pid.and_then(|pid| listening(own, pid));
        let mut qmp = Self { path: path.to_owned(), reader: BufReader::new(stream), pid, serves };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            return Err(qmp.not_qmp("its greeting has no version"));
        }
        qmp.execute("qmp_capabilities", &Value::Null)?;
        Ok(qmp)
    }

    /// The process that listens on the socket: QEMU, unless something stands between. Where the listening socket can't be
    /// found, the process that made it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.serves.or(self.pid)
    }

    /// The process that was found to have the listening socket.
    #[must_use]
    pub const fn serves(&self) -> Option<u32> {
        self.serves
    }

    /// Executes a command; `arguments` is an object, or null.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments.clone();
        }
        let sent = self.reader.get_mut().write_all(format!("{request}\n").as_bytes());
        sent.map_err(|source| self.failed(source))?;
        for _ in 0..EVENTS {
            let mut answer = self.line()?;
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = answer.get("error") {
                let reason = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                return Err(QmpError::Refused {
                    command: command.to_owned(),
                    reason: reason.to_owned(),
                });
            }
        }
        Err(self.not_qmp("nothing but events"))
    }

    fn line(&mut self) -> Result<Value, QmpError> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(LINE).read_until(b'\n', &mut line);
        match read {
            Err(source) => Err(self.failed(source)),
            Ok(0) => Err(self.not_qmp("it closed the connection")),
            Ok(_) if !line.ends_with(b"\n") => Err(self.not_qmp("a line has no end")),
            Ok(_) => {
                serde_json::from_slice(&line).map_err(|error| self.not_qmp(&error.to_string()))
            }
        }
    }

    fn failed(&self, source: io::Error) -> QmpError {
        let path = self.path.clone();
        let is_late = matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let after = self.reader.get_ref().read_timeout().ok().flatten();
        match after.filter(|_| is_late) {
            Some(after) => QmpError::Silent { path, after },
            None => QmpError::Socket { path, source },
        }
    }

    fn not_qmp(&self, found: &str) -> QmpError {
        QmpError::NotQmp { path: self.path.clone(), found: found.to_owned() }
    }
}

/// Connects. While a monitor serves one client, a few others wait in its queue, and if that is full, a call would wait too.
fn open(path: &Path, deadline: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let waited = Stopwatch::start();
    while let Err(error) = net::connect(&socket, &address) {
        if error != Errno::AGAIN {
            return Err(error.into());
        }
        if waited.elapsed() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sleep(Duration::from_millis(10));
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The process that has a listening socket at `path`, by its own name for it: `made`, which made it, or one that `made` has
/// left it to, as libvirt does. Several can have had the path, one after another. `None` if none can be found.
fn listening(path: &Path, made: u32) -> Option<u32> {
    let sockets = fs::read_to_string(format!("/proc/{made}/net/unix"));
    let sockets = sockets.or_else(|_| fs::read_to_string("/proc/net/unix")).unwrap_or_default();
    let path = path.to_string_lossy();
    let link = |line: &str| {
        // Number, references, protocol, flags (of which 0x10000 is that it listens), type, state, inode, path.
        let mut fields = line.split_whitespace();
        let listens = u32::from_str_radix(fields.nth(3)?, 16).ok()? & 0x1_0000 != 0;
        let inode = fields.nth(2)?;
        (listens && fields.next()? == path).then(|| format!("socket:[{inode}]"))
    };
    let links: Vec<String> = sockets.lines().filter_map(link).collect();
    let has = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok())
            .any(|to| links.iter().any(|link| to.as_os_str() == link.as_str()))
    };
    if links.is_empty() || has(made) {
        return (!links.is_empty()).then_some(made);
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| has(*pid))
}

/// The socket of a monitor in QMP mode on a QEMU command line: of `-qmp unix:PATH,...` or `-qmp-pretty`, or of a `-mon`
/// with `mode=control` and its `-chardev socket`, the last of several. A relative path is relative to QEMU's working directory.
#[must_use]
pub fn socket_of(arguments: &[String]) -> Option<PathBuf> {
    let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let options = words::options(&words);
    let named = |name: &'static str| options.iter().filter(move |option| option.name == name);
    let direct = named("qmp")
        .chain(named("qmp-pretty"))
        .find_map(|option| Some(keyval::value(option.value.strip_prefix("unix:")?).0));
    let of_chardev = |id: &str| {
        let mut devices =
            named("chardev").map(|option| keyval::parse(&option.value, Some("backend")));
        let socket = devices.find(|fields| {
            keyval::get(fields, "backend") == Some("socket")
                && keyval::get(fields, "id") == Some(id)
        })?;
        keyval::get(&socket, "path").filter(|path| !path.is_empty()).map(str::to_owned)
    };
    let monitors = named("mon").map(|option| keyval::parse(&option.value, Some("chardev")));
    let control = monitors.filter(|fields| keyval::get(fields, "mode") == Some("control"));
    // The first one may be a descriptor, as libvirt's is, and libvirt holds it.
    let mut last = control.rev().filter_map(|fields| of_chardev(keyval::get(&fields, "chardev")?));
    direct.filter(|path| !path.is_empty()).or_else(|| last.next()).map(PathBuf::from)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    /// A monitor that sends `lines`, one after each line it receives but the first at once.
    pub(in super::super) fn monitor(
        lines: &'static [&str],
    ) -> (tempfile::TempDir, PathBuf, std::thread::JoinHandle<()>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let served = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            for (at, line) in lines.iter().enumerate() {
                let mut request = String::new();
                if at > 0 && reader.read_line(&mut request).unwrap_or(0) == 0 {
                    return;
                }
                if reader.get_mut().write_all(line.as_bytes()).is_err() {
                    return;
                }
            }
            // Until the client leaves.
            let _ = reader.read_line(&mut String::new());
        });
        (dir, path, served)
    }

    pub(in super::super) const HELLO: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";
    /// Deadline where an answer comes.
    pub(in super::super) const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_gets_its_result_after_events_too() {
        let (_dir, path, served) = monitor(&[
            HELLO,
            "{\"return\": {}}\n",
            "{\"event\": \"RESUME\"}\n{\"return\": [7]}\n",
            "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}}\n",
        ]);
        let mut qmp = Qmp::connect(&path, &path, PATIENCE).unwrap();
        assert_eq!(qmp.pid(), Some(std::process::id()));
        assert_eq!(qmp.execute("query-x", &Value::Null).unwrap(), json!([7]));
        let refused = qmp.execute("query-y", &json!({"a": 1})).unwrap_err();
        assert_eq!(refused.to_string(), "QEMU refuses query-y: no such thing");
        drop(qmp);
        served.join().unwrap();
    }

    #[test]
    fn the_process_is_the_one_that_has_the_socket_not_the_one_that_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let own = std::process::id();
        assert_eq!(listening(&path, own), Some(own));
        // As libvirt does: another process has it as its standard input, and this one closes it.
        let mut other = std::process::Command::new("sleep")
            .arg("600")
            .stdin(OwnedFd::from(listener))
            .spawn()
            .unwrap();
        let found = listening(&path, own);
        let pid = other.id();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(found, Some(pid));
        assert_eq!(listening(&path, own), None, "nobody has it");
    }

    #[test]
    fn waiting_for_a_monitor_with_a_full_queue_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match open(&path, Duration::ZERO) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::TimedOut);
        let silent = Qmp::connect(&path, &path, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(silent, QmpError::Silent { .. }), "{silent}");
    }

    #[test]
    fn a_silent_socket_and_a_non_monitor_are_named() {
        let (_dir, path, served) = monitor(&[""]);
        let silent = Qmp::connect(&path, &path, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(silent, QmpError::Silent { .. }), "{silent}");
        served.join().unwrap();
        for (greeting, found) in [
            ("220 smtp ready\n", "expected"),
            ("{}\n", "its greeting has no version"),
            ("{\"QMP\"", "a line has no end"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("qmp");
            let listener = UnixListener::bind(&path).unwrap();
            let served = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(greeting.as_bytes()).unwrap();
            });
            let error = Qmp::connect(&path, &path, PATIENCE).unwrap_err().to_string();
            assert!(error.contains(found) || error.contains("line 1"), "{error}");
            served.join().unwrap();
        }
        let absent =
            Qmp::connect(Path::new("/nonexistent/qmp"), Path::new("q"), PATIENCE).unwrap_err();
        assert!(absent.to_string().contains("No such file"), "{absent}");
    }

    #[test]
    fn the_socket_is_found_in_each_form() {
        let socket = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            socket_of(&words).map(|path| path.display().to_string())
        };
        for (text, expected) in [
            ("qemu -S -qmp unix:/run/q.sock,server=on,wait=off -m 1G", Some("/run/q.sock")),
            ("qemu --qmp-pretty unix:/run/a,,b,server", Some("/run/a,b")),
            (
                "qemu -chardev socket,id=serial,path=/s -chardev socket,id=m,path=/q,server=on -mon chardev=m,mode=control",
                Some("/q"),
            ),
            ("qemu -mon m,mode=control -chardev socket,path=/q,id=m", Some("/q")),
            ("qemu -chardev socket,id=m,path=/q -mon chardev=m,mode=readline", None),
            ("qemu -qmp tcp:localhost:4444,server", None),
            ("qemu -qmp", None),
        ] {
            assert_eq!(socket(text).as_deref(), expected, "{text}");
        }
    }
}
