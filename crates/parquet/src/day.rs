//! Dates in UTC from microseconds since 1970, in the proleptic Gregorian calendar.

use chrono::DateTime;

const DAY_US: i64 = 86_400_000_000;

/// The number of the day, from 1970.
pub(crate) const fn of_us(us: i64) -> i64 {
    us.div_euclid(DAY_US)
}

/// The day as `YYYY-MM-DD`; that of 1970 beyond the calendar's years, some 262,000, which no time of a record reaches.
pub(crate) fn date(day: i64) -> String {
    let start = DateTime::from_timestamp_micros(day.saturating_mul(DAY_US)).unwrap_or_default();
    start.format("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_days_have_their_dates() {
        for (day, text) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (19_675, "2023-11-14"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(day), text, "{day}");
        }
    }

    #[test]
    fn a_day_ends_with_its_last_microsecond() {
        assert_eq!([DAY_US - 1, DAY_US, -1].map(of_us), [0, 1, -1]);
    }

    proptest! {
        #[test]
        fn later_days_sort_later_as_text(day in 0i64..2_000_000) {
            prop_assert!(date(day) < date(day + 1));
        }
    }
}
