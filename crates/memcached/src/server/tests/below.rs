//! Reads from disk while other requests are served: a device delays its reads until it is released.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::{Client, config, dial, item, soon, value};
use crate::proto::Settings;
use crate::server::{Config, Server};
use nearfar_cache::disk::{Access, BlockFile, Device, Done, Job, Queue, Wait};
use nearfar_cache::store::{Meta, Store};
use nearfar_cache::{Cache, Making};

/// Delayed requests of a device.
#[derive(Debug, Default)]
struct Gate {
    is_open: bool,
    /// Reads that were held back, ever.
    held: usize,
    bells: Vec<Arc<OwnedFd>>,
}

fn ring(bell: &OwnedFd) {
    rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
}

/// A file whose queues complete no reads while its gate is closed. System calls pass.
#[derive(Debug)]
struct Gated {
    file: Arc<BlockFile>,
    gate: Arc<Mutex<Gate>>,
}

impl Gated {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) {
        let mut gate = self.gate();
        gate.is_open = true;
        gate.bells.iter().for_each(|bell| ring(bell));
    }

    #[track_caller]
    fn holds(&self, reads: usize) {
        soon(&format!("{reads} reads are held back"), || self.gate().held >= reads);
        assert_eq!(self.gate().held, reads);
    }
}

impl Device for Gated {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(into, at)
    }
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<usize> {
        self.file.write_at(from, at)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn queue(&self, _: u32) -> io::Result<Box<dyn Queue>> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        self.gate().bells.push(Arc::clone(&bell));
        let (file, gate) = (Arc::clone(&self.file), Arc::clone(&self.gate));
        Ok(Box::new(GatedQueue { file, gate, waiting: VecDeque::new(), bell }))
    }
    fn align(&self) -> usize {
        self.file.align()
    }
    fn how(&self) -> String {
        String::from("slow on purpose")
    }
}

/// Reads complete in reverse order.
#[derive(Debug)]
struct GatedQueue {
    file: Arc<BlockFile>,
    gate: Arc<Mutex<Gate>>,
    waiting: VecDeque<(u64, Job)>,
    bell: Arc<OwnedFd>,
}

impl Queue for GatedQueue {
    fn push(&mut self, token: u64, job: Job) -> Result<(), Job> {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let is_read = matches!(job, Job::Read { .. });
        gate.held += usize::from(is_read && !gate.is_open);
        if gate.is_open || !is_read {
            ring(&self.bell);
        }
        self.waiting.push_back((token, job));
        Ok(())
    }
    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn reap(&mut self, _: Wait, done: &mut Vec<Done>) -> io::Result<()> {
        let is_open = self.gate.lock().unwrap_or_else(PoisonError::into_inner).is_open;
        // An empty counter needs no reset.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        let (now, later): (VecDeque<_>, VecDeque<_>) = self
            .waiting
            .drain(..)
            .partition(|(_, job)| is_open || matches!(job, Job::Write { .. }));
        self.waiting = later;
        for (token, mut job) in now.into_iter().rev() {
            let result = match &mut job {
                Job::Read { into, part, at } => self.file.read_at(&mut into[part.clone()], *at),
                Job::Write { from, part, at } => self.file.write_at(&from[part.clone()], *at),
            };
            done.push(Done { token, job, result });
        }
        Ok(())
    }
    fn under_way(&self) -> usize {
        self.waiting.len()
    }
    fn ready(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Items `k0` to `k5` are large, `k6` to `k9` small; all are on a device with a closed gate.
fn below(path: &Path) -> (Arc<Cache>, Arc<Gated>) {
    let file = Arc::new(BlockFile::open(path, Access::Plain).unwrap());
    let gated = Arc::new(Gated { file, gate: Arc::default() });
    let device: Arc<dyn Device> = Arc::clone(&gated) as _;
    let config = nearfar_cache::testkit::config(path, 60, Making::Inline);
    let cache = Arc::new(nearfar_cache::testkit::on_device(&config, &device));
    for number in 0..10 {
        let meta = Meta { cas: 7, ..Meta::default() };
        cache.put(key(number).as_bytes(), &stored(number), Some(&meta)).unwrap();
    }
    nearfar_cache::testkit::push_down(&cache);
    nearfar_cache::testkit::flush(&cache);
    (cache, gated)
}

fn key(number: usize) -> String {
    format!("k{number}")
}

fn stored(number: usize) -> Vec<u8> {
    value(number, if number < 6 { 3000 } else { 100 })
}

/// The reply of `get` for several of them.
fn items(numbers: &[usize]) -> Vec<u8> {
    let one = |number: &usize| {
        let whole = item(&key(*number), &stored(*number));
        whole[..whole.len() - 5].to_vec()
    };
    [numbers.iter().flat_map(one).collect(), b"END\r\n".to_vec()].concat()
}

fn start(cache: &Arc<Cache>) -> Server {
    Server::start(Arc::clone(cache) as _, Config { threads: 1, ..config() }).unwrap()
}

#[test]
fn a_client_that_waits_for_the_disk_does_not_block_others() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, gated) = below(&folder.path().join("slow"));
    let server = start(&cache);
    let mut waiting = dial(&server);
    waiting.say("get k1\r\n");
    gated.holds(1);
    let mut other = dial(&server);
    other.sets("new", b"x");
    other.ask("get new\r\n", item("new", b"x"));
    other.ask("get none\r\n", "END\r\n");
    assert!(other.ask_until("stats conns\r\n", "END\r\n").contains("conn_io_queue"));
    gated.open();
    waiting.hears(items(&[1]));
    waiting.ask("get k6\r\nget k7\r\n", [items(&[6]), items(&[7])].concat());
    assert_eq!(other.figure("get_hits"), 4);
    assert_eq!(other.figure("get_misses"), 1);
    assert_eq!(other.figure("cmd_get"), 5);
}

#[test]
fn keys_of_a_line_and_of_lines_are_read_at_once_and_answered_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, gated) = below(&folder.path().join("slow"));
    let server = start(&cache);
    let mut client = dial(&server);
    client.sets("here", b"x");
    client.say("get k0 here k7 none k1\r\nmg k2 v\r\nmg none v\r\nmg k8 s q k O1\r\ngets k3\r\nmn\r\nget k4\r\n");
    // mn is not a read: requests after it wait.
    gated.holds(6);
    gated.open();
    let mut expected = items(&[0]);
    expected.truncate(expected.len() - 5);
    expected.extend_from_slice(&item("here", b"x")[..]);
    expected.truncate(expected.len() - 5);
    expected.extend_from_slice(&items(&[7, 1]));
    expected.extend_from_slice(&[b"VA 3000\r\n", &stored(2)[..], b"\r\n"].concat());
    expected.extend_from_slice(b"EN\r\nHD s100 kk8 O1\r\n");
    expected
        .extend_from_slice(&[b"VALUE k3 0 3000 7\r\n", &stored(3)[..], b"\r\nEND\r\n"].concat());
    expected.extend_from_slice(b"MN\r\n");
    client.hears(expected);
    client.hears(items(&[4]));
    client.ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_request_that_changes_a_key_waits_for_reads_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, gated) = below(&folder.path().join("slow"));
    let server = start(&cache);
    let mut client = dial(&server);
    client.say("get k1\r\nset k1 0 0 3\r\nnew\r\nget k1\r\nget k2 k2\r\ndelete k2\r\nget k2\r\n");
    gated.holds(1);
    gated.open();
    let expected = [
        &items(&[1])[..],
        b"STORED\r\n",
        &item("k1", b"new"),
        &items(&[2, 2]),
        b"DELETED\r\nEND\r\n",
    ];
    client.hears(expected.concat());
}

#[test]
fn a_read_returns_the_old_or_the_new_value_of_a_concurrently_changed_key() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, gated) = below(&folder.path().join("slow"));
    let server = start(&cache);
    let (mut client, mut other) = (dial(&server), dial(&server));
    client.say("get k1 k2 k6 k7\r\n");
    gated.holds(4);
    other.sets("k1", b"new");
    other.sets("k6", b"new");
    let both = [&item("k1", b"new")[..19], &item("k6", b"new")[..]].concat();
    other.ask("get k1 k6\r\n", both);
    gated.open();
    let heard = client.ask_until("", "END\r\n");
    assert_eq!(heard.matches("VALUE ").count(), 4, "{heard}");
    other.ask("get k1\r\n", item("k1", b"new"));
    other.ask("get k6\r\n", item("k6", b"new"));
    other.ask("get k2\r\n", items(&[2]));
}

#[test]
fn a_connection_closed_during_its_disk_read_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, gated) = below(&folder.path().join("slow"));
    let server = start(&cache);
    let mut other = dial(&server);
    for _ in 0..3 {
        let mut client = dial(&server);
        client.say("get k1 k2\r\n");
    }
    gated.holds(6);
    let mut half = dial(&server);
    half.say("get k3\r\n");
    gated.holds(7);
    half.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(other.figure("curr_connections"), 5);
    gated.open();
    // A client that has closed its sending side receives its replies.
    half.hears(items(&[3]));
    half.hears_end();
    soon("they are gone", || other.figure("curr_connections") == 1);
    // Clients in the same places receive none of their replies.
    let mut next: Vec<Client<_>> = (0..4).map(|_| dial(&server)).collect();
    next.iter_mut()
        .for_each(|client| client.ask("mn\r\nget k8\r\n", [b"MN\r\n", &items(&[8])[..]].concat()));
}

#[test]
fn a_drained_server_answers_outstanding_reads_and_a_stopped_one_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, gated) = below(&folder.path().join("slow"));
    let server = start(&cache);
    let mut client = dial(&server);
    client.say("get k1 k6\r\n");
    gated.holds(2);
    let stop = server.stop();
    stop.drain();
    gated.open();
    client.hears(items(&[1, 6]));
    client.hears_end();
    server.wait().unwrap();

    gated.gate().is_open = false;
    gated.gate().held = 0;
    let server = start(&cache);
    let mut client = dial(&server);
    client.say("get k2 k7\r\n");
    gated.holds(2);
    server.stop().now();
    server.wait().unwrap();
    client.hears_end();
}

#[test]
fn replies_of_outstanding_reads_count_towards_the_reply_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, gated) = below(&folder.path().join("slow"));
    let protocol = Settings { reply_bytes_max: 10_000, ..Settings::default() };
    let config = Config { threads: 1, protocol, ..config() };
    let server = Server::start(Arc::clone(&cache) as _, config).unwrap();
    let mut client = dial(&server);
    client.say("get k0 k1 k2 k3 k4 k5 k6 k7 k8 k9\r\nmn\r\n");
    // Of 3000 bytes 4608 are read.
    gated.holds(3);
    gated.open();
    client.hears(items(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    client.hears("MN\r\n");
    assert_eq!(Store::now(&*cache), cache.now());
}
