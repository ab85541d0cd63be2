//! The canvas of a picture: an SVG document with its style, a heading and a line on the machine.
//!
//! Follows the reader's light or dark preference, as pages do.

use crate::style;
use maud::{Markup, PreEscaped, html};

/// Width of a picture in pixels.
pub const WIDTH: usize = 860;
/// Margin of a picture in pixels.
pub const MARGIN: usize = 28;

/// The frame of a picture; the drawing starts below [`TOP`](Self::TOP).
#[derive(Clone, Copy, Debug)]
pub struct Sheet<'a> {
    /// Height in pixels.
    pub height: usize,
    /// Title for screen readers.
    pub title: &'a str,
    /// The heading.
    pub heading: &'a str,
    /// The line below the heading.
    pub about: &'a str,
    /// Style sheet besides those of colours and charts.
    pub style: &'a str,
}

impl Sheet<'_> {
    /// Bottom of the heading and the machine's line.
    pub const TOP: usize = 92;

    /// The document, with `inside` drawn on it.
    pub fn document(&self, inside: &Markup) -> String {
        let Self { height, title, heading, about, .. } = self;
        let style = [style::COLORS, style::CHART, self.style].concat();
        let document = html! {
            svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-labelledby="picture-title"
                width=(WIDTH) height=(height) viewBox=(format!("0 0 {WIDTH} {height}")) {
                title id="picture-title" { (title) }
                style { (PreEscaped(style)) }
                rect x="0" y="0" width=(WIDTH) height=(height) rx="12" style="fill: var(--card)" {}
                text class="strong" x=(MARGIN) y="42" style="font-size: 19px" { (heading) }
                text class="quiet" x=(MARGIN) y="66" { (about) }
                (inside)
            }
        };
        document.into_string()
    }
}

/// Every element of a picture is closed, as XML wants.
#[cfg(any(test, feature = "testkit"))]
pub fn assert_closed(picture: &str) {
    for name in ["svg", "rect", "line", "path", "text", "title", "desc", "style"] {
        let opened = picture.matches(&format!("<{name} ")).count()
            + picture.matches(&format!("<{name}>")).count();
        assert_eq!(opened, picture.matches(&format!("</{name}>")).count(), "{name}: {picture}");
    }
}
