//! Options of the form `type,key=value,flag`, where `,,` in a value stands for one comma.
//!
//! Each parameter keeps its place in the text, so that changed parameters leave all other bytes as they are.

use std::ops::Range;

use nearfar_topology::NodeExpr;

use crate::error::VmError;
use crate::wish::TYPE;

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) key: String,
    /// Without escapes.
    pub(crate) value: String,
    /// Key and value in the text, without the commas around them.
    pub(crate) span: Range<usize>,
    /// Whether the text has the value only.
    pub(crate) is_implied: bool,
}

/// The parameters of `text`; a first one without a key has the key `implied`.
pub(crate) fn parse(text: &str, implied: Option<&str>) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let key_end = rest.find(['=', ',']).unwrap_or(rest.len());
        let has_key = rest[key_end..].starts_with('=');
        let is_implied = !has_key && fields.is_empty() && implied.is_some();
        let (key, value, length) = if has_key {
            let (value, length) = value(&rest[key_end + 1..]);
            (rest[..key_end].to_owned(), value, key_end + 1 + length)
        } else if is_implied {
            let (value, length) = value(rest);
            (implied.unwrap_or_default().to_owned(), value, length)
        } else {
            let name = &rest[..key_end];
            let (key, value) = name.strip_prefix("no").map_or((name, "on"), |key| (key, "off"));
            (key.to_owned(), value.to_owned(), key_end)
        };
        fields.push(Field { key, value, span: at..at + length, is_implied });
        at += length + 1;
    }
    fields
}

/// The value at the start of `text` without escapes, and its length with them.
pub(crate) fn value(text: &str) -> (String, usize) {
    let mut value = String::new();
    let mut at = 0;
    while let Some(comma) = text[at..].find(',') {
        value.push_str(&text[at..at + comma]);
        at += comma;
        if !text[at + 1..].starts_with(',') {
            return (value, at);
        }
        value.push(',');
        at += 2;
    }
    value.push_str(&text[at..]);
    (value, text.len())
}

/// `value` with its commas doubled.
pub(crate) fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

/// The value of the last parameter `key`, which is the one QEMU uses.
pub(crate) fn get<'a>(fields: &'a [Field], key: &str) -> Option<&'a str> {
    fields.iter().rev().find(|field| field.key == key).map(|field| field.value.as_str())
}

/// Refuses `host-mem-type=near,far`, which QEMU's syntax reads as `host-mem-type=near` and a key `far`.
///
/// # Errors
/// [`VmError::Value`].
pub(crate) fn one_comma(place: &str, fields: &[Field]) -> Result<(), VmError> {
    for two in fields.windows(2).filter(|two| two[0].key == TYPE) {
        let (first, next) = (&two[0].value, &two[1].key);
        let has_no_value = two[1].span.len() == next.len();
        if has_no_value && (next == "cxlram" || next.parse::<NodeExpr>().is_ok()) {
            return Err(VmError::Value {
                place: place.to_owned(),
                key: TYPE.to_owned(),
                text: format!("{first},{next}"),
                problem: format!("a comma within a value is written twice: {first},,{next}"),
            });
        }
    }
    Ok(())
}

/// Whether a value switches something on.
pub(crate) fn is_on(value: &str) -> bool {
    ["on", "yes", "true", "y"].contains(&value)
}

/// Whether a value switches something off.
pub(crate) fn is_off(value: &str) -> bool {
    ["off", "no", "false", "n"].contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text, Some("type")).into_iter().map(|field| (field.key, field.value)).collect()
    }

    #[test]
    fn a_doubled_comma_is_one_in_a_value() {
        let expected = [("type", "a,b"), ("path", ",x,"), ("on", "on"), ("huge", "off")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(pairs("a,,b,path=,,x,,,on,nohuge"), expected);
    }

    #[test]
    fn a_value_may_hold_equals_signs_and_an_empty_one_stays() {
        let expected = [("a", "b=c"), ("d", "")].map(|(key, value)| (key.into(), value.into()));
        assert_eq!(pairs("a=b=c,d="), expected);
        assert_eq!(pairs(""), []);
    }

    proptest! {
        #[test]
        fn parameters_print_back(
            fields in proptest::collection::vec(("[a-z][a-z-]{0,6}", "[a-c,=\"{} é]{0,9}"), 1..6)
        ) {
            let print = |(key, value): &(String, String)| format!("{key}={}", escape(value));
            let text = fields.iter().map(print).collect::<Vec<_>>().join(",");
            let read = parse(&text, Some("type"));
            let again: Vec<_> = read.iter().map(|field| (field.key.clone(), field.value.clone())).collect();
            prop_assert_eq!(again, fields);
            let spans: Vec<_> = read.iter().map(|field| &text[field.span.clone()]).collect();
            prop_assert_eq!(spans.join(","), text);
        }

        #[test]
        fn any_text_parses_and_its_parameters_lie_in_order(text in "[a-c,=é-]{0,24}") {
            let read = parse(&text, Some("type"));
            let mut at = 0;
            for field in &read {
                prop_assert!(field.span.start >= at && text.get(field.span.clone()).is_some());
                at = field.span.end;
            }
        }
    }
}
