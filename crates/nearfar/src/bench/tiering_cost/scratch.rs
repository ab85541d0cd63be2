//! A machine's files in a scratch directory, in place of sysfs: real opens, reads and writes, by the same code, and counted.
//!
//! What the kernel would do is made up: files appear when they are first written; a kdamond that is told to count has
//! looked once at all its memory by the time it is asked, found a share of it used, and taken the CPU time that such a look
//! is said to take.

use std::cell::{Cell, RefCell};
use std::path::Path;

use anyhow::Context as _;
use nearfar_kernel::damon::KDAMONDS;
use nearfar_kernel::fs::{Entry, Fs, FsError, RootFs};

use crate::tier::schemes::COUNT;

/// A memory block, as large as x86 has them on large machines.
pub(super) const BLOCK: u64 = 2 << 30;
/// Numbers of kernel threads begin here.
const THREADS: u64 = 1000;
const TICK_NS: u64 = 10_000_000;
/// The first scheme that counts, and the one behind the last, which moves.
const FIRST: u64 = COUNT as u64;
const LAST: u64 = FIRST + 16;
/// Moved each way in a look.
const MOVED: u64 = 1 << 20;

/// A machine that is not there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) nodes: u16,
    pub(super) near: u16,
    pub(super) bytes_each: u64,
    /// What a look at one node takes its kernel thread.
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

/// What was asked of the file system.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// Of the writes, commands to kdamonds.
    pub(super) commands: u64,
}

/// The directory and what stands behind it.
pub(super) struct Scratch<'a> {
    root: RootFs,
    live: RootFs,
    dir: &'a Path,
    machine: Machine,
    calls: Cell<Calls>,
    /// Of each kdamond, whether it is to count, and how often it has.
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

    /// Nodes with their memory, half of far memory free; no kdamonds yet.
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

    /// Calls since the beginning.
    pub(super) fn calls(&self) -> Calls {
        self.calls.get()
    }

    /// Looks that all nodes have done.
    pub(super) fn looks(&self) -> u64 {
        self.looks.borrow().iter().map(|looks| looks.1).min().unwrap_or(0)
    }

    fn count(&self, add: impl FnOnce(&mut Calls)) {
        let mut calls = self.calls.get();
        add(&mut calls);
        self.calls.set(calls);
    }

    /// What a scheme's counters would read.
    fn stat(&self, kdamond: u64, scheme: u64, file: &str) -> Option<u64> {
        let looks = self.looks.borrow().get(usize::try_from(kdamond).ok()?)?.1;
        let arc = self.machine.bytes_each / 16;
        Some(match (scheme, file) {
            (FIRST..LAST, "sz_tried") => looks * arc,
            // Nine tenths of near memory are in use, a twentieth of far memory.
            (FIRST..LAST, "sz_applied") if self.machine.is_near(kdamond) => looks * (arc / 10 * 9),
            (FIRST..LAST, "sz_applied") => looks * (arc / 20),
            (LAST, "sz_applied") => looks * MOVED,
            _ => 0,
        })
    }
}

/// The kdamond, and what is below it, of a path.
fn kdamond(path: &str) -> Option<(u64, &str)> {
    let (number, rest) = path.strip_prefix(KDAMONDS)?.strip_prefix('/')?.split_once('/')?;
    Some((number.parse().ok()?, rest))
}

/// The scheme, and what is below it, of what is below a kdamond.
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
                // The kernel takes a command and goes on.
                return self.root.write(path, "on");
            }
            _ => {}
        }
        // What kdamonds have is made when it is first written to.
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
