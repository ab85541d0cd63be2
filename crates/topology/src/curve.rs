//! Loaded latency as measured: for several shares of reads, points of bandwidth and latency.
//!
//! One type for the lab, the simulator, the probe and the balance policy. Between measured points values are
//! interpolated: latency over utilisation within a share, then both latency and peak bandwidth between neighbouring
//! shares. Shares beyond the measured ones take the nearest. Only sums, products and quotients are used, so that
//! results are the same on all machines.
//!
//! # Text form
//! ```text
//! # source: who measured it, on which hardware, with which tool
//! # licence: of the data
//! read_share,gbps,ns
//! 0.5,2.8,218.3
//! ```
//! `read_share` is the share of reads in the traffic at the memory (a store through the caches is one read and one
//! write), `gbps` the sum of both in 10^9 bytes per second, `ns` the latency of a dependent load beside that traffic.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The columns of the text form.
pub const COLUMNS: &str = "read_share,gbps,ns";
const SHARES_MAX: usize = 64;
const POINTS: core::ops::RangeInclusive<usize> = 3..=64;
/// The largest step from one point to the next, as a share of the peak bandwidth: a wider one is a gap.
const STEP_MAX: f64 = 0.5;

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Point {
    /// Bandwidth of reads and writes together, 10^9 bytes per second.
    pub gbps: f64,
    /// Latency of a dependent load beside it, nanoseconds.
    pub ns: f64,
}

/// The points of one share of reads.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Curve {
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Points, in order of bandwidth.
    pub points: Vec<Point>,
}

/// Curves of one memory, in order of their shares of reads; all values have been checked.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Vec<Curve>", into = "Vec<Curve>"))]
pub struct Curves(Vec<Curve>);

/// Reason why curves are rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurveError {
    /// Line of the text, from 1; `None` if the values are from no text.
    pub line: Option<usize>,
    /// The value and the rule that it breaks.
    pub reason: String,
}

impl fmt::Display for CurveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl core::error::Error for CurveError {}

impl Curve {
    fn peak(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.gbps)
    }

    /// Latency at a share `u` of the peak bandwidth.
    fn at(&self, u: f64) -> f64 {
        let gbps = u * self.peak();
        let after = self.points.partition_point(|point| point.gbps <= gbps);
        match (after.checked_sub(1).and_then(|at| self.points.get(at)), self.points.get(after)) {
            (Some(low), Some(high)) => {
                low.ns + (high.ns - low.ns) * (gbps - low.gbps) / (high.gbps - low.gbps)
            }
            (Some(only), None) | (None, Some(only)) => only.ns,
            (None, None) => 0.0,
        }
    }
}

impl Curves {
    /// Checks curves, which may come in any order.
    ///
    /// # Errors
    /// [`CurveError`] for the first value out of range, bandwidth or latency that falls, or gap.
    pub fn new(curves: Vec<Curve>) -> Result<Self, CurveError> {
        Self::checked(curves, &[])
    }

    /// Checks curves whose points are from these lines of a text, if any.
    fn checked(mut curves: Vec<Curve>, lines: &[Vec<usize>]) -> Result<Self, CurveError> {
        for (index, curve) in curves.iter().enumerate() {
            let line = |at: usize| lines.get(index).and_then(|lines| lines.get(at)).copied();
            curve.check(&line)?;
        }
        if curves.is_empty() || curves.len() > SHARES_MAX {
            let reason = format!("{} shares of reads, not 1 to {SHARES_MAX}", curves.len());
            return refuse(None, reason);
        }
        curves.sort_by(|a, b| a.read_share.total_cmp(&b.read_share));
        if let Some(pair) = curves.windows(2).find(|pair| pair[0].read_share == pair[1].read_share)
        {
            return refuse(None, format!("read share {} twice", pair[0].read_share));
        }
        Ok(Self(curves))
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`CurveError`] with the line of the first error.
    pub fn parse(text: &str) -> Result<Self, CurveError> {
        let mut curves: Vec<Curve> = Vec::new();
        let mut lines: Vec<Vec<usize>> = Vec::new();
        let (mut sourced, mut headed) = (false, false);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                sourced |= comment.trim_start().starts_with("source:");
                continue;
            }
            if line.is_empty() {
                continue;
            }
            if !headed {
                if line != COLUMNS {
                    let reason = format!(
                        "columns `{}`, not `{COLUMNS}` (share of reads from 0 to 1, 10^9 bytes per second, nanoseconds)",
                        shown(line)
                    );
                    return refuse(Some(number), reason);
                }
                headed = true;
                continue;
            }
            let (read_share, point) = row(line, number)?;
            match curves.iter().position(|curve| curve.read_share == read_share) {
                Some(at) if at + 1 == curves.len() => {
                    curves[at].points.push(point);
                    lines[at].push(number);
                }
                Some(_) => {
                    let reason = format!("read share {read_share} again, after another");
                    return refuse(Some(number), reason);
                }
                None => {
                    curves.push(Curve { read_share, points: [point].into() });
                    lines.push([number].into());
                }
            }
        }
        if !headed {
            return refuse(None, format!("no line with the columns `{COLUMNS}`"));
        }
        if !sourced {
            return refuse(None, "no line `# source: ...` that says where it was measured".into());
        }
        Self::checked(curves, &lines)
    }

    /// The curves with all bandwidths multiplied by `scale`, for a share of the memory that was measured.
    ///
    /// # Errors
    /// [`CurveError`] if a bandwidth leaves its range.
    pub fn scaled(&self, scale: f64) -> Result<Self, CurveError> {
        let mut curves = self.0.clone();
        for point in curves.iter_mut().flat_map(|curve| &mut curve.points) {
            point.gbps *= scale;
        }
        Self::new(curves)
    }

    /// The curve of each measured share of reads, in their order.
    #[must_use]
    pub fn curves(&self) -> &[Curve] {
        &self.0
    }

    /// The two curves around a share of reads, and how far it is from the first to the second.
    fn around(&self, read_share: f64) -> (&Curve, &Curve, f64) {
        let after = self.0.partition_point(|curve| curve.read_share < read_share);
        let high = after.min(self.0.len() - 1);
        let low = after.saturating_sub(1).min(high);
        let (low, high) = (&self.0[low], &self.0[high]);
        let width = high.read_share - low.read_share;
        let part = if width > 0.0 { (read_share - low.read_share) / width } else { 0.0 };
        (low, high, part.clamp(0.0, 1.0))
    }

    /// Peak bandwidth at a share of reads, 10^9 bytes per second.
    #[must_use]
    pub fn peak_gbps(&self, read_share: f64) -> f64 {
        let (low, high, part) = self.around(read_share);
        low.peak() + (high.peak() - low.peak()) * part
    }

    /// Time that a line waits at this share of reads and this bandwidth, nanoseconds: latency beyond that of no traffic.
    /// From the peak on it grows as in a queue, without limit at [`Self::BEYOND_PEAK`] times the peak, so that a closed
    /// loop of requests always has a steady state.
    #[must_use]
    pub fn waiting_ns(&self, read_share: f64, gbps: f64) -> f64 {
        let idle = self.latency_ns(read_share, 0.0);
        let used = gbps / self.peak_gbps(read_share);
        let measured = self.latency_ns(read_share, used) - idle;
        if used <= 1.0 {
            return measured;
        }
        let room = Self::BEYOND_PEAK - 1.0;
        let x = ((used - 1.0) / room).min(1.0 - 1e-12);
        measured + measured.max(idle) * room * x / (1.0 - x)
    }

    /// Bandwidth that can be approached but not reached, relative to the measured peak.
    pub const BEYOND_PEAK: f64 = 1.02;

    /// Latency beside as good as no traffic, nanoseconds: the lowest of the highest share of reads.
    #[must_use]
    pub fn idle_ns(&self) -> f64 {
        self.0.last().and_then(|curve| curve.points.first()).map_or(0.0, |point| point.ns)
    }

    /// Latency at a share of reads and a share `utilisation` of the peak bandwidth, nanoseconds.
    #[must_use]
    pub fn latency_ns(&self, read_share: f64, utilisation: f64) -> f64 {
        let (low, high, part) = self.around(read_share);
        let (from, to) = (low.at(utilisation), high.at(utilisation));
        from + (to - from) * part
    }
}

impl Curve {
    fn check(&self, line: &dyn Fn(usize) -> Option<usize>) -> Result<(), CurveError> {
        let share = self.read_share;
        if !(0.0..=1.0).contains(&share) {
            return refuse(line(0), format!("read share {share}, not from 0 to 1"));
        }
        let peak = self.peak();
        let mut last = Point { gbps: -1.0, ns: 0.0 };
        for (at, point) in self.points.iter().enumerate() {
            if !(0.0..=100_000.0).contains(&point.gbps) {
                return refuse(line(at), format!("{} GB/s, not from 0 to 100000", point.gbps));
            }
            if !(1.0..=100_000.0).contains(&point.ns) {
                return refuse(line(at), format!("{} ns, not from 1 to 100000", point.ns));
            }
            if point.gbps <= last.gbps {
                let reason =
                    format!("{} GB/s after {} GB/s: bandwidth must rise", point.gbps, last.gbps);
                return refuse(line(at), reason);
            }
            if point.ns < last.ns {
                let reason = format!("{} ns after {} ns: latency must not fall", point.ns, last.ns);
                return refuse(line(at), reason);
            }
            last = *point;
        }
        let mut from = 0.0;
        for (at, point) in self.points.iter().enumerate() {
            if point.gbps - from > STEP_MAX * peak {
                let reason = format!(
                    "a gap: no point between {from} and {} GB/s of {peak} GB/s",
                    point.gbps
                );
                return refuse(line(at), reason);
            }
            from = point.gbps;
        }
        if !POINTS.contains(&self.points.len()) {
            let points = self.points.len();
            let (least, most) = (POINTS.start(), POINTS.end());
            let reason = format!("{points} points of read share {share}, not {least} to {most}");
            return refuse(line(points.saturating_sub(1)), reason);
        }
        Ok(())
    }
}

/// A line of figures.
fn row(line: &str, number: usize) -> Result<(f64, Point), CurveError> {
    let mut figures = [0.0; 3];
    let mut fields = line.split(',');
    for (figure, name) in figures.iter_mut().zip(COLUMNS.split(',')) {
        let field = fields.next().unwrap_or_default().trim();
        *figure =
            field.parse().ok().filter(|figure: &f64| figure.is_finite()).ok_or_else(|| {
                CurveError {
                    line: Some(number),
                    reason: format!("{name} is `{}`, not a number", shown(field)),
                }
            })?;
    }
    if let Some(more) = fields.next() {
        return refuse(Some(number), format!("`{}` after the three figures", shown(more)));
    }
    let [read_share, gbps, ns] = figures;
    Ok((read_share, Point { gbps, ns }))
}

/// The first 60 characters.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

fn refuse<T>(line: Option<usize>, reason: String) -> Result<T, CurveError> {
    Err(CurveError { line, reason })
}

impl TryFrom<Vec<Curve>> for Curves {
    type Error = CurveError;

    fn try_from(curves: Vec<Curve>) -> Result<Self, CurveError> {
        Self::new(curves)
    }
}

impl From<Curves> for Vec<Curve> {
    fn from(curves: Curves) -> Self {
        curves.0
    }
}

impl fmt::Display for Curves {
    /// The columns and rows of the text form, without its head.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{COLUMNS}")?;
        for curve in &self.0 {
            for Point { gbps, ns } in &curve.points {
                writeln!(f, "{},{gbps},{ns}", curve.read_share)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;
    use proptest::prelude::*;

    const TEXT: &str = "# source: a test\nread_share,gbps,ns\n\
        0.5,0,100\n0.5,10,120\n0.5,20,200\n1,1,100\n1,20,110\n1,40,300\n";

    fn curves() -> Curves {
        Curves::parse(TEXT).unwrap()
    }

    #[test]
    fn points_are_met_and_between_them_values_are_between() {
        let curves = curves();
        assert_eq!(curves.idle_ns(), 100.0);
        assert_eq!((curves.peak_gbps(0.5), curves.peak_gbps(1.0)), (20.0, 40.0));
        assert_eq!((curves.peak_gbps(0.0), curves.peak_gbps(0.75)), (20.0, 30.0));
        assert_eq!(curves.latency_ns(0.5, 0.5), 120.0);
        assert_eq!(curves.latency_ns(1.0, 0.5), 110.0);
        assert_eq!(curves.latency_ns(0.75, 0.5), 115.0);
        assert_eq!(curves.latency_ns(1.0, 0.75), 205.0);
        assert_eq!((curves.latency_ns(1.0, 0.0), curves.latency_ns(1.0, 2.0)), (100.0, 300.0));
        assert_eq!(curves.scaled(0.5).unwrap().peak_gbps(1.0), 20.0);
        assert_eq!(curves.scaled(0.5).unwrap().latency_ns(1.0, 0.5), 110.0);
    }

    #[test]
    fn waiting_follows_the_measurements_and_is_unbounded_beyond_the_peak() {
        let curves = curves();
        assert_eq!((curves.waiting_ns(1.0, 20.0), curves.waiting_ns(1.0, 40.0)), (10.0, 200.0));
        assert!(curves.waiting_ns(1.0, 40.4) > 200.0);
        assert!(curves.waiting_ns(1.0, 40.8) > 1e6 && curves.waiting_ns(1.0, 90.0).is_finite());
    }

    #[test]
    fn each_error_is_named_with_its_line() {
        let cases = [
            ("0.5,10,120", "0.5,,120", "line 4: gbps is ``, not a number"),
            ("0.5,10,120", "0.5,10", "line 4: ns is ``, not a number"),
            ("0.5,10,120", "0.5,10,120,1", "line 4: `1` after the three figures"),
            ("0.5,10,120", "0.5,ten,120", "line 4: gbps is `ten`"),
            ("0.5,10,120", "0.5,inf,120", "line 4: gbps is `inf`"),
            (
                "0.5,20,200",
                "0.5,20,200\n0.5,19,210",
                "line 6: 19 GB/s after 20 GB/s: bandwidth must rise",
            ),
            ("0.5,20,200", "0.5,20,110", "line 5: 110 ns after 120 ns: latency must not fall"),
            ("0.5,10,120\n", "0.5,1,101\n0.5,2,120\n", "line 6: a gap: no point between 2 and 20"),
            ("0.5,20,200", "0.5,200000,200", "line 5: 200000 GB/s, not from 0"),
            ("0.5,20,200", "0.5,20,1e9", "line 5: 1000000000 ns, not from 1"),
            ("1,1,100\n1,20,110\n1,40,300", "1.5,1,100", "line 6: read share 1.5, not from 0 to 1"),
            ("1,1,100\n1,20,110\n1,40,300", "100,1,100", "line 6: read share 100, not"),
            (
                "1,1,100\n1,20,110\n1,40,300",
                "1,20,110\n1,40,300",
                "line 7: 2 points of read share 1",
            ),
            ("1,20,110", "0.5,20,210", "line 7: read share 0.5 again"),
            (
                "read_share,gbps,ns",
                "read_pct,GiB/s,cycles",
                "line 2: columns `read_pct,GiB/s,cycles`, not",
            ),
            ("# source: a test\n", "", "no line `# source: ...`"),
        ];
        for (from, to, says) in cases {
            assert!(TEXT.contains(from), "{from}");
            let error = Curves::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(says), "{to}: {error}");
        }
        assert!(Curves::parse("").unwrap_err().to_string().contains("no line with the columns"));
        assert!(Curves::new(Vec::new()).unwrap_err().to_string().contains("0 shares"));
    }

    #[test]
    fn the_text_form_reads_back_the_same() {
        let text = format!("# source: a test\n{}", curves());
        assert_eq!(Curves::parse(&text), Ok(curves()));
    }

    proptest! {
        #[test]
        fn latency_never_falls_with_use_and_stays_within_the_points(share in 0.0f64..1.0, u in 0.0f64..1.2) {
            let curves = curves();
            let (low, high) = (curves.latency_ns(share, u), curves.latency_ns(share, u + 0.05));
            prop_assert!(low <= high && (100.0..=300.0).contains(&low));
            prop_assert!((20.0..=40.0).contains(&curves.peak_gbps(share)));
        }

        #[test]
        fn no_text_panics(text in "(# source: x\n)?read_share,gbps,ns\n([0-9.,-]{0,12}\n){0,9}") {
            let _ = Curves::parse(&text);
        }
    }
}
