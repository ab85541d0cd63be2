//! The cgroups with budgets: those of the command line, and those with extended attributes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_kernel::cgroup::{Hierarchy, Version};
use nearfar_kernel::fs::{EntryKind, Fs};
use nearfar_policy::budget::Budget;
use nearfar_topology::Bytes;

/// Extended attributes of a cgroup's directory; each has a size as text.
pub const MAX_ATTRIBUTE: &str = "user.nearfar.near_max";
/// The same for the minimum.
pub const MIN_ATTRIBUTE: &str = "user.nearfar.near_min";
/// Longest value that is read.
const VALUE_MAX: usize = 64;
/// Maximum nesting and number of cgroups that are searched for attributes.
const DEPTH_MAX: usize = 16;
const GROUPS_MAX: usize = 20_000;

/// A limit as typed: `4g`, for the cgroup that is named beside it, or `/a=4g`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The cgroup.
    pub cgroup: Option<String>,
    /// The limit.
    pub size: Bytes,
}

impl std::str::FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (cgroup, size) = match text.rsplit_once('=') {
            Some(("", _)) => return Err(format!("`{text}` names no cgroup; write PATH=SIZE")),
            Some((cgroup, size)) => (Some(cgroup.to_owned()), size),
            None => (None, text),
        };
        let size: Bytes = size.parse().map_err(|error| format!("`{size}`: {error}"))?;
        Ok(Self { cgroup, size })
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.cgroup {
            Some(cgroup) => write!(f, "{cgroup}={}", self.size.0),
            None => write!(f, "{}", self.size.0),
        }
    }
}

/// Limits as typed, before they are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The cgroup of limits that name none.
    pub cgroup: Option<String>,
    /// Maxima.
    pub max: Vec<Limit>,
    /// Minima.
    pub min: Vec<Limit>,
    /// Whether cgroups with attributes have budgets, too.
    pub attributes: bool,
}

impl Limits {
    /// Whether there is any.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.max.is_empty() && self.min.is_empty() && !self.attributes
    }

    /// The budgets by path of the cgroup. `named` finds a cgroup by the name that the user gives it.
    ///
    /// # Errors
    /// Bad usage: a limit without a cgroup, two of a kind for one, or a budget that can't be.
    pub fn resolve(
        &self,
        capacity: Bytes,
        named: impl Fn(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<BTreeMap<String, Budget>> {
        let mut both: BTreeMap<String, [Option<Bytes>; 2]> = BTreeMap::new();
        let options = [("--near-max", &self.max), ("--near-min", &self.min)];
        for (at, (option, limits)) in options.into_iter().enumerate() {
            for limit in limits {
                let name = limit.cgroup.as_ref().or(self.cgroup.as_ref()).with_context(|| {
                    format!("{option} {}: it names no cgroup; write {option} PATH=SIZE, or add --cgroup PATH", limit.size)
                });
                let path = named(name.ends_with(Exit::Usage)?)?;
                let slot = &mut both.entry(path.clone()).or_default()[at];
                if let Some(other) = slot.replace(limit.size) {
                    let error = anyhow::anyhow!(
                        "{option}: cgroup {path} has two, {other} and {}",
                        limit.size
                    );
                    return Err(error).ends_with(Exit::Usage);
                }
            }
        }
        let budget = |(path, [max, min]): (String, [Option<Bytes>; 2])| {
            let budget = Budget::new(max, min, capacity);
            let budget = budget.with_context(|| format!("cgroup {path}")).ends_with(Exit::Usage)?;
            Ok((path, budget))
        };
        both.into_iter().map(budget).collect()
    }
}

/// A cgroup with attributes, and the reason if they make no budget.
pub type Attributed = (String, Result<Budget, String>);

/// The cgroups with attributes, by path.
///
/// # Errors
/// The hierarchy can't be listed.
pub fn attributed(
    fs: &dyn Fs,
    hierarchy: &Hierarchy,
    capacity: Bytes,
) -> anyhow::Result<Vec<Attributed>> {
    let mount = hierarchy.mount();
    let (mut open, mut found, mut searched) = (vec![(String::new(), 0)], Vec::new(), 0);
    while let Some((path, depth)) = open.pop() {
        searched += 1;
        if searched > GROUPS_MAX {
            break;
        }
        let directory = format!("{mount}{path}");
        let values =
            [MAX_ATTRIBUTE, MIN_ATTRIBUTE].map(|name| attribute(Path::new(&directory), name));
        if values.iter().any(Option::is_some) {
            found.push((path.clone(), budget_of(&values, capacity)));
        }
        if depth == DEPTH_MAX {
            continue;
        }
        for entry in fs.list(directory.trim_start_matches('/'))?.unwrap_or_default() {
            if entry.kind == EntryKind::Directory {
                open.push((format!("{path}/{}", entry.name), depth + 1));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

fn budget_of(values: &[Option<String>; 2], capacity: Bytes) -> Result<Budget, String> {
    let size = |value: &Option<String>| match value {
        None => Ok(None),
        Some(text) => {
            let size: Result<Bytes, _> = text.trim().parse();
            size.map(Some).map_err(|error| format!("`{}`: {error}", text.escape_debug()))
        }
    };
    let [max, min] = values;
    Budget::new(size(max)?, size(min)?, capacity).map_err(|error| error.to_string())
}

fn attribute(directory: &Path, name: &str) -> Option<String> {
    let mut value = [0; VALUE_MAX];
    let length = rustix::fs::getxattr(directory, name, &mut value[..]).ok()?;
    String::from_utf8(value.get(..length)?.to_vec()).ok()
}

/// Sets the budget of near memory of a container, by its process: as attributes of its cgroup, which
/// `nearfar tier start --near-attributes` keeps; `None` removes a limit.
///
/// # Errors
/// The cgroup does not exist, is of version 1, or may not be changed.
pub fn set_budget(
    fs: &dyn Fs,
    pid: u32,
    max: Option<Bytes>,
    min: Option<Bytes>,
) -> anyhow::Result<()> {
    let hierarchy = Hierarchy::find(fs)?;
    let path = hierarchy.of_process(fs, pid)?;
    anyhow::ensure!(
        hierarchy.version == Version::V2,
        "the memory controller is in cgroup version 1, whose directories take no user attributes"
    );
    let path = hierarchy.named(fs, &path)?;
    let directory = format!("{}{path}", hierarchy.mount());
    for (name, size) in [(MAX_ATTRIBUTE, max), (MIN_ATTRIBUTE, min)] {
        let done = match size {
            Some(size) => {
                let text = size.0.to_string();
                rustix::fs::setxattr(
                    &directory,
                    name,
                    text.as_bytes(),
                    rustix::fs::XattrFlags::empty(),
                )
            }
            None => match rustix::fs::removexattr(&directory, name) {
                Err(rustix::io::Errno::NODATA) => Ok(()),
                other => other,
            },
        };
        done.with_context(|| format!("setting {name} of {directory}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const CAPACITY: Bytes = Bytes(8192 * MIB);

    fn limits(cgroup: Option<&str>, max: &[&str], min: &[&str]) -> Limits {
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let cgroup = cgroup.map(str::to_owned);
        Limits { cgroup, max: all(max), min: all(min), attributes: false }
    }

    fn resolved(limits: &Limits) -> Result<Vec<(String, Option<u64>, u64)>, String> {
        let found = limits.resolve(CAPACITY, |name| Ok(format!("/{}", name.trim_matches('/'))));
        let row = |(path, budget): (String, Budget)| {
            (path, budget.max().map(|max| max.0 / MIB), budget.min().0 / MIB)
        };
        found.map(|all| all.into_iter().map(row).collect()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn limits_apply_to_their_own_or_the_default_cgroup() {
        let found = resolved(&limits(Some("a"), &["1g", "/b=512m"], &["b=64m"])).unwrap();
        assert_eq!(found, [("/a".into(), Some(1024), 0), ("/b".into(), Some(512), 64)]);
    }

    #[test]
    fn contradictions_are_refused_with_the_option() {
        for (limits, says) in [
            (limits(None, &["1g"], &[]), "--near-max 1 GiB: it names no cgroup"),
            (limits(Some("/a"), &["1g", "a=2g"], &[]), "cgroup /a has two, 1 GiB and 2 GiB"),
            (
                limits(Some("/a"), &["1g"], &["2g"]),
                "cgroup /a: near-min 2 GiB is above near-max 1 GiB",
            ),
            (limits(Some("/a"), &["9g"], &[]), "more than all near memory"),
        ] {
            let error = resolved(&limits).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!("=4g".parse::<Limit>().unwrap_err().contains("names no cgroup"));
        assert!("/a=much".parse::<Limit>().unwrap_err().contains("`much`"));
    }

    #[test]
    fn attributes_yield_a_budget_or_a_reason() {
        let of = |max: &str| budget_of(&[Some(max.to_owned()), None], CAPACITY);
        assert_eq!(of("1073741824\n").unwrap().max(), Some(Bytes(1024 * MIB)));
        assert!(of("lots").unwrap_err().starts_with("`lots`"));
        assert!(of("9g").unwrap_err().contains("more than all near memory"));
    }
}
