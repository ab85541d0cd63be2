//! Input on which memcached crashed, hung or replied wrongly until it was fixed in 2026.
//!
//! docs/cache-tests.md lists the fixes with their tests; those that need a socket are in the tests of `server`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use super::super::testkit::{MapStore, Talk};
use super::super::{Connection, Dispatch, LINE_MAX, PendingReads, Service, Settings, Stop};
use super::{ask, dialogue, with};
use nearfar_cache::store::{Fetch, Head, Known, Landed, Store as _};
use nearfar_cache::{Cache, Config};

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
const TOO_LONG: &str = "CLIENT_ERROR opaque token too long\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

/// A connection to a store in which `k` is 7.
fn seven() -> Talk {
    dialogue("> set k 0 0 1\n> 7\n< STORED")
}

#[test]
fn a_missing_argument_is_an_error_and_not_taken_from_the_next_line() {
    let mut talk = seven();
    for (line, reply) in [
        ("get", BAD_FORMAT),
        ("gets", BAD_FORMAT),
        ("gat", BAD_FORMAT),
        ("gat 10", BAD_FORMAT),
        ("gats k", BAD_FORMAT),
        ("gat x k", BAD_EXPTIME),
        ("gat 10x k", BAD_EXPTIME),
        ("gats 2147483648 k", BAD_EXPTIME),
        ("touch", BAD_FORMAT),
        ("touch k", BAD_FORMAT),
        ("touch k ", BAD_FORMAT),
        ("touch noreply", BAD_FORMAT),
        ("touch k noreply", ""),
        ("touch k 10x", BAD_EXPTIME),
        ("touch k 2147483648", BAD_EXPTIME),
        ("incr", BAD_FORMAT),
        ("incr k", BAD_FORMAT),
        ("decr k", BAD_FORMAT),
        ("incr noreply", BAD_FORMAT),
        ("decr k noreply", ""),
        ("incr k 1x", BAD_DELTA),
        ("decr k -1", BAD_DELTA),
        ("delete", BAD_FORMAT),
        ("ms", BAD_FORMAT),
        ("ms k", BAD_FORMAT),
        ("ms k x", BAD_FORMAT),
        ("set k 0 0", BAD_FORMAT),
        ("set k 0 0 noreply", BAD_FORMAT),
    ] {
        assert_eq!(ask(&mut talk, &format!("{line}\n50")), format!("{reply}ERROR\r\n"), "{line}");
    }
    // The length is known, so the value is dropped.
    for (line, reply) in [
        ("cas k 0 0 2", BAD_FORMAT),
        ("cas k 0 0 2 noreply", ""),
        ("cas k 0 0 2 1x", BAD_FORMAT),
        ("set k x 0 2", BAD_FORMAT),
        ("set k 0 1x 2", BAD_FORMAT),
    ] {
        let heard = ask(&mut talk, &format!("{line}\n50\r\nmn"));
        assert_eq!(heard, format!("{reply}MN\r\n"), "{line}");
    }
    with(&mut talk, "> mg k v t\n< VA 1 t-1\n< 7");
}

#[test]
fn a_meta_flag_without_its_argument_is_an_error_and_changes_nothing() {
    let mut talk = seven();
    for (flag, reply) in [
        ("T", BAD_TOKEN),
        ("N", BAD_TOKEN),
        ("R", BAD_TOKEN),
        ("C", BAD_TOKEN),
        ("E", BAD_TOKEN),
        ("F", BAD_FORMAT),
        ("J", "CLIENT_ERROR invalid numeric initial value\r\n"),
        ("D", "CLIENT_ERROR invalid numeric delta value\r\n"),
    ] {
        for argument in ["", "x", "1x", "99999999999999999999"] {
            let flag = flag.to_owned() + argument;
            let mut ask = |line: &str| ask(&mut talk, &line.replace('*', &flag));
            for line in ["mg k *", "mg k v *", "mg none *", "md k *", "md k q *"] {
                let heard = ask(&format!("{line}\n50"));
                assert_eq!(heard, format!("{reply}ERROR\r\n"), "{flag}");
            }
            assert_eq!(ask("ms k 2 *\n50\r\nmn"), format!("{reply}MN\r\n"), "{flag}");
            assert_eq!(ask("ma k *\n50"), format!("{BAD_FLAG}ERROR\r\n"), "{flag}");
        }
    }
    with(
        &mut talk,
        "> mg none N30 F
         < CLIENT_ERROR bad command line format
         > ms k 2 M
         > 50
         < CLIENT_ERROR invalid mode for ms M token
         > ma k M
         < CLIENT_ERROR invalid mode for ma M token
         > mg k M
         < HD
         > mg k v t
         < VA 1 t-1
         < 7
         > mg none
         < EN",
    );
    let longer = "k".repeat(251);
    assert_eq!(ask(&mut talk, &format!("ma {longer}")), BAD_FLAG);
}

#[test]
fn an_opaque_token_that_is_too_long_is_an_error_on_hits_and_misses_alike() {
    let mut talk = seven();
    let (fits, long) = ("O".to_owned() + &"o".repeat(31), "O".to_owned() + &"o".repeat(32));
    for line in [
        "mg k v",
        "mg k v T30",
        "mg k v q l",
        "mg none v",
        "mg none v N30",
        "md k",
        "md k q",
        "md none",
        "ma k",
        "ma k q",
        "ma none N30",
    ] {
        let heard = ask(&mut talk, &format!("{line} {long}\r\nmn"));
        assert_eq!(heard, format!("{TOO_LONG}MN\r\n"), "{line}");
    }
    for line in ["ms k 2", "ms k 2 q", "ms none 2 ME"] {
        let heard = ask(&mut talk, &format!("{line} {long}\r\n50\r\nmn"));
        assert_eq!(heard, format!("{TOO_LONG}MN\r\n"), "{line}");
    }
    with(
        &mut talk,
        &format!(
            "> mg k v t {fits}
             < VA 1 t-1 {fits}
             < 7
             > mg none {fits}
             < EN {fits}
             > ma k v {fits}
             < VA 1 {fits}
             < 8
             > ms k 2 {fits}
             > 50
             < HD {fits}
             > md k {fits}
             < HD {fits}"
        ),
    );
}

#[test]
fn refused_stores_leak_no_memory() {
    let (store, service) =
        (MapStore::default(), Service::new(Settings::default(), 1, 0, Box::new(())));
    let (mut connection, mut out) = (Connection::default(), Vec::new());
    let dispatch = Dispatch::new(&service, 0, &store);
    let long = "o".repeat(32);
    for (line, reply) in [
        ("ms k 5 MX".to_owned(), "CLIENT_ERROR invalid mode for ms M token\r\n"),
        (format!("ms k 5 O{long}"), TOO_LONG),
    ] {
        let said = format!("{line}\r\nhello\r\n").repeat(100);
        for _ in 0..1000 {
            out.clear();
            let fed = connection.feed(&dispatch, said.as_bytes(), &mut out);
            assert_eq!((fed.consumed, fed.stop), (said.len(), Stop::Input));
            assert!(out == reply.repeat(100).as_bytes(), "{}", out.escape_ascii());
        }
    }
    assert!(connection.is_idle());
    assert_eq!(connection.memory(), 0);
    let mut items = 0;
    store.each(&mut |_, _, _| {
        items += 1;
        true
    });
    assert_eq!(items, 0);
}

#[test]
fn a_line_of_spaces_closes_the_connection_at_the_longest_line() {
    for part in [100, 2000, 4096, 65_535] {
        let mut talk = Talk::default();
        let closed = (1..=65_535 / part).find(|_| {
            assert_eq!(talk.say(" ".repeat(part)), b"");
            talk.is_closed
        });
        assert_eq!(closed, Some(LINE_MAX.div_ceil(part)), "in parts of {part}");
    }
}

#[test]
fn the_keys_of_an_endless_get_are_served_and_not_buffered() {
    const ITEM: &str = "VALUE a 0 1\r\nx\r\n";
    let mut talk = dialogue("> set a 0 0 1\n> x\n< STORED");
    let mut heard = talk.say("get").len();
    for _ in 0..100 {
        heard += talk.say(" a".repeat(1000)).len();
        assert!(talk.waiting() < LINE_MAX);
    }
    // The last key may have more letters.
    assert_eq!((heard, talk.waiting()), (99_999 * ITEM.len(), 1));
    assert_eq!(talk.say("\r\n"), format!("{ITEM}END\r\n").as_bytes());
}

#[test]
fn detail_counts_a_limited_number_of_prefixes() {
    let mut talk = dialogue("> stats detail on\n< OK");
    for first in (0..70_000).step_by(1000) {
        let keys: String = (first..first + 1000).map(|key| format!(" p{key:05}:x")).collect();
        assert_eq!(ask(&mut talk, &format!("get{keys}")), "END\r\n");
    }
    assert_eq!(ask(&mut talk, "get p00000:y"), "END\r\n");
    let dump = ask(&mut talk, "stats detail dump");
    assert_eq!(dump.matches("PREFIX ").count(), 10_000);
    assert!(dump.starts_with("PREFIX p00000 get 2 hit 0 set 0 del 0\r\n"));
    assert!(dump.ends_with("PREFIX p09999 get 1 hit 0 set 0 del 0\r\nEND\r\n"));
    with(
        &mut talk,
        "> stats reset
         < RESET
         > get q:1
         < END
         > stats detail dump
         < PREFIX q get 1 hit 0 set 0 del 0
         < END",
    );
}

#[test]
fn automove_windows_and_classes_out_of_range_are_refused() {
    const RANGE: &str = "CLIENT_ERROR automove window too low or too high\r\n";
    const NOTHING: &str = "CLIENT_ERROR there is no slab automover to tune\r\n";
    let mut talk = Talk::default();
    for (window, reply) in [
        ("0", RANGE),
        ("2", RANGE),
        ("3", NOTHING),
        ("1800", NOTHING),
        ("1801", RANGE),
        ("67108864", RANGE),
        ("4294967295", RANGE),
        ("4294967296", BAD_FORMAT),
        ("-1", BAD_FORMAT),
        ("", BAD_FORMAT),
    ] {
        assert_eq!(ask(&mut talk, &format!("slabs automove window {window}")), reply, "{window}");
    }
    for classes in [
        "31 64",
        "31 60",
        "31 39",
        "-1 64",
        "64 -1",
        "31 2147483648",
        "2147483648 31",
        "-2147483648 0",
        "x y",
    ] {
        let heard = ask(&mut talk, &format!("slabs reassign {classes}"));
        assert_eq!(heard, "CLIENT_ERROR slab reassignment disabled\r\n", "{classes}");
    }
    with(&mut talk, "> slabs reassign\n< ERROR\n> slabs reassign 31\n< ERROR\n> mn\n< MN");
}

#[test]
fn a_dump_begins_with_ok_even_without_items() {
    for class in ["all", "hash", "1", "1,2,63"] {
        let mut talk = Talk::default();
        assert_eq!(ask(&mut talk, &format!("lru_crawler metadump {class}")), "OK\r\nEND\r\n");
        assert_eq!(ask(&mut talk, &format!("lru_crawler mgdump {class}")), "OK\r\nEN\r\n");
    }
}

#[test]
fn commands_that_list_keys_are_refused_in_all_forms_if_dumps_are_disabled() {
    let mut talk = Talk::new(Settings { dump: false, ..Settings::default() });
    for (line, reply) in [
        ("stats detail on", "CLIENT_ERROR stats detail not allowed\r\n"),
        ("stats detail off", "CLIENT_ERROR stats detail not allowed\r\n"),
        ("stats detail dump", "CLIENT_ERROR stats detail not allowed\r\n"),
        ("stats detail", "CLIENT_ERROR stats detail not allowed\r\n"),
        ("stats cachedump 1 1", "CLIENT_ERROR stats cachedump not allowed\r\n"),
        ("lru_crawler metadump all", "ERROR metadump not allowed\r\n"),
        ("lru_crawler mgdump hash", "ERROR key dump not allowed\r\n"),
    ] {
        assert_eq!(ask(&mut talk, line), reply, "{line}");
    }
}

#[test]
fn watch_is_refused_and_a_failing_store_after_it_is_answered() {
    let mut talk = Talk::new(Settings { item_bytes_max: 100, ..Settings::default() });
    for line in [
        "watch",
        "watch fetchers",
        "watch mutations",
        "watch rawcmds evictions connevents deletions sysevents",
        "watch proxyreqs proxyevents proxyuser",
        "watch nothing of this kind",
    ] {
        assert_eq!(ask(&mut talk, line), "CLIENT_ERROR watch commands not allowed\r\n", "{line}");
    }
    let heard = ask(&mut talk, &format!("set k 0 0 200\r\n{}\r\nmn", "v".repeat(200)));
    assert_eq!(heard, format!("{TOO_LARGE}MN\r\n"));
}

#[test]
fn empty_lines_and_huge_lengths_allocate_no_memory() {
    let mut talk = Talk::default();
    assert_eq!(ask(&mut talk, &"\n".repeat(999)), BAD_FORMAT.repeat(1000));
    for bytes in ["2147483646", "2147483647", "2147483648", "4294967295", "4294967296", "-1"] {
        for line in ["set k 0 0", "append k 0 0", "ms k"] {
            assert_eq!(ask(&mut talk, &format!("{line} {bytes}")), BAD_FORMAT, "{line} {bytes}");
        }
    }
    assert_eq!(ask(&mut talk, "mn"), "MN\r\n");
    for line in ["set k 0 0 2147483645", "cas k 0 0 2147483645 1", "ms k 2147483645"] {
        let mut talk = Talk::default();
        assert_eq!(ask(&mut talk, line), TOO_LARGE, "{line}");
        assert_eq!(talk.say("v".repeat(1 << 20)), b"");
        assert_eq!((talk.waiting(), talk.is_closed), (0, false));
    }
}

#[test]
fn a_request_of_the_binary_protocol_is_refused_before_its_lengths_are_read() {
    const GET_WITH_KEY: u8 = 0x0c;
    const SET: u8 = 0x01;
    const STATS: u8 = 0x10;
    for (opcode, body) in
        [(GET_WITH_KEY, 3), (SET, 1 << 30), (SET, 1 << 31), (SET, u32::MAX), (STATS, 11)]
    {
        let mut request = vec![0x80, opcode];
        request.resize(24, 0);
        request[8..12].copy_from_slice(&body.to_be_bytes());
        let mut talk = Talk::default();
        assert_eq!(talk.say(&request), b"ERROR this server speaks the text protocol only\r\n");
        assert!(talk.is_closed);
    }
}

#[test]
fn an_item_may_occur_more_than_65535_times_in_a_line() {
    const READS: usize = 70_000;
    let cache = Cache::new(&Config::of_bytes(8 << 20)).unwrap();
    let service = Service::new(Settings::default(), 1, 0, Box::new(()));
    let (mut connection, mut heard) = (Connection::default(), Vec::new());
    let dispatch = Dispatch::new(&service, 0, &cache);
    let reads = " a".repeat(READS);
    let said = format!("set a 0 0 1\r\nx\r\nget{reads}\r\nset a 0 0 1\r\ny\r\nget a\r\n");
    let mut rest = said.as_bytes();
    while !rest.is_empty() {
        let mut out = Vec::new();
        let fed = connection.feed(&dispatch, rest, &mut out);
        assert!(fed.consumed > 0);
        rest = &rest[fed.consumed..];
        heard.append(&mut out);
    }
    let items = "VALUE a 0 1\r\nx\r\n".repeat(READS);
    let wanted = format!("STORED\r\n{items}END\r\nSTORED\r\nVALUE a 0 1\r\ny\r\nEND\r\n");
    assert!(heard == wanted.as_bytes(), "{} bytes, not {}", heard.len(), wanted.len());
}

/// Every item is below memory.
#[derive(Debug)]
struct Below(File);

impl Fetch for Below {
    fn get(&mut self, _: u64, _: &[u8], _: &mut Vec<u8>, _: &mut Head<'_>) -> Known {
        Known::Later(10)
    }
    fn take(&mut self, _: &mut Landed<'_>) -> io::Result<()> {
        Ok(())
    }
    fn forget(&mut self, _: &dyn Fn(u64) -> bool) {}
    fn under_way(&self) -> usize {
        0
    }
    fn ready(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn an_item_removed_during_its_disk_read_is_a_miss_and_replies_stay_in_order() {
    let pending = PendingReads::new(Box::new(Below(File::open("/dev/null").unwrap())));
    let (store, service) =
        (MapStore::default(), Service::new(Settings::default(), 1, 0, Box::new(())));
    let (mut connection, mut out) = (Connection::default(), Vec::new());
    let dispatch = Dispatch::new(&service, 0, &store).with_pending_reads(&pending, 0);
    let said = b"get a\r\nmg b v k O1\r\nmg c v q\r\nmn\r\n";
    let fed = connection.feed(&dispatch, said, &mut out);
    assert_eq!((fed.stop, &said[fed.consumed..]), (Stop::Later, &b"mn\r\n"[..]));
    assert_eq!(out, b"");
    assert!(!connection.land(&dispatch, 1, None));
    assert!(!connection.land(&dispatch, 0, None));
    assert!(connection.land(&dispatch, 2, None));
    let fed = connection.feed(&dispatch, b"mn\r\n", &mut out);
    assert_eq!((fed.stop, fed.consumed), (Stop::Input, 4));
    assert_eq!(out.escape_ascii().to_string(), "END\\r\\nEN kb O1\\r\\nMN\\r\\n");
    assert!(connection.is_idle());
}
