//! CDI files: a placement as variables that the container runtime adds to the containers of a claim.
//!
//! There is one file for each prepared claim, `nearfar.io-memory_<uid>.json`, with one CDI device for each part, as a
//! container may use single requests of a claim. The variables carry a random key, which the NRI plugin compares; it is
//! kept when a claim is prepared again, so that the answer stays the same. Files are written whole or not at all, and
//! readable by root only.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use nearfar_containers::claims::{
    CDI_KIND, CDI_PREFIX, CdiDevice, CdiEdits, CdiSpec, Share, ShareId, cdi_file, is_uid,
};

use crate::claims::{Part, Placement};

/// The version with annotations, which containerd 1.7 and later and CRI-O read.
const VERSION: &str = "0.6.0";
const NAMESPACE: &str = "memory.nearfar.io/namespace";
const NAME: &str = "memory.nearfar.io/name";
/// Largest file that is read back.
const SIZE_MAX: u64 = 1 << 20;

/// A directory of CDI files.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// A prepared claim, by its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The claim's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The CDI device of part `number`, with its kind: the name by which kubelet passes it to the container runtime.
#[must_use]
pub fn device(uid: &str, number: u16) -> Option<String> {
    Some(format!("{CDI_KIND}={}", ShareId::new(uid, number)?.device()))
}

/// The file of a placement.
#[must_use]
pub fn spec(placement: &Placement, key: &str) -> CdiSpec {
    let device = |(part, number): (&Part, u16)| {
        let id = ShareId::new(&placement.uid, number)?;
        let share = Share {
            policy: placement.policy,
            nodes: [part.node].into_iter().collect(),
            bytes: part.bytes,
            key: key.into(),
        };
        let env = vec![format!("{}={share}", id.variable())];
        Some(CdiDevice { name: id.device(), container_edits: CdiEdits { env } })
    };
    let annotations = [(NAMESPACE, &placement.namespace), (NAME, &placement.name)];
    CdiSpec {
        cdi_version: VERSION.into(),
        kind: CDI_KIND.into(),
        annotations: annotations.map(|(key, value)| (key.into(), value.clone())).into(),
        devices: placement.parts.iter().zip(0u16..).filter_map(device).collect(),
    }
}

/// The key in a file.
fn key(spec: &CdiSpec) -> Option<String> {
    let entry = spec.devices.first()?.container_edits.env.first()?;
    let share: Share = entry.split_once('=')?.1.parse().ok()?;
    Some(share.key)
}

fn new_key() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if read < bytes.len() {
        return Err(io::Error::other("the kernel returned too few random bytes"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Store {
    /// The files in `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.dir.join(cdi_file(uid))
    }

    fn read(&self, uid: &str) -> io::Result<Option<CdiSpec>> {
        let path = self.path(uid);
        let file = match std::fs::symlink_metadata(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.is_file() || file.len() > SIZE_MAX {
            return Ok(None);
        }
        Ok(serde_json::from_str(&std::fs::read_to_string(path)?).ok())
    }

    /// Writes the file of a placement, unless it is there already. Creates the directory if it is missing.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, placement: &Placement) -> io::Result<()> {
        let known = self.read(&placement.uid)?;
        let known_key = known.as_ref().and_then(key);
        if let (Some(known), Some(key)) = (&known, &known_key)
            && *known == spec(placement, key)
        {
            return Ok(());
        }
        let spec = spec(placement, &new_key()?);
        std::fs::create_dir_all(&self.dir)?;
        // Its name has no suffix that runtimes look for, and its mode is 0600.
        let mut file = tempfile::Builder::new().prefix(".nearfar-").tempfile_in(&self.dir)?;
        serde_json::to_writer_pretty(&mut file, &spec)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(self.path(&placement.uid)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the file of a claim; true if there was one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, uid: &str) -> io::Result<bool> {
        match std::fs::remove_file(self.path(uid)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The claims with a file. A file that can't be read has no namespace and name.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn list(&self) -> io::Result<Vec<Prepared>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let Some(uid) = uid_of(Path::new(&name)) else { continue };
            let spec = self.read(&uid)?.unwrap_or_default();
            let noted = |key: &str| spec.annotations.get(key).cloned().unwrap_or_default();
            found.push(Prepared { uid, namespace: noted(NAMESPACE), name: noted(NAME) });
        }
        found.sort_by(|a, b| a.uid.cmp(&b.uid));
        Ok(found)
    }
}

/// The claim of a file with this name.
fn uid_of(name: &Path) -> Option<String> {
    let uid = name.to_str()?.strip_prefix(CDI_PREFIX)?.strip_suffix(".json")?;
    is_uid(uid).then(|| uid.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_containers::claims::ClaimPolicy;
    use nearfar_topology::{Bytes, NodeId};
    use std::os::unix::fs::PermissionsExt as _;

    fn placement(node: u16) -> Placement {
        let part = Part {
            request: "far".into(),
            pool: "worker".into(),
            device: format!("node{node}"),
            share: None,
            node: NodeId(node),
            bytes: Bytes(16 << 30),
        };
        Placement {
            uid: "0a-b".into(),
            namespace: "shop".into(),
            name: "data".into(),
            policy: ClaimPolicy::Bind,
            parts: vec![part],
        }
    }

    #[test]
    fn a_file_follows_the_cdi_specification() {
        let json = serde_json::to_value(spec(&placement(1), "ab")).unwrap();
        let expected = serde_json::json!({
            "cdiVersion": "0.6.0",
            "kind": "nearfar.io/memory",
            "annotations": {"memory.nearfar.io/namespace": "shop", "memory.nearfar.io/name": "data"},
            "devices": [{
                "name": "0a-b-0",
                "containerEdits": {"env": ["NEARFAR_CLAIM_0a_b_0=policy:bind;nodes:1;bytes:17179869184;key:ab"]}
            }]
        });
        assert_eq!(json, expected);
        assert_eq!(device("0a-b", 0).as_deref(), Some("nearfar.io/memory=0a-b-0"));
        assert_eq!(device("../b", 0), None);
    }

    #[test]
    fn a_file_is_written_once_replaced_if_the_placement_differs_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("cdi"));
        let path = dir.path().join("cdi/nearfar.io-memory_0a-b.json");
        assert!(!store.remove("0a-b").unwrap());
        store.write(&placement(1)).unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        store.write(&placement(1)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        store.write(&placement(0)).unwrap();
        assert_ne!(std::fs::read_to_string(&path).unwrap(), first);
        std::fs::write(&path, "{").unwrap();
        store.write(&placement(1)).unwrap();
        let listed = store.list().unwrap();
        assert_eq!(
            (listed[0].namespace.as_str(), listed[0].name.as_str(), listed.len()),
            ("shop", "data", 1)
        );
        assert!(store.remove("0a-b").unwrap());
        assert_eq!(std::fs::read_dir(dir.path().join("cdi")).unwrap().count(), 0);
    }

    #[test]
    fn the_list_omits_files_of_other_vendors_and_accepts_a_missing_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Store::new(dir.path().join("none")).list().unwrap(), []);
        for name in ["nvidia.json", "nearfar.io-memory_.json", "nearfar.io-memory_a.yaml"] {
            std::fs::write(dir.path().join(name), "{}").unwrap();
        }
        assert_eq!(Store::new(dir.path()).list().unwrap(), []);
    }
}
