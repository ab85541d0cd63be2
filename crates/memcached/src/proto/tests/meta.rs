//! Meta commands.

use super::super::testkit::Talk;
use super::{ask, dialogue, with};

#[test]
fn a_meta_get_returns_the_requested_flags_in_their_order() {
    let mut talk = dialogue(
        "> ms a 2 T100 F7
         > hi
         < HD
         > mg a
         < HD
         > mg a s v t f c k Oxyz
         < VA 2 s2 t100 f7 c1 ka Oxyz
         < hi
         > mg a k Lhint Ppath s
         < HD ka s2
         > mg none v k O1
         < EN ka2"
            .replace("< EN ka2", "< EN knone O1")
            .as_str(),
    );
    talk.service.tick(&talk.store, 31);
    with(
        &mut talk,
        "> mg a t l h\n< HD t70 l30 h1\n> mg a l h u\n< HD l0 h1\n> ms n 0\n>\n< HD\n> mg n t u h\n< HD t-1 h0\n> mg n h\n< HD h0\n> mg n h\n< HD h1",
    );
}

#[test]
fn a_value_is_not_sent_again_if_the_client_has_its_cas() {
    dialogue(
        "> ms a 2 c
         > hi
         < HD c1
         > mg a v c C1
         < HD c1
         > mg a v c C2
         < VA 2 c1
         < hi",
    );
}

#[test]
fn a_meta_set_returns_its_flags_and_obeys_its_mode() {
    dialogue(
        "> ms a 2 k c s O9 b
         > hi
         < CLIENT_ERROR error decoding key
         > ms a 2 k c s O9
         > hi
         < HD ka c1 s2 O9
         > ms a 1 ME k
         > x
         < NS ka
         > ms a 1 MA s
         > !
         < HD s3
         > ms a 1 MP s
         > >
         < HD s4
         > mg a v
         < VA 4
         < >hi!
         > ms b 1 MR
         > x
         < NS
         > ms b 1 MA
         > x
         < NS
         > ms b 1 MA N30
         > x
         < HD
         > mg b v t
         < VA 1 t30
         < x
         > ms b 1 MR
         > y
         < HD
         > ms b 1 MZ
         > y
         < CLIENT_ERROR invalid mode for ms M token
         > ms b 1 MS q
         > z
         > mg b v
         < VA 1
         < z
         > ms b 1 E999 c
         > z
         < HD c999
         > ms b 1 c C998
         > z
         < EX c0
         > ms none 1 C1
         > z
         < NF
         > ms b 1 c C999 E1000
         > z
         < HD c1000
         > ms b 1 MA C999
         > z
         < EX
         > ms b 1 q
         > zzz
         < CLIENT_ERROR bad data chunk
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn keys_in_base64_are_the_bytes_they_stand_for() {
    dialogue(
        "> ms Zm9v 3 b k
         > bar
         < HD kZm9v b
         > get foo
         < VALUE foo 0 3
         < bar
         < END
         > mg Zm9v b v k
         < VA 3 kZm9v b
         < bar
         > ma Zm9v b
         < CLIENT_ERROR cannot increment or decrement non-numeric value
         > me Zm9v b
         < ME Zm9v exp=-1 la=0 cas=1 fetch=yes cls=1 size=6
         > md Zm9v b k
         < HD kZm9v b
         > mg Zm9v b k
         < EN kZm9v b
         > me foo
         < EN
         > mg ==== b
         < CLIENT_ERROR error decoding key",
    );
}

#[test]
fn one_client_wins_the_recache_of_a_missing_item() {
    dialogue(
        "> mg a v N30 t c
         < VA 0 t30 c1 W
         <
         > mg a v N30 t
         < VA 0 t30 Z
         <
         > mg a v
         < VA 0 Z
         <
         > ms a 2 C1 T300
         > hi
         < HD
         > mg a v t N30
         < VA 2 t300
         < hi
         > mg b N30 E77 c q
         < HD c77 W
         > mg b c E5
         < HD c77 Z",
    );
}

#[test]
fn one_client_wins_the_recache_of_an_item_that_expires_soon() {
    dialogue(
        "> ms a 2 T100
         > hi
         < HD
         > mg a v t R30
         < VA 2 t100
         < hi
         > mg a t h R130
         < HD t100 h1 W
         > mg a v t R130
         < VA 2 t100 Z
         < hi
         > ms a 2
         > ho
         < HD
         > mg a t R130
         < HD t-1
         > mg a t T50 R60 t
         < CLIENT_ERROR duplicate flag
         > mg a T50 R60 t
         < HD t50 W",
    );
}

#[test]
fn a_time_to_live_is_returned_before_or_after_the_change_by_flag_order() {
    dialogue(
        "> ms a 1 T100
         > x
         < HD
         > mg a t T50
         < HD t100
         > mg a T70 t v
         < VA 1 t70
         < x
         > mg a t
         < HD t70
         > mg none T10
         < EN
         > mg a T-1
         < HD
         > mg a
         < EN",
    );
}

#[test]
fn a_stale_item_is_served_while_one_client_recaches_it() {
    dialogue(
        "> ms a 3
         > moo
         < HD
         > md a I T30
         < HD
         > mg a t c v
         < VA 3 t30 c2 X W
         < moo
         > mg a v
         < VA 3 Z X
         < moo
         > get a
         < VALUE a 0 3
         < moo
         < END
         > ms a 1 C0
         > f
         < EX
         > ms a 1 C1 T90
         > f
         < EX
         > ms a 1 I C1 T90
         > f
         < HD
         > mg a t v c
         < VA 1 t30 c5 Z X
         < f
         > ms a 1 I C9 T90
         > f
         < EX
         > ms a 1 C5 T90
         > g
         < HD
         > mg a t v
         < VA 1 t90
         < g",
    );
}

#[test]
fn a_meta_delete_checks_cas_and_may_leave_an_empty_item() {
    dialogue(
        "> md a k O1
         < NF ka O1
         > ms a 2 F5 T50
         > hi
         < HD
         > md a C9
         < EX
         > md a x
         < HD
         > mg a v f t c
         < VA 0 f0 t-1 c1
         <
         > ms a 2
         > hi
         < HD
         > md a x I E9
         < HD
         > mg a v c
         < VA 0 c9 X W
         <
         > md a C9 q
         > md a q
         < NF",
    );
}

#[test]
fn meta_arithmetic_steps_seeds_and_returns_values() {
    dialogue(
        "> ma a k O1
         < NF ka O1
         > ma a N60 J13 v t
         < VA 2 t60
         < 13
         > ma a N60 J13 v
         < VA 2
         < 14
         > ma a D6 v
         < VA 2
         < 20
         > ma a MD D8 v
         < VA 2
         < 12
         > ma a M- D99 v
         < VA 1
         < 0
         > ma a M+ q
         > ma a t T20 k c E50
         < HD t60 ka c50
         > ma a t C49
         < EX
         > ma a C50 t v
         < VA 1 t20
         < 3
         > ma a MX
         < CLIENT_ERROR invalid mode for ma M token
         > ma a Dx
         < CLIENT_ERROR invalid or duplicate flag
         > ma none q
         < NF
         > ma
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn quiet_commands_suppress_the_usual_replies() {
    dialogue(
        "> ms a 2 q
         > hi
         > mg a v q
         < VA 2
         < hi
         > mg none v q
         > md a q
         > ms
         < CLIENT_ERROR bad command line format
         > ma a q N0
         > mn
         < MN",
    );
}

#[test]
fn invalid_flags_are_errors_and_the_following_value_is_skipped() {
    dialogue(
        "> mg a m
         < CLIENT_ERROR invalid flag
         > mg a s s
         < CLIENT_ERROR duplicate flag
         > mg a Tx
         < CLIENT_ERROR bad token in command line format
         > mg a T
         < CLIENT_ERROR bad token in command line format
         > mg a C-1
         < CLIENT_ERROR bad token in command line format
         > mg a O12345678901234567890123456789012
         < CLIENT_ERROR opaque token too long
         > mg YWJj b c f h k l q s t u v x I E1 F1 J1 D1 N1 R1
         < CLIENT_ERROR options flags are too long
         > ms a 7 F4294967296
         > version
         < CLIENT_ERROR bad command line format
         > ms a 7 m
         > version
         < CLIENT_ERROR invalid flag
         > ms a x
         < CLIENT_ERROR bad command line format
         > ms a -1
         < CLIENT_ERROR bad command line format
         > ms a 2147483647
         < CLIENT_ERROR bad command line format
         > mg
         < CLIENT_ERROR bad command line format
         > me
         < CLIENT_ERROR bad command line format",
    );
    let mut talk = Talk::default();
    assert_eq!(
        ask(&mut talk, &format!("mg {} v", "k".repeat(251))),
        "CLIENT_ERROR bad command line format\r\n"
    );
    assert_eq!(ask(&mut talk, "mg a \u{ff}"), "CLIENT_ERROR duplicate flag\r\n");
}

#[test]
fn meta_debug_returns_the_items_metadata() {
    let mut talk = dialogue("> set a 0 100 5\n> hello\n< STORED");
    talk.service.tick(&talk.store, 11);
    with(
        &mut talk,
        "> me a\n< ME a exp=90 la=10 cas=1 fetch=no cls=1 size=6\n> get a\n< VALUE a 0 5\n< hello\n< END\n> me a\n< ME a exp=90 la=0 cas=1 fetch=yes cls=1 size=6\n> me b\n< EN",
    );
}
