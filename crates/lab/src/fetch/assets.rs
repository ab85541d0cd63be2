//! QEMU and busybox, from the cache, downloaded into it, or named by the user.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::apt::{Apt, last_words};
use super::{Cache, FetchError, Say};

pub(super) const BOOKWORM: &[&str] = &["bookworm", "bookworm-backports"];

/// An emulator, ready to start.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// The program and the arguments before QEMU's own.
    pub command: Vec<OsString>,
    /// Variables with the path of its modules.
    pub env: Vec<(&'static str, OsString)>,
    /// Its directories of firmware.
    pub firmware: Vec<PathBuf>,
}

/// busybox, linked statically: the guest's first program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busybox {
    /// The program.
    pub program: PathBuf,
}

impl Qemu {
    /// The cached one, downloaded if missing.
    ///
    /// # Errors
    /// [`FetchError`].
    pub fn cached(cache: &Cache, say: &dyn Say) -> Result<Self, FetchError> {
        if let Some((_, root)) = cache.newest("qemu", "") {
            return Ok(Self::unpacked(&root));
        }
        let _lock = cache.lock(say)?;
        if let Some((_, root)) = cache.newest("qemu", "") {
            return Ok(Self::unpacked(&root));
        }
        fetch_tools(cache, say)?;
        let found = cache.newest("qemu", "").map(|(_, root)| Self::unpacked(&root));
        found.ok_or_else(|| FetchError::Tool {
            what: "fetching QEMU".to_owned(),
            found: "it is not in the cache afterwards".to_owned(),
        })
    }

    /// The one at `path`.
    ///
    /// # Errors
    /// [`FetchError::NoQemu`] if there is none.
    pub fn at(path: &Path) -> Result<Self, FetchError> {
        let refused = |found: String| FetchError::NoQemu { path: path.to_owned(), found };
        let output = Command::new(path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| refused(error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() || !said.contains("QEMU emulator") {
            return Err(refused(format!(
                "it does not say it is QEMU ({})",
                last_words(&output.stderr)
            )));
        }
        Ok(Self { command: vec![path.into()], env: Vec::new(), firmware: Vec::new() })
    }

    /// The words that start it: program and directories of firmware.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        let firmware = self.firmware.iter().flat_map(|dir| ["-L".into(), dir.into()]);
        self.command.iter().cloned().chain(firmware).collect()
    }

    /// Debian's, unpacked at `root`: runs with its own loader and its own libraries.
    fn unpacked(root: &Path) -> Self {
        let libraries =
            ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|dir| root.join(dir));
        let mut path = libraries[0].clone().into_os_string();
        path.push(":");
        path.push(&libraries[1]);
        let command = vec![
            root.join("lib64/ld-linux-x86-64.so.2").into(),
            "--library-path".into(),
            path,
            root.join("usr/bin/qemu-system-x86_64").into(),
        ];
        Self {
            command,
            env: vec![("QEMU_MODULE_DIR", libraries[1].join("qemu").into())],
            firmware: ["usr/share/seabios", "usr/share/qemu"].map(|dir| root.join(dir)).into(),
        }
    }
}

impl Busybox {
    /// The cached one, downloaded if missing.
    ///
    /// # Errors
    /// [`FetchError`].
    pub fn cached(cache: &Cache, say: &dyn Say) -> Result<Self, FetchError> {
        let find =
            || cache.newest("busybox", "").map(|(_, dir)| Self { program: dir.join("busybox") });
        if let Some(found) = find() {
            return Ok(found);
        }
        let _lock = cache.lock(say)?;
        if find().is_none() {
            fetch_tools(cache, say)?;
        }
        find().ok_or_else(|| FetchError::Tool {
            what: "fetching busybox".to_owned(),
            found: "it is not in the cache afterwards".to_owned(),
        })
    }
}

/// Downloads QEMU with its dependencies, and busybox; each only if it is missing.
fn fetch_tools(cache: &Cache, say: &dyn Say) -> Result<(), FetchError> {
    cache.room_for("QEMU with its libraries", 350_000_000)?;
    let apt = Apt::update(cache, BOOKWORM, say)?;
    if cache.newest("qemu", "").is_none() {
        let what = "QEMU, to emulate the machine";
        let files = apt.download(what, &["qemu-system-x86"], true, say)?;
        cache.install("qemu", &package_version(&files, "qemu-system-x86_"), |dir| {
            files.iter().try_for_each(|file| unpack(file, dir))?;
            // Documentation is a sixth of the size.
            ["doc", "man", "locale", "info"].iter().for_each(|part| {
                let _ = fs::remove_dir_all(dir.join("usr/share").join(part));
            });
            Ok(())
        })?;
    }
    if cache.newest("busybox", "").is_none() {
        let what = "busybox, the guest's first program";
        let files = apt.download(what, &["busybox-static"], false, say)?;
        cache.install("busybox", &package_version(&files, "busybox-static_"), |dir| {
            let unpacked = dir.join("unpacked");
            files.iter().try_for_each(|file| unpack(file, &unpacked))?;
            let program = dir.join("busybox");
            fs::rename(unpacked.join("bin/busybox"), &program)
                .or_else(|_| fs::rename(unpacked.join("usr/bin/busybox"), &program))
                .and_then(|()| fs::remove_dir_all(&unpacked))
                .map_err(cache.failed("moving", &program))
        })?;
    }
    apt.clear();
    Ok(())
}

pub(super) fn unpack(file: &Path, dir: &Path) -> Result<(), FetchError> {
    tool("unpacking a package", "dpkg-deb", Command::new("dpkg-deb").arg("-x").arg(file).arg(dir))
}

pub(super) fn tool(
    what: &'static str,
    tool: &'static str,
    command: &mut Command,
) -> Result<(), FetchError> {
    let output = command.stdin(Stdio::null()).output().map_err(|source| FetchError::NoTool {
        what,
        tool,
        source,
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(FetchError::Tool { what: what.to_owned(), found: last_words(&output.stderr) })
}

/// The version in a package's file name, `NAME_VERSION_ARCH.deb`, without its epoch, because a colon separates the
/// paths of a list.
fn package_version(files: &[PathBuf], name: &str) -> String {
    files
        .iter()
        .filter_map(|file| file.file_name()?.to_str()?.strip_prefix(name))
        .find_map(|rest| rest.split('_').next())
        .map(|version| version.split_once("%3a").map_or(version, |(_epoch, version)| version))
        .unwrap_or("unknown")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_versions_come_from_file_names_without_their_epoch() {
        let files =
            [PathBuf::from("/a/libc6_2.36_amd64.deb"), PathBuf::from("/a/q_1%3a10.0_amd64.deb")];
        assert_eq!(package_version(&files, "q_"), "10.0");
    }
}
