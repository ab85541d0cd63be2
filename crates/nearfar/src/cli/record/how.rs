//! Resolution of a recording: sampling intervals and regions, parsed and checked.

use std::time::Duration;

use nearfar_kernel::damon::spec::{Bounds, Intervals, IntervalsGoal, Kdamond};

/// Initial interval of `--sample auto`; DAMON's own default.
const SAMPLE_US: u64 = 5_000;
/// Target of `--sample auto`, in basis points: DAMON's authors advise to observe 4 % of the maximum accesses in 3
/// aggregations.
const SEEN_BP: u64 = 400;
const AGGREGATIONS: u64 = 3;
/// Least number of regions; fewer have too little detail.
const REGIONS_MIN: u64 = 3;
/// Greatest number of regions; a snapshot must fit into a frame of the record.
const REGIONS_MAX: u64 = 1_000_000;
/// DAMON's interval for updating the mappings of a process.
const UPDATE_US: u64 = 1_000_000;

/// Arguments as typed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct HowArgs {
    /// Time between two snapshots, such as 500ms or 2s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = snapshots)]
    pub(super) interval: Duration,
    /// Time between two access checks of a region, 100us to 10s; shorter ones cost more. `auto`: the kernel lengthens
    /// it where little is accessed, up to one aggregation per snapshot (Linux 6.15)
    #[arg(long, value_name = "TIME|auto", default_value = "5ms", value_parser = sample)]
    sample: Sample,
    /// Time over which access checks are aggregated: with 100ms and --sample 5ms a region has 0 to 20 accesses
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = aggregate)]
    aggregate: Duration,
    /// Minimum and maximum number of regions per process (or of the machine); more give more detail and cost more
    #[arg(long, value_name = "MIN,MAX", default_value = "10,1000", value_parser = regions)]
    regions: Bounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sample {
    Each(Duration),
    Auto,
}

impl HowArgs {
    /// Whether the kernel is to tune the intervals.
    pub(super) fn is_tuned(&self) -> bool {
        self.sample == Sample::Auto
    }

    /// Checks for options that exclude each other.
    ///
    /// # Errors
    /// The options, their values, and the way out.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Sample::Each(sample) = self.sample
            && self.aggregate < sample
        {
            return Err(format!(
                "--aggregate {:?} is shorter than --sample {sample:?}, so no access check would be aggregated; make it {sample:?} or more",
                self.aggregate
            ));
        }
        if self.interval < self.aggregate {
            return Err(format!(
                "--interval {:?} is shorter than --aggregate {:?}, and a snapshot is of one aggregation; make --interval \
                 {1:?} or more, or --aggregate shorter",
                self.interval, self.aggregate
            ));
        }
        Ok(())
    }

    /// Configures `kdamond` with these intervals and regions.
    pub(super) fn apply(&self, kdamond: &mut Kdamond) {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let aggr_us = us(self.aggregate);
        let sample_us = match self.sample {
            Sample::Each(time) => us(time),
            Sample::Auto => SAMPLE_US.min(aggr_us),
        };
        let context = &mut kdamond.context;
        context.intervals = Intervals { sample_us, aggr_us, update_us: UPDATE_US };
        context.nr_regions = self.regions;
        context.intervals_goal = self.is_tuned().then(|| IntervalsGoal {
            access_bp: SEEN_BP,
            aggrs: AGGREGATIONS,
            min_sample_us: sample_us,
            // The kernel keeps the ratio of the two intervals.
            max_sample_us: sample_us.max(us(self.interval) / (aggr_us / sample_us)),
        });
    }
}

/// Time between snapshots.
fn snapshots(text: &str) -> Result<Duration, String> {
    time(text, Duration::from_millis(100), YEAR)
}

/// Parses the length of a recording.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    time(text, Duration::from_millis(100), YEAR)
}

fn sample(text: &str) -> Result<Sample, String> {
    if text == "auto" {
        return Ok(Sample::Auto);
    }
    let each = time(text, Duration::from_micros(100), Duration::from_secs(10));
    each.map(Sample::Each).map_err(|error| format!("{error}; or auto"))
}

fn aggregate(text: &str) -> Result<Duration, String> {
    time(text, Duration::from_micros(100), Duration::from_secs(3600))
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Parses `100us`, `500ms`, `2s`, `1.5s`, `5m` or `1h`, between `least` and `most`.
pub(crate) fn time(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let seconds = match &text[unit..] {
        "us" => 0.000_001,
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("write it as 500ms, 2s, 5m or 1h".into()),
    };
    let number: f64 = text[..unit].trim().parse().map_err(|_| "write it as 500ms, 2s, 5m or 1h")?;
    let time = Duration::try_from_secs_f64(number * seconds).ok();
    time.filter(|time| (least..=most).contains(time)).ok_or_else(|| {
        let most = if most == YEAR { "a year".into() } else { format!("{most:?}") };
        format!("it has to be between {least:?} and {most}")
    })
}

fn regions(text: &str) -> Result<Bounds, String> {
    let numbers = text.split_once(',').and_then(|(min, max)| {
        Some(Bounds { min: min.trim().parse().ok()?, max: max.trim().parse().ok()? })
    });
    let bounds = numbers.ok_or("write it as MIN,MAX, such as 10,1000")?;
    let fits = REGIONS_MIN <= bounds.min && bounds.min <= bounds.max && bounds.max <= REGIONS_MAX;
    let says = || {
        format!(
            "the first has to be {REGIONS_MIN} or more, the second not less than it, and {REGIONS_MAX} at most"
        )
    };
    fits.then_some(bounds).ok_or_else(says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        how: HowArgs,
    }

    fn typed(words: &str) -> Result<HowArgs, String> {
        let words = ["x"].into_iter().chain(words.split_whitespace());
        Only::try_parse_from(words).map(|only| only.how).map_err(|error| error.to_string())
    }

    fn told(words: &str) -> nearfar_kernel::damon::spec::Context {
        let mut kdamond = Kdamond::process(1);
        let how = typed(words).unwrap();
        how.check().unwrap();
        how.apply(&mut kdamond);
        kdamond.check().unwrap();
        kdamond.context
    }

    #[test]
    fn times_have_a_unit_and_a_sensible_length() {
        for (text, ms) in
            [("500ms", 500), ("2s", 2000), ("1.5s", 1500), ("5m", 300_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text).unwrap().as_millis(), ms, "{text}");
        }
        for text in ["5", "", "s", "-1s", "0s", "99ms", "9999999h", "NaNs", "infs", "2 days"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn without_options_damon_has_its_default_intervals_and_regions() {
        let context = told("");
        assert_eq!((context.intervals.sample_us, context.intervals.aggr_us), (5_000, 100_000));
        assert_eq!(
            (context.nr_regions, context.intervals_goal),
            (Bounds { min: 10, max: 1000 }, None)
        );
    }

    #[test]
    fn intervals_and_regions_are_passed_to_damon() {
        let context = told("--sample 200us --aggregate 20ms --regions 3,40");
        assert_eq!((context.intervals.sample_us, context.intervals.aggr_us), (200, 20_000));
        assert_eq!(context.nr_regions, Bounds { min: 3, max: 40 });
    }

    #[test]
    fn tuned_intervals_have_at_most_one_aggregation_per_snapshot() {
        let goal = told("--sample auto --interval 2s").intervals_goal.unwrap();
        assert_eq!((goal.min_sample_us, goal.max_sample_us), (5_000, 100_000));
        let goal = told("--sample auto --interval 100ms").intervals_goal.unwrap();
        assert_eq!((goal.min_sample_us, goal.max_sample_us), (5_000, 5_000));
        let goal = told("--sample auto --aggregate 1ms").intervals_goal.unwrap();
        assert_eq!((goal.min_sample_us, goal.max_sample_us), (1_000, 1_000_000));
    }

    #[test]
    fn invalid_values_are_refused_with_option_value_and_remedy() {
        for (words, says) in [
            ("--sample 20us", "--sample <TIME|auto>': it has to be between 100µs and 10s; or auto"),
            ("--sample often", "or auto"),
            ("--aggregate 2h", "between 100µs and 3600s"),
            ("--regions 2,10", "3 or more"),
            ("--regions 10,9", "not less"),
            ("--regions 10", "write it as MIN,MAX"),
            ("--regions 10,2000000", "1000000 at most"),
            ("--interval 10ms", "between 100ms and a year"),
        ] {
            let error = typed(words).unwrap_err();
            let value = words.split_whitespace().nth(1).unwrap();
            assert!(error.contains(says) && error.contains(value), "{words}: {error}");
        }
        for (words, says) in [
            ("--sample 200ms", "--aggregate 100ms is shorter than --sample 200ms"),
            ("--aggregate 2s", "make --interval 2s or more"),
        ] {
            let error = typed(words).unwrap().check().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
