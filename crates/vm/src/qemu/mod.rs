//! QEMU's command line with memory kinds, rewritten to options that every QEMU has.
//!
//! `host-mem-type=` and `host-mem-policy=` are accepted on `-object memory-backend-ram`, `-file` and `-memfd`, as parameters,
//! as JSON and in files of `-readconfig`, and on `-m` for the whole memory. They become `host-nodes` and `policy`; every other
//! byte stays. Three steps: `expand` turns `-m` and `--far` into objects, [`plan`] resolves and checks the objects,
//! `hmat` describes the memory to the guest. Not here: starting QEMU; a [`Plan`] lists the work for the caller.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use nearfar_topology::{Bytes, NodeSet};

use crate::error::VmError;
use crate::policy::Policy;
use crate::splice::{self, Splice};
use crate::wish::{self, Host, POLICY, TYPE};

mod checks;
mod config;
mod far;
mod hmat;
mod json;
pub(crate) mod keyval;
mod object;
mod plain;
mod weighted;
pub(crate) mod words;

pub use far::{Far, Shape};
pub use weighted::{Mount, Way};

use checks::{divided, known, machine_type, misplaced, room, unique, unused};
use object::{Location, Object, Target};
use words::Opt;

/// Prefix of our keys; a command line without it is returned as it is.
const OURS: &str = "host-mem-";
/// Objects that take our keys.
const BACKENDS: [&str; 3] = ["memory-backend-ram", "memory-backend-file", "memory-backend-memfd"];

/// A command line and the wishes beside it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The program and its arguments.
    pub argv: &'a [OsString],
    /// Far memory to add.
    pub far: &'a [Far],
    /// The form in which the guest sees added memory.
    pub shape: Shape,
    /// The name of weighted interleave in QEMU's own policies, if it has one.
    pub native: Option<&'a str>,
    /// Whether the library that turns QEMU's interleave into weighted interleave is to be preloaded.
    pub preload: bool,
    /// Whether memory may be bound to nodes that lack free memory.
    pub overcommit: bool,
    /// Reads a file of `-readconfig`.
    pub read: &'a dyn Fn(&str) -> Result<String, String>,
    /// The page size of the file system of huge pages that contains a path; `None` if it is another file system.
    pub huge_pages_at: &'a dyn Fn(&str) -> Option<Bytes>,
}

impl<'a> Request<'a> {
    /// A command line alone, whose files can't be read.
    #[must_use]
    pub fn new(argv: &'a [OsString]) -> Self {
        Self {
            argv,
            far: &[],
            shape: Shape::Numa,
            native: None,
            preload: false,
            overcommit: false,
            read: &|_| Err("files are not read".into()),
            huge_pages_at: &|_| None,
        }
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("argv", &self.argv).finish_non_exhaustive()
    }
}

/// The rewritten command line, and the work to do before it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Rewritten files of `-readconfig`.
    pub configs: Vec<Config>,
    /// Mounts to make, in place of which other files may be named with [`Plan::put`].
    pub mounts: Vec<Mount>,
    /// Nodes over which the process must interleave its memory by weights before it becomes QEMU.
    pub process: Option<NodeSet>,
    /// The way to weighted interleave, if a backend needs it.
    pub way: Option<Way>,
    /// Why this way.
    pub why: Option<String>,
    /// Where each backend's memory will be.
    pub backends: Vec<Placed>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// A rewritten copy of a file of `-readconfig`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The word of the command line that names the file; to be replaced by the name of the copy.
    pub word: usize,
    /// The file.
    pub path: String,
    /// The content of the copy.
    pub text: String,
}

/// A backend with a wish.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Placed {
    /// Its id.
    pub id: String,
    /// Its size.
    #[serde(rename = "size_bytes")]
    pub size: Bytes,
    /// The type as written.
    #[serde(rename = "type")]
    pub kind: String,
    /// The host's nodes.
    #[serde(serialize_with = "as_text")]
    pub nodes: NodeSet,
    /// The policy over them.
    pub policy: Policy,
}

fn as_text<S: serde::Serializer>(nodes: &NodeSet, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(nodes)
}

/// A configuration file that was read.
#[derive(Debug)]
struct Loaded {
    word: usize,
    path: String,
    text: String,
}

impl Plan {
    /// Replaces the text `from`, a path of this plan, by `to`.
    pub fn put(&mut self, from: &str, to: &str) {
        for word in &mut self.argv {
            if let Some(text) = word.to_str().filter(|text| text.contains(from)) {
                *word = text.replace(from, to).into();
            }
        }
        for config in &mut self.configs {
            config.text = config.text.replace(from, to);
        }
    }
}

/// The plan for `request` on `host`.
///
/// # Errors
/// A wish that can't be fulfilled, or text with our keys that can't be understood.
pub fn plan(request: &Request<'_>, host: &Host<'_>) -> Result<Plan, VmError> {
    let mut words = request.argv.to_vec();
    let mut notes = Vec::new();
    let loaded = load(&words, request, &mut notes);
    let is_ours = |text: &[u8]| text.windows(OURS.len()).any(|part| part == OURS.as_bytes());
    let named = words.iter().any(|word| is_ours(word.as_bytes()))
        || loaded.iter().any(|file| is_ours(file.text.as_bytes()));
    let unchanged = |notes| Plan { argv: request.argv.to_vec(), notes, ..Plan::default() };
    if !named && request.far.is_empty() {
        return Ok(unchanged(notes));
    }
    readable(&words, is_ours)?;
    misplaced(&words)?;
    let wish = plain::take(&mut words)?;
    if !request.far.is_empty() || wish.is_some() {
        divided(&loaded, if request.far.is_empty() { "-m" } else { "--far" })?;
    }
    if !request.far.is_empty() && request.shape == Shape::Type3 {
        far::needs_cxl(&words::options(&words), machine_type(&loaded).as_deref())?;
    }
    let is_used = far::expand(&mut words, request.far, (request.shape, wish.as_deref()))?;
    if let Some(wish) = wish.filter(|_| !is_used) {
        plain::expand(&mut words, &wish)?;
    }
    let objects = objects(&words, &loaded)?;
    objects.iter().try_for_each(known)?;
    let wished = objects.iter().filter(|object| object.has_wish());
    let wished = wished.map(|object| Ok((object, placed(object, host, request.native)?)));
    let wished = wished.collect::<Result<Vec<_>, VmError>>()?;
    if wished.is_empty() {
        return Ok(unchanged(notes));
    }
    unique(&objects)?;
    if !request.overcommit {
        room((&words::options(&words), &loaded), (&objects, &wished), host, request)?;
    }
    let own = (request.native, request.preload);
    let way = weighted::way(&wished, (&objects, &words::options(&words)), own)?;
    let (way, why) = way.unzip();
    let mut plan = Plan { argv: words, notes, ..Plan::default() };
    rewrite(&mut plan, (&loaded, way.as_ref()), &wished)?;
    plan.process = weighted::process(&wished, way.as_ref());
    (plan.way, plan.why) = (way, why);
    plan.backends = wished.into_iter().map(|(_, placed)| placed).collect();
    let in_file =
        loaded.iter().find(|file| config::parse(&file.text).iter().any(|one| one.group == "numa"));
    match in_file {
        Some(file) => {
            plan.notes.push(format!("{} has NUMA nodes; the guest's HMAT is left to it", file.path))
        }
        None => hmat::describe(&mut plan.argv, (&plan.backends, &objects), host, &mut plan.notes),
    }
    let unused = unused(&plan.argv, &loaded, &plan.backends);
    plan.notes.extend(unused);
    Ok(plan)
}

/// Fuzz target: a command line, one word a line, whose files have the text after a blank line. Without our keys nothing
/// changes; a rewritten command line has none of them left on its objects, and a second pass changes nothing.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (line, file) = text.split_once("\n\n").unwrap_or((&text, ""));
    let argv: Vec<OsString> = line.split('\n').map(OsString::from).collect();
    let mut machine = nearfar_topology::Topology::default();
    for id in 0..2 {
        let node = nearfar_topology::Node { size: Bytes(1 << 40), ..Default::default() };
        machine.nodes.insert(nearfar_topology::NodeId(id), node);
    }
    let room = machine.nodes.keys().map(|id| (*id, Bytes(1 << 40))).collect();
    let host = Host { machine: &machine, room, huge: Default::default(), figures: None };
    let read = |_: &str| Ok(file.to_owned());
    let request = Request { read: &read, ..Request::new(&argv) };
    let Ok(first) = plan(&request, &host) else { return };
    if first.backends.is_empty() {
        assert_eq!(first.argv, argv, "no backend has a wish");
        return;
    }
    let texts: Vec<_> = first.configs.iter().map(|config| config.text.clone()).collect();
    let read = |_: &str| Ok(texts.first().cloned().unwrap_or_else(|| file.to_owned()));
    if texts.len() <= 1 {
        let again = Request { read: &read, ..Request::new(&first.argv) };
        let second = plan(&again, &host).map(|plan| plan.argv);
        assert_eq!(second, Ok(first.argv), "a second pass changes nothing");
    }
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;

/// The files of `-readconfig`. QEMU reports those that can't be read.
fn load(words: &[OsString], request: &Request<'_>, notes: &mut Vec<String>) -> Vec<Loaded> {
    let mut loaded = Vec::new();
    for Opt { word, value: path, .. } in
        words::options(words).into_iter().filter(|opt| opt.name == "readconfig")
    {
        match (request.read)(&path) {
            Ok(text) => loaded.push(Loaded { word, path, text }),
            Err(error) => {
                notes.push(format!("-readconfig {path}: not searched for {TYPE}: {error}"))
            }
        }
    }
    loaded
}

/// Refuses words with our keys that are no UTF-8.
fn readable(words: &[OsString], is_ours: impl Fn(&[u8]) -> bool) -> Result<(), VmError> {
    let is_bad = |word: &&OsString| word.to_str().is_none() && is_ours(word.as_bytes());
    words.iter().find(is_bad).map_or(Ok(()), |word| {
        let place = word.to_string_lossy().into_owned();
        Err(VmError::Unreadable { place, problem: "not UTF-8; rename the file it names".into() })
    })
}

/// All objects of the command line and its files.
fn objects(words: &[OsString], loaded: &[Loaded]) -> Result<Vec<Object>, VmError> {
    let mut objects = Vec::new();
    for opt in words::options(words) {
        if opt.name == "object" {
            match Object::of_word(opt.word, &opt.value) {
                Ok(object) => objects.push(object),
                // QEMU's JSON may have single quotes. Memory that is not known here would be left out of account.
                Err(error) if opt.value.contains(OURS) || opt.value.contains("memory-backend") => {
                    return Err(error);
                }
                // Where it is no JSON either, QEMU reports it.
                Err(_) => {}
            }
        } else if opt.name == "readconfig"
            && let Some(index) = loaded.iter().position(|file| file.word == opt.word)
        {
            objects.extend(Object::of_config(index, &loaded[index].path, &loaded[index].text));
        }
    }
    Ok(objects)
}

/// Resolves the wish of an object.
fn placed(object: &Object, host: &Host<'_>, native: Option<&str>) -> Result<Placed, VmError> {
    let place = || object.place.clone();
    let kind = object.get("qom-type").unwrap_or_default();
    let conflict = |ours: &str, theirs: String, remedy: &str| VmError::Conflict {
        place: place(),
        ours: ours.into(),
        theirs,
        remedy: remedy.into(),
    };
    if !BACKENDS.contains(&kind) {
        let remedy = "only memory-backend-ram, -file and -memfd have host memory of their own";
        return Err(conflict(TYPE, kind.to_owned(), remedy));
    }
    for key in [TYPE, POLICY, "policy"] {
        if object.fields.iter().filter(|field| field.key == key).count() > 1 {
            return Err(conflict(key, format!("another {key}"), "write it once"));
        }
    }
    let missing = |key: &str, remedy: &str| VmError::Missing {
        place: place(),
        key: key.into(),
        remedy: remedy.into(),
    };
    keyval::one_comma(&object.place, &object.fields)?;
    let Some(text) = object.get(TYPE) else {
        return Err(missing(
            TYPE,
            "host-mem-policy is a policy over its nodes; add host-mem-type=1-2, for example",
        ));
    };
    if object.has_own_nodes() {
        return Err(conflict(TYPE, "host-nodes".into(), "leave one of them out"));
    }
    let id = object.id.clone().ok_or_else(|| missing("id", "write id=NAME"))?;
    let own = object.get("policy");
    let policy = match (object.get(POLICY), own) {
        (Some(_), Some(own)) => {
            return Err(conflict(POLICY, format!("policy={own}"), "leave one of them out"));
        }
        (Some(ours), None) => wish::policy(&object.place, ours)?,
        (None, Some("default")) => {
            return Err(conflict(TYPE, "policy=default".into(), "leave policy out to bind"));
        }
        (None, Some(own)) => {
            let policy = wish::policy(&object.place, own)?;
            if policy == Policy::WeightedInterleave && native != Some(own) {
                return Err(VmError::Value {
                    place: place(),
                    key: "policy".into(),
                    text: own.into(),
                    problem: format!("this QEMU has no such policy; write {POLICY}={own}"),
                });
            }
            policy
        }
        (None, None) => Policy::Bind,
    };
    let nodes = wish::nodes(&object.place, text, host.machine)?;
    Ok(Placed { id, size: object.size()?, kind: text.to_owned(), nodes, policy })
}

/// Puts the changes into the words and files.
fn rewrite(
    plan: &mut Plan,
    (loaded, way): (&[Loaded], Option<&Way>),
    wished: &[(&Object, Placed)],
) -> Result<(), VmError> {
    let mut changes: Vec<Vec<Splice>> = vec![Vec::new(); loaded.len()];
    for (object, placed) in wished {
        let target = match way.filter(|_| placed.policy == Policy::WeightedInterleave) {
            Some(way) => weighted::target(object, placed, way, &mut plan.mounts)?,
            None => {
                let policy = (!object.has("policy")).then(|| placed.policy.word().to_owned());
                Target::Nodes { nodes: placed.nodes.clone(), policy }
            }
        };
        match object.at {
            Location::Word(word) => {
                if let Some(text) = plan.argv[word].to_str() {
                    plan.argv[word] = splice::apply(text, object.rewrite(text, &target)).into();
                }
            }
            Location::Config(index) => {
                changes[index].extend(object.rewrite(&loaded[index].text, &target));
            }
        }
    }
    for (file, changes) in loaded.iter().zip(changes).filter(|(_, changes)| !changes.is_empty()) {
        let text = splice::apply(&file.text, changes);
        plan.configs.push(Config { word: file.word, path: file.path.clone(), text });
    }
    Ok(())
}
