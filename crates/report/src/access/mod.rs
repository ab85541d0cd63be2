//! access: reports on an access record as text, JSON, pictures and a page.
//!
//! Start at [`mod@load`] (a file becomes a [`Loaded`]). `words` describes a record in sentences, `views` turns
//! reductions by crate record into rows and bands, `charts` and `heat` draw those; [`text`], [`json`], [`picture`] and
//! [`page`] are the entry points.

mod charts;
mod heat;
pub mod json;
pub mod load;
pub mod page;
pub mod picture;
pub mod text;
mod views;
mod words;

pub use load::Loaded;
use nearfar_record::reduce::areas::Which;

/// Type of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// All types, in the order of the page.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 4] =
        [Self::Heatmap, Self::Wss, Self::Temperature, Self::Residency];

    /// Its heading.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Heatmap => "Access heatmap",
            Self::Wss => "Working-set size",
            Self::Temperature => "Temperature",
            Self::Residency => "Memory by node",
        }
    }
}

/// Options of a report.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of cells across; by default as many as fit.
    pub columns: Option<usize>,
    /// Number of cells down; by default as many as fit.
    pub rows: Option<usize>,
    /// Selection of addresses.
    pub which: Which,
    /// Least access rate of memory in the working set, permille.
    pub threshold_permille: u64,
}

#[cfg(test)]
impl Default for Options {
    fn default() -> Self {
        Self { columns: None, rows: None, which: Which::Accessed, threshold_permille: 0 }
    }
}

/// Properties of stdout.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Its width in characters.
    pub columns: usize,
    /// Whether it shows colours.
    pub colour: bool,
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
