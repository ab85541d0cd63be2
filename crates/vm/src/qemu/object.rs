//! One `-object` in any of the three forms, and its rewriting in place.
//!
//! A field of ours is replaced where it stands, or removed with one separator, by byte ranges of the text; a list of nodes is
//! written as the form has it: repeated ranges, a JSON array, or one line for each element.
//! Not here: the choice of nodes and policy.

use std::ops::Range;

use nearfar_topology::{Bytes, NodeSet};

use super::keyval::{self, Field};
use super::{config, far, json, plain};
use crate::error::VmError;
use crate::size;
use crate::splice::Splice;
use crate::wish::{POLICY, TYPE};

/// The form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Keyval,
    Json,
    Config,
}

/// The text that holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Location {
    /// A word of the command line.
    Word(usize),
    /// A configuration file, by its index.
    Config(usize),
}

/// An object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    form: Form,
    pub(super) at: Location,
    pub(super) fields: Vec<Field>,
    pub(super) id: Option<String>,
    /// The option, for messages.
    pub(super) place: String,
}

/// Where a backend's pages are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pool {
    /// Free memory.
    Plain,
    /// Huge pages of a size, if it is known.
    Huge(Option<Bytes>),
}

/// The place of a backend's memory, in the keys that QEMU has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Bound by QEMU itself.
    Nodes {
        /// To these nodes.
        nodes: NodeSet,
        /// Under this policy; `None` if the text has it already.
        policy: Option<String>,
    },
    /// By the policy of the process.
    Inherit,
    /// In a file of a file system with a policy.
    File {
        /// The file.
        path: String,
    },
}

impl Object {
    /// The object of an `-object` option.
    pub(super) fn of_word(word: usize, text: &str) -> Result<Self, VmError> {
        let is_json = text.starts_with('{');
        let fields = if is_json {
            json::parse(text).map_err(|problem| {
                let problem = format!("JSON that can't be read: {problem}");
                VmError::Unreadable { place: "-object".into(), problem }
            })?
        } else {
            keyval::parse(text, Some("qom-type"))
        };
        let id = keyval::get(&fields, "id").map(str::to_owned);
        let place = match id.as_deref() {
            Some(plain::ID) => "-m".to_owned(),
            Some(id) if id.starts_with(far::FAR) => "--far".to_owned(),
            Some(id) => format!("-object {id}"),
            None => "-object without an id".to_owned(),
        };
        let form = if is_json { Form::Json } else { Form::Keyval };
        Ok(Self { form, at: Location::Word(word), fields, id, place })
    }

    /// The objects of a configuration file.
    pub(super) fn of_config(index: usize, path: &str, text: &str) -> Vec<Self> {
        let sections = config::parse(text).into_iter().filter(|one| one.group == "object");
        let object = |section: config::Section| {
            let id = section.id.or_else(|| keyval::get(&section.fields, "id").map(str::to_owned));
            Self {
                form: Form::Config,
                at: Location::Config(index),
                place: format!("{path}: object {}", id.as_deref().unwrap_or("without an id")),
                fields: section.fields,
                id,
            }
        };
        sections.map(object).collect()
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        keyval::get(&self.fields, key)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether it has a key of ours.
    pub(super) fn has_wish(&self) -> bool {
        self.has(TYPE) || self.has(POLICY)
    }

    /// Whether it is memory of a guest.
    pub(super) fn is_memory(&self) -> bool {
        self.get("qom-type").is_some_and(|kind| kind.starts_with("memory-backend"))
    }

    /// The pool of its pages. `default` is the host's default size of huge pages; `at` gives the page size of the file
    /// system of huge pages at a path.
    pub(super) fn pool(&self, default: Option<Bytes>, at: &dyn Fn(&str) -> Option<Bytes>) -> Pool {
        if self.get("hugetlb").is_some_and(keyval::is_on) {
            let named = self.get("hugetlbsize").and_then(|text| size::parse(text, 1));
            return Pool::Huge(named.filter(|size| size.0 > 0).or(default));
        }
        let huge = self.get("mem-path").and_then(at);
        huge.map_or(Pool::Plain, |size| Pool::Huge(Some(size)))
    }

    /// Its size.
    ///
    /// # Errors
    /// It has none, or one that QEMU does not understand either.
    pub(super) fn size(&self) -> Result<Bytes, VmError> {
        let place = || self.place.clone();
        let text = self.get("size").ok_or_else(|| VmError::Missing {
            place: place(),
            key: "size".into(),
            remedy: "write size=4G for 4 GiB".into(),
        })?;
        size::parse(text, 1).filter(|size| size.0 > 0).ok_or_else(|| VmError::Value {
            place: place(),
            key: "size".into(),
            text: text.to_owned(),
            problem: "not a size; write bytes, or a unit as in 512M or 4G".into(),
        })
    }

    /// The keys of host nodes that the user has written: `host-nodes`, or `host-nodes.0` in a file.
    fn own_fields(&self) -> impl Iterator<Item = &Field> {
        let is_own = |field: &&Field| {
            field
                .key
                .strip_prefix("host-nodes")
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.fields.iter().filter(is_own)
    }

    /// Whether the user has written host nodes.
    pub(super) fn has_own_nodes(&self) -> bool {
        self.own_fields().next().is_some()
    }

    /// The host nodes that the user has written.
    pub(super) fn own_nodes(&self) -> NodeSet {
        let lists = self.own_fields().filter_map(|field| {
            let list = field.value.trim_start_matches('[').trim_end_matches(']');
            NodeSet::parse_list(list)
        });
        lists.flat_map(|nodes| nodes.iter().collect::<Vec<_>>()).collect()
    }

    /// The changes that replace our keys in `text` by `target`.
    pub(super) fn rewrite(&self, text: &str, target: &Target) -> Vec<Splice> {
        let (at_type, at_policy) = match target {
            Target::Nodes { nodes, policy: None } => (self.nodes(nodes), Vec::new()),
            Target::Nodes { nodes, policy: Some(policy) } => {
                let policy = self.text("policy", policy);
                if self.has(POLICY) {
                    (self.nodes(nodes), vec![policy])
                } else {
                    ([self.nodes(nodes), vec![policy]].concat(), Vec::new())
                }
            }
            Target::Inherit => (Vec::new(), Vec::new()),
            Target::File { path } => {
                let share = (!self.has("share")).then(|| self.on("share"));
                ([self.text("mem-path", path)].into_iter().chain(share).collect(), Vec::new())
            }
        };
        let is_file = matches!(target, Target::File { .. });
        // A backend of a file has no pages of its own kind; where this is reached they are off.
        let goes = |field: &Field| {
            let key = field.key.as_str();
            [TYPE, POLICY].contains(&key)
                || is_file && ["hugetlb", "hugetlbsize", "seal"].contains(&key)
        };
        let mut changes = Vec::new();
        for (index, field) in self.fields.iter().enumerate() {
            let members = match field.key.as_str() {
                TYPE => &at_type,
                POLICY => &at_policy,
                "qom-type" if is_file => {
                    let kind = "memory-backend-file";
                    let member =
                        if field.is_implied { kind.into() } else { self.text("qom-type", kind) };
                    changes.push(Splice::new(field.span.clone(), member));
                    continue;
                }
                _ if goes(field) => &Vec::new(),
                _ => continue,
            };
            if members.is_empty() {
                changes.push(Splice::new(self.removed(text, index, goes), ""));
            } else {
                let between = self.between(text, &field.span);
                changes.push(Splice::new(field.span.clone(), members.join(&between)));
            }
        }
        changes
    }

    /// The bytes to remove with a field: the field and one separator. `goes` holds for fields that are removed or replaced.
    fn removed(&self, text: &str, index: usize, goes: impl Fn(&Field) -> bool) -> Range<usize> {
        let span = &self.fields[index].span;
        if self.form == Form::Config {
            let start = text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
            let end =
                text[span.end..].find('\n').map_or(text.len(), |length| span.end + length + 1);
            return start..end;
        }
        let next = self.fields.get(index + 1).map(|next| next.span.start);
        if self.fields[..index].iter().all(goes) {
            return span.start..next.unwrap_or(span.end);
        }
        self.fields[index - 1].span.end..span.end
    }

    /// The separator of two fields; in a file, the indentation of the line is kept.
    fn between(&self, text: &str, span: &Range<usize>) -> String {
        if self.form != Form::Config {
            return ",".into();
        }
        let start = text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
        format!("\n{}", &text[start..span.start])
    }

    fn text(&self, key: &str, value: &str) -> String {
        match self.form {
            Form::Keyval => format!("{key}={}", keyval::escape(value)),
            Form::Json => format!("{}:{}", json::string(key), json::string(value)),
            Form::Config => format!("{key} = \"{value}\""),
        }
    }

    fn on(&self, key: &str) -> String {
        if self.form == Form::Json { format!("\"{key}\":true") } else { self.text(key, "on") }
    }

    fn nodes(&self, nodes: &NodeSet) -> Vec<String> {
        let runs = nodes.to_string();
        match self.form {
            Form::Keyval => runs.split(',').map(|run| format!("host-nodes={run}")).collect(),
            Form::Json => {
                let all: Vec<_> = nodes.iter().map(|node| node.to_string()).collect();
                vec![format!("\"host-nodes\":[{}]", all.join(","))]
            }
            // QEMU reads a list from a file only element by element.
            Form::Config => {
                let line = |(index, node)| format!("host-nodes.{index} = \"{node}\"");
                nodes.iter().enumerate().map(line).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splice;

    fn nodes(list: &str) -> NodeSet {
        NodeSet::parse_list(list).unwrap()
    }

    fn rewritten(text: &str, target: &Target) -> String {
        let object = Object::of_word(0, text).unwrap();
        splice::apply(text, object.rewrite(text, target))
    }

    fn bound(list: &str) -> Target {
        Target::Nodes { nodes: nodes(list), policy: Some("bind".into()) }
    }

    #[test]
    fn nearfars_keys_are_replaced_in_place() {
        for (text, expected) in [
            (
                "memory-backend-ram,host-mem-type=cxl,id=a,size=1G",
                "memory-backend-ram,host-nodes=1-2,host-nodes=5,policy=bind,id=a,size=1G",
            ),
            (
                "qom-type=memory-backend-ram,host-mem-policy=bind,id=a,host-mem-type=1,,2,,5",
                "qom-type=memory-backend-ram,policy=bind,id=a,host-nodes=1-2,host-nodes=5",
            ),
            (
                r#"{"qom-type":"memory-backend-ram", "host-mem-type":"cxl" ,"id":"a"}"#,
                r#"{"qom-type":"memory-backend-ram", "host-nodes":[1,2,5],"policy":"bind" ,"id":"a"}"#,
            ),
        ] {
            assert_eq!(rewritten(text, &bound("1-2,5")), expected);
        }
    }

    #[test]
    fn keys_are_removed_with_one_separator_wherever_they_stand() {
        for (text, expected) in [
            (
                "memory-backend-ram,host-mem-type=1,host-mem-policy=x,id=a",
                "memory-backend-ram,id=a",
            ),
            (
                "memory-backend-ram,id=a,host-mem-policy=x,host-mem-type=1",
                "memory-backend-ram,id=a",
            ),
            (
                r#"{"host-mem-type":"1", "host-mem-policy":"x", "qom-type":"m"}"#,
                r#"{"qom-type":"m"}"#,
            ),
            (
                r#"{"host-mem-type":"1","qom-type":"m","host-mem-policy":"x"}"#,
                r#"{"qom-type":"m"}"#,
            ),
        ] {
            assert_eq!(rewritten(text, &Target::Inherit), expected);
        }
    }

    #[test]
    fn memory_in_a_file_is_shared_unless_stated_otherwise() {
        let target = Target::File { path: "/run/a,b".into() };
        assert_eq!(
            rewritten("memory-backend-memfd,id=a,host-mem-type=1-2,host-mem-policy=w", &target),
            "memory-backend-file,id=a,mem-path=/run/a,,b,share=on"
        );
        assert_eq!(
            rewritten(
                r#"{"qom-type":"memory-backend-ram","share":false,"host-mem-type":"1"}"#,
                &target
            ),
            r#"{"qom-type":"memory-backend-file","share":false,"mem-path":"/run/a,b"}"#
        );
    }

    #[test]
    fn a_line_of_a_file_becomes_several_with_its_indentation() {
        let text = "[object \"a\"]\n  qom-type = \"memory-backend-ram\"\n  host-mem-type = \"far\"\n  host-mem-policy = \"bind\"\n[x]\n";
        let object = Object::of_config(0, "f", text).remove(0);
        assert_eq!(
            splice::apply(text, object.rewrite(text, &bound("1,3"))),
            "[object \"a\"]\n  qom-type = \"memory-backend-ram\"\n  host-nodes.0 = \"1\"\n  host-nodes.1 = \"3\"\n  policy = \"bind\"\n[x]\n"
        );
        assert_eq!(
            splice::apply(text, object.rewrite(text, &Target::Inherit)),
            "[object \"a\"]\n  qom-type = \"memory-backend-ram\"\n[x]\n"
        );
    }

    #[test]
    fn nodes_that_the_user_wrote_are_read_in_each_form() {
        for text in ["m,host-nodes=1,host-nodes=3-4", r#"{"host-nodes":[1,3,4]}"#] {
            assert_eq!(Object::of_word(0, text).unwrap().own_nodes(), nodes("1,3-4"), "{text}");
        }
        let text = "[object \"a\"]\nhost-nodes.0 = \"1\"\nhost-nodes.1 = \"3\"\n";
        assert_eq!(Object::of_config(0, "f", text)[0].own_nodes(), nodes("1,3"));
    }
}
