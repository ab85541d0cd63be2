//! Line charts over time as SVG. The lines are drawn in a coordinate system that is stretched to the available width;
//! text is drawn outside of it and keeps its size.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::chart::{Caption, frame};

/// Height of the drawing, and space above and below it for text.
const HEIGHT: usize = 190;
const TEXT: usize = 20;

/// A line: colour class and points.
#[derive(Clone, Debug)]
pub struct Series {
    /// Colour class.
    pub class: &'static str,
    /// Time in seconds, and height as a share of the picture's.
    pub points: Vec<(f64, f64)>,
}

/// Lines from 0 to `end_s`; `top` labels the upper edge, `marks` are points in time.
pub fn lines(
    caption: Caption<'_>,
    series: &[Series],
    end_s: f64,
    top: &str,
    marks: &[f64],
) -> Markup {
    let x = |at: f64| if end_s > 0.0 { (at / end_s).clamp(0.0, 1.0) * 1000.0 } else { 0.0 };
    frame(
        caption,
        HEIGHT + 2 * TEXT,
        &html! {
            text class="quiet" x="0" y="13" { (top) }
            svg x="0" y=(TEXT) width="100%" height=(HEIGHT) preserveAspectRatio="none" viewBox="0 0 1000 1000" {
                rect class="track" x="0" y="0" width="1000" height="1000" {}
                @for mark in marks {
                    line class="mark" x1=(format!("{:.1}", x(*mark))) x2=(format!("{:.1}", x(*mark))) y1="0" y2="1000"
                        vector-effect="non-scaling-stroke" {}
                }
                @for of in series {
                    path class=(format!("over {}", of.class)) d=(path(&of.points, x)) vector-effect="non-scaling-stroke" {}
                }
            }
            text class="quiet" x="0" y=(HEIGHT + TEXT + 15) { "0 s" }
            text class="quiet" x="100%" y=(HEIGHT + TEXT + 15) text-anchor="end" { (format!("{end_s:.0} s")) }
        },
    )
}

fn path(points: &[(f64, f64)], x: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for (at, share) in points.iter().filter(|(at, share)| at.is_finite() && share.is_finite()) {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", x(*at), (1.0 - share.clamp(0.0, 1.0)) * 1000.0);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_within_the_picture() {
        assert_eq!(
            path(&[(0.0, 0.0), (5.0, 2.0), (9.0, f64::NAN)], |at| at * 100.0),
            "M0.0 1000.0L500.0 0.0"
        );
        let caption = Caption { id: "c", title: "t", description: "d" };
        let none = lines(caption, &[], 0.0, "1", &[3.0]).into_string();
        assert!(none.contains("x1=\"0.0\""), "{none}");
    }
}
