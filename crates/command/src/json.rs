//! JSON as the commands print it: indented, and a list on the line of its name.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// `value` as indented JSON; the elements of lists have no lines of their own, but those of objects in them do:
/// `"nodes": [{`, `}, {`, `}]`.
///
/// # Errors
/// A value that has no JSON form.
pub fn text(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    let lists = Lists(PrettyFormatter::new());
    value.serialize(&mut Serializer::with_formatter(&mut bytes, lists))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// Objects as [`PrettyFormatter`] has them, lists on a line.
struct Lists(PrettyFormatter<'static>);

impl Formatter for Lists {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn lists_are_on_the_line_of_their_name_and_objects_on_lines_of_their_own() {
        let value = json!({
            "cpus": [0, 1, 2], "none": [], "empty": {}, "nested": [[1], [2, [3]]],
            "nodes": [{ "id": 0, "tags": ["a", "b"] }, {}, { "id": 1 }],
        });
        let expected = r#"{
  "cpus": [0, 1, 2],
  "empty": {},
  "nested": [[1], [2, [3]]],
  "nodes": [{
    "id": 0,
    "tags": ["a", "b"]
  }, {}, {
    "id": 1
  }],
  "none": []
}"#;
        let text = super::text(&value).unwrap();
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
