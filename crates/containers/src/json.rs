//! JSON objects whose edits leave the rest as it is: order of keys, unknown fields, and the text of each value.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// An object, its values as text.
#[derive(Debug, Default)]
pub(crate) struct Object(Vec<(String, Box<RawValue>)>);

impl Object {
    pub(crate) fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// The value of a key; the last one counts, as for other readers.
    pub(crate) fn get(&self, key: &str) -> Option<&RawValue> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_ref())
    }

    /// Sets a key in its place, or at the end.
    pub(crate) fn set<T: Serialize + ?Sized>(
        &mut self,
        key: &str,
        value: &T,
    ) -> serde_json::Result<()> {
        let value = to_raw_value(value)?;
        match self.0.iter_mut().rev().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_string(), value)),
        }
        Ok(())
    }

    /// Edits the object below a key, which is created if it is missing or null.
    pub(crate) fn edit(
        &mut self,
        key: &str,
        edit: impl FnOnce(&mut Self) -> serde_json::Result<()>,
    ) -> serde_json::Result<()> {
        let mut below = self.below(key, Self::parse)?;
        edit(&mut below)?;
        self.set(key, &below)
    }

    /// The list below a key; empty if it is missing or null.
    pub(crate) fn list(&self, key: &str) -> serde_json::Result<Vec<Box<RawValue>>> {
        self.below(key, |text| serde_json::from_str(text))
    }

    fn below<T: Default>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> serde_json::Result<T>,
    ) -> serde_json::Result<T> {
        match self.get(key).map(RawValue::get).filter(|text| *text != "null") {
            Some(text) => parse(text),
            None => Ok(T::default()),
        }
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unedited_json_keeps_its_text() {
        let text = r#"{"z":1.50,"a":{"y":18446744073709551615,"x":"\u003c"},"l":[1e3, null]}"#;
        let mut object = Object::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&object).unwrap(), text);
        object.edit("a", |below| below.set("new", &[1, 2])).unwrap();
        object.edit("b", |below| below.set("c", "d")).unwrap();
        let edited = r#"{"z":1.50,"a":{"y":18446744073709551615,"x":"\u003c","new":[1,2]},"l":[1e3, null],"b":{"c":"d"}}"#;
        assert_eq!(serde_json::to_string(&object).unwrap(), edited);
        assert_eq!(object.list("l").unwrap().len(), 2);
        assert!(object.edit("z", |_| Ok(())).is_err());
    }
}
