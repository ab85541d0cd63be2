//! Runs over unreliable servers, made here: each is a function from a connection to its behaviour.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::cache::plan::Plan;
use crate::cache::results::Found;
use crate::cache::run::run;
use crate::cache::sample::{asked, of, plan};
use crate::cache::server::address::Address;
use crate::cache::tally::Kind;

/// Answers this many commands as a memcached that forgets all at once; later commands get no answer.
fn forgetful(connection: &UnixStream, commands: u64) {
    let mut answers = connection;
    let mut lines = BufReader::new(connection);
    for _ in 0..commands {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[0] {
            "set" => {
                let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                lines.read_exact(&mut value).unwrap();
                "STORED\r\n"
            }
            "stats" => "STAT pid 1\r\nEND\r\n",
            "delete" => "NOT_FOUND\r\n",
            _ => "END\r\n",
        };
        if answers.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The number of a connection after which there are no more.
const GONE: u64 = 1 << 60;

/// How long an answer is waited for: where all come, and where some do not.
const ALL_COME: Duration = Duration::from_secs(60);
const SOME_DO_NOT: Duration = Duration::from_millis(100);

/// A run against a server that handles each connection by this function of its number, from 0; the function may change
/// the next number.
fn ran(
    plan: &Plan,
    patience: Duration,
    serve: impl Fn(u64, &UnixStream, &AtomicU64) + Sync,
) -> anyhow::Result<Found> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let asking = plan.server.unwrap();
    let server = Server {
        address: Address::Unix(path.clone()),
        connections: asking.connections,
        depth: asking.depth,
        multiget: asking.multiget,
        patience,
    };
    let number = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (serve, number) = (&serve, &number);
        scope.spawn(move || {
            for connection in listener.incoming() {
                let (connection, number_now) =
                    (connection.unwrap(), number.fetch_add(1, Ordering::Relaxed));
                if number_now >= GONE {
                    return;
                }
                scope.spawn(move || serve(number_now, &connection, number));
            }
        });
        let found = run(plan, &server);
        number.store(GONE, Ordering::Relaxed);
        // Wakes the accepting thread; the socket may be gone.
        let _ = UnixStream::connect(path);
        found
    })
}

#[test]
fn every_key_of_a_multiget_is_counted_and_misses_are_stored() {
    for (depth, multiget) in [(1, 1), (4, 1), (1, 7), (3, 100)] {
        let plan = asked(plan("zipf:0.9", Some("80:15:5"), 3001), depth, multiget);
        let found =
            ran(&plan, ALL_COME, |_, connection, _| forgetful(connection, u64::MAX)).unwrap();
        let (gets, hits) = of(&found, Kind::Get);
        assert_eq!((found.operations, found.errors.count, hits), (3001, 0, 0));
        assert_eq!(of(&found, Kind::Fill), (gets, gets));
        let timed: u64 = found.kinds.iter().map(|of| of.latency.as_ref().unwrap().timed).sum();
        assert_eq!(timed, 3001 + gets);
    }
}

#[test]
fn a_lost_connection_fails_its_outstanding_requests_and_is_reopened() {
    let plan = asked(plan("uniform", Some("50:50"), 2000), 8, 1);
    let found = ran(&plan, SOME_DO_NOT, |_, connection, _| forgetful(connection, 600)).unwrap();
    let errors = found.errors.count;
    assert!((1..=200).contains(&errors), "{errors}");
    let fills = of(&found, Kind::Fill).0;
    let all = found.operations + fills + errors;
    // A read whose store was lost is counted as a read, and its store as an error.
    assert!(all >= 2000 + fills && found.operations <= 2000, "{found:?}");
    assert!(found.errors.first.unwrap().contains("connection lost"));
}

#[test]
fn a_server_that_stays_away_ends_the_run() {
    let gone = |number, connection: &UnixStream, next: &AtomicU64| {
        forgetful(connection, 50);
        // The first connection only requests stats.
        next.fetch_max(if number == 0 { 0 } else { GONE }, Ordering::Relaxed);
    };
    let error = format!(
        "{:#}",
        ran(&asked(plan("uniform", None, 1 << 40), 1, 1), SOME_DO_NOT, gone).unwrap_err()
    );
    let says = ["no connection; is a memcached server listening there?", "connection lost"];
    assert!(says.iter().any(|says| error.contains(says)), "{error}");
}

#[test]
fn a_server_that_does_not_speak_the_protocol_ends_the_run() {
    let other = |number, mut connection: &UnixStream, _: &AtomicU64| {
        // The first connection requests stats.
        if number == 0 {
            return forgetful(connection, 1);
        }
        let _ = connection.read(&mut [0; 100]);
        let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\n");
    };
    let error = format!(
        "{:#}",
        ran(&asked(plan("uniform", None, 1 << 40), 1, 1), SOME_DO_NOT, other).unwrap_err()
    );
    assert!(error.contains("\"HTTP/1.1 400 Bad Request\\r\\n\" is no answer"), "{error}");
}

#[test]
fn a_silent_server_ends_the_run() {
    let silent = |number, mut connection: &UnixStream, _: &AtomicU64| {
        if number == 0 {
            return forgetful(connection, 1);
        }
        let _ = connection.read_to_end(&mut Vec::new());
    };
    let error = format!(
        "{:#}",
        ran(&asked(plan("uniform", None, 100), 1, 1), SOME_DO_NOT, silent).unwrap_err()
    );
    assert!(error.contains("owes answers, and none has come"), "{error}");
    // A run that has sent all its requests ends, and reports those without an answer.
    let found = ran(&asked(plan("uniform", None, 6), 7, 1), SOME_DO_NOT, silent).unwrap();
    assert_eq!((found.operations, found.errors.count), (0, 6));
    assert!(found.errors.first.unwrap().contains("no answer within"));
}

#[test]
fn errors_of_the_server_are_counted_with_their_text() {
    let full = |number, connection: &UnixStream, _: &AtomicU64| {
        if number == 0 {
            return forgetful(connection, 1);
        }
        let mut answers = connection;
        for line in BufReader::new(connection).lines() {
            let Ok(line) = line else { return };
            // Values are ordinary lines here: those of 64 bytes may have any content but are read lossily.
            if line.starts_with("get ") {
                let _ = answers.write_all(b"SERVER_ERROR out of memory writing get response\r\n");
            }
        }
    };
    let found = ran(&asked(plan("uniform", None, 100), 4, 5), SOME_DO_NOT, full).unwrap();
    assert_eq!((found.operations, found.errors.count), (0, 100));
    assert!(found.errors.first.unwrap().contains("out of memory writing get"));
}
