//! Multiplexed frames: several byte streams in one connection.
//!
//! ```text
//! frame = connection (u32) length (u32) payload        big endian
//! ```
//!
//! Connection 1 has the runtime's calls of the plugin, 2 the plugin's calls of the runtime. The other end reads a frame
//! into a buffer that must be as large as the frame, and its smallest has 4,096 bytes: no frame written here is larger.

/// The runtime's calls of the plugin.
pub const PLUGIN: u32 = 1;
/// The plugin's calls of the runtime.
pub const RUNTIME: u32 = 2;
/// Bytes of a payload written here.
const WRITTEN_MAX: usize = 4096;
/// Bytes of a payload that is accepted: the largest ttrpc message with its header.
const READ_MAX: usize = (4 << 20) + 10;
const HEADER: usize = 8;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its connection.
    pub connection: u32,
    /// Its bytes: part of the connection's stream.
    pub payload: Vec<u8>,
}

/// A frame that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes is larger than any ({READ_MAX}); the peer does not speak NRI")]
pub struct FrameError {
    length: usize,
}

/// Collects bytes into frames.
#[derive(Debug, Default)]
pub struct Reader(Vec<u8>);

impl Reader {
    /// Adds bytes; returns the frames that are complete by now.
    ///
    /// # Errors
    /// [`FrameError`]; the connection is unusable then.
    pub fn add(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
        self.0.extend_from_slice(bytes);
        let mut frames = Vec::new();
        let mut at = 0;
        while let Some((header, rest)) = self.0[at..].split_first_chunk::<HEADER>() {
            let [a, b, c, d, length @ ..] = *header;
            let length = u32::from_be_bytes(length) as usize;
            if length > READ_MAX {
                return Err(FrameError { length });
            }
            let Some(payload) = rest.get(..length) else { break };
            let connection = u32::from_be_bytes([a, b, c, d]);
            frames.push(Frame { connection, payload: payload.to_vec() });
            at += HEADER + length;
        }
        self.0.drain(..at);
        Ok(frames)
    }
}

/// Appends `bytes` of a connection to `out`, in frames.
pub fn write(out: &mut Vec<u8>, connection: u32, bytes: &[u8]) {
    for part in bytes.chunks(WRITTEN_MAX) {
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&connection.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_those_of_the_protocol() {
        let mut out = Vec::new();
        write(&mut out, PLUGIN, b"abc");
        assert_eq!(out, [0, 0, 0, 1, 0, 0, 0, 3, b'a', b'b', b'c']);
        let large = [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff];
        let error = Reader::default().add(&large).unwrap_err().to_string();
        assert!(error.contains("4294967295"), "{error}");
    }

    proptest! {
        #[test]
        fn frames_round_trip_however_the_bytes_arrive(
            payloads in prop::collection::vec((1u32..3, prop::collection::vec(any::<u8>(), 0..9000)), 0..6),
            each in 1usize..5000,
        ) {
            let mut out = Vec::new();
            payloads.iter().for_each(|(connection, payload)| write(&mut out, *connection, payload));
            let mut reader = Reader::default();
            let mut frames = Vec::new();
            for part in out.chunks(each) {
                frames.extend(reader.add(part).unwrap());
            }
            for connection in [PLUGIN, RUNTIME] {
                let sent = payloads.iter().filter(|(of, _)| *of == connection);
                let sent: Vec<u8> = sent.flat_map(|(_, payload)| payload.clone()).collect();
                let came = frames.iter().filter(|frame| frame.connection == connection);
                let came: Vec<u8> = came.flat_map(|frame| frame.payload.clone()).collect();
                prop_assert_eq!(came, sent);
            }
            prop_assert!(frames.iter().all(|frame| frame.payload.len() <= WRITTEN_MAX));
        }
    }
}
