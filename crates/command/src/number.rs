//! Parsers of whole numbers in options; their messages name the allowed range.

use std::ops::{Bound, RangeBounds};

/// A parser of whole numbers in `range`; all of them must fit into `T`.
pub fn whole<T: TryFrom<i64>>(
    range: impl RangeBounds<i64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
    move |text| {
        let found = text.parse().ok().filter(|number| bounds.contains(number));
        let found = found.and_then(|number: i64| T::try_from(number).ok());
        found.ok_or_else(|| format!("write a whole number, {}", allowed(bounds)))
    }
}

/// The same for shares in per cent: `5` and `5%` are the same.
pub fn percent<T: TryFrom<i64>>(
    range: impl RangeBounds<i64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let parse = whole(range);
    move |text| parse(text.strip_suffix('%').unwrap_or(text).trim_end())
}

fn allowed(bounds: (Bound<i64>, Bound<i64>)) -> String {
    match bounds {
        (Bound::Included(least), Bound::Included(most)) => format!("{least} to {most}"),
        (Bound::Included(least), _) => format!("at least {least}"),
        _ => String::from("in range"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_number_is_answered_with_the_range() {
        let parse = whole::<u32>(0..=50);
        assert_eq!(parse("50"), Ok(50));
        for text in ["51", "-1", "5%", "five", "", "0x10", "99999999999999999999"] {
            assert_eq!(parse(text).unwrap_err(), "write a whole number, 0 to 50", "{text}");
        }
        assert_eq!(whole::<u64>(1..)("0").unwrap_err(), "write a whole number, at least 1");
    }

    #[test]
    fn a_share_is_taken_with_and_without_a_per_cent_sign() {
        let parse = percent::<u32>(0..=50);
        assert_eq!((parse("5"), parse("5%"), parse("5 %")), (Ok(5), Ok(5), Ok(5)));
        assert!(parse("51%").is_err() && parse("%").is_err() && parse("5%%").is_err());
    }
}
