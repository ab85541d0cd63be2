//! Downloads Debian packages through apt-get with separate state: works without root and leaves the system's state
//! unchanged.
//!
//! Of the host's apt configuration only the `Acquire::` settings (proxies, certificates) are used; its hooks and
//! preferences are not. apt verifies packages with Debian's archive keys.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use super::{Cache, FetchError, Say, mirror, version};
use crate::clock;

/// A disk with less free space than this counts as full.
const DISK_FULL: u64 = 2 << 20;

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A private apt with some suites.
#[derive(Debug)]
pub(super) struct Apt<'a> {
    cache: &'a Cache,
    dir: PathBuf,
    suites: &'static [&'static str],
}

impl<'a> Apt<'a> {
    /// Sets up its state and downloads the package lists of `suites`; the last one is preferred.
    pub(super) fn update(
        cache: &'a Cache,
        suites: &'static [&'static str],
        say: &dyn Say,
    ) -> Result<Self, FetchError> {
        let dir = cache.dir().join("apt").join(suites.join("+"));
        let apt = Self { cache, dir, suites };
        for part in ["lists/partial", "archives/partial", "log"] {
            let path = apt.dir.join(part);
            fs::create_dir_all(&path).map_err(cache.failed("creating", &path))?;
        }
        apt.write("status", "")?;
        if !Path::new(KEYS).exists() {
            return Err(FetchError::Tool {
                what: "verifying Debian packages".to_owned(),
                found: format!(
                    "{KEYS} is missing; install debian-archive-keyring, or give --qemu and --kernel paths"
                ),
            });
        }
        say.line(&format!("reading the package lists of Debian {}", suites.join(", ")));
        apt.write("apt.conf", &apt.config(&acquire_settings()))?;
        let mut result = Ok(());
        for mirror in mirror::candidates(Path::new("/etc/apt")) {
            let mut sources = String::new();
            for suite in suites {
                let _ =
                    writeln!(sources, "deb [arch=amd64 signed-by={KEYS}] {mirror} {suite} main");
            }
            apt.write("sources.list", &sources)?;
            result = apt.watch("reading package lists", &["-qq", "--error-on=any", "update"], None);
            if matches!(result, Ok(()) | Err(FetchError::NoSpace { .. })) {
                break;
            }
        }
        result.map(|()| apt)
    }

    /// The newest version of a package whose name matches, as (name, version).
    pub(super) fn newest(&self, what: &str, pattern: &str) -> Result<String, FetchError> {
        let found = self.run(what, "apt-cache", &["search", "--names-only", pattern])?;
        let text = String::from_utf8_lossy(&found.stdout);
        let mut names: Vec<&str> =
            text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        names.sort_by(|a, b| version::compare(a, b));
        names.pop().map(str::to_owned).ok_or_else(|| FetchError::NoPackage {
            what: what.to_owned(),
            pattern: pattern.to_owned(),
            suite: self.suites.last().copied().unwrap_or_default(),
        })
    }

    /// Downloads packages, with all their dependencies if `closure`; returns the files. Reports name, reason and size.
    pub(super) fn download(
        &self,
        what: &str,
        packages: &[&str],
        closure: bool,
        say: &dyn Say,
    ) -> Result<Vec<PathBuf>, FetchError> {
        let mut args = vec!["-qq", "-y", "--no-install-recommends"];
        let target =
            format!("--target-release={}", self.suites.last().copied().unwrap_or_default());
        if closure {
            args.extend([target.as_str(), "--download-only", "install"]);
        } else {
            args.push("download");
        }
        args.extend(packages);
        let listing = [&["--print-uris"], args.as_slice()].concat();
        let uris = self.run(what, "apt-get", &listing)?;
        let wanted = wanted(&String::from_utf8_lossy(&uris.stdout));
        let total: u64 = wanted.iter().map(|(_, size)| size).sum();
        say.line(&format!("downloading {what}: {} MB", total.div_ceil(1_000_000)));
        self.watch(&format!("downloading {what}"), &args, Some((total, say)))?;
        Ok(wanted.into_iter().map(|(name, _)| self.dir.join("archives").join(name)).collect())
    }

    /// Removes lists and packages; their content is in the cache by then.
    pub(super) fn clear(self) {
        let _ = fs::remove_dir_all(&self.dir);
        let _ = fs::remove_dir(self.cache.dir().join("apt"));
    }

    /// Runs apt-get, reports its progress, and ends it when the disk is full: by itself it would wait for ever.
    fn watch(
        &self,
        what: &str,
        args: &[&str],
        download: Option<(u64, &dyn Say)>,
    ) -> Result<(), FetchError> {
        let archives = self.dir.join("archives");
        let log = self.dir.join("log/apt-get");
        let file = fs::File::create(&log).map_err(self.cache.failed("writing", &log))?;
        let mut child = self
            .command("apt-get", args)
            .current_dir(&archives)
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .map_err(|source| FetchError::NoTool {
                what: "downloading",
                tool: "apt-get",
                source,
            })?;
        let progress = |done: u64| {
            if let Some((total, say)) = download {
                say.progress(done.min(total), total);
            }
        };
        let ended = loop {
            if let Err(full) = self.cache.room_for(what, DISK_FULL) {
                let _ = child.kill();
                let _ = child.wait();
                break Err(full);
            }
            match child.try_wait() {
                Ok(Some(status)) if status.success() => break Ok(()),
                Ok(None) => {
                    progress(bytes_below(&archives));
                    clock::sleep(Duration::from_millis(200));
                }
                Ok(Some(_)) | Err(_) => {
                    let found = last_words(&fs::read(&log).unwrap_or_default());
                    break Err(FetchError::Tool { what: what.to_owned(), found });
                }
            }
        };
        progress(u64::MAX);
        ended
    }

    fn run(&self, what: &str, tool: &'static str, args: &[&str]) -> Result<Output, FetchError> {
        let output = self
            .command(tool, args)
            .current_dir(self.dir.join("archives"))
            .output()
            .map_err(|source| FetchError::NoTool { what: "downloading", tool, source })?;
        if output.status.success() {
            return Ok(output);
        }
        Err(FetchError::Tool { what: what.to_owned(), found: last_words(&output.stderr) })
    }

    fn command(&self, tool: &str, args: &[&str]) -> Command {
        let mut command = Command::new(tool);
        command.args(args).env("APT_CONFIG", self.dir.join("apt.conf")).env("LC_ALL", "C.UTF-8");
        command.stdin(Stdio::null());
        command
    }

    fn config(&self, acquire: &str) -> String {
        let dir = self.dir.display();
        format!(
            "{acquire}\
             Dir::Etc::parts \"/dev/null\";\nDir::Etc::main \"/dev/null\";\n\
             Dir::Etc::sourcelist \"{dir}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
             Dir::State \"{dir}\";\nDir::State::lists \"{dir}/lists\";\nDir::State::status \"{dir}/status\";\n\
             Dir::Cache \"{dir}\";\nDir::Cache::archives \"{dir}/archives\";\nDir::Log \"{dir}/log\";\n\
             APT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\n\
             APT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n"
        )
    }

    fn write(&self, name: &str, text: &str) -> Result<(), FetchError> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(self.cache.failed("writing", &path))
    }
}

/// The host's network settings for apt, as configuration lines.
fn acquire_settings() -> String {
    let Ok(dump) = Command::new("apt-config").arg("dump").stderr(Stdio::null()).output() else {
        return String::new();
    };
    String::from_utf8_lossy(&dump.stdout)
        .lines()
        .filter(|line| line.starts_with("Acquire::"))
        .filter(|line| {
            !["Acquire::IndexTargets", "Acquire::Languages", "Acquire::GzipIndexes"]
                .iter()
                .any(|left_out| line.starts_with(left_out))
        })
        .fold(String::new(), |all, line| all + line + "\n")
}

/// File names and sizes from `apt-get --print-uris`: lines of `'URI' NAME SIZE HASH`.
pub(super) fn wanted(text: &str) -> Vec<(String, u64)> {
    text.lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| {
            let mut words = line.rsplit_once("' ")?.1.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .collect()
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let data = entry.metadata().ok()?;
            Some(if data.is_dir() { bytes_below(&entry.path()) } else { data.len() })
        })
        .sum()
}

/// The last lines of a tool's output, on one line, without the addresses of mirrors.
pub(super) fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let errors: Vec<&str> = lines.iter().copied().filter(|line| line.starts_with("E:")).collect();
    let chosen = if errors.is_empty() { &lines[lines.len().saturating_sub(3)..] } else { &errors };
    let words = chosen.join("; ");
    let words: Vec<&str> = words
        .split_whitespace()
        .map(|word| if word.contains("://") { "the mirror" } else { word })
        .collect();
    if words.is_empty() { "it failed without a word".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn download_sizes_parse_from_print_uris() {
        let text = "'http://m.example/pool/a_1.deb' a_1%3a2_amd64.deb 1234 SHA256:00\nReading lists\n\
                    'http://m.example/pool/b.deb' b_all.deb 5 MD5Sum:11\n";
        assert_eq!(
            wanted(text),
            [("a_1%3a2_amd64.deb".to_owned(), 1234), ("b_all.deb".to_owned(), 5)]
        );
    }

    #[test]
    fn an_error_message_has_the_last_errors_without_addresses() {
        let text = b"W: odd\nE: Failed to fetch http://10.0.0.1/x.deb  404\nE: Some files failed\n";
        assert_eq!(last_words(text), "E: Failed to fetch the mirror 404; E: Some files failed");
        assert_eq!(
            last_words(b"dpkg-deb: error: No space left on device\n"),
            "dpkg-deb: error: No space left on device"
        );
        assert_eq!(last_words(b""), "it failed without a word");
    }
}
