//! access: an access record as text, as JSON, as pictures and as a page.
//!
//! Start at [`mod@load`] (a file becomes a [`Loaded`]). [`words`] puts a record into words, [`views`] turns what crate record
//! reduces it to into rows and bands, [`charts`] draws those; [`text`], [`json`], [`picture`] and [`page`] are the doors.

mod charts;
pub(crate) mod json;
pub(crate) mod load;
pub(crate) mod page;
pub(crate) mod picture;
pub(crate) mod text;
mod views;
mod words;

pub(crate) use load::Loaded;
use nearfar_record::reduce::areas::Which;

/// Which of the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Time by address.
    Heatmap,
    /// Working-set size.
    Wss,
    /// Bytes by rate and by age.
    Temperature,
    /// Bytes per node over time.
    Residency,
}

impl Kind {
    /// All of them, in the order of the page.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 4] =
        [Self::Heatmap, Self::Wss, Self::Temperature, Self::Residency];

    /// Its heading.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Heatmap => "Access heatmap",
            Self::Wss => "Working-set size",
            Self::Temperature => "Temperature",
            Self::Residency => "Where the memory was",
        }
    }
}

/// What may be asked of a report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Cells across; else what fits.
    pub(crate) columns: Option<usize>,
    /// Rows; else what fits.
    pub(crate) rows: Option<usize>,
    /// Which addresses.
    pub(crate) which: Which,
    /// From which access rate memory counts as used, permille.
    pub(crate) threshold_permille: u64,
}

#[cfg(test)]
impl Default for Options {
    fn default() -> Self {
        Self { columns: None, rows: None, which: Which::Accessed, threshold_permille: 0 }
    }
}

/// What stdout takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// Its width in characters.
    pub(crate) columns: usize,
    /// Whether it shows colours.
    pub(crate) colour: bool,
}

/// A loaded sample for the tests of this folder.
#[cfg(test)]
fn sample() -> Loaded {
    Loaded {
        name: "sample.nfr".into(),
        record: nearfar_record::testkit::moving_hot_set(),
        findings: Vec::new(),
    }
}
