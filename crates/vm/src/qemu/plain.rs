//! `-m 4G,host-mem-type=cxl`: all of the guest's memory on one kind, as a backend of the machine.

use std::ffi::OsString;

use nearfar_topology::Bytes;

use super::keyval;
use super::words::{self, Opt};
use crate::error::VmError;
use crate::size;
use crate::splice::{self, Splice};
use crate::wish::{POLICY, TYPE};

/// The id of the backend.
pub(super) const ID: &str = "nearfar-ram";
/// QEMU's size without -m.
const DEFAULT: Bytes = Bytes(128 << 20);
/// QEMU rounds sizes up to this.
const STEP: u64 = 8192;

/// The memory size of the machine: the last one on the command line.
pub(super) fn memory(options: &[Opt]) -> Result<Bytes, VmError> {
    let mut sizes = options.iter().filter(|opt| opt.name == "m").filter_map(|opt| {
        keyval::get(&keyval::parse(&opt.value, Some("size")), "size").map(str::to_owned)
    });
    let Some(text) = sizes.next_back() else { return Ok(DEFAULT) };
    let size = size::parse(&text, 1 << 20).filter(|size| size.0 > 0);
    let rounded = size.and_then(|size| size.0.checked_next_multiple_of(STEP)).map(Bytes);
    rounded.ok_or_else(|| VmError::Value {
        place: "-m".into(),
        key: "size".into(),
        text,
        problem: "not a size; write MiB, or a unit as in 512M or 4G".into(),
    })
}

/// Takes our keys off `-m`, as text for an object.
pub(super) fn take(words: &mut [OsString]) -> Result<Option<String>, VmError> {
    let is_ours = |key: &str| [TYPE, POLICY].contains(&key);
    let mut found: Option<String> = None;
    for opt in words::options(words).iter().filter(|opt| opt.name == "m") {
        let fields = keyval::parse(&opt.value, Some("size"));
        let ours: Vec<_> = fields.iter().filter(|field| is_ours(&field.key)).collect();
        if ours.is_empty() {
            continue;
        }
        if is_ours(&fields[0].key) {
            return Err(VmError::Missing {
                place: "-m".into(),
                key: "size".into(),
                remedy: "write the size first: -m 4G,host-mem-type=cxl".into(),
            });
        }
        keyval::one_comma("-m", &fields)?;
        for key in ["host-nodes", "policy"] {
            if keyval::get(&fields, key).is_some() {
                return Err(conflict(
                    &format!("{key}="),
                    "leave it out: host-mem-policy is the policy",
                ));
            }
        }
        let texts: Vec<_> = ours.iter().map(|field| &opt.value[field.span.clone()]).collect();
        if found.replace(texts.join(",")).is_some() {
            return Err(conflict("another -m with it", "write it once"));
        }
        let removed = fields.windows(2).filter(|two| is_ours(&two[1].key));
        let removed = removed.map(|two| Splice::new(two[0].span.end..two[1].span.end, ""));
        words[opt.word] = splice::apply(&opt.value, removed.collect()).into();
    }
    Ok(found)
}

/// Adds a backend with the keys `wish`, and makes it the machine's memory.
pub(super) fn expand(words: &mut Vec<OsString>, wish: &str) -> Result<(), VmError> {
    let options = words::options(words);
    free(&options)?;
    let size = size::print(memory(&options)?);
    let object = format!("memory-backend-ram,id={ID},size={size},{wish}");
    let added = ["-object", &object, "-machine", &format!("memory-backend={ID}")];
    words.extend(added.map(OsString::from));
    Ok(())
}

/// Refuses options that place the machine's memory otherwise.
fn free(options: &[Opt]) -> Result<(), VmError> {
    let remedy = "write host-mem-type on the -object instead";
    for opt in options {
        let fields = keyval::parse(&opt.value, Some("type"));
        match opt.name.as_str() {
            "machine" if keyval::get(&fields, "memory-backend").is_some() => {
                return Err(conflict("-machine memory-backend=", remedy));
            }
            "machine" if fields.iter().any(|field| field.key.starts_with("memory.")) => {
                return Err(conflict("-machine memory.*=", "write -m SIZE, which is the same"));
            }
            "numa" if keyval::get(&fields, "memdev").is_some() => {
                return Err(conflict("-numa node,memdev=", remedy));
            }
            "mem-path" => {
                let remedy = "use -object memory-backend-file,mem-path=FILE,host-mem-type=TYPE";
                return Err(conflict("-mem-path", remedy));
            }
            _ => {}
        }
    }
    Ok(())
}

fn conflict(theirs: &str, remedy: &str) -> VmError {
    VmError::Conflict {
        place: "-m".into(),
        ours: TYPE.into(),
        theirs: theirs.into(),
        remedy: remedy.into(),
    }
}
