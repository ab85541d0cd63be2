//! Requests and replies: whole, in parts, large, and late.

use std::io::Read as _;
use std::net::Shutdown;
use std::sync::Arc;

use proptest::prelude::*;

use super::{AT_REST, config, dial, item, serve, soon, value, waits};
use crate::proto::testkit::MapStore;
use crate::server::Server;

/// Requests, each with its reply.
const DIALOGUE: &[(&str, &str)] = &[
    ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
    ("add a 5 0 3\r\nxyz\r\n", "NOT_STORED\r\n"),
    ("replace a 6 0 1\r\nb\r\n", "STORED\r\n"),
    ("append a 0 0 1\r\nc\r\n", "STORED\r\n"),
    ("prepend a 0 0 1\r\na\r\n", "STORED\r\n"),
    ("get a none a\r\n", "VALUE a 6 3\r\nabc\r\nVALUE a 6 3\r\nabc\r\nEND\r\n"),
    ("ms a 1 E500\r\nx\r\n", "HD\r\n"),
    ("gets a\r\n", "VALUE a 0 1 500\r\nx\r\nEND\r\n"),
    ("cas a 0 0 1 499\r\ny\r\n", "EXISTS\r\n"),
    ("cas a 0 0 1 500\r\ny\r\n", "STORED\r\n"),
    ("cas none 0 0 1 500\r\ny\r\n", "NOT_FOUND\r\n"),
    ("set n 0 0 1 noreply\r\n7\r\nincr n 5\r\n", "12\r\n"),
    ("decr n 20\r\n", "0\r\n"),
    ("incr none 1\r\n", "NOT_FOUND\r\n"),
    ("touch a 100\r\n", "TOUCHED\r\n"),
    // Together, in the same second.
    ("gat 100 a\r\nmg a v t\r\n", "VALUE a 0 1\r\ny\r\nEND\r\nVA 1 t100\r\ny\r\n"),
    ("mg none v\r\n", "EN\r\n"),
    ("mg none v q\r\nmn\r\n", "MN\r\n"),
    ("ma n D3 v\r\n", "VA 1\r\n3\r\n"),
    ("md n\r\n", "HD\r\n"),
    ("md n q\r\nmn\r\n", "NF\r\nMN\r\n"),
    ("set n 0 0 1 noreply\r\n7\r\nmd n q\r\nmn\r\n", "MN\r\n"),
    ("me none\r\n", "EN\r\n"),
    ("delete a\r\n", "DELETED\r\n"),
    ("delete a\r\n", "NOT_FOUND\r\n"),
    ("verbosity 1\r\n", "OK\r\n"),
    ("flush_all\r\n", "OK\r\n"),
    ("watch fetchers\r\n", "CLIENT_ERROR watch commands not allowed\r\n"),
    ("shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n"),
    ("slabs automove 0\r\n", "OK\r\n"),
    ("lru_crawler enable\r\n", "OK\r\n"),
    ("cache_memlimit 16\r\n", "OK\r\n"),
    ("set a 0 0 1\r\nabcdef\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    ("nothing like this\r\n", "ERROR\r\n"),
    ("stats reset\r\n", "RESET\r\n"),
];

#[test]
fn commands_of_every_class_are_answered() {
    let server = serve(config());
    let mut client = dial(&server);
    for (said, heard) in DIALOGUE {
        client.ask(said, heard);
    }
    assert!(client.ask_until("version\r\n", "\r\n").starts_with("VERSION 1.6."));
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for (what, has) in [
        ("", "STAT curr_connections 1\r\n"),
        ("", "STAT curr_items 1\r\n"),
        ("settings", "STAT maxconns 1024\r\n"),
        ("conns", "conn_listening"),
        ("conns", ":listen_addr tcp:127.0.0.1:"),
        ("slabs", "used_chunks 1\r\n"),
        ("items", "number 1\r\n"),
    ] {
        let stats = client.ask_until(&format!("stats {what}\r\n"), "END\r\n");
        assert!(stats.contains(has), "{has} in {stats}");
    }
    let dump = client.ask_until("lru_crawler metadump all\r\n", "END\r\n");
    assert!(dump.starts_with("OK\r\nkey=a exp=-1 "), "{dump}");
    client.ask("lru_crawler mgdump all\r\n", "OK\r\nmg a\r\nEN\r\n");
    client.say("quit\r\n");
    client.hears_end();
    soon("its place is free", || dial(&server).figure("curr_connections") == 1);
}

/// Monitors refuse all statistics if one line has other words.
#[test]
fn each_statistic_is_a_name_and_a_number() {
    const TEXTS: [&str; 2] = ["version", "libevent"];
    let server = serve(config());
    let mut client = dial(&server);
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for of in ["", "slabs", "items", "settings"] {
        let stats = client.ask_until(&format!("stats {of}\r\n"), "END\r\n");
        let lines: Vec<Vec<&str>> = stats.lines().map(|line| line.split(' ').collect()).collect();
        let (end, lines) = lines.split_last().unwrap();
        assert!(*end == ["END"] && lines.len() > 5, "stats {of}: {stats}");
        for line in lines {
            let [word, name, value] = line[..] else { panic!("stats {of}: {line:?}") };
            let is_text = of == "settings" || TEXTS.contains(&name);
            assert!(word == "STAT" && (is_text || value.parse::<f64>().is_ok()), "{of}: {line:?}");
        }
    }
}

#[test]
fn commands_are_counted_in_the_class_of_their_item() {
    const COUNTED: [&str; 8] = [
        "cmd_set",
        "get_hits",
        "touch_hits",
        "incr_hits",
        "decr_hits",
        "cas_hits",
        "cas_badval",
        "delete_hits",
    ];
    let server = serve(config());
    let mut client = dial(&server);
    let large = format!("set large 0 0 5000\r\n{}\r\n", "x".repeat(5000));
    for (said, heard) in [
        ("set n 0 0 1\r\n7\r\n", "STORED\r\n"),
        ("ms n 1 E500\r\n7\r\n", "HD\r\n"),
        (&large, "STORED\r\n"),
        ("get n none\r\n", "VALUE n 0 1\r\n7\r\nEND\r\n"),
        ("mg n\r\n", "HD\r\n"),
        ("touch n 0\r\n", "TOUCHED\r\n"),
        ("cas n 0 0 1 499\r\n7\r\n", "EXISTS\r\n"),
        ("cas n 0 0 1 500\r\n7\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "8\r\n"),
        ("ma n\r\n", "HD\r\n"),
        ("decr n 1\r\n", "8\r\n"),
        ("mg large\r\n", "HD\r\n"),
        ("delete large\r\n", "DELETED\r\n"),
    ] {
        client.ask(said, heard);
    }
    let classes = |text: &str| -> Vec<Vec<u64>> {
        let line = |class: &str, name: &str| format!("STAT {class}:{name} ");
        let numbers =
            text.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(":chunk_size "));
        let of = |class: &str, name: &&str| {
            let start = line(class, name);
            let value = text.lines().find_map(|line| line.strip_prefix(&start));
            value.unwrap_or_else(|| panic!("{start} in {text}")).parse().unwrap()
        };
        numbers.map(|(class, _)| COUNTED.iter().map(|name| of(class, name)).collect()).collect()
    };
    let found = classes(&client.ask_until("stats slabs\r\n", "END\r\n"));
    // The class of the large item is empty now, but keeps its slab.
    assert_eq!(found, [vec![4, 2, 1, 2, 1, 1, 1, 0], vec![1, 1, 0, 0, 0, 0, 0, 1]]);
    client.ask("stats reset\r\n", "RESET\r\n");
    let found = classes(&client.ask_until("stats slabs\r\n", "END\r\n"));
    assert_eq!(found.concat().iter().sum::<u64>(), 0);
    let items = client.ask_until("stats items\r\n", "END\r\n");
    assert!(items.contains(":outofmemory 0\r\n"), "{items}");
}

#[test]
fn numbers_parse_as_memcached_parses_them() {
    let server = serve(config());
    let mut client = dial(&server);
    for (value, sum) in [
        ("5", "6"),
        ("+5", "6"),
        (" 5", "6"),
        ("5 6", "6"),
        ("5\0", "6"),
        ("5\r\nx", "6"),
        ("18446744073709551615", "0"),
    ] {
        client.ask(format!("set n 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
        client.ask("incr n 1\r\n", format!("{sum}\r\n"));
        // A number that has become shorter is padded.
        let length = value.len();
        client.ask("get n\r\n", format!("VALUE n 0 {length}\r\n{sum:<length$}\r\nEND\r\n"));
    }
    for value in ["", "+", "-5", "5a", "a5", "++5", "18446744073709551616"] {
        client.ask(format!("set n 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
        let refusal = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        client.ask("incr n 1\r\n", refusal);
    }
    client.ask(
        "set n 0 0 3\r\n100\r\ndecr n +99\r\nget n\r\n",
        "STORED\r\n1\r\nVALUE n 0 3\r\n1  \r\nEND\r\n",
    );
    client.ask("incr n x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n");
}

#[test]
fn a_store_in_a_map_answers_the_same() {
    let server = Server::start(Arc::new(MapStore::default()), config()).unwrap();
    let mut client = dial(&server);
    for (said, heard) in DIALOGUE.iter().filter(|(said, _)| !said.starts_with("cache_memlimit")) {
        client.ask(said, heard);
    }
}

/// The complete output of a server to a client that sends exactly this, in these parts.
fn answers(server: &Server, said: &[u8], parts: &[usize]) -> Vec<u8> {
    let mut client = dial(server);
    let mut rest = said;
    for part in parts {
        let (now, later) = rest.split_at(rest.len().min(*part));
        client.say(now);
        rest = later;
        std::thread::yield_now();
    }
    client.say(rest);
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.stream.read_to_end(&mut all).unwrap();
    all
}

fn command() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::sample::select(vec!["a", "b", "c", "long-key-of-some-bytes"]);
    let small = prop::sample::select(vec![
        "get a b c a",
        "gets a long-key-of-some-bytes",
        "gat 100 b",
        "delete a",
        "incr c 5",
        "mg a v s f c k",
        "mg b v q",
        "md c",
        "ma c N0 v",
        "mn",
        "touch a 0",
        "",
        "no such thing",
        "get",
        "set a 0 0 -1",
    ]);
    let verb = prop::sample::select(vec!["set", "add", "append", "prepend", "replace"]);
    let sizes = prop_oneof![8 => 0..200usize, 1 => 1000..3000usize, 1 => 60_000..200_000usize];
    prop_oneof![
        3 => small.prop_map(|line| format!("{line}\r\n").into_bytes()),
        2 => (verb, key, sizes).prop_map(|(verb, key, bytes)| {
            let head = format!("{verb} {key} 1 0 {bytes}\r\n");
            [head.as_bytes(), &value(bytes, bytes), b"\r\n"].concat()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_sent_in_parts_are_answered_like_whole_ones(
        commands in prop::collection::vec(command(), 1..30),
        parts in prop::collection::vec(prop_oneof![1..12usize, 1000..30_000usize], 0..60),
    ) {
        let store = || Arc::new(MapStore::default());
        let (one, other) = (Server::start(store(), config()), Server::start(store(), config()));
        let said = commands.concat();
        let whole = answers(&one.unwrap(), &said, &[]);
        let parted = answers(&other.unwrap(), &said, &parts);
        prop_assert!(!whole.is_empty() || commands.iter().all(|one| one.starts_with(b"mg b")));
        prop_assert_eq!(whole.escape_ascii().to_string(), parted.escape_ascii().to_string());
    }
}

#[test]
fn a_large_value_is_stored_and_read_and_a_larger_one_is_refused() {
    let server = serve(config());
    let mut client = dial(&server);
    let large = value(1, 900_000);
    client.sets("large", &large);
    client.ask("get large\r\n", item("large", &large));
    // Twice at once, which is more than is written at once.
    client.say("get large\r\nget large\r\nmn\r\n");
    client.hears([item("large", &large), item("large", &large), b"MN\r\n".to_vec()].concat());
    let larger = value(2, 1_200_000);
    client.say("set larger 0 0 1200000\r\n");
    client.say(&larger);
    client.ask("\r\nmn\r\n", "SERVER_ERROR object too large for cache\r\nMN\r\n");
    client.ask("get larger\r\n", "END\r\n");
    client.ask("get large\r\n", item("large", &large));
}

#[test]
fn a_slow_reader_gets_the_replies_of_thousands_of_reads() {
    let server = serve(config());
    let (mut client, mut other) = (dial(&server), dial(&server));
    let values: Vec<Vec<u8>> = (0..10).map(|seed| value(seed, 9_000)).collect();
    for (number, value) in values.iter().enumerate() {
        client.sets(&format!("k{number}"), value);
    }
    let asked: String = (0..2000).map(|number| format!("get k{}\r\n", number % 10)).collect();
    client.say(asked);
    soon("its replies wait", || waits(&mut other));
    assert!(other.figure("read_buf_bytes") < 1 << 20, "as much is held as is answered at once");
    for number in 0..2000 {
        client.hears(item(&format!("k{}", number % 10), &values[number % 10]));
    }
    client.ask("mn\r\n", "MN\r\n");
    soon("what it held is given back", || other.figure("read_buf_bytes") <= AT_REST);
}

#[test]
fn a_busy_client_does_not_starve_others() {
    let server = serve(crate::server::Config { threads: 1, ..config() });
    let (mut busy, mut other) = (dial(&server), dial(&server));
    let (many, replies) = ("mn\r\n".repeat(20_000), "MN\r\n".repeat(20_000));
    let mut reader = super::Client { stream: busy.stream.try_clone().unwrap() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..20 {
                busy.say(&many);
            }
        });
        scope.spawn(move || {
            for _ in 0..20 {
                reader.hears(&replies);
            }
        });
        for _ in 0..100 {
            other.ask("mn\r\n", "MN\r\n");
        }
    });
    assert!(other.figure("conn_yields") > 0);
}
