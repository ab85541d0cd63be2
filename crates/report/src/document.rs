//! Common parts of pages: one self-contained HTML file, and the swatches of legends.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// A page with these style sheets, in this order; `main` is its content.
pub fn document(title: &str, styles: &[&str], main: &Markup) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(styles.concat())) }
            }
            body { main { (main) } }
        }
    };
    document.into_string()
}

/// A patch of a class's colour; its meaning stands beside it.
pub fn swatch(class: &str) -> Markup {
    html! { span class=(format!("swatch {class}")) aria-hidden="true" {} }
}
