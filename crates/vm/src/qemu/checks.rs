//! Refusals before anything is rewritten: keys that are misspelt or misplaced, files that divide the guest's memory
//! beside ours, ids that two objects have, and memory that does not fit.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use nearfar_topology::{Bytes, NodeSet};

use super::object::{Object, Pool};
use super::words::{self, Opt};
use super::{Loaded, OURS, Placed, Request, config, json, keyval};
use crate::capacity::{self, Demand};
use crate::error::VmError;
use crate::policy::Policy;
use crate::size;
use crate::wish::{Host, POLICY, TYPE};

/// Refuses a misspelt key of ours on an object.
pub(super) fn known(object: &Object) -> Result<(), VmError> {
    let is_unknown = |key: &str| key.starts_with(OURS) && ![TYPE, POLICY].contains(&key);
    let unknown = object.fields.iter().find(|field| is_unknown(&field.key));
    unknown.map_or(Ok(()), |field| {
        let problem = format!("{} is unknown; the keys are {TYPE} and {POLICY}", field.key);
        Err(VmError::Unreadable { place: object.place.clone(), problem })
    })
}

/// Refuses files of `-readconfig` that divide the guest's memory, for `ours`, which divides that of the command line.
pub(super) fn divided(loaded: &[Loaded], ours: &str) -> Result<(), VmError> {
    for file in loaded {
        let has = |section: &config::Section| match section.group.as_str() {
            "memory" | "smp-opts" | "numa" => true,
            "machine" => keyval::get(&section.fields, "memory-backend").is_some(),
            _ => false,
        };
        if let Some(section) = config::parse(&file.text).iter().find(|section| has(section)) {
            return Err(VmError::Conflict {
                place: format!("-readconfig {}", file.path),
                ours: ours.into(),
                theirs: format!("section [{}]", section.group),
                remedy: "write its options on the command line instead".into(),
            });
        }
    }
    Ok(())
}

/// The type of machine that files of `-readconfig` have.
pub(super) fn machine_type(loaded: &[Loaded]) -> Option<String> {
    let sections = loaded.iter().flat_map(|file| config::parse(&file.text));
    let machines = sections.filter(|section| section.group == "machine");
    let types = machines.filter_map(|one| keyval::get(&one.fields, "type").map(str::to_owned));
    types.reduce(|_, last| last)
}

/// Refuses our keys on options that look as if they took them.
pub(super) fn misplaced(words: &[OsString]) -> Result<(), VmError> {
    for opt in words::options(words) {
        let takes_none = ["machine", "numa", "device"].contains(&opt.name.as_str());
        let fields = keyval::parse(&opt.value, Some("type"));
        if takes_none && fields.iter().any(|field| field.key.starts_with(OURS)) {
            return Err(VmError::Conflict {
                place: format!("-{}", opt.name),
                ours: TYPE.into(),
                theirs: "this option".into(),
                remedy: "write it on -m for all of the memory, or on -object for one backend"
                    .into(),
            });
        }
    }
    Ok(())
}

/// Refuses two objects with one id: QEMU does so too, but after our changes its message names the wrong option.
pub(super) fn unique(objects: &[Object]) -> Result<(), VmError> {
    let mut seen = BTreeSet::new();
    for object in objects {
        if let Some(id) = object.id.as_ref().filter(|id| !seen.insert((*id).clone())) {
            return Err(VmError::DuplicateId { place: object.place.clone(), id: id.clone() });
        }
    }
    Ok(())
}

/// Refuses memory that the nodes it is bound to can't hold, together with memory that the user has bound.
pub(super) fn room(
    (options, files): (&[Opt], &[Loaded]),
    (objects, wished): (&[Object], &[(&Object, Placed)]),
    host: &Host<'_>,
    request: &Request<'_>,
) -> Result<(), VmError> {
    let pool = |object: &Object| object.pool(host.huge.default, request.huge_pages_at);
    let mut demands: BTreeMap<Pool, Vec<Demand>> = BTreeMap::new();
    let mut add = |object: &Object, id: &str, size: Bytes, nodes: NodeSet| {
        // Huge pages of a device's whole memory are reserved at the start, unless that is off.
        let is_reserved =
            pool(object) != Pool::Plain && !object.get("reserve").is_some_and(keyval::is_off);
        let size = plugged((options, files), id).filter(|_| !is_reserved).unwrap_or(size);
        let demand = Demand { id: id.to_owned(), size, nodes };
        demands.entry(pool(object)).or_default().push(demand);
    };
    for (object, placed) in wished.iter().filter(|(_, placed)| placed.policy == Policy::Bind) {
        add(object, &placed.id, placed.size, placed.nodes.clone());
    }
    let own = objects.iter().filter(|object| {
        object.is_memory() && !object.has_wish() && object.get("policy") == Some("bind")
    });
    for object in own {
        let nodes = object.own_nodes();
        let all_known = nodes.iter().all(|node| host.room.contains_key(&node));
        if let (Some(id), Ok(size), true) =
            (&object.id, object.size(), all_known && !nodes.is_empty())
        {
            add(object, id, size, nodes);
        }
    }
    for (pool, demands) in demands {
        match pool {
            Pool::Plain => capacity::check(&demands, &host.room, capacity::FREE)?,
            Pool::Huge(Some(size)) if !host.huge.free.is_empty() => {
                let free = host.huge.free.get(&size).cloned().unwrap_or_default();
                capacity::check(&demands, &free, &format!("in free huge pages of {size}"))?;
            }
            // The size is unknown here; QEMU reports pages that it does not get.
            Pool::Huge(_) => {}
        }
    }
    Ok(())
}

/// The memory that a virtio-mem device over this backend has at the start; `None` if there is no such device.
fn plugged((options, files): (&[Opt], &[Loaded]), id: &str) -> Option<Bytes> {
    let sections = files.iter().flat_map(|file| config::parse(&file.text));
    let in_files = sections.filter(|one| one.group == "device").map(|one| one.fields);
    let devices = options.iter().filter(|opt| opt.name == "device");
    let fields = devices.map(|opt| match opt.value.strip_prefix('{') {
        Some(_) => json::parse(&opt.value).unwrap_or_default(),
        None => keyval::parse(&opt.value, Some("driver")),
    });
    let mut devices = fields.chain(in_files).filter(|fields| {
        let is_it =
            keyval::get(fields, "driver").is_some_and(|name| name.starts_with("virtio-mem"));
        is_it && keyval::get(fields, "memdev") == Some(id)
    });
    let device = devices.next()?;
    keyval::get(&device, "requested-size").map_or(Some(Bytes(0)), |text| size::parse(text, 1))
}

/// A message for each backend that only its own definition names. QEMU allocates its memory; the guest does
/// not have it, unless the monitor attaches it later.
pub(super) fn unused<'a>(
    words: &'a [OsString],
    files: &'a [Loaded],
    placed: &'a [Placed],
) -> Vec<String> {
    let texts = || {
        let words = words.iter().filter_map(|word| word.to_str());
        words.chain(files.iter().map(|file| file.text.as_str()))
    };
    let is_of_id = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let count = |id: &str| {
        let names = texts().flat_map(|text| text.split(|c| !is_of_id(c)));
        names.filter(|name| *name == id).count()
    };
    let alone = placed.iter().filter(|one| count(&one.id) < 2);
    let message = |one: &Placed| {
        format!(
            "the guest does not use the memory of backend `{id}`: no option names it, such as -numa node,memdev={id} or \
             -machine memory-backend={id}",
            id = one.id
        )
    };
    alone.map(message).collect()
}
