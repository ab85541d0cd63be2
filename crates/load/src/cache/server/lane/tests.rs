//! A connection with this test at its other end.

use std::os::unix::net::UnixStream;

use super::*;

fn pair() -> (Lane, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Lane::new(Connection::Unix(ours)), theirs)
}

fn request(op: Op, key: &str) -> Pending {
    let request = Request { op, key: key.into(), value_bytes: 3, ..Request::default() };
    Pending { request, asked: Asked::first(op), ..Pending::default() }
}

/// All answers contained in `arrives`, by key.
fn answers(lane: &mut Lane, theirs: &mut UnixStream, arrives: &str) -> Vec<(String, String)> {
    theirs.write_all(arrives.as_bytes()).unwrap();
    lane.receive().unwrap();
    let mut found = Vec::new();
    while let Some((pending, said)) = lane.answer().unwrap() {
        let text = |range: Range<usize>| String::from_utf8(lane.bytes(range).to_vec()).unwrap();
        let said = match said {
            Meaning::Value(range) => text(range),
            Meaning::Refused(range) | Meaning::Error(range) => format!("no: {}", text(range)),
            said => format!("{said:?}"),
        };
        found.push((String::from_utf8(pending.request.key).unwrap(), said));
    }
    found
}

fn said(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(key, said)| (key.to_string(), said.to_string())).collect()
}

#[test]
fn requests_are_encoded_as_the_protocol_requires() {
    let (mut lane, mut theirs) = pair();
    let mut values = Values::any();
    let mut set = request(Op::Set, "k");
    set.request.ttl = 100_000_000;
    lane.ask(set, &mut values);
    lane.ask(request(Op::Update, "k"), &mut values);
    lane.ask(request(Op::Delete, "k"), &mut values);
    lane.ask_together(["a", "b"].into_iter().map(|key| request(Op::Get, key)));
    lane.ask_together(std::iter::empty());
    assert_eq!(lane.commands(), 4);
    lane.flush().unwrap();
    let value = values.make(b"k", 3).to_vec();
    let expected =
        [b"set k 0 2592000 3\r\n", &value[..], b"\r\nget k\r\ndelete k\r\nget a b\r\n"].concat();
    let mut sent = vec![0; expected.len()];
    theirs.read_exact(&mut sent).unwrap();
    assert_eq!(sent, expected);
}

#[test]
fn a_multiget_answers_each_of_its_keys_once() {
    let (mut lane, mut theirs) = pair();
    let mut values = Values::any();
    lane.ask_together(["a", "b", "c", "b", "d"].into_iter().map(|key| request(Op::Get, key)));
    lane.ask(request(Op::Set, "s"), &mut values);
    // A key counts as not found only once the next value or the end has arrived.
    let first = answers(&mut lane, &mut theirs, "VALUE b 0 2\r\nBB\r\nVALUE b 0 1");
    assert_eq!(first, said(&[("a", "Missing"), ("b", "BB")]));
    let second = answers(&mut lane, &mut theirs, "\r\nB\r\nEND\r\nSTO");
    assert_eq!(second, said(&[("c", "Missing"), ("b", "B"), ("d", "Missing")]));
    assert_eq!(lane.commands(), 1);
    assert_eq!(answers(&mut lane, &mut theirs, "RED\r\n"), said(&[("s", "Done")]));
    assert_eq!((lane.commands(), lane.waiting.len()), (0, 0));
}

#[test]
fn a_command_is_outstanding_until_its_reply_ends() {
    let (mut lane, mut theirs) = pair();
    lane.ask(request(Op::Get, "a"), &mut Values::any());
    let value = answers(&mut lane, &mut theirs, "VALUE a 0 1\r\nA\r\n");
    assert_eq!((value, lane.commands()), (said(&[("a", "A")]), 1));
    assert_eq!((answers(&mut lane, &mut theirs, "END\r\n"), lane.commands()), (said(&[]), 0));
}

#[test]
fn a_value_of_another_key_is_detected_and_an_error_ends_the_whole_command() {
    let (mut lane, mut theirs) = pair();
    let mut values = Values::any();
    lane.ask(request(Op::Get, "a"), &mut values);
    lane.ask_together(["b", "c"].into_iter().map(|key| request(Op::Get, key)));
    lane.ask(request(Op::Set, "d"), &mut values);
    lane.ask(request(Op::Delete, "e"), &mut values);
    let arrives = "VALUE x 0 1\r\nA\r\nEND\r\nSERVER_ERROR out of memory\r\nSERVER_ERROR too large\r\nNOT_FOUND\r\n";
    let why = "no: SERVER_ERROR out of memory";
    let expected = [
        ("a", "Foreign"),
        ("b", why),
        ("c", why),
        ("d", "no: SERVER_ERROR too large"),
        ("e", "Missing"),
    ];
    assert_eq!(answers(&mut lane, &mut theirs, arrives), said(&expected));
    assert_eq!(lane.commands(), 0);
}

#[test]
fn a_reply_that_matches_no_request_is_an_error() {
    for (asked, arrives, with) in [
        (Some(Op::Set), "END\r\n", "to a set"),
        (Some(Op::Get), "STORED\r\n", "to a get"),
        (Some(Op::Delete), "hello\r\n", "\"hello"),
        (None, "ERROR too many connections\r\n", "nothing that was asked"),
    ] {
        let (mut lane, mut theirs) = pair();
        if let Some(op) = asked {
            lane.ask(request(op, "k"), &mut Values::any());
        }
        theirs.write_all(arrives.as_bytes()).unwrap();
        lane.receive().unwrap();
        let error = lane.answer().unwrap_err().to_string();
        assert!(error.contains(with), "{error}");
    }
    let (mut lane, theirs) = pair();
    drop(theirs);
    assert_eq!(lane.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn values_larger_than_the_buffer_are_read_completely() {
    let (mut lane, mut theirs) = pair();
    let large = "x".repeat(3 * INPUT);
    for key in ["a", "b"] {
        lane.ask(request(Op::Get, key), &mut Values::any());
    }
    let text =
        format!("VALUE a 0 1\r\nA\r\nEND\r\nVALUE b 0 {}\r\n{large}\r\nEND\r\n", large.len());
    let mut found = Vec::new();
    for part in text.as_bytes().chunks(INPUT / 3) {
        let part = std::str::from_utf8(part).unwrap();
        found.extend(answers(&mut lane, &mut theirs, part));
    }
    assert_eq!(found, said(&[("a", "A"), ("b", &large)]));
}
