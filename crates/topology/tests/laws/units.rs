//! Units print within the rounding that they document; mixes are fractions.

use nearfar_topology::{Bytes, BytesPerSecond, MemoryKind, Mix, Nanoseconds, NodeId};
use proptest::prelude::*;

/// The bytes that a printed size stands for, times ten.
fn tenths(text: &str) -> u128 {
    let (number, unit) = text.split_once(' ').unwrap();
    let power = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].iter().position(|name| *name == unit);
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let number: u128 = whole.parse::<u128>().unwrap() * 10 + tenth.parse::<u128>().unwrap();
    number << (10 * power.unwrap())
}

/// Values of every magnitude.
fn magnitudes() -> impl Strategy<Value = u64> {
    (0u32..64, any::<u64>()).prop_map(|(shift, value)| value >> shift)
}

proptest! {
    #[test]
    fn a_printed_size_is_rounded_down_by_less_than_a_tenth_of_its_unit(bytes in magnitudes()) {
        let text = Bytes(bytes).to_string();
        let (shown, exact) = (tenths(&text), u128::from(bytes) * 10);
        let unit = tenths(&format!("1 {}", text.split_once(' ').unwrap().1)) / 10;
        prop_assert!(shown <= exact && exact - shown < unit, "{text}");
    }

    #[test]
    fn a_printed_size_has_at_most_four_digits_before_the_point_below_the_largest_unit(bytes in 0u64..1 << 60) {
        let text = Bytes(bytes).to_string();
        let whole = text.split(['.', ' ']).next().unwrap();
        prop_assert!(whole.parse::<u32>().unwrap() < 1024, "{text}");
    }

    #[test]
    fn a_printed_size_never_shows_a_decimal_of_zero(bytes in magnitudes()) {
        prop_assert!(!Bytes(bytes).to_string().contains(".0 "));
    }

    #[test]
    fn sizes_in_order_print_in_order(a in magnitudes(), b in magnitudes()) {
        let shown = |bytes: u64| tenths(&Bytes(bytes).to_string());
        prop_assert!(shown(a.min(b)) <= shown(a.max(b)));
    }

    #[test]
    fn a_size_is_read_in_any_case_with_or_without_a_space(number in 0u64..1 << 20, unit in 0usize..5) {
        let names = ["B", "k", "MB", "GiB", "tib"];
        let read = |text: String| text.parse::<Bytes>();
        let bytes = Ok(Bytes(number << (10 * unit)));
        prop_assert_eq!(read(format!("{number}{}", names[unit])), bytes);
        prop_assert_eq!(read(format!("{number} {}", names[unit].to_lowercase())), bytes);
    }

    #[test]
    fn parsing_a_size_never_panics(text in "[0-9]{0,22} ?[a-zA-Z0-9é-]{0,4}") {
        if let Ok(Bytes(bytes)) = text.parse::<Bytes>() {
            let digits = text.trim_start_matches(|one: char| one.is_ascii_digit());
            let number: u64 = text[..text.len() - digits.len()].parse().unwrap();
            prop_assert!(bytes >= number);
        }
    }

    #[test]
    fn a_printed_bandwidth_is_rounded_to_the_nearest_tenth(rate in magnitudes()) {
        let text = BytesPerSecond(rate).to_string();
        let number = text.strip_suffix(" GB/s").unwrap();
        let tenths: u128 = number.replace('.', "").parse().unwrap();
        prop_assert!(u128::from(rate).abs_diff(tenths * 100_000_000) <= 50_000_000, "{text}");
    }

    #[test]
    fn a_latency_prints_exactly(ns in any::<u64>()) {
        prop_assert_eq!(Nanoseconds(ns).to_string(), format!("{ns} ns"));
    }

    #[test]
    fn a_mix_is_reduced_to_lowest_terms(r in 0u16..=100, w in 0u16..=100, by in 1u16..=100) {
        let (Some(mix), Some(multiple)) = (Mix::new(r, w), Mix::new(r * by, w * by)) else { return Ok(()) };
        prop_assert_eq!(mix, multiple);
        prop_assert_eq!(u32::from(mix.reads()) * u32::from(w), u32::from(mix.writes()) * u32::from(r));
    }

    #[test]
    fn the_read_share_and_the_share_of_the_mirrored_mix_make_the_whole(r in 0u16..=100, w in 0u16..=100) {
        let (Some(mix), Some(mirrored)) = (Mix::new(r, w), Mix::new(w, r)) else { return Ok(()) };
        let sum = mix.read_share().0 + mirrored.read_share().0;
        prop_assert!((9_999..=10_000).contains(&sum), "rounded down, by one at most: {sum}");
    }

    #[test]
    fn one_more_read_never_lowers_the_read_share(r in 0u16..100, w in 1u16..=100) {
        prop_assert!(Mix::new(r, w).unwrap().read_share() <= Mix::new(r + 1, w).unwrap().read_share());
    }

    #[test]
    fn a_mix_with_a_part_out_of_range_is_refused(over in 101u16.., other in any::<u16>()) {
        prop_assert_eq!(Mix::new(over, other), None);
        prop_assert_eq!(Mix::new(other, over), None);
        let text = format!("{over}:1");
        prop_assert!(text.parse::<Mix>().is_err());
    }

    #[test]
    fn a_text_is_a_mix_only_if_it_is_two_numbers_with_a_colon(text in "[0-9:+ x-]{0,8}") {
        let parts: Vec<&str> = text.split(':').collect();
        let digits = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let is_pair = parts.len() == 2 && parts.iter().all(digits);
        prop_assert!(is_pair || text.parse::<Mix>().is_err());
    }
}

#[test]
fn every_kind_parses_from_its_word_and_no_other_case() {
    for kind in MemoryKind::ALL {
        assert_eq!(kind.word().parse(), Ok(kind));
        assert_eq!(kind.to_string(), kind.word());
        let error = kind.word().to_uppercase().parse::<MemoryKind>().unwrap_err().to_string();
        assert!(MemoryKind::ALL.iter().all(|kind| error.contains(kind.word())), "{error}");
    }
}

#[test]
fn the_largest_node_is_the_last_that_a_list_may_contain() {
    use nearfar_topology::NodeSet;
    let last = NodeId::MAX;
    assert!(NodeSet::parse_list(&last.to_string()).is_some());
    assert_eq!(NodeSet::parse_list(&(u32::from(last.0) + 1).to_string()), None);
}
