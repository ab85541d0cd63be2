//! A connection that continues during reads from disk replies exactly as one that waits for each read.

#![expect(clippy::cast_possible_truncation, reason = "letters are few")]

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use nearfar_cache::disk::testkit::Faulty;
use nearfar_cache::disk::{Access, Device};
use nearfar_cache::store::{Meta, Store as _};
use nearfar_cache::testkit::{config, on_device, push_down};
use nearfar_cache::{Cache, Making};
use proptest::prelude::*;

use crate::proto::{Connection, Dispatch, PendingReads, Service, Settings, Stop};

/// How a connection's reads of the disk are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// One by one, with a wait for each.
    Waited,
    /// At once, by the kernel.
    Ahead,
    /// At once, and the last ends first.
    LastFirst,
}

/// A connection to a cache of its own.
struct Line {
    cache: Arc<Cache>,
    service: Service,
    pending: Option<PendingReads>,
    connection: Connection,
    rest: Vec<u8>,
    /// Number of waits for the store.
    waited: usize,
}

impl Line {
    fn new(folder: &Path, reads: Reads) -> Self {
        let path = folder.join(format!("{reads:?}"));
        let mut config = config(&path, 60, Making::Inline);
        // A slab per size: a promotion evicts nothing, so the order of completions does not matter.
        config.tiers[0].bytes = 4 << 20;
        let cache = match reads {
            Reads::LastFirst => {
                let device: Arc<dyn Device> = Faulty::new(&path);
                on_device(&config, &device)
            }
            Reads::Ahead | Reads::Waited => {
                config.disk.as_mut().expect("it has one").config.access = Access::Auto;
                Cache::new(&config).expect("a small cache on a file of the test")
            }
        };
        let cache = Arc::new(cache);
        let settings =
            Settings { reply_bytes_max: 12_000, requests_per_turn: 7, ..Settings::default() };
        // Fewer reads in flight than requested.
        let fetch = (reads != Reads::Waited).then(|| Arc::clone(&cache).fetch(3));
        Self {
            cache,
            service: Service::new(settings, 1, 1_700_000_000, Box::new(())),
            pending: fetch.map(|fetch| PendingReads::new(fetch.expect("it has a disk"))),
            connection: Connection::default(),
            rest: Vec::new(),
            waited: 0,
        }
    }

    fn say(&mut self, text: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        self.rest.extend_from_slice(text);
        loop {
            let dispatch = Dispatch::new(&self.service, 0, &*self.cache);
            let with = match &self.pending {
                Some(pending) => dispatch.with_pending_reads(pending, 5),
                None => dispatch,
            };
            let mut out = Vec::new();
            let fed = self.connection.feed(&with, &self.rest, &mut out);
            self.rest.drain(..fed.consumed);
            all.append(&mut out);
            match fed.stop {
                Stop::Input => return all,
                Stop::Close => panic!("closed after {}", all.escape_ascii()),
                Stop::Output | Stop::Turn => {}
                Stop::Later => {
                    self.waited += 1;
                    let pending = self.pending.as_ref().expect("it reads ahead");
                    while self.connection.waits() {
                        let connection = &mut self.connection;
                        let take = &mut |token, item: Option<(&Meta, &[u8])>| {
                            assert_eq!(PendingReads::connection(token), 5);
                            connection.land(&dispatch, token, item);
                        };
                        pending.take(take).expect("the kernel takes it");
                    }
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Lines, each with its value.
    Say(Vec<String>),
    Down,
    Second,
}

fn key() -> impl Strategy<Value = String> {
    // Even ones are stored large at first, odd ones small.
    (0..14_u8).prop_map(|number| format!("k{number}"))
}

fn text(seed: usize, len: usize) -> String {
    (0..len).map(|at| char::from(b'a' + ((seed + at * 7 + at / 200) % 26) as u8)).collect()
}

fn with_value(line: &str, seed: usize, len: usize) -> String {
    format!("{line}\r\n{}\r\n", text(seed, len))
}

fn line() -> impl Strategy<Value = String> {
    let keys = || proptest::collection::vec(key(), 1..6).prop_map(|keys| keys.join(" "));
    let flags = || {
        let all = ["v", "s", "t", "f", "c", "k", "h", "l", "q", "O7", "R30", "N9", "T60", "u"];
        proptest::sample::subsequence(all.to_vec(), 0..5).prop_map(|flags| flags.join(" "))
    };
    let len = || prop_oneof![1..300_usize, 500..3000_usize];
    prop_oneof![
        8 => keys().prop_map(|keys| format!("get {keys}\r\n")),
        4 => keys().prop_map(|keys| format!("gets {keys}\r\n")),
        8 => (key(), flags()).prop_map(|(key, flags)| format!("mg {key} {flags}\r\n")),
        1 => keys().prop_map(|keys| format!("gat 90 {keys}\r\n")),
        2 => (key(), len()).prop_map(|(key, len)| with_value(&format!("set {key} 3 0 {len}"), len, len)),
        1 => (key(), len()).prop_map(|(key, len)| with_value(&format!("ms {key} {len} T40 c"), len, len)),
        1 => key().prop_map(|key| with_value(&format!("append {key} 0 0 20"), 3, 20)),
        1 => key().prop_map(|key| format!("delete {key}\r\n")),
        1 => key().prop_map(|key| format!("md {key} I T30\r\n")),
        1 => key().prop_map(|key| format!("touch {key} 50\r\n")),
        1 => key().prop_map(|key| format!("ma {key} N0 J5 v\r\n")),
        1 => key().prop_map(|key| format!("me {key}\r\n")),
        1 => Just(String::from("mn\r\n")),
        1 => Just(String::from("get\r\n")),
        1 => Just(String::from("mg k1 vv\r\n")),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => proptest::collection::vec(line(), 1..14).prop_map(Step::Say),
        3 => Just(Step::Down),
        1 => Just(Step::Second),
    ];
    proptest::collection::vec(step, 1..14)
}

/// The initial requests.
fn first() -> String {
    (0..14).fold(String::new(), |mut all, number| {
        let len = if number % 2 == 0 { 1000 + 100 * number } else { 20 + number };
        let line = format!("set k{number} {number} 0 {len}");
        // Writing into a string does not fail.
        let _ = all.write_str(&with_value(&line, number, len));
        all
    })
}

fn run(reads: Reads, steps: &[Step], folder: &Path) -> (Vec<String>, usize) {
    let mut line = Line::new(folder, reads);
    let (mut heard, mut second) = (Vec::new(), 10);
    line.cache.set_now(second);
    for step in [&[Step::Say(vec![first()]), Step::Down], steps].concat() {
        match step {
            Step::Down => push_down(&line.cache),
            Step::Second => {
                second += 7;
                line.cache.set_now(second);
            }
            Step::Say(lines) => {
                let answer = line.say(lines.concat().as_bytes());
                heard.push(answer.escape_ascii().to_string());
            }
        }
    }
    assert!(line.rest.is_empty() && line.connection.is_idle());
    (heard, line.waited)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 20, ..ProptestConfig::default() })]
    #[test]
    fn read_ahead_gives_the_same_replies_as_blocking_reads(steps in steps()) {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let (expected, _) = run(Reads::Waited, &steps, folder.path());
        for reads in [Reads::Ahead, Reads::LastFirst] {
            let (heard, _) = run(reads, &steps, folder.path());
            for (heard, expected) in heard.iter().zip(&expected) {
                prop_assert_eq!(heard, expected, "{:?}", reads);
            }
        }
    }
}

#[test]
fn pipelines_do_read_ahead() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let say = |lines: &[&str]| Step::Say(lines.iter().map(|line| format!("{line}\r\n")).collect());
    let steps = [say(&["get k0 k1 k2 k3", "mg k4 v", "mg k5 s v", "gets k6 k7", "mn", "get k8"])];
    let (expected, waited) = run(Reads::Waited, &steps, folder.path());
    assert_eq!(waited, 0);
    for reads in [Reads::Ahead, Reads::LastFirst] {
        let (heard, waited) = run(reads, &steps, folder.path());
        assert_eq!(heard, expected);
        // The reads before mn, and the one after.
        assert_eq!(waited, 2, "{reads:?}");
    }
}
