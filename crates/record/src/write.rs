//! Writes a record: frames are appended one by one, each in one write, so that a crash loses at most the frame being
//! written.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::format::{self, Frame, MAGIC};
use crate::model::{Access, Ending, Header, Moved, Note, Process, Record, Region, Residency};

/// Appends frames to a file or another byte sink.
#[derive(Debug)]
pub struct Writer<W> {
    into: W,
    bytes: u64,
}

impl Writer<File> {
    /// Creates the file at `path`, readable and writable only by its owner; truncates an existing one.
    ///
    /// # Errors
    /// It can't be created or written.
    pub fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        // The mode of an existing file would stay; a record shows where a program's data is.
        if file.metadata()?.is_file() {
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        }
        Self::new(file, header)
    }

    /// Waits until all appended frames are on the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub fn sync(&self) -> io::Result<()> {
        self.into.sync_data()
    }
}

impl<W: Write> Writer<W> {
    /// Starts a record.
    ///
    /// # Errors
    /// It can't be written.
    pub fn new(into: W, header: &Header) -> io::Result<Self> {
        let mut writer = Self { into, bytes: 0 };
        writer.put(&MAGIC)?;
        writer.frame(&Frame::Header(header.clone()))?;
        Ok(writer)
    }

    /// Bytes written so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends accesses; the regions of each target must be sorted, not empty, and without overlap.
    ///
    /// # Errors
    /// They are not, or can't be written.
    pub fn access(&mut self, access: &Access) -> io::Result<()> {
        let sorted = |regions: &[Region]| {
            regions.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start)
                && regions.iter().all(|region| region.range.start < region.range.end)
        };
        if !access.targets.iter().all(|target| sorted(&target.regions)) {
            return Err(io::Error::other("regions to be recorded are not in order"));
        }
        self.frame(&Frame::Access(access.clone()))
    }

    /// Appends a residency.
    ///
    /// # Errors
    /// It can't be written.
    pub fn residency(&mut self, residency: &Residency) -> io::Result<()> {
        self.frame(&Frame::Residency(residency.clone()))
    }

    /// Appends the migrations since the last call.
    ///
    /// # Errors
    /// They can't be written.
    pub fn moved(&mut self, moved: &Moved) -> io::Result<()> {
        self.frame(&Frame::Moved(moved.clone()))
    }

    /// Appends a note.
    ///
    /// # Errors
    /// It can't be written.
    pub fn note(&mut self, note: &Note) -> io::Result<()> {
        self.frame(&Frame::Note(note.clone()))
    }

    /// Appends the process of a target from here on.
    ///
    /// # Errors
    /// It can't be written.
    pub fn process(&mut self, process: &Process) -> io::Result<()> {
        self.frame(&Frame::Process(process.clone()))
    }

    /// Ends the record and returns the sink.
    ///
    /// # Errors
    /// It can't be written.
    pub fn end(mut self, ending: Ending) -> io::Result<W> {
        self.frame(&Frame::Ending(ending))?;
        self.into.flush()?;
        Ok(self.into)
    }

    /// Appends all frames of `record`, in the order of time, without its ending.
    ///
    /// # Errors
    /// They can't be written.
    pub fn all(&mut self, record: &Record) -> io::Result<()> {
        let mut order: Vec<(u64, u8, usize)> = Vec::new();
        order.extend(record.notes.iter().enumerate().map(|(at, of)| (of.at_ns, 0, at)));
        order.extend(record.accesses.iter().enumerate().map(|(at, of)| (of.at_ns, 1, at)));
        order.extend(record.residency.iter().enumerate().map(|(at, of)| (of.at_ns, 2, at)));
        order.extend(record.moved.iter().enumerate().map(|(at, of)| (of.at_ns, 3, at)));
        order.extend(record.processes.iter().enumerate().map(|(at, of)| (of.at_ns, 4, at)));
        order.sort_unstable();
        for (_, list, at) in order {
            match list {
                0 => self.note(&record.notes[at])?,
                1 => self.access(&record.accesses[at])?,
                2 => self.residency(&record.residency[at])?,
                3 => self.moved(&record.moved[at])?,
                _ => self.process(&record.processes[at])?,
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        let bytes = format::encode(frame)
            .ok_or_else(|| io::Error::other("one frame of a record would be above 16 MiB"))?;
        self.put(&bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.into.write_all(bytes)?;
        self.bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_file_has_mode_0600_even_if_it_existed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        std::fs::write(&path, "old and open to all").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let writer = Writer::create(&path, &testkit::header()).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.permissions().mode() & 0o777, metadata.len()),
            (0o600, writer.bytes())
        );
    }

    #[test]
    fn regions_out_of_order_are_refused() {
        let mut record = testkit::moving_hot_set();
        let mut writer = Writer::new(Vec::new(), &record.header).unwrap();
        record.accesses[0].targets[0].regions.reverse();
        assert!(writer.access(&record.accesses[0]).is_err());
        let region = &mut record.accesses[1].targets[0].regions[0];
        region.range.end = region.range.start;
        assert!(writer.access(&record.accesses[1]).is_err());
    }
}
