//! Input that is too long, too large, too frequent or incomplete.

use super::super::testkit::{MapStore, Talk};
use super::super::{Connection, Dispatch, LINE_MAX, Service, Settings, Stop};
use super::{ask, dialogue, with};

#[test]
fn a_key_has_at_most_250_bytes() {
    let (longest, longer) = ("k".repeat(250), "k".repeat(251));
    let mut talk = Talk::default();
    with(
        &mut talk,
        &format!(
            "> set {longest} 0 0 1\n> x\n< STORED\n> get {longest}\n< VALUE {longest} 0 1\n< x\n< END"
        ),
    );
    let bad = "CLIENT_ERROR bad command line format\r\n";
    for line in [
        format!("get {longer}"),
        format!("get {longest} {longer} {longest}"),
        format!("gat 0 {longer}"),
        format!("delete {longer}"),
        format!("incr {longer} 1"),
        format!("touch {longer} 1"),
        format!("set {longer} 0 0 7\r\nversion"),
        format!("set {longer} 0 0 7 noreply\r\nversion\r\nget {longer}"),
        format!("ms {longer} 7\r\nversion"),
        format!("md {longer}"),
    ] {
        assert_eq!(ask(&mut talk, &line), bad, "{line}");
    }
    assert_eq!(ask(&mut talk, "mn"), "MN\r\n");
}

#[test]
fn a_too_large_value_is_dropped_together_with_the_item_it_would_replace() {
    let mut talk = Talk::new(Settings { item_bytes_max: 1024, ..Settings::default() });
    let value = "v".repeat(2000);
    for verb in ["set a 0 0 2000", "ms a 2000", "ms YQ== 2000 b"] {
        with(
            &mut talk,
            &format!(
                "> set a 0 0 1\n> x\n< STORED\n> {verb}\n> {value}\n< SERVER_ERROR object too large for cache\n> get a\n< END"
            ),
        );
    }
    with(
        &mut talk,
        &format!(
            "> set a 0 0 1\n> x\n< STORED\n> add a 0 0 2000\n> {value}\n< SERVER_ERROR object too large for cache\n> get a\n< VALUE a 0 1\n< x\n< END"
        ),
    );
    let value = "v".repeat(500);
    with(
        &mut talk,
        &format!(
            "> set b 0 0 500\n> {value}\n< STORED\n> append b 0 0 500\n> {value}\n< NOT_STORED\n> get b\n< VALUE b 0 500\n< {value}\n< END"
        ),
    );
    assert!(ask(&mut talk, "stats").contains("STAT store_too_large 4\r\n"));
}

#[test]
fn a_refusal_by_the_store_is_reported_to_the_client() {
    let mut talk = Talk::default();
    talk.store = MapStore::new(100, 80);
    let (large, small) = ("v".repeat(90), "v".repeat(60));
    with(
        &mut talk,
        &format!(
            "> set a 0 0 90\n> {large}\n< SERVER_ERROR object too large for cache\n> set a 0 0 60\n> {small}\n< STORED\n> set b 0 0 60\n> {small}\n< SERVER_ERROR out of memory storing object\n> ms b 60 q\n> {small}\n< SERVER_ERROR out of memory storing object\n> add c 0 0 60 noreply\n> {small}\n> ma c N0 J12345678901234567890\n< HD\n> mg d N0 v\n< VA 0 W\n<"
        ),
    );
    let mut talk = Talk::default();
    talk.store = MapStore::new(1, 80);
    with(&mut talk, "> ma c N0\n< SERVER_ERROR out of memory\n> mg cc N0 v\n< EN");
}

#[test]
fn a_refused_command_keeps_the_existing_item_except_for_set_and_ms() {
    let mut talk = Talk::default();
    talk.store = MapStore::new(100, 80);
    let (large, small, more) = ("v".repeat(90), "v".repeat(60), "m".repeat(30));
    let refused = "< SERVER_ERROR object too large for cache";
    let there = format!("> get a\n< VALUE a 0 60\n< {small}\n< END");
    let stays = [
        format!("> append a 0 0 30\n> {more}\n< NOT_STORED"),
        format!("> prepend a 0 0 30\n> {more}\n< NOT_STORED"),
        format!("> ms a 30 MA\n> {more}\n< NS"),
        format!("> ms a 30 MP N0 k\n> {more}\n< NS ka"),
        format!("> replace a 0 0 90\n> {large}\n{refused}"),
        format!("> cas a 0 0 90 1\n> {large}\n{refused}"),
        format!("> add a 0 0 90\n> {large}\n< NOT_STORED"),
    ];
    with(&mut talk, &format!("> set a 0 0 60\n> {small}\n< STORED"));
    for said in stays {
        with(&mut talk, &format!("{said}\n{there}"));
    }
    for said in ["set a 0 0 90", "ms a 90", "ms a 90 MR", "ms a 90 C1"] {
        with(
            &mut talk,
            &format!(
                "> set a 0 0 1\n> x\n< STORED\n> ms a 1 E1\n> x\n< HD\n> {said}\n> {large}\n{refused}\n> get a\n< END"
            ),
        );
    }
    let mut talk = Talk::default();
    talk.store = MapStore::new(3, 80);
    with(
        &mut talk,
        "> set a 0 0 2\n> 99\n< STORED\n> incr a 1\n< SERVER_ERROR out of memory\n> ma a\n< SERVER_ERROR out of memory\n> get a\n< VALUE a 0 2\n< 99\n< END",
    );
}

#[test]
fn invalid_lengths_are_refused_before_the_value() {
    dialogue(
        "> set a 0 0 -1
         < CLIENT_ERROR bad command line format
         > set a 0 0 99999999999999999999
         < CLIENT_ERROR bad command line format
         > set a 0 0 2147483647
         < CLIENT_ERROR bad command line format
         > set a 0 0
         < CLIENT_ERROR bad command line format
         > set a -1 0 7
         > version
         < CLIENT_ERROR bad command line format
         > set a 4294967296 0 7
         > version
         < CLIENT_ERROR bad command line format
         > set a 0 x 7
         > version
         < CLIENT_ERROR bad command line format
         > set a 0 0 7
         > toolongvalue
         < CLIENT_ERROR bad data chunk
         < ERROR
         > get a
         < END",
    );
}

#[test]
fn an_endless_line_closes_the_connection_unless_it_is_a_get() {
    for (line, is_closed) in
        [("x", true), ("set ", true), ("mg a ", true), ("get a ", false), ("gats 0 a ", false)]
    {
        let mut talk = Talk::default();
        let text = line.to_owned() + &"y ".repeat(LINE_MAX / 2 - line.len() / 2);
        assert_eq!(talk.say(&text[..LINE_MAX - 1]), b"");
        assert!(!talk.is_closed);
        assert_eq!(talk.say(" "), b"");
        assert_eq!(talk.is_closed, is_closed, "{line}");
    }
}

#[test]
fn any_number_of_keys_can_be_read_in_a_line() {
    let mut talk = dialogue("> set a 0 0 1\n> x\n< STORED");
    let line = "get".to_owned() + &" a".repeat(10_000);
    let answer = ask(&mut talk, &line);
    assert_eq!(answer.matches("VALUE a 0 1\r\nx\r\n").count(), 10_000);
    assert!(answer.ends_with("x\r\nEND\r\n"));
    // A too long key far along ends the line, after the items found.
    let line = format!("{line} {} a a", "k".repeat(300));
    let answer = ask(&mut talk, &line);
    assert!(answer.ends_with("x\r\nCLIENT_ERROR bad command line format\r\n"));
    assert_eq!(ask(&mut talk, "mn"), "MN\r\n");
}

#[test]
fn replies_are_flushed_at_the_limit_even_within_a_line() {
    let settings = Settings { reply_bytes_max: 100, ..Settings::default() };
    let (store, service) = (MapStore::default(), Service::new(settings, 1, 0, Box::new(())));
    let (mut connection, mut out) = (Connection::default(), Vec::new());
    let mut feed = |input: &[u8], out: &mut Vec<u8>| {
        connection.feed(&Dispatch::new(&service, 0, &store), input, out)
    };
    feed(b"set a 0 0 50\r\n01234567890123456789012345678901234567890123456789\r\n", &mut out);
    let input = b"get a a a a a a a\r\n";
    out.clear();
    let fed = feed(input, &mut out);
    assert_eq!((fed.stop, fed.consumed), (Stop::Output, 7));
    assert!(out.len() < 200);
    let (mut at, mut turns) = (fed.consumed, 1);
    while at < input.len() {
        let fed = feed(&input[at..], &mut out);
        at += fed.consumed;
        turns += 1;
        assert!(turns < 20);
    }
    assert_eq!(out.len(), 7 * (14 + 52) + 5);
}

#[test]
fn a_connection_yields_after_its_quota_of_requests() {
    let settings = Settings { requests_per_turn: 3, ..Settings::default() };
    let (store, service) = (MapStore::default(), Service::new(settings, 1, 0, Box::new(())));
    let (mut connection, mut out) = (Connection::default(), Vec::new());
    let dispatch = Dispatch::new(&service, 0, &store);
    let fed = connection.feed(&dispatch, b"mn\r\nmn\r\nmn\r\nmn\r\n", &mut out);
    assert_eq!((fed.stop, fed.consumed, out.len()), (Stop::Turn, 12, 12));
    let fed = connection.feed(&dispatch, b"mn\r\n", &mut out);
    assert_eq!((fed.stop, fed.consumed), (Stop::Input, 4));
}

#[test]
fn a_long_value_can_be_read_directly_into_its_buffer() {
    let (store, service) =
        (MapStore::default(), Service::new(Settings::default(), 1, 0, Box::new(())));
    let (mut connection, mut out) = (Connection::default(), Vec::new());
    let dispatch = Dispatch::new(&service, 0, &store);
    assert!(connection.wants().is_none());
    connection.feed(&dispatch, b"set a 0 0 100000\r\nabc", &mut out);
    let (room, more) = connection.wants().unwrap();
    assert_eq!((room.len(), more), (3, 99_999));
    room.resize(100_000, b'v');
    room.extend_from_slice(b"\r\n");
    assert!(connection.wants().is_none() && !connection.is_idle());
    connection.feed(&dispatch, b"", &mut out);
    assert_eq!(out, b"STORED\r\n");
    assert!(connection.is_idle());
    connection.shrink();
    assert_eq!(connection.memory(), 0);
}
