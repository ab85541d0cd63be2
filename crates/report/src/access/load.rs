//! Loads a record of nearfar or damo; the first bytes show which it is.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use anyhow::Context as _;
use nearfar_record::{Record, Target, damo, format};

/// A record and the defects of its file.
#[derive(Debug)]
pub struct Loaded {
    /// The file's name as the user gave it.
    pub name: String,
    /// The record.
    pub record: Record,
    /// Defects of the file, and remarks.
    pub findings: Vec<String>,
}

/// Reads an access record of nearfar or of damo.
///
/// # Errors
/// The file can't be read, or is neither.
pub fn load(path: &Path) -> anyhow::Result<Loaded> {
    let name = path.display().to_string();
    read(path).map(|(record, findings)| Loaded { name, record, findings })
}

/// Reads an access record of damo.
///
/// # Errors
/// The file can't be read, or is not one.
pub fn load_damo(path: &Path) -> anyhow::Result<Loaded> {
    let mut start = Vec::new();
    let file = open(path)?;
    file.take(64).read_to_end(&mut start)?;
    anyhow::ensure!(
        !start.starts_with(&format::MAGIC[..7]),
        "it is a record of nearfar's already; nearfar report shows it as it is"
    );
    load(path)
}

/// Opens a regular file: a FIFO would wait for a writer, and a device may never end.
fn open(path: &Path) -> anyhow::Result<File> {
    let found = std::fs::metadata(path)?;
    anyhow::ensure!(
        found.is_file() || found.is_dir(),
        "it is no regular file; save the record to one first"
    );
    Ok(File::open(path)?)
}

fn read(path: &Path) -> anyhow::Result<(Record, Vec<String>)> {
    let mut file = open(path)?;
    let mut start = Vec::new();
    // The first read detects errors: opening a directory succeeds as it does for a file.
    file.by_ref().take(64).read_to_end(&mut start)?;
    let ours = start.starts_with(&format::MAGIC[..7]);
    let damos = damo::may_be(&start);
    let all = start.as_slice().chain(file);
    let (record, findings) = if ours {
        let (record, findings) = nearfar_record::read(BufReader::new(all))?;
        (record, findings.iter().map(ToString::to_string).collect())
    } else if damos {
        let mut bytes = Vec::new();
        all.take(damo::BYTES_MAX + 1).read_to_end(&mut bytes).context("it can't be read")?;
        damo::import(&bytes)?
    } else {
        anyhow::bail!(
            "it is neither a record of nearfar's nor one of damo's (damon.data or JSON; other formats: damo \
             convert_record_format --format json)"
        );
    };
    Ok((clean(record), findings))
}

/// Removes characters that could affect a terminal or break XML.
fn clean(mut record: Record) -> Record {
    let header = &mut record.header;
    let texts =
        [&mut header.writer, &mut header.machine, &mut header.fingerprint, &mut header.kernel];
    let target = match &mut header.target {
        Target::Cgroup(text) | Target::Process { command: text, .. } => Some(text),
        Target::Machine | Target::Unknown => None,
    };
    let kinds = header.nodes.iter_mut().map(|node| &mut node.kind);
    let notes = record.notes.iter_mut().map(|note| &mut note.text);
    let commands = record.processes.iter_mut().map(|process| &mut process.command);
    for text in texts.into_iter().chain(target).chain(kinds).chain(notes).chain(commands) {
        let harmless = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
        *text = text.chars().take(400).map(|c| if harmless(c) { c } else { '?' }).collect();
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_record::{Note, Process, testkit};

    #[test]
    fn control_characters_in_a_record_are_replaced() {
        let mut record = testkit::short();
        record.header.machine = "a\u{1b}[2Jb".into();
        record.header.target = Target::Cgroup("c\n".into());
        record.notes.push(Note { at_ns: 1, text: "d\u{7}".into() });
        let command = "\u{9b}e".into();
        record.processes.push(Process { at_ns: 1, target: 0, pid: 1, command });
        let record = clean(record);
        assert_eq!(record.processes[0].command, "?e");
        assert_eq!(record.header.machine, "a?[2Jb");
        assert_eq!(record.header.target, Target::Cgroup("c?".into()));
        assert_eq!(record.notes[0].text, "d?");
    }
}
