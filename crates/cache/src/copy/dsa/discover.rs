//! Discovers DSA work queues for user space in sysfs.
//!
//! Below `sys/bus/dsa/devices`, each device `dsaX` is a directory (or a link to one) with `numa_node`, and a
//! subdirectory `wqX.Y` for each work queue: `type`, `state`, `mode`, `size`, `threshold`, `max_batch_size`,
//! `max_transfer_size`, each a short text. Only enabled queues of type user count; their device node is
//! `/dev/dsa/wqX.Y`. A queue with an invalid value is left out, with a finding. Without such a directory there are
//! neither queues nor findings. Not here: opening a queue.

use nearfar_kernel::fs::Fs;

use super::format::BATCH_MIN;

const BUS: &str = "sys/bus/dsa/devices";

/// Sharing of a queue between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shared: any number of processes; each submission returns whether it was accepted.
    Shared,
    /// Dedicated: one process, which counts the descriptors in it.
    Dedicated,
}

/// A work queue for user space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// Its name, such as `wq0.1`.
    pub name: String,
    /// Its sharing mode.
    pub mode: Mode,
    /// Capacity in descriptors.
    pub size: u32,
    /// Capacity of a shared queue for unprivileged processes, at most `size`; 0 if dedicated.
    pub threshold: u32,
    /// Maximal number of descriptors per batch.
    pub batch_max: u32,
    /// Maximal number of bytes per descriptor.
    pub transfer_max: u64,
    /// The NUMA node of the device, if known.
    pub node: Option<u32>,
}

/// The work queues of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// Usable queues, by name.
    pub queues: Vec<WorkQueue>,
    /// Problems with others, a sentence each.
    pub findings: Vec<String>,
}

/// Reads all queues from sysfs.
#[must_use]
pub fn discover(fs: &dyn Fs) -> Discovery {
    let mut found = Discovery::default();
    for device in names(fs, BUS, "dsa") {
        let device = format!("{BUS}/{device}");
        for name in names(fs, &device, "wq") {
            match read(fs, &device, name) {
                Ok(queue) => found.queues.extend(queue),
                Err(finding) => found.findings.push(finding),
            }
        }
    }
    found
}

/// Reads a queue of a device; `None` if it is not enabled or not of type user.
fn read(fs: &dyn Fs, device: &str, name: String) -> Result<Option<WorkQueue>, String> {
    let queue = format!("{device}/{name}");
    if text(fs, &format!("{queue}/type"))? != "user"
        || text(fs, &format!("{queue}/state"))? != "enabled"
    {
        return Ok(None);
    }
    let mode = match text(fs, &format!("{queue}/mode"))?.as_str() {
        "shared" => Mode::Shared,
        "dedicated" => Mode::Dedicated,
        other => {
            return Err(format!(
                "/{queue}/mode: `{other}` is neither shared nor dedicated; the queue is left out"
            ));
        }
    };
    let number = |attribute: &str, least: u64, most: u64| {
        let path = format!("{queue}/{attribute}");
        let text = text(fs, &path)?;
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            format!("/{path}: `{text}` is no number from {least} to {most}; the queue is left out")
        })
    };
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let size = number("size", 1, 1 << 16)?;
    let threshold = match mode {
        Mode::Shared => number("threshold", 1, size)?,
        Mode::Dedicated => 0,
    };
    Ok(Some(WorkQueue {
        name,
        mode,
        size: narrow(size),
        threshold: narrow(threshold),
        // A batch needs at least two descriptors: a queue with a maximum of 1 takes none.
        batch_max: narrow(number("max_batch_size", 0, 1 << 20)?),
        transfer_max: number("max_transfer_size", 1, 1 << 40)?,
        node: text(fs, &format!("{device}/numa_node")).ok().and_then(|text| text.parse().ok()),
    }))
}

impl WorkQueue {
    /// Maximal number of descriptors of this process in the queue at once.
    pub(super) fn entries(&self) -> u32 {
        match self.mode {
            Mode::Shared => self.threshold,
            Mode::Dedicated => self.size,
        }
    }

    /// Whether it supports batches.
    pub(super) fn has_batches(&self) -> bool {
        usize::try_from(self.batch_max).is_ok_and(|most| most >= BATCH_MIN)
    }
}

/// Names in a directory that consist of this prefix followed by a digit; empty if the directory is missing.
fn names(fs: &dyn Fs, path: &str, begins: &str) -> Vec<String> {
    let is_one = |name: &String| {
        let rest = name.strip_prefix(begins);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let entries = fs.list(path).ok().flatten().unwrap_or_default();
    entries.into_iter().map(|entry| entry.name).filter(is_one).collect()
}

fn text(fs: &dyn Fs, path: &str) -> Result<String, String> {
    match fs.read(path) {
        Ok(Some(text)) => Ok(text.trim_end().to_owned()),
        Ok(None) => Err(format!("/{path} is missing; the queue is left out")),
        Err(error) => Err(format!("{error}; the queue is left out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    /// Attributes of a queue after the set-up of docs/cache-copy.md.
    const SHARED: [(&str, &str); 7] = [
        ("type", "user"),
        ("state", "enabled"),
        ("mode", "shared"),
        ("size", "128"),
        ("threshold", "127"),
        ("max_batch_size", "1024"),
        ("max_transfer_size", "2147483648"),
    ];

    /// A device on node 1 with these queues and their deviating attributes.
    fn machine(queues: &[(&str, &[(&str, &str)])]) -> TreeFs {
        let mut tree = Tree::new();
        tree.insert(&format!("{BUS}/dsa2/numa_node"), "1");
        tree.insert(&format!("{BUS}/dsa2/engine0.0/group_id"), "0");
        tree.insert(&format!("{BUS}/iax1/wq1.0/type"), "user");
        for (name, differ) in queues {
            for (attribute, text) in SHARED.iter().chain(*differ) {
                tree.insert(&format!("{BUS}/dsa2/{name}/{attribute}"), text);
            }
        }
        TreeFs(tree)
    }

    #[test]
    fn a_user_queue_that_is_enabled_is_found_with_its_limits() {
        let found = discover(&machine(&[("wq2.1", &[])]));
        let expected = WorkQueue {
            name: "wq2.1".into(),
            mode: Mode::Shared,
            size: 128,
            threshold: 127,
            batch_max: 1024,
            transfer_max: 1 << 31,
            node: Some(1),
        };
        assert_eq!(found, Discovery { queues: vec![expected], findings: vec![] });
        assert_eq!((found.queues[0].entries(), found.queues[0].has_batches()), (127, true));
        assert_eq!(discover(&TreeFs::default()), Discovery::default());
    }

    #[test]
    fn queues_of_the_kernel_or_not_enabled_are_passed_over() {
        let found = discover(&machine(&[
            ("wq2.0", &[("type", "kernel")]),
            ("wq2.1", &[("state", "disabled")]),
            ("wq2.2", &[("mode", "dedicated")]),
        ]));
        assert!(found.findings.is_empty(), "{:?}", found.findings);
        let [queue] = &found.queues[..] else { panic!("{found:?}") };
        assert_eq!((queue.name.as_str(), queue.threshold, queue.entries()), ("wq2.2", 0, 128));
    }

    #[test]
    fn a_queue_with_an_invalid_attribute_is_skipped_and_reported() {
        for (name, text) in [
            ("mode", "both"),
            ("size", "0"),
            ("size", ""),
            ("threshold", "129"),
            ("threshold", "-1"),
            ("max_batch_size", "99999999999999999999"),
            ("max_transfer_size", "0"),
            ("max_transfer_size", "2 GiB"),
        ] {
            let found = discover(&machine(&[("wq2.0", &[(name, text)]), ("wq2.1", &[])]));
            assert_eq!(found.queues.len(), 1, "{name} {text}");
            let [finding] = &found.findings[..] else { panic!("{name} {text}: {found:?}") };
            assert!(finding.contains(name) && finding.contains("left out"), "{finding}");
        }
        let mut tree = machine(&[]).0;
        tree.insert(&format!("{BUS}/dsa2/wq2.0/state"), "enabled");
        let found = discover(&TreeFs(tree));
        assert!(found.findings[0].contains("wq2.0/type is missing"), "{found:?}");
    }
}
