//! Descriptors written to sockets and pipes with the software queue at the other end, and queues that cannot be opened.
#![expect(unsafe_code, reason = "a descriptor is handed over")]

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use rustix::fs::{CWD, FileType, Mode as Rights, OFlags, fcntl_setfl, mknodat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::super::format::DESCRIPTOR_BYTES;
use super::super::open::{OpenError, open, probe};
use super::super::submit::{Submit as _, WriteDoor};
use super::*;

/// For a device served by a thread, which may have to wait for a CPU.
const THREADED: QueueConfig = QueueConfig { spins: 64, patience: 1 << 24, ..CONFIG };

/// Passes descriptors read from a file to a device and processes them, until the other end is closed.
fn serve(file: OwnedFd, device: &Device) -> JoinHandle<()> {
    let device = device.clone();
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes))
        {
            let chunks = bytes[..read].as_chunks::<DESCRIPTOR_BYTES>().0;
            let some: Vec<Descriptor> = chunks.iter().map(Descriptor::from_bytes).collect();
            device.take(&some).unwrap();
            while device.work() {}
        }
    })
}

/// A pipe as a device node: its reading and a writing end.
fn pipe(path: &Path) -> (OwnedFd, File) {
    mknodat(CWD, path, FileType::Fifo, Rights::from_raw_mode(0o600), 0).unwrap();
    let writer = File::options().read(true).write(true).open(path).unwrap();
    (File::open(path).unwrap().into(), writer)
}

#[test]
fn an_opened_queue_is_probed_and_copies_by_write() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = pipe(&dir.path().join("wq0.0"));
    let device = Device::new(always(Act::Run));
    let server = serve(reader, &device);
    let queue = open(&limits(None), dir.path(), THREADED).unwrap();
    drop(writer);
    assert_eq!(device.seen(), 1, "a descriptor that does nothing");
    let dsa = Dsa::of(vec![queue]);
    let counts = assert_done(&dsa, &MIXED);
    assert_eq!((counts.device_bytes, counts.cpu_bytes), (DEVICE, 0));
    assert_eq!(device.seen(), 6, "and no batches");
    drop(dsa);
    server.join().unwrap();
}

#[test]
fn failures_have_the_same_consequences_by_write() {
    let script = |nth: u64, _: &Descriptor| match nth % 5 {
        1 => Act::Refuse(0x1f),
        2 => Act::Fault(776),
        3 => Act::FaultBackwards(777),
        _ => Act::Run,
    };
    let device = Device::new(Box::new(script));
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    fcntl_setfl(&ours, OFlags::NONBLOCK).unwrap();
    let queue = Queue::new(Box::new(WriteDoor::new(ours)), limits(None), THREADED);
    let (dsa, server) = (Dsa::of(vec![queue]), serve(theirs, &device));
    let counts = assert_done(&dsa, &[400; 100]);
    assert_eq!((counts.failures, counts.faults), (20, 40));
    assert_eq!(counts.device_bytes, 40 * 3200 + 20 * 776);
    drop(dsa);
    server.join().unwrap();
}

#[test]
fn a_write_that_would_block_counts_as_a_full_queue() {
    // Without a reader the pipe fills up, and the CPU copies the rest.
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = pipe(&dir.path().join("wq0.0"));
    fcntl_setfl(&writer, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    let full = vec![0; 1 << 20];
    while rustix::io::write(&writer, &full).is_ok() {}
    let queue = Queue::new(Box::new(WriteDoor::new(writer.into())), limits(None), CONFIG);
    let counts = assert_done(&Dsa::of(vec![queue]), &[400; 10]);
    assert_eq!((counts.full, counts.cpu_bytes), (41, 10 * 3200));
    drop(reader);
}

#[test]
fn a_closed_portal_is_reported_and_the_cpu_copies() {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    drop(theirs);
    let mut door = WriteDoor::new(ours);
    // SAFETY: nothing reads it, and it is a no-op.
    let refused = unsafe { door.submit(&[Descriptor::noop()]) }.unwrap_err().to_string();
    assert!(refused.contains("the CPU copies instead"), "{refused}");
    let queue = Queue::new(Box::new(door), limits(None), CONFIG);
    assert_eq!(assert_done(&Dsa::of(vec![queue]), &MIXED).refused, 1);
}

#[test]
fn a_missing_or_invalid_device_node_is_rejected_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let missing = open(&limits(None), dir.path(), CONFIG).unwrap_err();
    assert!(matches!(missing, OpenError::Open { .. }), "{missing}");
    let node = dir.path().join("wq0.0");
    fs::write(&node, "").unwrap();
    let file = open(&limits(None), dir.path(), CONFIG).unwrap_err();
    assert!(matches!(file, OpenError::NotADevice { .. }), "{file}");
    for error in [missing, file] {
        assert!(error.to_string().contains(node.to_str().unwrap()), "{error}");
    }
    assert_eq!(fs::read(node).unwrap(), b"", "nothing was written");
}

#[test]
fn a_queue_that_fails_its_probe_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (_reader, _writer) = pipe(&dir.path().join("wq0.0"));
    let silent = open(&limits(None), dir.path(), CONFIG).unwrap_err().to_string();
    assert!(silent.contains("was not done within 600 polls"), "{silent}");
    let wrong = Device::new(Box::new(|_, _| Act::Refuse(0x11)));
    let error = probe(&mut Door(wrong.clone(), true), CONFIG).unwrap_err().to_string();
    assert!(error.contains("0x11, invalid flags"), "{error}");
    wrong.refuse(u32::MAX);
    let error = probe(&mut Door(wrong, true), CONFIG).unwrap_err().to_string();
    assert!(error.contains("full each time of 40"), "{error}");
}
