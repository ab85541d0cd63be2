//! Listening sockets, and paths or ports already in use.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{config, dial, dial_unix, refused, serve};
use crate::server::{Bound, Config, Unix};

fn at(path: &Path) -> Config {
    let unix = Unix { path: path.to_owned(), mode: 0o620 };
    Config { tcp: Vec::new(), unix: Some(unix), ..config() }
}

#[test]
fn a_socket_file_has_its_mode_and_is_removed_with_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.sock");
    let server = serve(at(&path));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
    assert!(server.addresses().is_empty());
    let mut client = dial_unix(&path);
    client.sets("a", &super::value(1, 300_000));
    client.ask("get a\r\n", super::item("a", &super::value(1, 300_000)));
    let settings = client.ask_until("stats settings\r\n", "END\r\n");
    assert!(settings.contains(&format!("STAT domain_socket {}\r\n", path.display())));
    assert!(settings.contains("STAT unix_mode 620\r\n"));
    drop(server);
    assert!(!path.exists());
}

/// In a directory of another user the name of a socket may lead to any file a moment after it was bound.
#[test]
fn a_path_replaced_by_a_symlink_does_not_change_the_targets_mode() {
    let dir = tempfile::tempdir().unwrap();
    let (path, victim) = (dir.path().join("cache.sock"), dir.path().join("victim"));
    fs::write(&victim, "others'").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let (is_over, exchanged) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let link = dir.path().join("link");
            while !is_over.load(Relaxed) {
                if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_symlink()) {
                    std::os::unix::fs::symlink(&victim, &link).unwrap();
                    fs::rename(&link, &path).unwrap();
                    exchanged.fetch_add(1, Relaxed);
                }
            }
        });
        let unix = Unix { path: path.clone(), mode: 0o666 };
        for round in 0_u32.. {
            if round >= 500 && exchanged.load(Relaxed) > 0 {
                break;
            }
            let config = Config { tcp: Vec::new(), unix: Some(unix.clone()), ..config() };
            // It may be refused: there is a link, or none any more.
            drop(Bound::new(config));
            let _ = fs::remove_file(&path);
        }
        is_over.store(true, Relaxed);
    });
    assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn tcp_and_unix_sockets_serve_the_same_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.sock");
    let server = serve(Config { tcp: config().tcp, ..at(&path) });
    dial_unix(&path).sets("a", b"x");
    dial(&server).ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_socket_without_a_listener_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _server = serve(at(&path));
    dial_unix(&path).ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_second_server_on_a_path_is_refused_and_the_first_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.sock");
    let _server = serve(at(&path));
    let error = refused(at(&path));
    assert!(error.contains("cache.sock: another server does"), "{error}");
    dial_unix(&path).ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_socket_with_a_server_too_busy_to_accept_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.sock");
    let (family, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    let make = || rustix::net::socket_with(family, stream, SocketFlags::NONBLOCK, None).unwrap();
    let address = SocketAddrUnix::new(&path).unwrap();
    let listener = make();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let waiting: Vec<_> = std::iter::repeat_with(make)
        .take_while(|one| rustix::net::connect(one, &address).is_ok())
        .collect();
    assert!(!waiting.is_empty());
    let error = refused(at(&path));
    assert!(error.contains("cache.sock: another server does"), "{error}");
}

#[test]
fn files_that_are_not_stream_sockets_are_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, datagrams) = (dir.path().join("file"), dir.path().join("datagrams"));
    fs::write(&file, "text").unwrap();
    let error = refused(at(&file));
    assert!(error.contains("file: the file there is not a socket; remove it"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    let _other = UnixDatagram::bind(&datagrams).unwrap();
    let error = refused(at(&datagrams));
    assert!(error.contains("datagrams: Protocol wrong type for socket"), "{error}");
    assert!(datagrams.exists());
}

#[test]
fn a_socket_that_replaced_the_servers_own_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.sock");
    let server = serve(at(&path));
    fs::remove_file(&path).unwrap();
    let second = serve(at(&path));
    drop(server);
    dial_unix(&path).ask("mn\r\n", "MN\r\n");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn an_address_that_can_not_be_bound_is_named() {
    let server = serve(config());
    let at = server.addresses()[0];
    let error = refused(Config { tcp: vec![at], ..config() });
    assert!(error.contains(&format!("listening on {at}: Address already in use")), "{error}");
    assert!(error.contains("give another address, or stop the program that uses it"), "{error}");
    let error = refused(Config { metrics: Some(at), ..config() });
    assert!(error.contains(&format!("listening on {at}: Address already in use")), "{error}");
    let error = refused(Config { tcp: Vec::new(), ..config() });
    assert!(error.contains("nothing to listen on"), "{error}");
    let error = refused(self::at(Path::new("/nowhere/at/all.sock")));
    assert!(error.contains("listening on /nowhere/at/all.sock: No such file"), "{error}");
    assert!(error.contains("create the socket's directory"), "{error}");
    // TEST-NET-1 (RFC 5737) belongs to nobody.
    let error = refused(Config { tcp: vec!["192.0.2.1:0".parse().unwrap()], ..config() });
    assert!(error.contains("this machine has no such address"), "{error}");
    let error = refused(self::at(Path::new(&"x".repeat(200))));
    assert!(error.contains("name too long"), "{error}");
    dial(&server).ask("mn\r\n", "MN\r\n");
}
