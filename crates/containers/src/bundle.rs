//! An OCI bundle's `config.json`: the parts that placement depends on, and its edits.
//!
//! An edit changes `linux.memoryPolicy`, `linux.resources.cpu.mems`, or, for a heap, adds two variables and a mount of the
//! preload library; everything else keeps its text and order. The file is replaced by renaming, so that it is never
//! half-written.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nearfar_topology::NodeSet;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tempfile::NamedTempFile;

use crate::annotations::Annotations;
use crate::json::Object;
use crate::policy::{MemoryPolicy, OciPolicy};

/// The name of a bundle's configuration.
pub const CONFIG: &str = "config.json";
/// The place of the preload library in a container.
pub const LIBRARY: &str = "/run/nearfar/libnearfar_preload.so";
/// The options of its mount.
pub const LIBRARY_OPTIONS: [&str; 4] = ["bind", "ro", "nosuid", "nodev"];
/// No configuration is as large.
const SIZE_MAX: u64 = 64 << 20;
/// The annotations with which managers of containers name one of a pod.
const NAMES: [&str; 3] = [
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri-o.ContainerName",
    "io.kubernetes.container.name",
];
/// The annotations that mark the container which holds a pod's namespaces.
const TYPES: [&str; 2] = ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"];

/// Reasons why a configuration can't be read or edited.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A call failed.
    #[error("can't {call} {path}: {source}", path = path.display())]
    Call {
        /// The operation.
        call: &'static str,
        /// Its file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The text is no configuration.
    #[error("the bundle's {CONFIG} is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// Its `linux.memoryPolicy` is unknown.
    #[error("linux.memoryPolicy has an unknown mode, node list or flag: {0}")]
    Policy(String),
}

/// The parts of a configuration that placement depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    annotations: Option<Annotations>,
    linux: Option<Linux>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Linux {
    #[serde(rename = "memoryPolicy")]
    policy: Option<OciPolicy>,
    resources: Option<Resources>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Resources {
    cpu: Option<Cpu>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Cpu {
    cpus: Option<String>,
    mems: Option<String>,
}

impl Config {
    /// Parses a configuration.
    ///
    /// # Errors
    /// [`BundleError::Json`].
    pub fn parse(text: &str) -> Result<Self, BundleError> {
        Ok(serde_json::from_str(text)?)
    }

    /// Its annotations.
    #[must_use]
    pub fn annotations(&self) -> Annotations {
        self.annotations.clone().unwrap_or_default()
    }

    /// The container's name in its pod.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        let annotations = self.annotations.as_ref()?;
        NAMES.iter().find_map(|key| annotations.get(*key)).map(String::as_str)
    }

    /// Whether it only holds a pod's namespaces: it has the pod's annotations, and no memory worth placing.
    #[must_use]
    pub fn is_sandbox(&self) -> bool {
        let of = |key: &&str| self.annotations.as_ref()?.get(*key);
        TYPES.iter().filter_map(of).any(|kind| kind == "sandbox")
    }

    /// Its cpuset: mems and cpus, as lists; empty without a limit.
    #[must_use]
    pub fn cpuset(&self) -> (&str, &str) {
        let cpu = self.linux.as_ref().and_then(|linux| linux.resources.as_ref()?.cpu.as_ref());
        let mems = cpu.and_then(|cpu| cpu.mems.as_deref()).unwrap_or_default();
        (mems, cpu.and_then(|cpu| cpu.cpus.as_deref()).unwrap_or_default())
    }

    /// The policy that it already has, by NRI or its author.
    ///
    /// # Errors
    /// [`BundleError::Policy`].
    pub fn policy(&self) -> Result<Option<MemoryPolicy>, BundleError> {
        let policy = self.linux.as_ref().and_then(|linux| linux.policy.as_ref());
        let read = |oci: &OciPolicy| {
            let text = || format!("{} {} {}", oci.mode, oci.nodes, oci.flags.join(","));
            MemoryPolicy::from_oci(oci).ok_or_else(|| BundleError::Policy(text()))
        };
        policy.filter(|oci| !oci.mode.is_empty()).map(read).transpose()
    }
}

/// Changes of a configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edits<'a> {
    /// A memory policy for the runtime to set.
    pub policy: Option<&'a MemoryPolicy>,
    /// The cpuset's nodes.
    pub mems: Option<&'a NodeSet>,
    /// The preload library on the host, and `NEARFAR_CONF`.
    pub heap: Option<(&'a Path, &'a str)>,
}

impl Edits<'_> {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.policy.is_none() && self.mems.is_none() && self.heap.is_none()
    }

    /// The configuration `text` with these changes.
    ///
    /// # Errors
    /// [`BundleError::Json`].
    pub fn apply(&self, text: &str) -> Result<String, BundleError> {
        let mut config = Object::parse(text)?;
        if self.policy.is_some() || self.mems.is_some() {
            config.edit("linux", |linux| self.linux(linux))?;
        }
        if let Some((library, conf)) = self.heap {
            config.edit("process", |process| {
                let env: Vec<String> = process
                    .list("env")?
                    .iter()
                    .map(|text| serde_json::from_str(text.get()))
                    .collect::<Result<_, _>>()?;
                process.set("env", &with_heap(env, conf))
            })?;
            let mut mounts = config.list("mounts")?;
            mounts.retain(|mount| !is_library(mount));
            let mount = Mount {
                destination: LIBRARY,
                kind: "bind",
                source: &library.to_string_lossy(),
                options: &LIBRARY_OPTIONS,
            };
            mounts.push(to_raw_value(&mount)?);
            config.set("mounts", &mounts)?;
        }
        Ok(serde_json::to_string(&config)?)
    }

    fn linux(&self, linux: &mut Object) -> serde_json::Result<()> {
        if let Some(policy) = self.policy {
            linux.set("memoryPolicy", &policy.oci())?;
        }
        match self.mems {
            Some(mems) => linux.edit("resources", |resources| {
                resources.edit("cpu", |cpu| cpu.set("mems", &mems.to_string()))
            }),
            None => Ok(()),
        }
    }
}

#[derive(Serialize)]
struct Mount<'a> {
    destination: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    source: &'a str,
    options: &'a [&'a str],
}

/// Whether a mount is that of an earlier edit.
fn is_library(mount: &RawValue) -> bool {
    let destination = Object::parse(mount.get()).ok();
    let destination = destination.as_ref().and_then(|mount| mount.get("destination"));
    destination.is_some_and(|text| {
        serde_json::from_str(text.get()).is_ok_and(|text: String| text == LIBRARY)
    })
}

/// The two variables of a heap; the library precedes others in `LD_PRELOAD`.
#[must_use]
pub fn heap_variables(env: &[String], conf: &str) -> [(&'static str, String); 2] {
    let others = env.iter().rev().find_map(|word| word.strip_prefix("LD_PRELOAD="));
    let preload = match others.filter(|others| !others.is_empty()) {
        Some(others) if others.split(':').any(|other| other == LIBRARY) => others.to_string(),
        Some(others) => format!("{LIBRARY}:{others}"),
        None => LIBRARY.to_string(),
    };
    [("LD_PRELOAD", preload), ("NEARFAR_CONF", conf.to_string())]
}

fn with_heap(mut env: Vec<String>, conf: &str) -> Vec<String> {
    let variables = heap_variables(&env, conf);
    env.retain(|word| {
        let key = word.split('=').next();
        !variables.iter().any(|(name, _)| key == Some(name))
    });
    env.extend(variables.map(|(name, value)| format!("{name}={value}")));
    env
}

/// Reads a configuration.
///
/// # Errors
/// [`BundleError::Call`].
pub fn read(path: &Path) -> Result<String, BundleError> {
    let failed = |source| BundleError::Call { call: "read", path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let mut text = String::new();
    let read = file.take(SIZE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if read as u64 > SIZE_MAX {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(text)
}

/// Replaces a configuration: writes another file beside it, durably, and renames that. Owner and mode stay.
///
/// # Errors
/// [`BundleError::Call`]; the old file is unchanged.
pub fn replace(path: &Path, text: &str) -> Result<(), BundleError> {
    let failed = |call| move |source| BundleError::Call { call, path: path.into(), source };
    let path = &path.canonicalize().map_err(failed("find"))?;
    let failed = |call| move |source| BundleError::Call { call, path: path.clone(), source };
    let other = write_beside(path, text).map_err(failed("write a file beside"))?;
    other.persist(path).map_err(|error| failed("replace")(error.error))?;
    Ok(())
}

fn write_beside(path: &Path, text: &str) -> io::Result<NamedTempFile> {
    let old = fs::metadata(path)?;
    let mut other = NamedTempFile::new_in(path.parent().unwrap_or_else(|| Path::new("/")))?;
    let file = other.as_file_mut();
    std::os::unix::fs::fchown(&*file, Some(old.uid()), Some(old.gid()))?;
    file.set_permissions(fs::Permissions::from_mode(old.permissions().mode()))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const TEXT: &str = r#"{"ociVersion":"1.0.2","zeta":{"b":1,"a":1.50},"process":{"args":["sh"],"env":["PATH=/bin","LD_PRELOAD=/lib/x.so"]},"mounts":[{"destination":"/proc"}],"annotations":{"nearfar.io/memory":"far","io.kubernetes.cri.container-name":"db"},"linux":{"resources":{"cpu":{"cpus":"0-1","mems":"0"}},"namespaces":[]}}"#;

    fn policy() -> MemoryPolicy {
        MemoryPolicy::from_numa_maps("bind=static:0-1").unwrap().0
    }

    #[test]
    fn name_annotations_cpuset_and_policy_are_parsed() {
        let config = Config::parse(TEXT).unwrap();
        assert_eq!(config.name(), Some("db"));
        assert_eq!(config.annotations()["nearfar.io/memory"], "far");
        assert_eq!(config.cpuset(), ("0", "0-1"));
        assert_eq!(config.policy().unwrap(), None);
        assert!(!config.is_sandbox());
        let sandbox =
            r#"{"annotations":{"io.kubernetes.cri.container-type":"sandbox"},"linux":null}"#;
        assert!(Config::parse(sandbox).unwrap().is_sandbox());
        assert_eq!(Config::parse("{}").unwrap().cpuset(), ("", ""));
        assert!(Config::parse(r#"{"annotations":3}"#).is_err());
        let unknown = r#"{"linux":{"memoryPolicy":{"mode":"MPOL_SIDEWAYS"}}}"#;
        let unknown = Config::parse(unknown).unwrap().policy().unwrap_err().to_string();
        assert!(unknown.contains("MPOL_SIDEWAYS"), "{unknown}");
    }

    #[test]
    fn edits_change_their_parts_alone() {
        let (policy, mems) = (policy(), NodeSet::parse_list("0-1").unwrap());
        let heap = Some((Path::new("/usr/lib/libnearfar_preload.so"), "heap=far"));
        let edits = Edits { policy: Some(&policy), mems: Some(&mems), heap };
        let edited = edits.apply(TEXT).unwrap();
        assert!(edited.starts_with(r#"{"ociVersion":"1.0.2","zeta":{"b":1,"a":1.50},"process":"#));
        let value: Value = serde_json::from_str(&edited).unwrap();
        let env = json!([
            "PATH=/bin",
            format!("LD_PRELOAD={LIBRARY}:/lib/x.so"),
            "NEARFAR_CONF=heap=far"
        ]);
        assert_eq!(value["process"], json!({"args": ["sh"], "env": env}));
        assert_eq!(value["mounts"][1]["source"], "/usr/lib/libnearfar_preload.so");
        assert_eq!(value["linux"]["resources"]["cpu"], json!({"cpus": "0-1", "mems": "0-1"}));
        assert_eq!(edits.apply(&edited).unwrap(), edited);
        assert_eq!(Config::parse(&edited).unwrap().policy().unwrap(), Some(policy));
        assert!(Edits::default().is_empty());
        assert_eq!(Edits::default().apply(TEXT).unwrap(), TEXT);
    }

    #[test]
    fn missing_objects_are_created() {
        let policy = policy();
        let edits = Edits { policy: Some(&policy), ..Edits::default() };
        let edited = edits.apply(r#"{"linux":null}"#).unwrap();
        assert!(edited.contains(r#"{"linux":{"memoryPolicy":{"mode":"MPOL_BIND""#), "{edited}");
        assert!(edits.apply(r#"{"linux":3}"#).is_err());
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_or_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONFIG);
        fs::write(&path, TEXT).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, "{}").unwrap();
        assert_eq!(read(&path).unwrap(), "{}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let gone = replace(&dir.path().join("absent"), "{}").unwrap_err().to_string();
        assert!(gone.contains("absent"), "{gone}");
    }

    proptest! {
        #[test]
        fn an_edit_keeps_every_other_value(
            keys in prop::collection::btree_map("[a-z]{1,6}", "[ -~]{0,8}", 0..6),
            number in any::<u64>(),
        ) {
            let mut before = json!({"linux": {"n": number, "devices": [{"major": number}]}});
            for (key, value) in &keys {
                before[format!("x{key}")] = json!({ "value": value, "deep": [null, {"k": number}] });
            }
            let policy = policy();
            let edits = Edits { policy: Some(&policy), ..Edits::default() };
            let text = serde_json::to_string(&before).unwrap();
            let mut after: Value = serde_json::from_str(&edits.apply(&text).unwrap()).unwrap();
            prop_assert!(after["linux"].as_object_mut().unwrap().remove("memoryPolicy").is_some());
            prop_assert_eq!(after, before);
        }
    }
}
