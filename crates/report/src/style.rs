//! Style sheets that pages and pictures share.

/// Custom properties for colours, light and dark.
pub const COLORS: &str = include_str!("colors.css");
/// Text, tables and layout of a page.
pub const PAGE: &str = include_str!("page.css");
/// Charts.
pub const CHART: &str = include_str!("chart.css");
