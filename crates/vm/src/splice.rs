//! Changes to a text by byte ranges, so that every other byte stays.

use std::ops::Range;

/// One change: the bytes of `range` are replaced by `with`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Splice {
    pub(crate) range: Range<usize>,
    pub(crate) with: String,
}

impl Splice {
    pub(crate) fn new(range: Range<usize>, with: impl Into<String>) -> Self {
        Self { range, with: with.into() }
    }

    /// Text added at `at`.
    pub(crate) fn insert(at: usize, with: impl Into<String>) -> Self {
        Self::new(at..at, with)
    }
}

/// `text` with the changes, whose ranges must not overlap. Insertions at the same place keep their order.
pub(crate) fn apply(text: &str, mut changes: Vec<Splice>) -> String {
    changes.sort_by_key(|change| (change.range.start, change.range.end));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for change in changes {
        out.push_str(text.get(at..change.range.start).unwrap_or_default());
        out.push_str(&change.with);
        at = at.max(change.range.end);
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_apply_in_order_of_position_and_the_rest_is_kept() {
        let changes = vec![Splice::new(4..5, "E"), Splice::insert(2, "x"), Splice::insert(2, "y")];
        assert_eq!(apply("abcdefg", changes), "abxycdEfg");
        assert_eq!(apply("abc", Vec::new()), "abc");
    }
}
