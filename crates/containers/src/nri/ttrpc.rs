//! ttrpc: calls and answers on a byte stream.
//!
//! ```text
//! message = length (u32) stream (u32) type (u8) flags (u8) payload      big endian
//! ```
//!
//! Type 1 is a request, 2 its response; streams (type 3) are not used by NRI. The client's stream ids are odd.

/// A message's type: a request.
pub const REQUEST: u8 = 1;
/// A message's type: a response.
pub const RESPONSE: u8 = 2;
/// gRPC's status codes in use.
pub mod code {
    /// Any failure.
    pub const UNKNOWN: i32 = 2;
    /// No such method.
    pub const UNIMPLEMENTED: i32 = 12;
    /// Not decodable.
    pub const INVALID_ARGUMENT: i32 = 3;
}

const HEADER: usize = 10;
/// Bytes of a payload: ttrpc's own limit.
const PAYLOAD_MAX: usize = 4 << 20;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The stream: a response has its request's.
    pub stream: u32,
    /// The type.
    pub kind: u8,
    /// The flags; none are used.
    pub flags: u8,
    /// A [`Request`] or [`Response`].
    pub payload: Vec<u8>,
}

/// A message that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {length} bytes is larger than ttrpc permits ({PAYLOAD_MAX})")]
pub struct MessageError {
    length: usize,
}

/// A call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Its method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The argument.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    /// The time it may take; 0 without limit.
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
}

/// An answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// The failure; none or code 0 is success.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The result.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// A failure.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    /// gRPC's code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Collects bytes into messages.
#[derive(Debug, Default)]
pub struct Reader(Vec<u8>);

impl Reader {
    /// Adds bytes; returns the messages that are complete by now.
    ///
    /// # Errors
    /// [`MessageError`]; the stream is unusable then.
    pub fn add(&mut self, bytes: &[u8]) -> Result<Vec<Message>, MessageError> {
        self.0.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some((header, rest)) = self.0[at..].split_first_chunk::<HEADER>() {
            let [a, b, c, d, e, f, g, h, kind, flags] = *header;
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length > PAYLOAD_MAX {
                return Err(MessageError { length });
            }
            let Some(payload) = rest.get(..length) else { break };
            let stream = u32::from_be_bytes([e, f, g, h]);
            messages.push(Message { stream, kind, flags, payload: payload.to_vec() });
            at += HEADER + length;
        }
        self.0.drain(..at);
        Ok(messages)
    }
}

impl Message {
    /// The message's bytes.
    ///
    /// # Errors
    /// [`MessageError`]: the payload is too large.
    pub fn bytes(&self) -> Result<Vec<u8>, MessageError> {
        let length = self.payload.len();
        let small = u32::try_from(length).ok().filter(|_| length <= PAYLOAD_MAX);
        let mut out = small.ok_or(MessageError { length })?.to_be_bytes().to_vec();
        out.extend_from_slice(&self.stream.to_be_bytes());
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.payload);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_those_of_the_protocol() {
        let message = Message { stream: 3, kind: REQUEST, flags: 0, payload: b"xy".to_vec() };
        assert_eq!(message.bytes().unwrap(), [0, 0, 0, 2, 0, 0, 0, 3, 1, 0, b'x', b'y']);
        let error = Reader::default().add(&[0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0]).unwrap_err();
        assert!(error.to_string().contains("4194305"), "{error}");
        let payload = vec![0; PAYLOAD_MAX + 1];
        assert!(Message { payload, ..message }.bytes().is_err());
    }

    proptest! {
        #[test]
        fn messages_round_trip_however_the_bytes_arrive(
            sent in prop::collection::vec((any::<u32>(), 1u8..3, prop::collection::vec(any::<u8>(), 0..600)), 0..6),
            each in 1usize..700,
        ) {
            let message = |(stream, kind, payload)| Message { stream, kind, flags: 0, payload };
            let sent: Vec<_> = sent.into_iter().map(message).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(|message| message.bytes().unwrap()).collect();
            let mut reader = Reader::default();
            let mut came = Vec::new();
            for part in bytes.chunks(each) {
                came.extend(reader.add(part).unwrap());
            }
            prop_assert_eq!(came, sent);
        }
    }
}
