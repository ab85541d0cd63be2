//! Classic text commands.

use super::super::Settings;
use super::super::testkit::{ORIGIN, Talk};
use super::{ask, dialogue, with};

#[test]
fn a_value_is_read_as_it_was_stored() {
    dialogue(
        "> set a 4294967295 0 5
         > hello
         < STORED
         > get a
         < VALUE a 4294967295 5
         < hello
         < END
         > gets a b a
         < VALUE a 4294967295 5 1
         < hello
         < VALUE a 4294967295 5 1
         < hello
         < END
         > set e 0 0 0
         >
         < STORED
         > get  e  nothing
         < VALUE e 0 0
         <
         < END",
    );
}

#[test]
fn storing_hangs_on_whether_there_is_an_item() {
    dialogue(
        "> replace a 0 0 1
         > 1
         < NOT_STORED
         > append a 0 0 1
         > 1
         < NOT_STORED
         > add a 7 0 2
         > 22
         < STORED
         > add a 0 0 1
         > 3
         < NOT_STORED
         > append a 9 9 2
         > 33
         < STORED
         > prepend a 9 9 1
         > 1
         < STORED
         > get a
         < VALUE a 7 5
         < 12233
         < END
         > replace a 0 0 1
         > 9
         < STORED
         > get a
         < VALUE a 0 1
         < 9
         < END",
    );
}

#[test]
fn a_cas_stores_only_over_the_item_it_was_read_from() {
    dialogue(
        "> cas a 0 0 1 1
         > x
         < NOT_FOUND
         > set a 0 0 1
         > x
         < STORED
         > gets a
         < VALUE a 0 1 2
         < x
         < END
         > cas a 0 0 1 99
         > y
         < EXISTS
         > cas a 0 0 1 0
         > y
         < EXISTS
         > cas a 0 0 1 2
         > y
         < STORED
         > cas a 0 0 1 2
         > z
         < EXISTS
         > cas a 0 0 1 2a
         > z
         < CLIENT_ERROR bad command line format
         > cas a 0 0 1
         > z
         < CLIENT_ERROR bad command line format
         > get a
         < VALUE a 0 1
         < y
         < END",
    );
}

#[test]
fn numbers_go_up_and_around_and_down_to_zero() {
    dialogue(
        "> incr a 1
         < NOT_FOUND
         > set a 3 0 2
         > 10
         < STORED
         > decr a 1
         < 9
         > get a
         < VALUE a 3 1
         < 9
         < END
         > decr a 100
         < 0
         > incr a 18446744073709551615
         < 18446744073709551615
         > incr a 2
         < 1
         > incr a -1
         < CLIENT_ERROR invalid numeric delta argument
         > incr a 18446744073709551616
         < CLIENT_ERROR invalid numeric delta argument
         > incr a
         < CLIENT_ERROR bad command line format
         > set b 0 0 2
         > 1x
         < STORED
         > incr b 1
         < CLIENT_ERROR cannot increment or decrement non-numeric value
         > set c 0 0 3
         > 7 \u{20}
         < STORED
         > decr c 1
         < 6",
    );
}

#[test]
fn deleting_and_touching_tell_whether_there_was_an_item() {
    dialogue(
        "> delete a
         < NOT_FOUND
         > touch a 10
         < NOT_FOUND
         > set a 0 0 1
         > x
         < STORED
         > touch a 10
         < TOUCHED
         > touch a ten
         < CLIENT_ERROR invalid exptime argument
         > touch a
         < CLIENT_ERROR bad command line format
         > delete a
         < DELETED
         > delete a 0
         < NOT_FOUND
         > delete
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn nothing_is_answered_to_who_wants_no_reply() {
    dialogue(
        "> set a 0 0 1 noreply
         > 1
         > add a 0 0 1 noreply
         > 1
         > append a 0 0 1 noreply
         > 2
         > incr a 1 noreply
         > touch a 0 noreply
         > delete b noreply
         > flush_all 100 noreply
         > verbosity 1 noreply
         > cas a 0 0 1 9999 noreply
         > 7
         > set toolong 0 0 2000000 noreply2
         < SERVER_ERROR object too large for cache",
    );
    dialogue(
        "> set a 0 0 1 noreply
         > 1
         > incr a 1 noreply
         > get a
         < VALUE a 0 1
         < 2
         < END
         > delete a noreply
         > flush_all noreply
         > get a
         < END",
    );
}

#[test]
fn items_expire_when_their_time_has_come() {
    let mut talk = dialogue(
        "> set short 0 10 1
         > s
         < STORED
         > set never 0 0 1
         > n
         < STORED
         > set past 0 -1 1
         > p
         < STORED
         > set hugely 0 -2147483648 1
         > p
         < STORED
         > get short never past hugely
         < VALUE short 0 1
         < s
         < VALUE never 0 1
         < n
         < END
         > set huge 0 99999999999 1
         > x
         < CLIENT_ERROR bad command line format",
    );
    let (soon, past) = (ORIGIN + 21, ORIGIN - 1);
    with(
        &mut talk,
        &format!(
            "> set unix 0 {soon} 1\n> u\n< STORED\n> set old 0 {past} 1\n> o\n< STORED\n> get unix old\n< VALUE unix 0 1\n< u\n< END"
        ),
    );
    talk.service.tick(&talk.store, 11);
    assert_eq!(ask(&mut talk, "get short"), "END\r\n");
    talk.service.tick(&talk.store, 20);
    assert_eq!(ask(&mut talk, "gat 30 unix"), "VALUE unix 0 1\r\nu\r\nEND\r\n");
    talk.service.tick(&talk.store, 49);
    assert_eq!(ask(&mut talk, "gats 0 unix"), "VALUE unix 0 1 5\r\nu\r\nEND\r\n");
    talk.service.tick(&talk.store, u32::MAX);
    assert_eq!(ask(&mut talk, "get unix"), "VALUE unix 0 1\r\nu\r\nEND\r\n");
}

#[test]
fn get_and_touch_wants_a_time_and_a_key() {
    dialogue(
        "> gat 10
         < CLIENT_ERROR bad command line format
         > gat soon a
         < CLIENT_ERROR invalid exptime argument
         > gats 10 a b
         < END
         > get
         < CLIENT_ERROR bad command line format
         > get \u{20}
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn a_flush_takes_what_was_stored_before_and_leaves_what_comes_later() {
    let mut talk = dialogue(
        "> set a 0 0 1
         > a
         < STORED
         > flush_all
         < OK
         > get a
         < END
         > set b 0 0 1
         > b
         < STORED
         > flush_all 5
         < OK
         > flush_all soon
         < CLIENT_ERROR invalid exptime argument
         > get b
         < VALUE b 0 1
         < b
         < END",
    );
    talk.service.tick(&talk.store, 6);
    with(
        &mut talk,
        "> get b\n< END\n> set c 0 0 1\n> c\n< STORED\n> get c\n< VALUE c 0 1\n< c\n< END",
    );
    let mut talk = Talk::new(Settings { flush: false, ..Settings::default() });
    with(&mut talk, "> flush_all\n< CLIENT_ERROR flush_all not allowed");
}

#[test]
fn what_is_no_command_is_an_error_and_the_next_line_is_read() {
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
fn what_tunes_memcacheds_own_parts_is_read_and_not_pretended() {
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
fn the_test_clock_stands_goes_and_is_moved() {
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
        crate::store::Store::now(&talk.store),
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
fn stats_count_what_was_asked_and_begin_again_when_reset() {
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
