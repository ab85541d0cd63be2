//! Indentation of added elements, as that of the elements around them.

use roxmltree::Node;

use crate::splice::Splice;

/// The place of an element in the text.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// A newline and the element's indentation; empty if it does not begin a line.
    pub(super) newline: String,
    /// The indentation that each level adds.
    step: String,
}

impl Layout {
    pub(super) fn of(xml: &str, element: Node<'_, '_>) -> Self {
        let start = element.range().start;
        let line = xml[..start].rfind('\n').map(|newline| &xml[newline + 1..start]);
        match line.filter(|indent| indent.chars().all(char::is_whitespace)) {
            Some(indent) => {
                let step = if indent.contains('\t') { "\t" } else { "  " };
                Self { newline: format!("\n{indent}"), step: step.into() }
            }
            None => Self { newline: String::new(), step: String::new() },
        }
    }

    /// The layout of the element's children.
    pub(super) fn inner(&self) -> Self {
        Self { newline: format!("{}{}", self.newline, self.step), step: self.step.clone() }
    }

    /// An element with children, its start tag not indented.
    pub(super) fn element(&self, open: &str, children: &[String], close: &str) -> String {
        let inner = self.inner().newline;
        let children: String = children.iter().map(|child| format!("{inner}{child}")).collect();
        format!("{open}{children}{}{close}", self.newline)
    }

    /// The change that adds children at the end of `element`, which has this layout.
    pub(super) fn append(&self, xml: &str, element: Node<'_, '_>, children: &[String]) -> Splice {
        let (range, inner) = (element.range(), self.inner().newline);
        let children: String = children.iter().map(|child| format!("{inner}{child}")).collect();
        let text = &xml[range.clone()];
        let name = element.tag_name().name();
        if let Some(open) = text.strip_suffix("/>") {
            let end = range.start + open.trim_end().len();
            return Splice::new(end..range.end, format!(">{children}{}</{name}>", self.newline));
        }
        // The blanks before the end tag are its indentation.
        let content = text.rfind("</").map_or(text, |end| &text[..end]);
        let place = range.start + content.trim_end().len();
        let has_line = content[content.trim_end().len()..].contains('\n');
        let newline = if has_line { "" } else { &self.newline };
        Splice::insert(place, format!("{children}{newline}"))
    }
}
