//! Reads from and writes to a non-blocking socket.

use std::io::{self, ErrorKind, Read, Write};

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// This many bytes, and there may be more.
    Bytes(usize),
    /// This many bytes; an event will announce more.
    Last(usize),
    /// No bytes yet.
    Nothing,
    /// The end of the stream.
    End,
}

impl Got {
    /// Number of bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Bytes(bytes) | Self::Last(bytes) => bytes,
            Self::Nothing | Self::End => 0,
        }
    }
}

/// A plain socket's read: one that does not fill the buffer has emptied the socket.
pub(super) fn plain(mut socket: impl Read, buffer: &mut [u8]) -> io::Result<Got> {
    loop {
        return match socket.read(buffer) {
            Ok(0) => Ok(Got::End),
            Ok(bytes) if bytes < buffer.len() => Ok(Got::Last(bytes)),
            Ok(bytes) => Ok(Got::Bytes(bytes)),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Got::Nothing),
            Err(error) => Err(error),
        };
    }
}

/// Reads at most `more` bytes to the end of `room`, without an intermediate buffer.
pub(super) fn straight(socket: impl Read, room: &mut Vec<u8>, more: usize) -> io::Result<Got> {
    let before = room.len();
    room.reserve(more);
    let done = socket.take(more as u64).read_to_end(room);
    let bytes = room.len() - before;
    match done {
        Ok(_) if bytes == more => Ok(Got::Bytes(bytes)),
        // The end came early: the value read will never be complete.
        Ok(_) => Ok(Got::End),
        Err(error) if error.kind() == ErrorKind::WouldBlock && bytes == 0 => Ok(Got::Nothing),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Got::Last(bytes)),
        Err(error) => Err(error),
    }
}

/// A plain socket's write; 0 if it accepts nothing now.
pub(super) fn put(mut socket: impl Write, bytes: &[u8]) -> io::Result<usize> {
    loop {
        return match socket.write(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            done => done,
        };
    }
}
