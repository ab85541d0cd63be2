//! The bytes of `nearfar.record/1`, so that any program can read them.
//!
//! ```text
//! file     = magic frame*
//! magic    = 89 4E 46 52 45 43 0A 01        "\x89NFREC\n", then the version: 1
//! frame    = kind length check payload
//! kind     = 1 byte
//! length   = 4 bytes, little endian: bytes of the payload, at most 16 MiB
//! check    = 4 bytes, little endian: CRC-32C of kind, length and payload
//!
//! payload, by kind (numbers are unsigned LEB128; a text is its length in bytes and UTF-8; a list is its length and
//! its items; nothing follows the last field):
//! 1 header     writer, machine, fingerprint, kernel: texts; emulated: 0 or 1; start: ns since 1970, 0 unknown;
//!              target: 0 machine | 1 cgroup, text | 2 process, number, text | 3 unknown;
//!              operations: 0 virtual | 1 fixed virtual | 2 physical | 3 unknown; intervals; nodes: list of
//!              { id, kind: text, near: 0 or 1, ranges: list of { start, length } }
//! 2 access     at; intervals; targets: list of { number, shift, regions: list of { gap, length, accesses, age } }
//! 3 residency  at; list of { node, bytes }
//! 4 moved      at; list of { from, to, bytes, failed bytes }, since the last such frame
//! 5 note       at; text
//! 6 ending     at; CPU time of the kernel's monitoring threads; CPU time of the recording program (both ns)
//! 7 process    at; number of the target that it is from here on; its id; command: text
//!
//! at         = ns since the start; never before the frame ahead of the same kind
//! intervals  = sampling interval in us, aggregation interval in us; neither 0, the first not above the second
//! gap        = from the end of the region before (from 0 for the first), length > 0; both to be shifted left by
//!              `shift` (at most 63); `accesses` are looks with an access in one aggregation, `age` is in aggregations
//! ```
//!
//! The first frame is the header, and there is one. Frames are only appended, each by one write, and each can be
//! decoded by itself: all frames before a torn or damaged one are complete. A reader skips unknown kinds; a change to
//! the meaning of known ones changes the version.

use nearfar_topology::NodeId;

use crate::codec::{In, Malformed, Out};
use crate::model::{
    Access, Ending, Header, Intervals, Moved, Node, Note, Operations, Pair, Process, Range, Region,
    Residency, Resident, Snapshot, Target,
};

/// The first eight bytes of a file; the last of them is the version.
pub const MAGIC: [u8; 8] = [0x89, b'N', b'F', b'R', b'E', b'C', b'\n', 1];
/// Bytes before a frame's payload.
pub const PREFIX_BYTES: usize = 9;
/// The longest payload.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Header(Header),
    Access(Access),
    Residency(Residency),
    Moved(Moved),
    Note(Note),
    Ending(Ending),
    Process(Process),
}

/// CRC-32C of a frame.
pub(crate) fn check(kind: u8, payload: &[u8]) -> u32 {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
    let head = [kind, length[0], length[1], length[2], length[3]];
    crc32c::crc32c_append(crc32c::crc32c(&head), payload)
}

/// A frame's bytes; `None` if its payload would be too long.
pub(crate) fn encode(frame: &Frame) -> Option<Vec<u8>> {
    let mut out = Out::default();
    let kind = match frame {
        Frame::Header(header) => {
            write_header(&mut out, header);
            1
        }
        Frame::Access(access) => {
            write_access(&mut out, access);
            2
        }
        Frame::Residency(residency) => {
            write_residency(&mut out, residency);
            3
        }
        Frame::Moved(moved) => {
            write_moved(&mut out, moved);
            4
        }
        Frame::Note(note) => {
            out.number(note.at_ns);
            out.text(&note.text);
            5
        }
        Frame::Ending(ending) => {
            out.number(ending.at_ns);
            out.number(ending.kernel_cpu_ns);
            out.number(ending.own_cpu_ns);
            6
        }
        Frame::Process(process) => {
            out.number(process.at_ns);
            out.number(process.target.into());
            out.number(process.pid.into());
            out.text(&process.command);
            7
        }
    };
    let payload = out.0;
    if payload.len() > PAYLOAD_BYTES_MAX {
        return None;
    }
    let length = u32::try_from(payload.len()).ok()?;
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + payload.len());
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&check(kind, &payload).to_le_bytes());
    bytes.extend_from_slice(&payload);
    Some(bytes)
}

/// Decodes a frame from its payload; `None` for a kind this version doesn't know.
pub(crate) fn decode(kind: u8, payload: &[u8]) -> Result<Option<Frame>, Malformed> {
    let mut input = In(payload);
    let frame = match kind {
        1 => Frame::Header(read_header(&mut input)?),
        2 => Frame::Access(read_access(&mut input)?),
        3 => Frame::Residency(read_residency(&mut input)?),
        4 => Frame::Moved(read_moved(&mut input)?),
        5 => Frame::Note(Note { at_ns: input.number()?, text: input.text()? }),
        6 => Frame::Ending(Ending {
            at_ns: input.number()?,
            kernel_cpu_ns: input.number()?,
            own_cpu_ns: input.number()?,
        }),
        7 => Frame::Process(Process {
            at_ns: input.number()?,
            target: input.small()?,
            pid: input.small()?,
            command: input.text()?,
        }),
        _ => return Ok(None),
    };
    input.end()?;
    Ok(Some(frame))
}

fn write_header(out: &mut Out, header: &Header) {
    for text in [&header.writer, &header.machine, &header.fingerprint, &header.kernel] {
        out.text(text);
    }
    out.number(header.emulated.into());
    out.number(header.started_unix_ns);
    match &header.target {
        Target::Machine => out.number(0),
        Target::Cgroup(path) => {
            out.number(1);
            out.text(path);
        }
        Target::Process { pid, command } => {
            out.number(2);
            out.number((*pid).into());
            out.text(command);
        }
        Target::Unknown => out.number(3),
    }
    out.number(match header.operations {
        Operations::Virtual => 0,
        Operations::FixedVirtual => 1,
        Operations::Physical => 2,
        Operations::Unknown => 3,
    });
    write_intervals(out, header.intervals);
    out.count(header.nodes.len());
    for node in &header.nodes {
        out.number(node.id.0.into());
        out.text(&node.kind);
        out.number(node.near.into());
        out.count(node.ranges.len());
        for range in &node.ranges {
            out.number(range.start);
            out.number(range.bytes());
        }
    }
}

fn read_header(input: &mut In<'_>) -> Result<Header, Malformed> {
    let [writer, machine, fingerprint, kernel] =
        [input.text()?, input.text()?, input.text()?, input.text()?];
    let emulated = flag(input)?;
    let started_unix_ns = input.number()?;
    let target = match input.number()? {
        0 => Target::Machine,
        1 => Target::Cgroup(input.text()?),
        2 => Target::Process { pid: input.small()?, command: input.text()? },
        3 => Target::Unknown,
        _ => return Err(Malformed("its target is of no known sort")),
    };
    let operations = match input.number()? {
        0 => Operations::Virtual,
        1 => Operations::FixedVirtual,
        2 => Operations::Physical,
        3 => Operations::Unknown,
        _ => return Err(Malformed("its operations are of no known sort")),
    };
    let intervals = read_intervals(input)?;
    let nodes = (0..input.count(4)?).map(|_| read_node(input)).collect::<Result<_, _>>()?;
    Ok(Header {
        writer,
        machine,
        fingerprint,
        kernel,
        emulated,
        started_unix_ns,
        target,
        operations,
        intervals,
        nodes,
    })
}

fn read_node(input: &mut In<'_>) -> Result<Node, Malformed> {
    let (id, kind, near) = (node_id(input)?, input.text()?, flag(input)?);
    let ranges = (0..input.count(2)?).map(|_| read_range(input, 0, 0)).collect::<Result<_, _>>()?;
    Ok(Node { id, kind, near, ranges })
}

fn write_intervals(out: &mut Out, intervals: Intervals) {
    out.number(intervals.sample_us);
    out.number(intervals.aggregation_us);
}

fn read_intervals(input: &mut In<'_>) -> Result<Intervals, Malformed> {
    let intervals = Intervals { sample_us: input.number()?, aggregation_us: input.number()? };
    if intervals.sample_us == 0 || intervals.aggregation_us < intervals.sample_us {
        return Err(Malformed("its intervals can't be"));
    }
    Ok(intervals)
}

fn write_access(out: &mut Out, access: &Access) {
    out.number(access.at_ns);
    write_intervals(out, access.intervals);
    out.count(access.targets.len());
    for Snapshot { target, regions } in &access.targets {
        let bits = regions.iter().fold(0, |bits, of| bits | of.range.start | of.range.end);
        let shift = if bits == 0 { 0 } else { bits.trailing_zeros() };
        out.number((*target).into());
        out.number(shift.into());
        out.count(regions.len());
        let mut end = 0;
        for Region { range, accesses, age } in regions {
            out.number((range.start - end) >> shift);
            out.number(range.bytes() >> shift);
            out.number((*accesses).into());
            out.number((*age).into());
            end = range.end;
        }
    }
}

fn read_access(input: &mut In<'_>) -> Result<Access, Malformed> {
    let (at_ns, intervals) = (input.number()?, read_intervals(input)?);
    let targets = (0..input.count(3)?).map(|_| read_snapshot(input)).collect::<Result<_, _>>()?;
    Ok(Access { at_ns, intervals, targets })
}

fn read_snapshot(input: &mut In<'_>) -> Result<Snapshot, Malformed> {
    let (target, shift) = (input.small()?, input.small()?);
    let count = input.count(4)?;
    let mut regions = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let range = read_range(input, end, shift)?;
        end = range.end;
        regions.push(Region { range, accesses: input.small()?, age: input.small()? });
    }
    Ok(Snapshot { target, regions })
}

/// A gap from `end` and a length, both in units of `1 << shift` bytes.
fn read_range(input: &mut In<'_>, end: u64, shift: u32) -> Result<Range, Malformed> {
    let unit = 1u64.checked_shl(shift).ok_or(Malformed("a shift is above 63"))?;
    let (gap, length) = (input.number()?, input.number()?);
    if length == 0 {
        return Err(Malformed("a range is empty"));
    }
    let start = gap.checked_mul(unit).and_then(|gap| end.checked_add(gap));
    let length = length.checked_mul(unit);
    start
        .zip(length)
        .and_then(|(start, length)| Some(Range { start, end: start.checked_add(length)? }))
        .ok_or(Malformed("an address is above 64 bits"))
}

fn write_residency(out: &mut Out, residency: &Residency) {
    out.number(residency.at_ns);
    out.count(residency.nodes.len());
    for Resident { node, bytes } in &residency.nodes {
        out.number(node.0.into());
        out.number(*bytes);
    }
}

fn read_residency(input: &mut In<'_>) -> Result<Residency, Malformed> {
    let at_ns = input.number()?;
    let mut nodes = Vec::new();
    for _ in 0..input.count(2)? {
        nodes.push(Resident { node: node_id(input)?, bytes: input.number()? });
    }
    Ok(Residency { at_ns, nodes })
}

fn write_moved(out: &mut Out, moved: &Moved) {
    out.number(moved.at_ns);
    out.count(moved.pairs.len());
    for Pair { from, to, bytes, failed_bytes } in &moved.pairs {
        for number in [u64::from(from.0), u64::from(to.0), *bytes, *failed_bytes] {
            out.number(number);
        }
    }
}

fn read_moved(input: &mut In<'_>) -> Result<Moved, Malformed> {
    let at_ns = input.number()?;
    let mut pairs = Vec::new();
    for _ in 0..input.count(4)? {
        let (from, to) = (node_id(input)?, node_id(input)?);
        pairs.push(Pair { from, to, bytes: input.number()?, failed_bytes: input.number()? });
    }
    Ok(Moved { at_ns, pairs })
}

fn flag(input: &mut In<'_>) -> Result<bool, Malformed> {
    match input.number()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("a flag is neither 0 nor 1")),
    }
}

fn node_id(input: &mut In<'_>) -> Result<NodeId, Malformed> {
    NodeId::new(input.number()?).ok_or(Malformed("a node number is above Linux's maximum"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::arbitrary;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_frame_round_trips(frame in arbitrary::frame()) {
            let bytes = encode(&frame).unwrap();
            prop_assert_eq!(decode(bytes[0], &bytes[PREFIX_BYTES..]), Ok(Some(frame)));
        }

        #[test]
        fn decoding_an_arbitrary_payload_never_panics(kind in 0u8..9, payload: Vec<u8>) {
            let _ = decode(kind, &payload);
        }
    }

    #[test]
    fn a_region_takes_few_bytes() {
        let page = 1 << 12;
        let region = |at: u64| Region {
            range: Range {
                start: (1 << 32) + 100 * at * page,
                end: (1 << 32) + (100 * at + 90) * page,
            },
            accesses: 7,
            age: 30,
        };
        let regions: Vec<_> = (0..1000).map(region).collect();
        let intervals = Intervals { sample_us: 5000, aggregation_us: 100_000 };
        let access =
            Access { at_ns: 1 << 40, intervals, targets: vec![Snapshot { target: 0, regions }] };
        let bytes = encode(&Frame::Access(access)).unwrap();
        assert!(bytes.len() < 1000 * 4 + 40, "{}", bytes.len());
    }

    #[test]
    fn an_invalid_payload_is_rejected_with_a_reason() {
        for (payload, why) in [
            (&[1, 0, 1, 0][..], "intervals"),
            (&[1, 2, 1, 0], "intervals"),
            (&[1, 1, 1, 1, 0, 0, 200, 1, 1, 1, 1, 1], "more than it does"),
            (&[1, 1, 1, 1, 0, 64, 1, 1, 1, 1, 1], "shift"),
            (&[1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1], "empty"),
            (&[1, 1, 1, 1, 0, 63, 1, 1, 1, 1, 1], "64 bits"),
            (&[1, 1, 1, 0, 0], "longer"),
        ] {
            let Malformed(found) = decode(2, payload).unwrap_err();
            assert!(found.contains(why), "{payload:?}: {found}");
        }
    }
}
