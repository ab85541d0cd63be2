//! The three things a guest is made of, found in the cache, fetched into it, or named by the user.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::apt::{Apt, last_words};
use super::{Cache, FetchError, SERIES, Say};

const BOOKWORM: &[&str] = &["bookworm", "bookworm-backports"];
const TRIXIE: &[&str] = &["trixie-backports"];

/// An emulator that can be started.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// The program and what stands before QEMU's own arguments.
    pub command: Vec<OsString>,
    /// Where it finds its modules.
    pub env: Vec<(&'static str, OsString)>,
    /// Its directories of firmware.
    pub firmware: Vec<PathBuf>,
}

/// A kernel with its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// As `uname -r` prints it.
    pub version: String,
    /// The image.
    pub image: PathBuf,
    /// The modules: `.../lib/modules/VERSION`.
    pub modules: PathBuf,
}

/// busybox, linked statically: the guest's first program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busybox {
    /// The program.
    pub program: PathBuf,
}

impl Qemu {
    /// The cached one, fetched if missing.
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
    /// [`FetchError::NoQemu`] if it is none.
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

    /// Debian's, unpacked at `root`: started through its own loader with its own libraries.
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
    /// The cached one, fetched if missing.
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

impl Kernel {
    /// By series (cached, fetched if missing) or by path.
    ///
    /// # Errors
    /// [`FetchError`].
    pub fn find(
        cache: &Cache,
        name: &str,
        busybox: &Busybox,
        say: &dyn Say,
    ) -> Result<Self, FetchError> {
        if !SERIES.contains(&name) {
            return Self::at(Path::new(name));
        }
        let find = || Self::newest(cache, name);
        if let Some(found) = find() {
            return Ok(found);
        }
        let _lock = cache.lock(say)?;
        if find().is_none() {
            fetch_kernel(cache, name, busybox, say)?;
        }
        find().ok_or_else(|| FetchError::Tool {
            what: format!("fetching kernel {name}"),
            found: "it is not in the cache afterwards".to_owned(),
        })
    }

    fn newest(cache: &Cache, series: &str) -> Option<Self> {
        let (version, dir) = cache.newest("kernel", &format!("{series}."))?;
        let modules = dir.join("lib/modules").join(&version);
        Some(Self { image: dir.join("vmlinuz"), modules, version })
    }

    /// A kernel image, or a directory that has one.
    fn at(path: &Path) -> Result<Self, FetchError> {
        let unknown = || FetchError::UnknownKernel(path.display().to_string());
        let path = fs::canonicalize(path).map_err(|_| unknown())?;
        let image = if path.is_dir() {
            let in_boot = fs::read_dir(path.join("boot")).into_iter().flatten().flatten();
            let named = in_boot.map(|entry| entry.path()).filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
            });
            std::iter::once(path.join("vmlinuz")).chain(named).find(|path| path.is_file())
        } else {
            Some(path)
        };
        let image = image.ok_or_else(unknown)?;
        let head = fs::read(&image).map_err(|_| unknown())?;
        let version = image_version(&head).ok_or_else(unknown)?;
        let above = image.ancestors().skip(1).take(3);
        let places = above.flat_map(|dir| {
            ["lib/modules", "usr/lib/modules"].map(|modules| dir.join(modules).join(&version))
        });
        let beside = image.parent().map(Path::to_path_buf);
        let modules = places
            .chain(beside)
            .find(|dir| dir.join("kernel").is_dir() && dir.join("modules.dep").is_file())
            .ok_or_else(|| FetchError::NoModules {
                path: image.clone(),
                version: version.clone(),
            })?;
        Ok(Self { version, image, modules })
    }
}

/// The version a bzImage states in its header (Documentation/arch/x86/boot.rst: `kernel_version` at 0x20e).
fn image_version(image: &[u8]) -> Option<String> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let pointer = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
    let text = image.get(usize::from(pointer).checked_add(0x200)?..)?;
    let end = text.iter().position(|byte| matches!(byte, b' ' | 0))?;
    let version = std::str::from_utf8(&text[..end]).ok()?;
    (!version.is_empty() && !version.contains('/')).then(|| version.to_owned())
}

/// QEMU with all it needs, and busybox.
fn fetch_tools(cache: &Cache, say: &dyn Say) -> Result<(), FetchError> {
    let apt = Apt::update(cache, BOOKWORM, say)?;
    let files = apt.download("QEMU, to emulate the machine", &["qemu-system-x86"], true, say)?;
    cache.install("qemu", &package_version(&files, "qemu-system-x86_"), |dir| {
        files.iter().try_for_each(|file| unpack(file, dir))?;
        // Documentation is a sixth of it.
        ["doc", "man", "locale", "info"].iter().for_each(|part| {
            let _ = fs::remove_dir_all(dir.join("usr/share").join(part));
        });
        Ok(())
    })?;
    let files =
        apt.download("busybox, the guest's first program", &["busybox-static"], false, say)?;
    cache.install("busybox", &package_version(&files, "busybox-static_"), |dir| {
        let unpacked = dir.join("unpacked");
        files.iter().try_for_each(|file| unpack(file, &unpacked))?;
        let program = dir.join("busybox");
        fs::rename(unpacked.join("bin/busybox"), &program)
            .or_else(|_| fs::rename(unpacked.join("usr/bin/busybox"), &program))
            .and_then(|()| fs::remove_dir_all(&unpacked))
            .map_err(cache.failed("moving", &program))
    })?;
    apt.clear();
    Ok(())
}

/// The newest kernel of a series, with the index of its modules.
fn fetch_kernel(
    cache: &Cache,
    series: &str,
    busybox: &Busybox,
    say: &dyn Say,
) -> Result<(), FetchError> {
    let what = format!("kernel {series} with its modules");
    let pattern = series.replace('.', "\\.");
    let (apt, packages) = if series == "6.12" {
        let apt = Apt::update(cache, BOOKWORM, say)?;
        let image = format!(r"^linux-image-{pattern}\.[0-9]+[^ -]*-amd64-unsigned$");
        let image = apt.newest(&what, &image)?;
        (apt, vec![image])
    } else {
        // Image and modules are packages of their own there.
        let apt = Apt::update(cache, TRIXIE, say)?;
        let image = apt.newest(&what, &format!(r"^linux-binary-{pattern}\.[0-9]+[^ -]*-amd64$"))?;
        let modules = image.replacen("linux-binary-", "linux-modules-", 1);
        (apt, vec![image, modules])
    };
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    let files = apt.download(&what, &names, false, say)?;
    let version = packages[0]
        .trim_start_matches("linux-image-")
        .trim_start_matches("linux-binary-")
        .trim_end_matches("-unsigned");
    cache.install("kernel", version, |dir| {
        let unpacked = dir.join("unpacked");
        files.iter().try_for_each(|file| unpack(file, &unpacked))?;
        arrange(cache, &unpacked, dir, version)?;
        say.line("indexing its modules (some ten seconds, once)");
        let mut depmod = Command::new(&busybox.program);
        depmod.args(["depmod", "-b"]).arg(dir).arg(version);
        tool("indexing kernel modules", "busybox", &mut depmod)
    })?;
    apt.clear();
    Ok(())
}

/// Image and modules to their places; both layouts Debian has used.
fn arrange(cache: &Cache, unpacked: &Path, dir: &Path, version: &str) -> Result<(), FetchError> {
    let modules =
        ["lib/modules", "usr/lib/modules"].map(|place| unpacked.join(place).join(version));
    let target = dir.join("lib/modules").join(version);
    let images = [unpacked.join(format!("boot/vmlinuz-{version}")), target.join("vmlinuz")];
    let moved = || -> std::io::Result<()> {
        fs::create_dir_all(dir.join("lib/modules"))?;
        fs::rename(&modules[0], &target).or_else(|_| fs::rename(&modules[1], &target))?;
        let image = dir.join("vmlinuz");
        fs::rename(&images[0], &image).or_else(|_| fs::rename(&images[1], &image))?;
        fs::remove_dir_all(unpacked)
    };
    moved().map_err(cache.failed("arranging", dir))
}

fn unpack(file: &Path, dir: &Path) -> Result<(), FetchError> {
    tool("unpacking a package", "dpkg-deb", Command::new("dpkg-deb").arg("-x").arg(file).arg(dir))
}

fn tool(what: &'static str, tool: &'static str, command: &mut Command) -> Result<(), FetchError> {
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

/// The version in a package's file name, `NAME_VERSION_ARCH.deb`, without its epoch: a colon has no place in a path that
/// goes into a list of paths.
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
    fn the_version_of_an_image_is_in_its_header() {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x310].copy_from_slice(b"6.12.1-amd64 (x)");
        assert_eq!(image_version(&image).as_deref(), Some("6.12.1-amd64"));
        assert_eq!(image_version(b"ELF"), None);
        image.truncate(0x304);
        assert_eq!(image_version(&image), None);
    }

    #[test]
    fn package_versions_come_from_file_names_without_their_epoch() {
        let files =
            [PathBuf::from("/a/libc6_2.36_amd64.deb"), PathBuf::from("/a/q_1%3a10.0_amd64.deb")];
        assert_eq!(package_version(&files, "q_"), "10.0");
    }
}
