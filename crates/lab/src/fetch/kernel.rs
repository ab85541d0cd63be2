//! Kernels: from the cache, downloaded into it, or named by path.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::assets::{BOOKWORM, Busybox, tool, unpack};
use super::{Cache, FetchError, SERIES, Say, bzimage};

const TRIXIE: &[&str] = &["trixie-backports"];

/// A kernel with its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// As `uname -r` prints it.
    pub version: String,
    /// The image, compressed or not.
    pub image: PathBuf,
    /// The modules: `.../lib/modules/VERSION`.
    pub modules: PathBuf,
    /// Timer interrupts per second (`CONFIG_HZ`), if its configuration is available.
    pub hz: Option<u32>,
}

impl Kernel {
    /// Finds a kernel by series (cached, downloaded if missing) or by path.
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
            fetch(cache, name, busybox, say)?;
        }
        find().ok_or_else(|| FetchError::Tool {
            what: format!("fetching kernel {name}"),
            found: "it is not in the cache afterwards".to_owned(),
        })
    }

    fn newest(cache: &Cache, series: &str) -> Option<Self> {
        let (version, dir) = cache.newest("kernels", &format!("{series}."))?;
        let modules = dir.join("lib/modules").join(&version);
        let images = ["vmlinux", "vmlinuz"].map(|name| dir.join(name));
        let image = images.into_iter().find(|image| image.is_file())?;
        let hz = fs::read_to_string(dir.join("config")).ok().and_then(|config| hz(&config));
        Some(Self { version, image, modules, hz })
    }

    /// A kernel image, or a directory that contains one.
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
            Some(path).filter(|path| path.is_file())
        };
        let image = image.ok_or_else(unknown)?;
        let mut head = Vec::new();
        let opened = File::open(&image).map_err(|_| unknown())?;
        opened.take(bzimage::HEAD).read_to_end(&mut head).map_err(|_| unknown())?;
        let version = bzimage::version(&head).ok_or_else(unknown)?;
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
        let config = image.with_file_name(format!("config-{version}"));
        let hz = fs::read_to_string(config).ok().and_then(|config| hz(&config));
        Ok(Self { version, image, modules, hz })
    }
}

/// `CONFIG_HZ` of a kernel's configuration.
fn hz(config: &str) -> Option<u32> {
    let value = config.lines().find_map(|line| line.strip_prefix("CONFIG_HZ="))?;
    value.trim().parse().ok().filter(|hz| (1..=10_000).contains(hz))
}

/// Downloads the newest kernel of a series, and indexes its modules.
fn fetch(cache: &Cache, series: &str, busybox: &Busybox, say: &dyn Say) -> Result<(), FetchError> {
    let what = format!("kernel {series} with its modules");
    cache.room_for(&what, 650_000_000)?;
    let pattern = series.replace('.', "\\.");
    let (apt, packages) = if series == "6.12" {
        let apt = Apt::update(cache, BOOKWORM, say)?;
        let image = format!(r"^linux-image-{pattern}\.[0-9]+[^ -]*-amd64-unsigned$");
        let image = apt.newest(&what, &image)?;
        (apt, vec![image])
    } else {
        // In this suite, image, modules and configuration are separate packages.
        let apt = Apt::update(cache, TRIXIE, say)?;
        let image = apt.newest(&what, &format!(r"^linux-binary-{pattern}\.[0-9]+[^ -]*-amd64$"))?;
        let part = |name: &str| image.replacen("linux-binary-", name, 1);
        let packages = vec![part("linux-binary-"), part("linux-modules-"), part("linux-base-")];
        (apt, packages)
    };
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    let files = apt.download(&what, &names, false, say)?;
    let version = packages[0]
        .trim_start_matches("linux-image-")
        .trim_start_matches("linux-binary-")
        .trim_end_matches("-unsigned");
    cache.install("kernels", version, |dir| {
        let unpacked = dir.join("unpacked");
        files.iter().try_for_each(|file| unpack(file, &unpacked))?;
        arrange(&unpacked, dir, version).map_err(cache.failed("arranging", dir))?;
        say.line("indexing its modules (some ten seconds, once)");
        let mut depmod = Command::new(&busybox.program);
        depmod.args(["depmod", "-b"]).arg(dir).arg(version);
        tool("indexing kernel modules", "busybox", &mut depmod)
    })?;
    apt.clear();
    Ok(())
}

/// Moves image, configuration and modules into place, for both package layouts Debian has used; unpacks the image where
/// the kernel can be started that way (by its PVH entry).
fn arrange(unpacked: &Path, dir: &Path, version: &str) -> std::io::Result<()> {
    let places = ["lib/modules", "usr/lib/modules"].map(|place| unpacked.join(place).join(version));
    let modules = dir.join("lib/modules").join(version);
    fs::create_dir_all(dir.join("lib/modules"))?;
    fs::rename(&places[0], &modules).or_else(|_| fs::rename(&places[1], &modules))?;
    let boot = unpacked.join("boot");
    let pick = |in_boot: String, in_modules: &str, name: &str| {
        fs::rename(boot.join(in_boot), dir.join(name))
            .or_else(|_| fs::rename(modules.join(in_modules), dir.join(name)))
    };
    pick(format!("config-{version}"), "config", "config")?;
    pick(format!("vmlinuz-{version}"), "vmlinuz", "vmlinuz")?;
    let config = fs::read_to_string(dir.join("config"))?;
    if config.lines().any(|line| line == "CONFIG_PVH=y")
        && let Some(kernel) = bzimage::unpacked(&fs::read(dir.join("vmlinuz"))?)
    {
        fs::write(dir.join("vmlinux"), kernel)?;
    }
    fs::remove_dir_all(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_rate_is_read_from_the_configuration() {
        assert_eq!(hz("CONFIG_HZ_250=y\nCONFIG_HZ=250\n"), Some(250));
        assert_eq!(hz("# CONFIG_HZ is not set\n"), None);
        assert_eq!(hz("CONFIG_HZ=0\n"), None);
    }
}
