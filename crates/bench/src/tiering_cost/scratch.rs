//! A machine's files in a scratch directory, instead of sysfs: real opens, reads and writes, by the same code, and
//! counted.
//!
//! The kernel's behaviour is simulated: files are created when they are first written; a kdamond that is set to count
//! has scanned all its memory once by the time it is queried, found a share of it accessed, and used the CPU time given
//! for such a scan.

use std::cell::{Cell, RefCell};
use std::path::Path;

use anyhow::Context as _;
use nearfar_kernel::damon::KDAMONDS;
use nearfar_kernel::fs::{Entry, Fs, FsError, RootFs};

use nearfar_daemon::tier::schemes::COUNT;

/// A memory block, of the size on large x86 machines.
pub(super) const BLOCK: u64 = 2 << 30;
/// Ids of kernel threads begin here.
const THREADS: u64 = 1000;
const TICK_NS: u64 = 10_000_000;
/// The first counting scheme, and the one after the last, which migrates.
const FIRST: u64 = COUNT as u64;
const LAST: u64 = FIRST + 16;
/// Bytes migrated each way per scan.
const MOVED: u64 = 1 << 20;

/// A simulated machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) nodes: u16,
    pub(super) near: u16,
    pub(super) bytes_each: u64,
    /// CPU time that a scan of one node takes its kernel thread.
    pub(super) look_ns: u64,
}

impl Machine {
    fn is_near(self, kdamond: u64) -> bool {
        kdamond < u64::from(self.near)
    }

    /// The lists of near and of far nodes.
    pub(super) fn sides(self) -> [String; 2] {
        let list = |from: u16, to: u16| {
            if to - from == 1 { from.to_string() } else { format!("{from}-{}", to - 1) }
        };
        [list(0, self.near), list(self.near, self.nodes)]
    }
}

/// Calls to the file system.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// Commands to kdamonds among the writes.
    pub(super) commands: u64,
}

/// The directory and the simulated kernel behind it.
pub(super) struct Scratch<'a> {
    root: RootFs,
    live: RootFs,
    dir: &'a Path,
    machine: Machine,
    calls: Cell<Calls>,
    /// For each kdamond, whether it counts, and its number of scans.
    looks: RefCell<Vec<(bool, u64)>>,
}

impl<'a> Scratch<'a> {
    pub(super) fn new(dir: &'a Path, machine: Machine) -> anyhow::Result<Self> {
        let scratch = Self {
            root: RootFs::new(dir)?,
            live: RootFs::live()?,
            dir,
            machine,
            calls: Cell::default(),
            looks: RefCell::new(vec![(false, 0); usize::from(machine.nodes)]),
        };
        scratch.furnish().context("writing a machine's files")?;
        Ok(scratch)
    }

    fn put(&self, path: &str, text: &str) -> std::io::Result<()> {
        let file = self.dir.join(path);
        std::fs::write(&file, text).or_else(|_| {
            file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&file, text)
        })
    }

    /// Creates nodes with their memory, half of far memory free; no kdamonds yet.
    fn furnish(&self) -> std::io::Result<()> {
        let machine = self.machine;
        self.put(&format!("{KDAMONDS}/nr_kdamonds"), "0")?;
        self.put("sys/devices/system/memory/block_size_bytes", &format!("{BLOCK:x}"))?;
        self.put("sys/devices/system/node/has_memory", &format!("0-{}", machine.nodes - 1))?;
        let blocks = machine.bytes_each / BLOCK;
        let mut zones = String::new();
        for node in 0..u64::from(machine.nodes) {
            let at = format!("sys/devices/system/node/node{node}");
            let kib = machine.bytes_each >> 10;
            let free = if machine.is_near(node) { kib / 50 } else { kib / 2 };
            let text = format!(
                "Node {node} MemTotal: {kib} kB\nNode {node} MemFree: {free} kB\nNode {node} Active: {} kB\n\
                 Node {node} Inactive: 0 kB\n",
                kib - free
            );
            self.put(&format!("{at}/meminfo"), &text)?;
            let zone = format!(
                "Node {node}, zone Normal\n  pages free {}\n        low 0\n        high 0\n        protection: (0, 0)\n",
                free / 4
            );
            zones += &zone;
            for block in node * blocks..(node + 1) * blocks {
                self.put(&format!("{at}/memory{block}/x"), "")?;
                self.put(&format!("sys/devices/system/memory/memory{block}/state"), "online")?;
            }
        }
        self.put("proc/zoneinfo", &zones)
    }

    fn make_kdamonds(&self) -> std::io::Result<()> {
        for kdamond in 0..u64::from(self.machine.nodes) {
            self.put(&format!("{KDAMONDS}/{kdamond}/state"), "off")?;
            self.put(&format!("{KDAMONDS}/{kdamond}/pid"), &(THREADS + kdamond).to_string())?;
        }
        Ok(())
    }

    /// Calls so far.
    pub(super) fn calls(&self) -> Calls {
        self.calls.get()
    }

    /// Number of scans that all nodes have completed.
    pub(super) fn looks(&self) -> u64 {
        self.looks.borrow().iter().map(|looks| looks.1).min().unwrap_or(0)
    }

    fn count(&self, add: impl FnOnce(&mut Calls)) {
        let mut calls = self.calls.get();
        add(&mut calls);
        self.calls.set(calls);
    }

    /// The value of a scheme's counter.
    fn stat(&self, kdamond: u64, scheme: u64, file: &str) -> Option<u64> {
        let looks = self.looks.borrow().get(usize::try_from(kdamond).ok()?)?.1;
        let arc = self.machine.bytes_each / 16;
        Some(match (scheme, file) {
            (FIRST..LAST, "sz_tried") => looks * arc,
            // Nine tenths of near memory are accessed, a twentieth of far memory.
            (FIRST..LAST, "sz_applied") if self.machine.is_near(kdamond) => looks * (arc / 10 * 9),
            (FIRST..LAST, "sz_applied") => looks * (arc / 20),
            (LAST, "sz_applied") => looks * MOVED,
            _ => 0,
        })
    }
}

/// The kdamond of a path, and the rest of the path.
fn kdamond(path: &str) -> Option<(u64, &str)> {
    let (number, rest) = path.strip_prefix(KDAMONDS)?.strip_prefix('/')?.split_once('/')?;
    Some((number.parse().ok()?, rest))
}

/// The scheme of a path below a kdamond, and the rest of the path.
fn scheme(path: &str) -> Option<(u64, &str)> {
    let (number, rest) = path.strip_prefix("contexts/0/schemes/")?.split_once('/')?;
    Some((number.parse().ok()?, rest))
}

impl Fs for Scratch<'_> {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        self.count(|calls| calls.reads += 1);
        let process = path.strip_prefix("proc/").and_then(|path| path.strip_suffix("/stat"));
        if let Some(process) = process {
            let Some(thread) = process.parse::<u64>().ok() else { return self.live.read(path) };
            let looks = self.looks.borrow();
            let at = usize::try_from(thread.saturating_sub(THREADS)).unwrap_or(usize::MAX);
            let ticks = looks.get(at).map_or(0, |looks| looks.1 * self.machine.look_ns / TICK_NS);
            return Ok(Some(format!("{thread} (kdamond) S 2 0 0 0 0 0 0 0 0 0 0 {ticks} 0")));
        }
        let text = self.root.read(path)?;
        let stat = kdamond(path).and_then(|(number, rest)| {
            let (scheme, file) = scheme(rest)?;
            self.stat(number, scheme, file.strip_prefix("stats/")?)
        });
        Ok(stat.map(|stat| stat.to_string()).or(text))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        self.count(|calls| calls.writes += 1);
        let mut looks = self.looks.borrow_mut();
        let of = kdamond(path)
            .and_then(|(number, rest)| Some((looks.get_mut(usize::try_from(number).ok()?)?, rest)));
        match of {
            Some(((counts, _), rest)) if scheme(rest) == Some((FIRST, "access_pattern/sz/max")) => {
                *counts = text != "0";
            }
            Some(((counts, looks), "state")) if !matches!(text, "on" | "off") => {
                self.count(|calls| calls.commands += 1);
                *looks += u64::from(*counts && text == "commit");
                // The kernel accepts a command and stays on.
                return self.root.write(path, "on");
            }
            _ => {}
        }
        // Files of kdamonds are created by the first write.
        let made = if path.ends_with("/nr_kdamonds") {
            self.make_kdamonds()
        } else if self.dir.join(path).exists() {
            Ok(())
        } else {
            self.put(path, "")
        };
        made.map_err(|source| FsError::Write { text: text.into(), path: path.into(), source })?;
        self.root.write(path, text)
    }

    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        self.count(|calls| calls.reads += 1);
        self.root.list(path)
    }
}
