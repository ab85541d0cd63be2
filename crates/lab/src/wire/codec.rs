//! Encodes and decodes frames. Input comes from a guest that may be broken: for any bytes, decoding returns frames or
//! one error, never panics, and never takes more memory than the largest frame.

use super::{Frame, Start, Stream};

/// Payload bytes of the largest frame: a start with a full argument list and environment.
const PAYLOAD_MAX: usize = 16 << 20;
const HEAD: usize = 5;

/// Reasons why bytes are no frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// An unknown kind.
    #[error("frame of unknown kind {0:#04x}")]
    Kind(u8),
    /// A length above that of any frame.
    #[error("frame of kind {0} announces {1} bytes")]
    Length(char, usize),
    /// A payload that does not fit its kind.
    #[error("frame of kind {0} with a payload that makes no sense")]
    Payload(char),
}

impl Stream {
    const fn byte(self) -> u8 {
        match self {
            Self::In => 0,
            Self::Out => 1,
            Self::Err => 2,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::In),
            1 => Some(Self::Out),
            2 => Some(Self::Err),
            _ => None,
        }
    }
}

impl Frame {
    /// The frame as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Strings, numbers and byte lists: these can't fail to become JSON.
        let json = |value: Result<Vec<u8>, serde_json::Error>| value.unwrap_or_default();
        let (kind, payload) = match self {
            Self::Hello(hello) => (b'H', json(serde_json::to_vec(hello))),
            Self::Start(start) => (b'S', start.encode()),
            Self::Running => (b'R', Vec::new()),
            Self::Data(stream, bytes) => (b'D', [&[stream.byte()], bytes.as_slice()].concat()),
            Self::Credit(stream, more) => {
                (b'C', [[stream.byte()].as_slice(), &more.to_le_bytes()].concat())
            }
            Self::Broken(stream) => (b'B', vec![stream.byte()]),
            Self::Signal(number) => (b'K', number.to_le_bytes().to_vec()),
            Self::Alive => (b'A', Vec::new()),
            Self::Window(rows, columns) => {
                (b'W', [rows.to_le_bytes(), columns.to_le_bytes()].concat())
            }
            Self::Exit(outcome) => (b'X', json(serde_json::to_vec(outcome))),
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEAD + payload.len());
        bytes.push(kind);
        bytes.extend(length.to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    fn decode(kind: u8, payload: &[u8]) -> Option<Self> {
        let stream = |payload: &[u8]| payload.first().copied().and_then(Stream::from_byte);
        Some(match (kind, payload) {
            (b'H', _) => Self::Hello(serde_json::from_slice(payload).ok()?),
            (b'S', _) => Self::Start(Start::decode(payload)?),
            (b'R', []) => Self::Running,
            (b'D', [_, bytes @ ..]) => Self::Data(stream(payload)?, bytes.to_vec()),
            (b'C', [_, more @ ..]) => {
                Self::Credit(stream(payload)?, u32::from_le_bytes(more.try_into().ok()?))
            }
            (b'B', [_]) => Self::Broken(stream(payload)?),
            (b'K', _) => Self::Signal(i32::from_le_bytes(payload.try_into().ok()?)),
            (b'A', []) => Self::Alive,
            (b'W', [a, b, c, d]) => {
                Self::Window(u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]))
            }
            (b'X', _) => Self::Exit(serde_json::from_slice(payload).ok()?),
            _ => return None,
        })
    }
}

/// Collects bytes and decodes complete frames.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Adds received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete frame, if there is one yet. After an error the stream can't be read any further.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, WireError> {
        let waiting = &self.bytes[self.start..];
        let [kind, a, b, c, d, rest @ ..] = waiting else {
            return Ok(None);
        };
        if !b"HSRDCBKAWX".contains(kind) {
            return Err(WireError::Kind(*kind));
        }
        let length = u32::from_le_bytes([*a, *b, *c, *d]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > PAYLOAD_MAX {
            return Err(WireError::Length(char::from(*kind), length));
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Frame::decode(*kind, payload);
        let kind = char::from(*kind);
        self.start += HEAD + length;
        frame.map(Some).ok_or(WireError::Payload(kind))
    }
}

/// Decodes arbitrary bytes as frames; encoding and decoding a decoded frame gives the same frame.
#[cfg(fuzzing)]
pub fn fuzz(data: &[u8]) {
    let mut decoder = Decoder::default();
    data.chunks(7).for_each(|bytes| decoder.push(bytes));
    while let Ok(Some(frame)) = decoder.next() {
        let mut again = Decoder::default();
        again.push(&frame.encode());
        assert_eq!(again.next(), Ok(Some(frame)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Hello, Outcome};
    use proptest::prelude::*;

    fn stream() -> impl Strategy<Value = Stream> {
        prop_oneof![Just(Stream::In), Just(Stream::Out), Just(Stream::Err)]
    }

    fn word() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..12)
    }

    fn start() -> impl Strategy<Value = Start> {
        (
            proptest::collection::vec(word(), 0..5),
            proptest::collection::btree_map(word(), word(), 0..5),
            word(),
            any::<Option<(u16, u16)>>(),
        )
            .prop_map(|(argv, env, cwd, terminal)| Start { argv, env, cwd, terminal })
    }

    fn frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            any::<u32>().prop_map(|version| Frame::Hello(Hello { version })),
            start().prop_map(Frame::Start),
            Just(Frame::Running),
            (stream(), word()).prop_map(|(stream, bytes)| Frame::Data(stream, bytes)),
            (stream(), any::<u32>()).prop_map(|(stream, more)| Frame::Credit(stream, more)),
            stream().prop_map(Frame::Broken),
            any::<i32>().prop_map(Frame::Signal),
            Just(Frame::Alive),
            any::<(u16, u16)>().prop_map(|(rows, columns)| Frame::Window(rows, columns)),
            any::<u8>().prop_map(|status| Frame::Exit(Outcome::Exited(status))),
            "\\PC{0,9}".prop_map(|text| Frame::Exit(Outcome::NotFound(text))),
        ]
    }

    fn drain(decoder: &mut Decoder) -> Result<Vec<Frame>, WireError> {
        let mut frames = Vec::new();
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_arrive_as_sent_for_any_division_of_the_bytes(
            frames in proptest::collection::vec(frame(), 0..12), cut in 1usize..40,
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                got.extend(drain(&mut decoder).unwrap());
            }
            prop_assert_eq!(got, frames);
        }

        #[test]
        fn any_bytes_are_frames_or_one_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            let _ = drain(&mut decoder);
        }

        #[test]
        fn a_frame_with_one_byte_changed_never_panics(
            frame in frame(), at in any::<proptest::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut bytes = frame.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            let _ = drain(&mut decoder);
        }
    }

    #[test]
    fn an_excessive_length_is_refused_before_its_payload_arrives() {
        let mut decoder = Decoder::default();
        decoder.push(&[b'D', 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next(), Err(WireError::Length('D', 0xffff_ffff)));
    }

    #[test]
    fn console_text_on_the_port_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(b"[    0.000000] Linux version");
        assert_eq!(decoder.next(), Err(WireError::Kind(b'[')));
    }
}
