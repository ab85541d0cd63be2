//! Administrative commands: those that tune, list and count.

use super::super::testkit::{ORIGIN, Talk};
use super::super::{COUNTED, Settings};
use super::{ask, dialogue, with};

#[test]
fn an_unknown_command_is_an_error_and_the_next_line_is_read() {
    let mut talk = dialogue(
        "> bogus command
         < ERROR
         > GET a
         < ERROR
         >  get a
         < ERROR
         >
         < CLIENT_ERROR bad command line format
         > version
         < VERSION 1.6.45-nearfar-0.1.0
         > verbosity
         < CLIENT_ERROR bad command line format
         > verbosity 1
         < OK
         > watch fetchers
         < CLIENT_ERROR watch commands not allowed
         > shutdown
         < SERVER_ERROR: shutdown not enabled
         > debugtime 1
         < ERROR
         > mn
         < MN",
    );
    // Lines may end with a line feed alone, but then they need three letters, as in memcached.
    assert_eq!(
        ask(&mut talk, "mn\nget a\nversion\nquit\nget a"),
        "CLIENT_ERROR bad command line format\r\nEND\r\n".to_owned()
            + "VERSION 1.6.45-nearfar-0.1.0\r\n"
    );
    assert!(talk.is_closed);
    let mut talk = Talk::default();
    assert_eq!(ask(&mut talk, "GET / HTTP/1.1"), "");
    assert!(talk.is_closed, "who speaks HTTP is not answered");
}

#[test]
fn commands_that_tune_memcacheds_internals_are_parsed_and_refused() {
    dialogue(
        "> slabs reassign 1 2
         < CLIENT_ERROR slab reassignment disabled
         > slabs automove invalid
         < CLIENT_ERROR bad command line format
         > slabs automove 0
         < OK
         > slabs automove 1
         < CLIENT_ERROR there is no slab automover to tune
         > slabs automove ratio 0.9
         < CLIENT_ERROR there is no slab automover to tune
         > slabs automove window 1
         < CLIENT_ERROR automove window too low or too high
         > lru mode flat
         < ERROR there is no segmented LRU to tune
         > lru mode other
         < ERROR
         > lru tune 10 25 0.1 2.0
         < ERROR there is no segmented LRU to tune
         > lru tune 50 50 0.1 2.0
         < ERROR hot and warm pcts must not exceed 80
         > lru tune 10 25 0.1
         < ERROR
         > lru_crawler enable
         < OK
         > lru_crawler sleep 2000000
         < CLIENT_ERROR sleep must be one second or less
         > lru_crawler tocrawl x
         < CLIENT_ERROR bad command line format
         > lru_crawler crawl all
         < NOTSTARTED expired items are freed without a crawler
         > cache_memlimit 4
         < MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m
         > cache_memlimit 128
         < OK
         > cache_memlimit 4000000000
         < MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes
         > cache_memlimit x
         < ERROR",
    );
}

#[test]
fn the_test_clock_stops_runs_and_is_set() {
    let mut talk = Talk::new(Settings { debug_time: true, ..Settings::default() });
    with(
        &mut talk,
        "> set a 0 10 1\n> a\n< STORED\n> debugtime 9\n< OK\n> get a\n< VALUE a 0 1\n< a\n< END\n> debugtime p\n< OK",
    );
    talk.service.tick(&talk.store, 3);
    with(
        &mut talk,
        "> get a\n< VALUE a 0 1\n< a\n< END\n> debugtime r\n< OK\n> debugtime -9223372036854775808\n< OK\n> debugtime x\n< ERROR",
    );
    talk.service.tick(&talk.store, 3);
    assert_eq!(
        nearfar_cache::store::Store::now(&talk.store),
        1,
        "no clock goes back before its first second"
    );
}

#[test]
fn all_items_are_listed_with_their_keys_encoded() {
    let mut talk = dialogue(
        "> set a%b 3 100 5
         > hello
         < STORED
         > ms AAE= 1 b
         > x
         < HD
         > lru_crawler mgdump all
         < OK
         < mg AAE= b
         < mg a%b
         < EN",
    );
    assert_eq!(
        ask(&mut talk, "lru_crawler metadump hash"),
        format!(
            "OK\r\nkey=%00%01 exp=-1 la={0} cas=2 fetch=no cls=1 size=3 flags=0\n\
             key=a%25b exp={1} la={0} cas=1 fetch=no cls=1 size=8 flags=3\nEND\r\n",
            ORIGIN + 1,
            ORIGIN + 101
        )
    );
    assert_eq!(ask(&mut talk, "stats cachedump 1 1"), "ITEM \0\x01 [1 b; 0 s]\r\nEND\r\n");
    with(&mut talk, "> lru_crawler metadump x\n< BADCLASS invalid class id");
    let mut talk = Talk::new(Settings { dump: false, ..Settings::default() });
    with(
        &mut talk,
        "> lru_crawler metadump all\n< ERROR metadump not allowed\n> stats detail on\n< CLIENT_ERROR stats detail not allowed",
    );
    let mut talk = Talk::new(Settings { dump_bytes_max: 1, ..Settings::default() });
    with(
        &mut talk,
        "> set a 0 0 1\n> a\n< STORED\n> set b 0 0 1\n> b\n< STORED\n> lru_crawler mgdump all\n< OK\n< mg a\n< ERROR the list was cut off, as it is too long",
    );
}

#[test]
fn stats_count_commands_and_restart_after_a_reset() {
    let mut talk = dialogue(
        "> set a 0 0 1
         > 1
         < STORED
         > get a b
         < VALUE a 0 1
         < 1
         < END
         > incr a 1
         < 2
         > decr b 1
         < NOT_FOUND
         > delete b
         < NOT_FOUND
         > cas b 0 0 1 1
         > x
         < NOT_FOUND
         > mg a v
         < VA 1
         < 2",
    );
    let stats = ask(&mut talk, "stats");
    for line in [
        "cmd_get 3",
        "cmd_set 2",
        "get_hits 2",
        "get_misses 1",
        "incr_hits 1",
        "decr_misses 1",
        "delete_misses 1",
        "cas_misses 1",
        "cmd_meta 1",
        "curr_items 1",
        "total_items 2",
        "limit_maxbytes 67108864",
        "version 1.6.45-nearfar-0.1.0",
        "tier_0_items 1",
    ] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} in {stats}");
    }
    assert!(stats.ends_with("END\r\n"));
    assert_eq!(ask(&mut talk, "stats reset"), "RESET\r\n");
    let stats = ask(&mut talk, "stats");
    for line in ["cmd_get 0", "get_hits 0", "total_items 0", "curr_items 1"] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} in {stats}");
    }
    assert!(ask(&mut talk, "stats settings").contains("STAT item_size_max 1048576\r\n"));
    with(
        &mut talk,
        "> stats sizes
         < STAT sizes_status disabled
         < END
         > stats items
         < END
         > stats conns
         < END
         > stats nonsense
         < ERROR",
    );
}

#[test]
fn detail_counts_by_prefix_while_it_is_on() {
    dialogue(
        "> stats detail dump
         < END
         > stats detail on
         < OK
         > set foo:1 0 0 1
         > x
         < STORED
         > get foo:1 foo:2 plain
         < VALUE foo:1 0 1
         < x
         < END
         > delete foo:3
         < NOT_FOUND
         > stats detail dump
         < PREFIX foo get 2 hit 1 set 1 del 1
         < END
         > stats detail off
         < OK
         > get foo:1
         < VALUE foo:1 0 1
         < x
         < END
         > stats detail dump
         < PREFIX foo get 2 hit 1 set 1 del 1
         < END
         > stats detail
         < CLIENT_ERROR usage: stats detail on|off|dump
         > stats reset
         < RESET
         > stats detail dump
         < END",
    );
}

#[test]
fn commands_without_noreply_answer_despite_it() {
    let mut talk = dialogue(
        "> version noreply
         < VERSION 1.6.45-nearfar-0.1.0
         > stats noreply
         < ERROR
         > shutdown noreply
         < SERVER_ERROR: shutdown not enabled
         > slabs reassign 1 2 noreply
         < CLIENT_ERROR slab reassignment disabled
         > lru_crawler enable noreply
         < ERROR
         > nothing like this noreply
         < ERROR
         > slabs automove 1 noreply
         > lru mode flat noreply
         > watch fetchers noreply
         > cache_memlimit 1 noreply
         > verbosity 1 noreply
         > flush_all noreply
         > mn
         < MN",
    );
    assert_eq!(ask(&mut talk, "quit noreply"), "");
    assert!(talk.is_closed);
}

#[test]
fn a_client_of_the_binary_protocol_gets_an_error_and_is_closed() {
    // A request for the version without a byte that ends a line; one with such a byte; and only the first byte.
    let mut with_line_feed = [0; 24];
    (with_line_feed[0], with_line_feed[5]) = (0x80, b'\n');
    for request in [&[&[0x80, 0x0b][..], &[0; 22]].concat()[..], &with_line_feed, &[0x80]] {
        let mut talk = dialogue("> set a 0 0 1\n> x\n< STORED");
        assert_eq!(talk.say(request), b"ERROR this server speaks the text protocol only\r\n");
        assert!(talk.is_closed);
        let counted = COUNTED.iter().zip(talk.service.counted());
        assert!(counted.into_iter().any(|((name, _), n)| *name == "binary_refused" && n == 1));
    }
}
