//! Which work queues a machine offers to users, as sysfs says.
//!
//! Below `sys/bus/dsa/devices`, each device `dsaX` is a directory (a link to one) with `numa_node`, and in it a directory `wqX.Y`
//! for each work queue: `type`, `state`, `mode`, `size`, `threshold`, `max_batch_size`, `max_transfer_size`,
//! `block_on_fault`, each a short text. A queue counts if it is enabled and of type user; its device node is `dev/dsa/wqX.Y`.
//! One that says something impossible is left out, with a finding. No such directory: no queues, and nothing wrong.
//! Not here: whether the queue can be opened.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::format::BATCH_MIN;

/// A text of sysfs that is longer is none.
const TEXT_MAX: u64 = 4096;
/// More devices, or queues of one, than any machine has.
const ENTRIES_MAX: usize = 1024;

/// Who may use a queue at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Many processes: it says whether it took a descriptor.
    Shared,
    /// One, which keeps count of what is in it.
    Dedicated,
}

/// A work queue that users may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// `wq0.1`.
    pub name: String,
    /// Its device node, below the root.
    pub path: PathBuf,
    /// Who may use it at once.
    pub mode: Mode,
    /// Descriptors it holds.
    pub size: u32,
    /// Of these, how many the unprivileged may fill of a shared one; 0 if it is dedicated.
    pub threshold: u32,
    /// Descriptors a batch may have.
    pub batch_max: u32,
    /// Bytes a descriptor may move.
    pub transfer_max: u64,
    /// Whether descriptors may ask the device to wait for page faults.
    pub block_on_fault: bool,
    /// The NUMA node the device is on, if it is on one.
    pub node: Option<u32>,
}

/// What a machine offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// Queues that can be used, by name.
    pub queues: Vec<WorkQueue>,
    /// What was wrong with others, a sentence each.
    pub findings: Vec<String>,
}

/// Looks below a root, which is `/` or stands for it.
#[must_use]
pub fn discover(root: &Path) -> Discovery {
    let mut found = Discovery::default();
    let bus = root.join("sys/bus/dsa/devices");
    for device in entries(&bus, "dsa") {
        for name in entries(&bus.join(&device), "wq") {
            let path = bus.join(&device).join(&name);
            match read(root, &path, name) {
                Ok(queue) => found.queues.extend(queue),
                Err(finding) => found.findings.push(finding),
            }
        }
    }
    found
}

/// The queue of a directory, if users may use it.
fn read(root: &Path, path: &Path, name: String) -> Result<Option<WorkQueue>, String> {
    if text(&path.join("type"))? != "user" || text(&path.join("state"))? != "enabled" {
        return Ok(None);
    }
    let mode = match text(&path.join("mode"))?.as_str() {
        "shared" => Mode::Shared,
        "dedicated" => Mode::Dedicated,
        other => {
            return Err(format!(
                "{}: `{other}` is neither shared nor dedicated; the queue is left out",
                path.join("mode").display()
            ));
        }
    };
    let size = number(path, "size", 1, 1 << 16)?;
    let threshold = match mode {
        Mode::Shared => number(path, "threshold", 1, size)?,
        Mode::Dedicated => 0,
    };
    // A batch of one is no batch: such a queue takes none.
    let batch_max = number(path, "max_batch_size", 0, 1 << 20)?;
    let transfer_max = number(path, "max_transfer_size", 1, 1 << 40)?;
    let block_on_fault = number(path, "block_on_fault", 0, 1)? == 1;
    let node = text(&path.with_file_name("numa_node")).ok().and_then(|text| text.parse().ok());
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Ok(Some(WorkQueue {
        path: root.join("dev/dsa").join(&name),
        name,
        mode,
        size: narrow(size),
        threshold: narrow(threshold),
        batch_max: narrow(batch_max),
        transfer_max,
        block_on_fault,
        node,
    }))
}

impl WorkQueue {
    /// Descriptors that may be in it at once, as far as this process decides that.
    #[must_use]
    pub fn entries(&self) -> u32 {
        match self.mode {
            Mode::Shared => self.threshold,
            Mode::Dedicated => self.size,
        }
    }

    /// Whether it takes batches at all.
    #[must_use]
    pub fn has_batches(&self) -> bool {
        usize::try_from(self.batch_max).is_ok_and(|most| most >= BATCH_MIN)
    }
}

/// Names in a directory that begin like this and go on with a digit, in order. None if it is not there.
fn entries(path: &Path, begins: &str) -> Vec<String> {
    let names = fs::read_dir(path).into_iter().flatten().take(ENTRIES_MAX);
    let mut names: Vec<String> = names
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            name.strip_prefix(begins)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
        .collect();
    names.sort();
    names
}

fn text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(TEXT_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text.trim_end().to_owned()),
        Err(error) => Err(format!("can't read {}: {error}; the queue is left out", path.display())),
    }
}

/// The number in a file, which is to be within bounds.
fn number(queue: &Path, name: &str, least: u64, most: u64) -> Result<u64, String> {
    let path = queue.join(name);
    let text = text(&path)?;
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| {
        let path = path.display();
        format!("{path}: `{text}` is no number from {least} to {most}; the queue is left out")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::dsa::tests::machine::{Machine, SHARED};

    #[test]
    fn a_user_queue_that_is_enabled_is_found_with_all_it_says() {
        let machine = Machine::new();
        machine.device("dsa2", "1").queue("dsa2", "wq2.1", &SHARED);
        let found = discover(machine.root());
        let expected = WorkQueue {
            name: "wq2.1".into(),
            path: machine.root().join("dev/dsa/wq2.1"),
            mode: Mode::Shared,
            size: 128,
            threshold: 127,
            batch_max: 1024,
            transfer_max: 1 << 31,
            block_on_fault: false,
            node: Some(1),
        };
        assert_eq!(found, Discovery { queues: vec![expected], findings: vec![] });
        assert_eq!((found.queues[0].entries(), found.queues[0].has_batches()), (127, true));
    }

    #[test]
    fn queues_of_the_kernel_or_not_enabled_are_nobodys_mistake() {
        let machine = Machine::new();
        machine
            .device("dsa0", "-1")
            .queue("dsa0", "wq0.0", &SHARED)
            .set("dsa0/wq0.0/type", "kernel")
            .queue("dsa0", "wq0.1", &SHARED)
            .set("dsa0/wq0.1/state", "disabled")
            .queue("dsa0", "wq0.2", &SHARED)
            .set("dsa0/wq0.2/mode", "dedicated");
        let found = discover(machine.root());
        assert!(found.findings.is_empty(), "{:?}", found.findings);
        let [queue] = &found.queues[..] else { panic!("{found:?}") };
        assert_eq!((queue.name.as_str(), queue.mode, queue.node), ("wq0.2", Mode::Dedicated, None));
        assert_eq!((queue.threshold, queue.entries()), (0, 128));
    }

    #[test]
    fn a_queue_that_says_something_impossible_is_left_out_and_named() {
        for (name, text) in [
            ("mode", "both"),
            ("size", "0"),
            ("size", ""),
            ("threshold", "129"),
            ("threshold", "-1"),
            ("max_batch_size", "99999999999999999999"),
            ("max_transfer_size", "0"),
            ("max_transfer_size", "2 GiB"),
            ("block_on_fault", "2"),
        ] {
            let machine = Machine::new();
            machine
                .device("dsa0", "0")
                .queue("dsa0", "wq0.0", &SHARED)
                .queue("dsa0", "wq0.1", &SHARED);
            machine.set(&format!("dsa0/wq0.0/{name}"), text);
            let found = discover(machine.root());
            assert_eq!(found.queues.len(), 1, "{name} {text}");
            let [finding] = &found.findings[..] else { panic!("{name} {text}: {found:?}") };
            assert!(finding.contains(name) && finding.contains("left out"), "{finding}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_no_text_is_a_finding_and_no_bus_is_nothing() {
        let machine = Machine::new();
        assert_eq!(discover(machine.root()), Discovery::default());
        machine.device("dsa0", "0").queue("dsa0", "wq0.0", &SHARED);
        machine.remove("dsa0/wq0.0/size");
        machine.queue("dsa0", "wq0.1", &SHARED).set_bytes("dsa0/wq0.1/size", b"\xff\xfe");
        let found = discover(machine.root());
        assert!(found.queues.is_empty());
        assert!(found.findings.iter().all(|finding| finding.contains("can't read")), "{found:?}");
        assert_eq!(found.findings.len(), 2);
    }
}
