//! Reads a record: the frames before the first damage, and a description of the damage.
//!
//! Memory use is proportional to the input: a count is trusted only as far as the bytes behind it reach.

use std::fmt;
use std::io::{self, Read};

use crate::codec::Malformed;
use crate::format::{self, Frame, MAGIC, PAYLOAD_BYTES_MAX, PREFIX_BYTES};
use crate::model::{Header, Record};

/// The most bytes of a file that are read.
pub const BYTES_MAX: u64 = 1 << 30;

/// A defect of a record, or a remark on it, beside the frames that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The file ends within a frame that begins at this byte: its writer was cut off.
    Torn {
        /// Where the frame begins.
        at: u64,
    },
    /// The frame that begins at this byte is damaged; it and all later ones are left out.
    Damaged {
        /// Where the frame begins.
        at: u64,
        /// Description of the damage.
        why: &'static str,
    },
    /// Frames of kinds this version doesn't know were skipped.
    Skipped {
        /// Number of frames.
        frames: u64,
    },
    /// The file is larger than [`BYTES_MAX`]; the rest was not read.
    TooLong,
    /// There is no ending: the record was cut off, or is still being written.
    Unended,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { at } => {
                write!(
                    f,
                    "the file ends within the frame at byte {at}; the part before it is shown"
                )
            }
            Self::Damaged { at, why } => {
                write!(f, "the frame at byte {at} is damaged ({why}); the part before it is shown")
            }
            Self::Skipped { frames } => {
                write!(f, "{frames} frames of a kind this version doesn't know were skipped")
            }
            Self::TooLong => {
                write!(f, "the file is above {} MiB; the rest is left out", BYTES_MAX >> 20)
            }
            Self::Unended => {
                f.write_str("the record was not ended: its writer was stopped, or still writes")
            }
        }
    }
}

/// Reasons why a file is no record at all.
#[derive(Debug, thiserror::Error)]
pub enum NotARecord {
    /// It could not be read.
    #[error("it can't be read: {0}")]
    Io(#[from] io::Error),
    /// It does not begin with the magic bytes.
    #[error("it does not begin as a record of nearfar does")]
    Foreign,
    /// Another version of the format.
    #[error("it is nearfar.record/{0}, and this nearfar reads nearfar.record/1 only")]
    Version(u8),
    /// The header is damaged.
    #[error("its header is damaged ({0}), so nothing in it can be told")]
    Header(&'static str),
}

/// Reads a record.
///
/// # Errors
/// The input is no record, or its header is damaged; any later damage is a finding.
pub fn read(from: impl Read) -> Result<(Record, Vec<Finding>), NotARecord> {
    let mut frames = Frames { from, at: 0, payload: Vec::new() };
    let header = frames.header()?;
    let mut record = Record::new(header);
    let mut findings = Vec::new();
    let mut skipped = 0;
    loop {
        if frames.at >= BYTES_MAX {
            findings.push(Finding::TooLong);
            break;
        }
        let at = frames.at;
        match frames.next()? {
            Next::Frame(frame) => {
                if let Err(why) = add(&mut record, frame) {
                    findings.push(Finding::Damaged { at, why });
                    break;
                }
            }
            Next::Unknown => skipped += 1,
            Next::End => break,
            Next::Torn => {
                findings.push(Finding::Torn { at });
                break;
            }
            Next::Damaged(why) => {
                findings.push(Finding::Damaged { at, why });
                break;
            }
        }
    }
    if skipped > 0 {
        findings.push(Finding::Skipped { frames: skipped });
    }
    if record.ending.is_none() && findings.is_empty() {
        findings.push(Finding::Unended);
    }
    Ok((record, findings))
}

fn add(record: &mut Record, frame: Frame) -> Result<(), &'static str> {
    fn push<T>(list: &mut Vec<T>, of: T, at: impl Fn(&T) -> u64) -> Result<(), &'static str> {
        if list.last().is_some_and(|last| at(last) > at(&of)) {
            return Err("it is older than the one before");
        }
        list.push(of);
        Ok(())
    }
    match frame {
        Frame::Header(_) => Err("a second header"),
        Frame::Access(of) => push(&mut record.accesses, of, |of| of.at_ns),
        Frame::Residency(of) => push(&mut record.residency, of, |of| of.at_ns),
        Frame::Moved(of) => push(&mut record.moved, of, |of| of.at_ns),
        Frame::Note(of) => push(&mut record.notes, of, |of| of.at_ns),
        Frame::Process(of) => push(&mut record.processes, of, |of| of.at_ns),
        Frame::Ending(_) if record.ending.is_some() => Err("a second ending"),
        Frame::Ending(of) => {
            record.ending = Some(of);
            Ok(())
        }
    }
}

enum Next {
    Frame(Frame),
    Unknown,
    End,
    Torn,
    Damaged(&'static str),
}

struct Frames<R> {
    from: R,
    at: u64,
    payload: Vec<u8>,
}

impl<R: Read> Frames<R> {
    fn header(&mut self) -> Result<Header, NotARecord> {
        let mut magic = [0; MAGIC.len()];
        let name = MAGIC.len() - 1;
        if self.fill(&mut magic)? < magic.len() || magic[..name] != MAGIC[..name] {
            return Err(NotARecord::Foreign);
        }
        if magic[name] != MAGIC[name] {
            return Err(NotARecord::Version(magic[name]));
        }
        match self.next()? {
            Next::Frame(Frame::Header(header)) => Ok(header),
            Next::Frame(_) | Next::Unknown => Err(NotARecord::Header("another frame is first")),
            Next::End | Next::Torn => Err(NotARecord::Header("the file ends within it")),
            Next::Damaged(why) => Err(NotARecord::Header(why)),
        }
    }

    fn next(&mut self) -> io::Result<Next> {
        let mut prefix = [0; PREFIX_BYTES];
        match self.fill(&mut prefix)? {
            0 => return Ok(Next::End),
            PREFIX_BYTES => (),
            _ => return Ok(Next::Torn),
        }
        let [kind, l0, l1, l2, l3, c0, c1, c2, c3] = prefix;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > PAYLOAD_BYTES_MAX {
            return Ok(Next::Damaged("its length is above 16 MiB"));
        }
        self.payload.clear();
        // Grows with the bytes read, not with the length stated.
        let got = (&mut self.from).take(length.into()).read_to_end(&mut self.payload)?;
        self.at += u64::try_from(got).unwrap_or(u64::MAX);
        if got < wanted {
            return Ok(Next::Torn);
        }
        if format::check(kind, &self.payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Ok(Next::Damaged("its checksum is wrong"));
        }
        Ok(match format::decode(kind, &self.payload) {
            Ok(Some(frame)) => Next::Frame(frame),
            Ok(None) => Next::Unknown,
            Err(Malformed(why)) => Next::Damaged(why),
        })
    }

    /// Reads until `into` is full or the file ends.
    fn fill(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < into.len() {
            match self.from.read(&mut into[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        self.at += u64::try_from(got).unwrap_or(u64::MAX);
        Ok(got)
    }
}

/// Parses any bytes as a record, after correcting the checksum of each complete frame, and as damo's JSON; the result
/// must survive writing and reading.
///
/// # Panics
/// If it does not.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    let mut bytes = data.to_vec();
    let mut at = MAGIC.len();
    while let Some(prefix) = bytes.get(at..at + PREFIX_BYTES) {
        let length = u32::from_le_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        let from = at + PREFIX_BYTES;
        let end = from.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        let Some(payload) = bytes.get(from..end) else { break };
        let check = format::check(bytes[at], payload).to_le_bytes();
        bytes[at + 5..from].copy_from_slice(&check);
        at = end;
    }
    let (read, damo) = (read(&*bytes), crate::damo::import(data));
    let records = [read.ok().map(|(record, _)| record), damo.ok().map(|(record, _)| record)];
    for mut record in records.into_iter().flatten() {
        record.ending.get_or_insert_default();
        let again = written(&record).map(|bytes| self::read(&*bytes));
        assert!(matches!(again, Ok(Ok((again, found))) if again == record && found.is_empty()));
    }
}

#[cfg(any(fuzzing, test))]
fn written(record: &Record) -> io::Result<Vec<u8>> {
    let mut writer = crate::Writer::new(Vec::new(), &record.header)?;
    writer.all(record)?;
    writer.end(record.ending.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{self, arbitrary};
    use crate::write::Writer;
    use proptest::prelude::*;

    fn bytes(record: &Record) -> Vec<u8> {
        written(record).unwrap()
    }

    /// Whether the frames of `part` are the first ones of `whole`.
    fn begins(whole: &Record, part: &Record) -> bool {
        whole.header == part.header
            && whole.accesses.starts_with(&part.accesses)
            && whole.residency.starts_with(&part.residency)
            && whole.moved.starts_with(&part.moved)
            && whole.notes.starts_with(&part.notes)
            && whole.processes.starts_with(&part.processes)
    }

    #[test]
    fn a_complete_record_round_trips_without_a_finding() {
        let record = testkit::moving_hot_set();
        let (back, findings) = read(&*bytes(&record)).unwrap();
        assert_eq!((back, findings), (record, vec![]));
    }

    #[test]
    fn a_truncated_record_gives_every_complete_frame_and_a_finding() {
        let record = testkit::short();
        let bytes = bytes(&record);
        let mut whole = 0;
        for cut in 0..bytes.len() {
            match read(&bytes[..cut]) {
                Ok((part, findings)) => {
                    assert!(begins(&record, &part) && part.ending.is_none(), "cut at {cut}");
                    assert_eq!(findings.len(), 1, "cut at {cut}: {findings:?}");
                    assert!(part.accesses.len() >= whole, "cut at {cut} gives less than before");
                    whole = part.accesses.len();
                }
                Err(NotARecord::Io(error)) => panic!("{error}"),
                Err(_) => assert_eq!(whole, 0),
            }
        }
        assert_eq!(whole, record.accesses.len());
    }

    #[test]
    fn a_later_version_is_rejected_by_name() {
        let mut bytes = bytes(&testkit::short());
        bytes[7] = 2;
        let error = read(&*bytes).unwrap_err().to_string();
        assert!(error.contains("nearfar.record/2"), "{error}");
    }

    #[test]
    fn a_frame_of_an_unknown_kind_is_skipped_and_counted() {
        let record = testkit::short();
        let mut bytes = bytes(&record);
        bytes.extend([77, 1, 0, 0, 0]);
        bytes.extend(format::check(77, &[9]).to_le_bytes());
        bytes.push(9);
        let (back, findings) = read(&*bytes).unwrap();
        assert_eq!((back, findings), (record, vec![Finding::Skipped { frames: 1 }]));
    }

    #[test]
    fn an_oversized_frame_length_is_damage_and_is_not_allocated() {
        let mut bytes = bytes(&testkit::short());
        let at = bytes.len() as u64;
        bytes.extend([2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        let (_, findings) = read(&*bytes).unwrap();
        assert_eq!(findings, [Finding::Damaged { at, why: "its length is above 16 MiB" }]);
    }

    #[test]
    fn a_timestamp_older_than_the_previous_one_is_damage() {
        let record = testkit::short();
        let mut writer = Writer::new(Vec::new(), &record.header).unwrap();
        writer.access(&record.accesses[1]).unwrap();
        writer.access(&record.accesses[0]).unwrap();
        let bytes = writer.end(record.ending.unwrap()).unwrap();
        let (part, findings) = read(&*bytes).unwrap();
        assert_eq!(part.accesses, record.accesses[1..2]);
        assert!(findings[0].to_string().contains("older"), "{findings:?}");
    }

    proptest! {
        #[test]
        fn any_record_round_trips(record in arbitrary::record()) {
            prop_assert_eq!(read(&*bytes(&record)).unwrap(), (record, vec![]));
        }

        #[test]
        fn one_flipped_bit_is_always_reported(record in arbitrary::record(), at: prop::sample::Index, bit in 0u8..8) {
            let mut bytes = bytes(&record);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if let Ok((part, findings)) = read(&*bytes) {
                prop_assert!(begins(&record, &part));
                prop_assert!(!findings.is_empty());
            }
        }

        #[test]
        fn any_truncated_record_gives_its_beginning_and_a_finding(record in arbitrary::record(), cut: prop::sample::Index) {
            let bytes = bytes(&record);
            if let Ok((part, findings)) = read(&bytes[..cut.index(bytes.len())]) {
                prop_assert!(begins(&record, &part) && part.ending.is_none());
                prop_assert_eq!(findings.len(), 1);
            }
        }

        #[test]
        fn corrupted_frames_with_valid_checksums_never_panic(
            record in arbitrary::record(),
            spots in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut bytes = bytes(&record);
            for (at, byte) in spots {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            fuzz(&bytes);
        }

        #[test]
        fn arbitrary_bytes_after_the_magic_number_never_panic(bytes: Vec<u8>) {
            let _ = read(&*bytes);
            let _ = read(&*[&MAGIC[..], &bytes].concat());
            let (_, findings) = read(&*[&self::bytes(&testkit::short())[..], &bytes].concat()).unwrap();
            prop_assert!(bytes.is_empty() || !findings.is_empty());
        }
    }
}
