//! Ways to a queue other than calls: descriptors written to pipes and sockets whose other end is the software queue.
#![expect(unsafe_code, reason = "a server is told to believe what this process writes")]

use std::fs;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::machine::{Machine, SHARED};
use super::*;
use crate::copy::software::serve_pipe;

fn serve(file: OwnedFd, device: &SoftwareDevice) -> JoinHandle<()> {
    // SAFETY: what is written to the other end comes from a `Queue` of this process.
    unsafe { serve_pipe(file, device) }
}

/// A driver that writes to a socket, and the server of its other end.
fn by_socket(device: &SoftwareDevice) -> (Dsa, JoinHandle<()>) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    fcntl_setfl(&ours, OFlags::NONBLOCK).unwrap();
    let queue = Queue::new(Box::new(WriteDoor::new(ours)), device.limits(None), THREADED);
    (Dsa::new(vec![queue], Cpu::default()), serve(theirs, device))
}

#[test]
fn a_queue_that_is_discovered_and_opened_proves_itself_and_copies_by_write() {
    let machine = Machine::new();
    machine.device("dsa0", "0").queue("dsa0", "wq0.3", &SHARED);
    let device = device(always(Act::Run));
    let _worker = Worker::start(&device);
    let (reader, writer) = machine.pipe("wq0.3");
    let server = serve(reader, &device);
    let found = discover(machine.root());
    let queue = open(&found.queues[0], THREADED).unwrap();
    drop(writer);
    assert_eq!(device.seen(), 1, "a descriptor that does nothing");
    let mut dsa = Dsa::new(vec![queue], Cpu::default());
    let counts = assert_done(&mut dsa, &[MIXED, MIXED, MIXED].concat());
    assert_eq!((counts.done, counts.cpu_bytes), (24, 0));
    assert_eq!(device.seen(), 25, "and no batches");
    drop(dsa);
    server.join().unwrap();
}

#[test]
fn all_that_goes_wrong_goes_the_same_way_by_write() {
    let script = |nth: u64, _: &format::Descriptor| match nth % 5 {
        1 => Act::Refuse(0x1f),
        2 => Act::Fault { after: 777 },
        3 => Act::FaultBackwards { after: 777 },
        _ => Act::Run,
    };
    let device = device(Box::new(script));
    let _worker = Worker::start(&device);
    let (mut dsa, server) = by_socket(&device);
    let counts = assert_done(&mut dsa, &[3000; 100]);
    assert_eq!((counts.done, counts.failures, counts.faults), (40, 20, 40));
    drop(dsa);
    server.join().unwrap();
}

#[test]
fn a_file_that_takes_no_more_is_a_full_queue() {
    // Nobody reads: the pipe fills up, and the CPU does what did not go in. What did is answered once somebody reads.
    let machine = Machine::new();
    let (reader, writer) = machine.pipe("wq0.0");
    fcntl_setfl(&writer, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    let writer = OwnedFd::from(writer);
    let device = device(always(Act::Run));
    let config = QueueConfig { in_flight_max: usize::MAX, retries_max: 3, ..THREADED };
    let limits = Limits { entries: usize::MAX, ..device.limits(None) };
    let mut dsa = Dsa::new(
        vec![Queue::new(Box::new(WriteDoor::new(writer)), limits, config)],
        Cpu::default(),
    );
    // A pipe has 16 pages, each of 64 descriptors.
    let mut memory = Memory::new(&[64; 2000]);
    dsa.start(&memory.jobs());
    while counts(&dsa).crowded == 0 {
        assert!(!dsa.poll());
    }
    let _worker = Worker::start(&device);
    let server = serve(reader, &device);
    let mut outcomes = Vec::new();
    let ran = dsa.finish(&mut outcomes);
    memory.assert_copied(&outcomes);
    assert_eq!(ran.device_bytes + ran.cpu_bytes, 2000 * 64);
    assert!(ran.device_bytes > 0 && ran.cpu_bytes > 0, "{ran:?}");
    drop(dsa);
    server.join().unwrap();
}

#[test]
fn when_the_other_end_is_closed_the_cpu_copies_and_the_error_says_so() {
    let device = device(always(Act::Run));
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    drop(theirs);
    let mut door = WriteDoor::new(ours);
    // SAFETY: nothing reads it, and it does nothing.
    let refused = unsafe { door.submit(&[format::Descriptor::noop()]) }.unwrap_err().to_string();
    assert!(refused.contains("the CPU copies instead"), "{refused}");
    let queue = Queue::new(Box::new(door), device.limits(None), ON_CALL);
    assert_eq!(assert_done(&mut Dsa::new(vec![queue], Cpu::default()), &MIXED).refused, 1);
}

#[test]
fn what_is_no_device_or_not_there_is_refused_with_its_path() {
    let machine = Machine::new();
    machine.device("dsa0", "0").queue("dsa0", "wq0.0", &SHARED);
    let found = discover(machine.root()).queues.remove(0);
    let missing = open(&found, ON_CALL).unwrap_err();
    assert!(matches!(missing, OpenError::Open { .. }), "{missing}");
    fs::write(machine.node("wq0.0"), "").unwrap();
    let file = open(&found, ON_CALL).unwrap_err();
    assert!(matches!(file, OpenError::NotADevice { .. }), "{file}");
    for error in [missing, file] {
        assert!(error.to_string().contains("dev/dsa/wq0.0"), "{error}");
    }
    assert_eq!(fs::read(machine.node("wq0.0")).unwrap(), b"", "nothing was written");
}

#[test]
fn a_queue_that_answers_nothing_or_wrongly_is_not_trusted() {
    let machine = Machine::new();
    machine.device("dsa0", "0").queue("dsa0", "wq0.0", &SHARED);
    let (reader, _writer) = machine.pipe("wq0.0");
    let found = discover(machine.root()).queues.remove(0);
    let silent = open(&found, ON_CALL).unwrap_err().to_string();
    assert!(silent.contains("was not done within 600 polls"), "{silent}");
    let mut bytes = [0; 4096];
    let read = rustix::io::read(&reader, &mut bytes).unwrap();
    let noop = format::Descriptor::from_bytes(bytes.first_chunk().unwrap());
    assert_eq!((read, noop.opcode()), (64, Opcode::Noop as u8));
    let wrong = device(Box::new(|_, _| Act::Refuse(0x11)));
    let error = open::probe(&mut wrong.queue(Pace::OnCall), ON_CALL).unwrap_err().to_string();
    assert!(error.contains("0x11, invalid flags"), "{error}");
    wrong.refuse(u32::MAX);
    let error = open::probe(&mut wrong.queue(Pace::OnCall), ON_CALL).unwrap_err().to_string();
    assert!(error.contains("full each time of 40"), "{error}");
}
