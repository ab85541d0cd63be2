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
fn add_replace_append_and_prepend_depend_on_the_items_existence() {
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
fn incr_wraps_around_and_decr_stops_at_zero() {
    dialogue(
        "> incr a 1
         < NOT_FOUND
         > set a 3 0 2
         > 10
         < STORED
         > decr a 1
         < 9
         > get a
         < VALUE a 3 2
         < 9\u{20}
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
fn delete_and_touch_report_whether_the_item_existed() {
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
         > delete a b
         < CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]
         > delete a 1
         < CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]
         > delete a 0 noreply
         > delete a b noreply
         > delete
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn noreply_suppresses_replies() {
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
fn items_expire_at_their_time() {
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
fn get_and_touch_requires_a_time_and_a_key() {
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
fn a_flush_invalidates_earlier_items_and_keeps_later_ones() {
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
