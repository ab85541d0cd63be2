//! The place and the result of a read.

use crate::meta::Meta;

use super::place::Place;

/// The place to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// At a place among the large objects.
    Large(Place),
    /// Among the small objects, by the hash of its key.
    Small(u64),
}

/// An object that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its metadata.
    pub meta: Meta,
    /// The value.
    pub value: &'a [u8],
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The object.
    Found(Item<'a>),
    /// The object of another key.
    Other,
    /// No valid object, or a failed read.
    Nothing,
}

impl<'a> Outcome<'a> {
    /// The object, if it was found.
    #[must_use]
    pub const fn item(self) -> Option<Item<'a>> {
        if let Self::Found(item) = self { Some(item) } else { None }
    }

    /// Appends the value to `out`, if it was found; returns the metadata.
    pub fn append_to(self, out: &mut Vec<u8>) -> Option<Meta> {
        let Item { meta, value } = self.item()?;
        out.extend_from_slice(value);
        Some(meta)
    }
}
