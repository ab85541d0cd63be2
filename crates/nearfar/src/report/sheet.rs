//! The sheet that a picture is drawn on: an SVG document with its style, a heading and a line on the machine.
//!
//! Follows the reader's light or dark preference by itself, as a page does.

use maud::{Markup, PreEscaped, html};

pub(crate) const WIDTH: usize = 860;
pub(crate) const MARGIN: usize = 28;

/// What every picture has; what is drawn starts below [`TOP`](Self::TOP).
pub(crate) struct Sheet<'a> {
    pub(crate) height: usize,
    /// For who has it read out.
    pub(crate) title: &'a str,
    pub(crate) heading: &'a str,
    pub(crate) about: &'a str,
    /// Style beyond that of colours and charts.
    pub(crate) style: &'a str,
}

impl Sheet<'_> {
    /// Where heading and machine end.
    pub(crate) const TOP: usize = 92;

    /// The document, with `inside` drawn on it.
    pub(crate) fn document(&self, inside: &Markup) -> String {
        let Self { height, title, heading, about, .. } = self;
        let style = [include_str!("colors.css"), include_str!("chart.css"), self.style].concat();
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
#[cfg(test)]
pub(crate) fn assert_closed(picture: &str) {
    for name in ["svg", "rect", "line", "path", "text", "title", "desc", "style"] {
        let opened = picture.matches(&format!("<{name} ")).count()
            + picture.matches(&format!("<{name}>")).count();
        assert_eq!(opened, picture.matches(&format!("</{name}>")).count(), "{name}: {picture}");
    }
}
