//! A record while it is written, by `nearfar record` or by a service that migrates memory.
//!
//! [`header`] describes the machine, [`Recording`] keeps the time and the file, [`regions`] converts DAMON's results
//! into those of a record. Other content is appended by crate record's writer: [`Recording::append`].

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_kernel::damon;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::{meminfo, ranges};
use nearfar_record::{
    Ending, Header, Intervals, Node, Operations, Range, Region, Resident, Target, Writer,
};

use nearfar_command::machine::Machine;
use nearfar_kernel::clock::{self, Stopwatch};

/// A record being written.
#[derive(Debug)]
pub struct Recording {
    writer: Writer<File>,
    watch: Stopwatch,
    path: PathBuf,
}

impl Recording {
    /// Creates the file `path`; an existing file is kept as `path.old`, as perf-record(1) does.
    ///
    /// # Errors
    /// It can't be written, or the existing one not renamed.
    pub fn create(path: &Path, header: &Header) -> anyhow::Result<Self> {
        keep(path).with_context(|| format!("renaming {} to .old", path.display()))?;
        let writer =
            Writer::create(path, header).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { writer, watch: Stopwatch::start(), path: path.to_path_buf() })
    }

    /// Time since its start.
    pub fn elapsed(&self) -> Duration {
        self.watch.elapsed()
    }

    /// The same in nanoseconds, as used in frames.
    pub fn at_ns(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Bytes written so far.
    pub const fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Appends a frame, such as `|writer, at_ns| writer.moved(&Moved { at_ns, pairs })`.
    ///
    /// # Errors
    /// It can't be written.
    pub fn append(
        &mut self,
        write: impl FnOnce(&mut Writer<File>, u64) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let at_ns = self.at_ns();
        write(&mut self.writer, at_ns).with_context(|| format!("writing {}", self.path.display()))
    }

    /// Ends the record. Its cost is CPU time of the kernel's threads and of this process.
    ///
    /// # Errors
    /// It can't be written.
    pub fn end(self, kernel_cpu_ns: u64, own_cpu_ns: u64) -> anyhow::Result<Ending> {
        let ending = Ending { at_ns: self.at_ns(), kernel_cpu_ns, own_cpu_ns };
        let on_disk =
            |file: File| if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) };
        let ended = self.writer.end(ending).and_then(on_disk);
        ended.with_context(|| format!("writing {}", self.path.display()))?;
        Ok(ending)
    }
}

/// Renames the file at `path`, unless it is empty.
fn keep(path: &Path) -> io::Result<()> {
    let Ok(path) = path.canonicalize() else { return Ok(()) };
    let there = path.metadata()?;
    if there.is_file() && there.len() > 0 {
        std::fs::rename(&path, path.with_added_extension("old"))?;
    }
    Ok(())
}

/// The header of a record of this machine that starts now.
///
/// # Errors
/// The machine can't be read.
pub fn header(
    machine: &Machine,
    fs: &dyn Fs,
    (target, operations): (Target, Operations),
    intervals: Intervals,
) -> anyhow::Result<Header> {
    let (topology, _) = machine.read(fs)?;
    let near = topology.near();
    let ranges = ranges::of_nodes(fs).unwrap_or_default();
    let nodes = topology.nodes.iter().filter(|(_, node)| node.size.0 > 0).map(|(id, node)| Node {
        id: *id,
        kind: node.kind.to_string(),
        near: near.contains(*id),
        ranges: ranges
            .get(id)
            .into_iter()
            .flatten()
            .filter(|of| !of.is_empty())
            .map(|of| Range { start: of.start, end: of.end })
            .collect(),
    });
    let lab = machine.lab(fs);
    let name = lab.as_ref().and_then(|lab| lab["machine"].as_str().map(str::to_owned));
    let kernel = fs.read("proc/sys/kernel/osrelease")?.unwrap_or_default();
    Ok(Header {
        writer: concat!("nearfar ", env!("CARGO_PKG_VERSION")).into(),
        machine: name.or_else(|| topology.product.clone()).unwrap_or_default(),
        fingerprint: topology.fingerprint(),
        kernel: kernel.trim().into(),
        emulated: lab.is_some(),
        started_unix_ns: clock::unix_ns(),
        target,
        operations,
        intervals,
        nodes: nodes.collect(),
    })
}

/// Converts regions to those of a record: in order, without overlap.
pub fn regions(found: &[damon::Region]) -> Vec<Region> {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut end = 0;
    let mut kept = Vec::new();
    for of in found {
        // The kernel may still be merging: an overlap has already been recorded.
        let range = Range { start: of.range.start.max(end), end: of.range.end };
        if range.bytes() > 0 {
            end = range.end;
            kept.push(Region { range, accesses: small(of.nr_accesses), age: small(of.age) });
        }
    }
    kept
}

/// Used memory of each node in the record; `None` if a node does not report it.
pub fn in_use(fs: &dyn Fs, header: &Header) -> Option<Vec<Resident>> {
    let of = |node: &Node| {
        let used = meminfo::of_node(fs, node.id)?.used;
        Some(Resident { node: node.id, bytes: used.0 })
    };
    header.nodes.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::damon::spec::AddrRange;
    use nearfar_record::{Moved, Note, Pair, testkit};
    use nearfar_topology::NodeId;

    #[test]
    fn regions_that_the_kernel_gives_twice_are_kept_once() {
        let region = |start, end| damon::Region {
            range: AddrRange { start, end },
            nr_accesses: 1 << 40,
            age: 2,
            sz_filter_passed: None,
        };
        let kept = regions(&[region(0, 8), region(4, 12), region(5, 6), region(20, 30)]);
        let ranges: Vec<_> = kept.iter().map(|of| (of.range.start, of.range.end)).collect();
        assert_eq!(ranges, [(0, 8), (8, 12), (20, 30)]);
        assert_eq!((kept[0].accesses, kept[0].age), (u32::MAX, 2));
    }

    #[test]
    fn migrations_during_a_recording_are_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.nfr");
        let mut recording = Recording::create(&path, &testkit::header()).unwrap();
        let pair = Pair { from: NodeId(1), to: NodeId(0), bytes: 4096, failed_bytes: 8192 };
        recording
            .append(|writer, at_ns| writer.moved(&Moved { at_ns, pairs: vec![pair] }))
            .unwrap();
        let text = "quota halved: the pages came back".to_string();
        recording.append(|writer, at_ns| writer.note(&Note { at_ns, text })).unwrap();
        let bytes = recording.bytes();
        let ending = recording.end(3, 4).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() > bytes);
        let (record, findings) = nearfar_record::read(File::open(&path).unwrap()).unwrap();
        assert_eq!((findings, record.ending), (vec![], Some(ending)));
        assert_eq!((record.moved[0].pairs[0], record.notes.len()), (pair, 1));
    }

    #[test]
    fn the_previous_record_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let [path, old] = ["x.nfr", "x.nfr.old"].map(|name| dir.path().join(name));
        std::fs::write(&path, "previous").unwrap();
        Recording::create(&path, &testkit::header()).unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "previous");
        nearfar_record::read(File::open(&path).unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        Recording::create(&path, &testkit::header()).unwrap();
        assert_eq!(
            std::fs::read_to_string(&old).unwrap(),
            "previous",
            "an empty file is no record"
        );
    }

    #[test]
    fn a_record_can_be_discarded() {
        let recording = Recording::create(Path::new("/dev/null"), &testkit::header()).unwrap();
        assert_eq!(recording.end(1, 2).unwrap().own_cpu_ns, 2);
    }
}
