//! Objects in JSON: the members of the outer object with their places.
//!
//! serde_json judges the text; the scan here only finds where members begin and end.

use std::ops::Range;

use serde_json::Value;

use super::keyval::Field;

/// The members of the object `text`; strings are without quotes and escapes, other values as written.
///
/// # Errors
/// The text is no JSON object: the reason, with line and column.
pub(super) fn parse(text: &str) -> Result<Vec<Field>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if !value.is_object() {
        return Err("not a JSON object".into());
    }
    let members = members(text).ok_or("not a JSON object")?;
    let field = |(key, value): (Range<usize>, Range<usize>)| {
        let plain = |range: &Range<usize>| match serde_json::from_str(&text[range.clone()]) {
            Ok(Value::String(plain)) => plain,
            _ => text[range.clone()].to_owned(),
        };
        let span = key.start..value.end;
        Field { key: plain(&key), value: plain(&value), span, is_implied: false }
    };
    Ok(members.into_iter().map(field).collect())
}

/// Places of the keys and values of the outer object, in text that is valid JSON.
fn members(text: &str) -> Option<Vec<(Range<usize>, Range<usize>)>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = blank(bytes, 0);
    at = blank(bytes, at + usize::from(*bytes.get(at)? == b'{'));
    while *bytes.get(at)? == b'"' {
        let key = at..end(bytes, at)?;
        let colon = blank(bytes, key.end);
        let start = blank(bytes, colon + 1);
        let value = start..end(bytes, start)?;
        at = blank(bytes, value.end);
        found.push((key, value));
        if *bytes.get(at)? != b',' {
            break;
        }
        at = blank(bytes, at + 1);
    }
    Some(found)
}

/// The first place from `at` on that is not blank.
fn blank(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// The end of the value at `at`.
fn end(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut depth, mut is_string, mut place) = (0_usize, false, at);
    loop {
        let byte = *bytes.get(place)?;
        place += 1;
        match byte {
            b'\\' if is_string => place += 1,
            b'"' => is_string = !is_string,
            _ if is_string => continue,
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' if depth == 0 => return Some(place - 1),
            b'}' | b']' => depth -= 1,
            byte if depth == 0 && byte.is_ascii_whitespace() => return Some(place - 1),
            _ => continue,
        }
        if depth == 0 && !is_string && matches!(byte, b'"' | b'}' | b']') {
            return Some(place);
        }
    }
}

/// `text` as a JSON string.
pub(super) fn string(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn members_have_their_positions() {
        let text = r#" { "id" : "a,\"b", "n":[1, {"x":"}"}] ,"size": 64 , "s":true}"#;
        let fields = parse(text).unwrap();
        let spans: Vec<_> = fields.iter().map(|field| &text[field.span.clone()]).collect();
        let expected =
            [r#""id" : "a,\"b""#, r#""n":[1, {"x":"}"}]"#, r#""size": 64"#, r#""s":true"#];
        assert_eq!(spans, expected);
        assert_eq!((fields[0].value.as_str(), fields[2].value.as_str()), ("a,\"b", "64"));
    }

    #[test]
    fn invalid_text_is_refused_with_its_position() {
        let error = parse("{\"id\":\n 'a'}").unwrap_err();
        assert!(error.contains("line 2 column 2"), "{error}");
        assert!(parse("[1]").is_err() && parse("{}").unwrap().is_empty());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\{}\\[\\],: é]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-c\"]{1,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_object_is_divided_into_its_members(
            map in proptest::collection::btree_map("[a-c\"\\\\]{1,3}", value(), 0..5),
            is_pretty: bool,
        ) {
            let object = Value::Object(map.clone().into_iter().collect());
            let text = if is_pretty { format!("{object:#}") } else { object.to_string() };
            let fields = parse(&text).unwrap();
            prop_assert_eq!(fields.len(), map.len());
            for (field, (key, value)) in fields.iter().zip(&map) {
                let member = format!("{{{}}}", &text[field.span.clone()]);
                let member: Value = serde_json::from_str(&member).unwrap();
                prop_assert_eq!(&member[key], value);
            }
        }
    }
}
