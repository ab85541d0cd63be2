//! Arbitrary input, split arbitrarily: nothing breaks, and the replies are the same.

use proptest::prelude::*;

use super::super::testkit::fuzz;

/// Pieces that commands are made of, right and wrong.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "get ",
        "gets ",
        "gat 0 ",
        "set ",
        "add ",
        "cas ",
        "append ",
        "ms ",
        "mg ",
        "md ",
        "ma ",
        "me ",
        "incr ",
        "touch ",
        "delete ",
        "a",
        "b",
        "a b c",
        " 0 0 1\r\nx\r\n",
        " 0 0 3 noreply\r\nabc\r\n",
        " 5\r\nhello\r\n",
        " 0 0 5000\r\n",
        "\r\n",
        "\n",
        " ",
        " v k t c",
        " N30 s",
        " T0",
        " I",
        " x",
        " C1",
        " q",
        " O123",
        " b",
        "YWJj",
        "mn\r\n",
        "stats\r\n",
        "flush_all 5\r\n",
        "debugtime 3\r\n",
        "lru_crawler metadump all\r\n",
        "quit\r\n",
        " 1\r\n",
        " -1",
        " 99999999999999999999",
        "verbosity 1\r\n",
    ]);
    prop_oneof![
        20 => words.prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (1usize..3000).prop_map(|length| vec![b'k'; length]),
        1 => (1usize..1500).prop_map(|count| b"a ".repeat(count)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn commands_give_the_same_replies_however_they_are_split(
        parts in prop::array::uniform8(any::<u8>()),
        pieces in prop::collection::vec(piece(), 0..40),
    ) {
        fuzz(&[&parts[..], &pieces.concat()].concat());
    }

    #[test]
    fn any_bytes_give_the_same_replies_however_they_are_split(data in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz(&data);
    }
}
