//! A directory that stands for a machine with DSA devices: what sysfs says of them, and device nodes that are pipes.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

/// Attributes of a queue as they are on a real machine after DTO's set-up.
pub(in crate::copy) const SHARED: [(&str, &str); 8] = [
    ("type", "user\n"),
    ("state", "enabled\n"),
    ("mode", "shared\n"),
    ("size", "128\n"),
    ("threshold", "127\n"),
    ("max_batch_size", "1024\n"),
    ("max_transfer_size", "2147483648\n"),
    ("block_on_fault", "0\n"),
];

/// The directory.
pub(in crate::copy) struct Machine(TempDir);

impl Machine {
    pub(in crate::copy) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(in crate::copy) fn root(&self) -> &Path {
        self.0.path()
    }

    fn device_path(&self, below: &str) -> PathBuf {
        self.root().join("sys/bus/dsa/devices").join(below)
    }

    pub(in crate::copy) fn device(&self, name: &str, node: &str) -> &Self {
        fs::create_dir_all(self.device_path(name)).unwrap();
        // Neighbours that are no work queues.
        fs::create_dir_all(self.device_path("iax1/wq1.0")).unwrap();
        fs::create_dir_all(self.device_path(&format!("{name}/engine0.0"))).unwrap();
        fs::create_dir_all(self.device_path(&format!("{name}/wq_something"))).unwrap();
        self.set(&format!("{name}/numa_node"), node)
    }

    pub(in crate::copy) fn queue(&self, device: &str, name: &str, says: &[(&str, &str)]) -> &Self {
        fs::create_dir_all(self.device_path(&format!("{device}/{name}"))).unwrap();
        for (attribute, text) in says {
            self.set(&format!("{device}/{name}/{attribute}"), text);
        }
        self
    }

    pub(in crate::copy) fn set(&self, attribute: &str, text: &str) -> &Self {
        self.set_bytes(attribute, text.as_bytes())
    }

    pub(in crate::copy) fn set_bytes(&self, attribute: &str, bytes: &[u8]) -> &Self {
        fs::write(self.device_path(attribute), bytes).unwrap();
        self
    }

    pub(in crate::copy) fn remove(&self, attribute: &str) {
        fs::remove_file(self.device_path(attribute)).unwrap();
    }

    pub(in crate::copy) fn node(&self, queue: &str) -> PathBuf {
        let dir = self.root().join("dev/dsa");
        fs::create_dir_all(&dir).unwrap();
        dir.join(queue)
    }

    /// Makes a queue's device node a pipe; gives the end that reads, and one that writes: a reader who comes when nobody writes
    /// is told that all have gone.
    pub(in crate::copy) fn pipe(&self, queue: &str) -> (OwnedFd, File) {
        let path = self.node(queue);
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let writer = File::options().read(true).write(true).open(&path).unwrap();
        (File::open(&path).unwrap().into(), writer)
    }
}
