//! The protocol between the host and the guest's runner over one byte stream (a virtio-serial port).
//!
//! A frame is one kind byte, the payload's length (4 bytes, little endian) and the payload. Numbers in payloads are
//! little endian; `Hello` and `Exit` carry JSON, `Start` its own form (`start.rs`), as paths need not be text.
//!
//! | kind | from | payload |
//! |---|---|---|
//! | H hello | guest | [`Hello`] |
//! | S start | host | [`Start`] |
//! | R running | guest | none: the command has been started |
//! | D data | both | stream byte, bytes; no bytes: end of that stream |
//! | C credit | both | stream byte, u32: number of further bytes of that stream that may be sent |
//! | B broken | host | stream byte: that stream has no reader any more |
//! | K signal | host | i32 |
//! | A alive | guest | none: answers each signal, so that a hung guest shows |
//! | W window | host | u16 rows, u16 columns |
//! | X exit | guest | [`Outcome`] |
//!
//! A stream's sender starts with [`CREDIT`] and never has more bytes outstanding than its credit: a reader that stops
//! reading stops only its own stream, and signals still pass.

mod codec;
mod start;

use serde::{Deserialize, Serialize};

#[cfg(fuzzing)]
pub use codec::fuzz;
pub(crate) use codec::{Decoder, WireError};
pub(crate) use start::Start;

/// Bytes of a stream a sender may send before the first credit.
pub(crate) const CREDIT: u32 = 256 << 10;

/// Payload bytes of the largest data frame.
pub(crate) const CHUNK: usize = 32 << 10;

/// The protocol version, which must be equal on both sides; they are the same program, so a difference means a broken
/// set-up.
pub(crate) const VERSION: u32 = 1;

/// One of the command's three streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard input, host to guest.
    In,
    /// Standard output, guest to host.
    Out,
    /// Standard error, guest to host.
    Err,
}

/// The guest's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`] of the guest's side.
    pub(crate) version: u32,
}

/// The end of the command, or the reason why it did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It ended with this status.
    Exited(u8),
    /// A signal ended it.
    Killed(i32),
    /// The command was not found.
    NotFound(String),
    /// The file exists but can't be executed.
    NotExecutable(String),
    /// The runner failed before starting it.
    Failed(String),
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// H
    Hello(Hello),
    /// S
    Start(Start),
    /// R
    Running,
    /// D
    Data(Stream, Vec<u8>),
    /// C
    Credit(Stream, u32),
    /// B
    Broken(Stream),
    /// K
    Signal(i32),
    /// A
    Alive,
    /// W: rows, columns
    Window(u16, u16),
    /// X
    Exit(Outcome),
}
