//! A file becomes a record: ours or damo's, told apart by how it begins.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use anyhow::Context as _;
use nearfar_record::{Record, Target, damo, format};

/// A record and what is wrong with its file.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The file's name as the user gave it.
    pub(crate) name: String,
    /// The record.
    pub(crate) record: Record,
    /// What is to be known of it.
    pub(crate) findings: Vec<String>,
}

/// Reads a record of ours or of damo's.
pub(crate) fn load(path: &Path) -> anyhow::Result<Loaded> {
    let name = path.display().to_string();
    read(path).map(|(record, findings)| Loaded { name, record, findings })
}

/// Reads a record of damo's alone.
pub(crate) fn load_damo(path: &Path) -> anyhow::Result<Loaded> {
    let mut start = Vec::new();
    let file = File::open(path)?;
    file.take(64).read_to_end(&mut start)?;
    anyhow::ensure!(
        !start.starts_with(&format::MAGIC[..7]),
        "it is a record of nearfar's already; nearfar report shows it as it is"
    );
    load(path)
}

fn read(path: &Path) -> anyhow::Result<(Record, Vec<String>)> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    // Read errors come here first: a directory opens as a file does.
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
            "it is neither a record of nearfar's nor damo's JSON (damo's other formats: damo convert_record_format \
             --format json)"
        );
    };
    Ok((clean(record), findings))
}

/// Texts from elsewhere do nothing to a terminal and break no XML.
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
    fn texts_of_a_record_can_not_move_the_cursor() {
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
