//! Files of `-readconfig`: sections `[group "id"]` with lines `key = "value"`, as QEMU reads them.

use std::ops::Range;

use super::keyval::Field;

/// One section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) group: String,
    pub(super) id: Option<String>,
    pub(super) fields: Vec<Field>,
}

/// The sections of `text`. Lines that QEMU would refuse are left out: QEMU names them.
pub(super) fn parse(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        if let Some(header) = trimmed.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            let (group, id) = header.split_once('"').unwrap_or((header, ""));
            let id = id.split('"').next().filter(|id| !id.is_empty()).map(str::to_owned);
            sections.push(Section { group: group.trim().to_owned(), id, fields: Vec::new() });
        } else if let (Some(section), Some(field)) = (sections.last_mut(), field(line, start)) {
            section.fields.push(field);
        }
    }
    sections
}

/// A line `key = "value"`, which starts at `start` of the file.
fn field(line: &str, start: usize) -> Option<Field> {
    let (key, value) = line.split_once('=')?;
    let value = value.trim_start().strip_prefix('"')?.split('"').next()?;
    let key_start = start + (line.len() - line.trim_start().len());
    let span: Range<usize> = key_start..start + line.trim_end().len();
    let (key, value) = (key.trim().to_owned(), value.to_owned());
    Some(Field { key, value, span, is_implied: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_groups_ids_and_fields_with_positions() {
        let text = "# c\n[memory]\n size = \"4G\"\n\n[object \"far0\"]\n  qom-type = \"memory-backend-ram\"  \n\tsize=\"\"\n";
        let sections = parse(text);
        let names: Vec<_> =
            sections.iter().map(|one| (one.group.as_str(), one.id.as_deref())).collect();
        assert_eq!(names, [("memory", None), ("object", Some("far0"))]);
        let spans: Vec<_> = sections
            .iter()
            .flat_map(|one| &one.fields)
            .map(|field| &text[field.span.clone()])
            .collect();
        assert_eq!(spans, ["size = \"4G\"", "qom-type = \"memory-backend-ram\"", "size=\"\""]);
        assert_eq!(sections[1].fields[1].value, "");
    }
}
