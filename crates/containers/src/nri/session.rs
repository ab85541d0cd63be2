//! A connection to the runtime: reads frames, has the plugin answer, writes the answers.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use prost::Message as _;

use super::frame::{self, FrameError};
use super::messages::{PLUGIN_SERVICE, RUNTIME_SERVICE};
use super::plugin::{Host, Plugin};
use super::ttrpc::{self, Message, MessageError, Request, Response, Status, code};

/// The end of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Reading or writing failed.
    #[error("the connection to the container runtime failed: {0}")]
    Io(#[from] io::Error),
    /// The runtime has closed it.
    #[error("the container runtime closed the connection{}", if *.configured { "" } else {
        " before it configured the plugin; its log has the reason" })]
    Closed {
        /// Whether the plugin was in use by then.
        configured: bool,
    },
    /// A malformed frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A malformed message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A message that is no protobuf.
    #[error("a message is not understood: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The runtime refused the plugin.
    #[error("the container runtime refused {method}: {message}")]
    Refused {
        /// The call.
        method: &'static str,
        /// The reason.
        message: String,
    },
}

/// The runtime's end of a connection.
pub trait Stream: Read + Write {
    /// Reads fail with [`io::ErrorKind::WouldBlock`] once nothing has come for this time; `None`: never.
    ///
    /// # Errors
    /// The kernel's.
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)
    }
}

/// Time without a call of the runtime after which a container is verified.
const IDLE: Duration = Duration::from_millis(5);

struct Session<'a, S> {
    stream: &'a mut S,
    plugin: &'a mut Plugin,
    host: &'a mut dyn Host,
    /// Calls of the runtime without an answer yet, by their stream.
    open: Vec<(u32, &'static str)>,
    stream_next: u32,
    is_configured: bool,
}

/// Registers the plugin and answers until the runtime shuts it down.
///
/// # Errors
/// [`SessionError`]: the connection ended otherwise.
pub fn run(
    stream: &mut impl Stream,
    plugin: &mut Plugin,
    host: &mut dyn Host,
) -> Result<(), SessionError> {
    let register = plugin.connect().encode_to_vec();
    let mut session =
        Session { stream, plugin, host, open: Vec::new(), stream_next: 1, is_configured: false };
    session.call("RegisterPlugin", register)?;
    session.serve()
}

impl<S: Stream> Session<'_, S> {
    fn serve(&mut self) -> Result<(), SessionError> {
        const EACH: usize = 64 << 10;
        let mut frames = frame::Reader::default();
        let (mut calls, mut answers) = (ttrpc::Reader::default(), ttrpc::Reader::default());
        let mut buffer = vec![0; EACH];
        let mut is_patient = true;
        loop {
            if is_patient == self.plugin.has_unverified() {
                is_patient = !is_patient;
                self.stream.set_patience((!is_patient).then_some(IDLE))?;
            }
            let read = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(SessionError::Closed { configured: self.is_configured }),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.plugin.verify_next(self.host);
                    self.call_out()?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for frame in frames.add(&buffer[..read])? {
                match frame.connection {
                    frame::PLUGIN => {
                        for message in calls.add(&frame.payload)? {
                            if self.answer(&message)? {
                                return Ok(());
                            }
                        }
                    }
                    frame::RUNTIME => {
                        for message in answers.add(&frame.payload)? {
                            self.answered(&message)?;
                        }
                    }
                    // Reserved for other uses.
                    _ => {}
                }
            }
        }
    }

    /// Answers a call; true if it was the last.
    fn answer(&mut self, message: &Message) -> Result<bool, SessionError> {
        if message.kind != ttrpc::REQUEST {
            return Ok(false);
        }
        let request = Request::decode(message.payload.as_slice())?;
        let answer = if request.service == PLUGIN_SERVICE {
            self.plugin.call(&request.method, &request.payload, self.host)
        } else {
            let message = format!("no service {}", request.service);
            Err(Status { code: code::UNIMPLEMENTED, message })
        };
        let response = match answer {
            Ok(payload) => Response { status: None, payload },
            Err(status) => Response { status: Some(status), payload: Vec::new() },
        };
        let payload = response.encode_to_vec();
        let response = Message { stream: message.stream, kind: ttrpc::RESPONSE, flags: 0, payload };
        self.send(frame::PLUGIN, &response)?;
        self.call_out()?;
        self.is_configured |= request.method == "Configure";
        Ok(request.method == "Shutdown")
    }

    /// Makes the plugin's own calls.
    fn call_out(&mut self) -> Result<(), SessionError> {
        for (method, payload) in self.plugin.take_calls() {
            self.call(method, payload)?;
        }
        Ok(())
    }

    fn call(&mut self, method: &'static str, payload: Vec<u8>) -> Result<(), SessionError> {
        let request = Request {
            service: RUNTIME_SERVICE.into(),
            method: method.into(),
            payload,
            timeout_nano: 0,
        };
        let stream = self.stream_next;
        self.stream_next = self.stream_next.wrapping_add(2);
        self.open.push((stream, method));
        let payload = request.encode_to_vec();
        self.send(frame::RUNTIME, &Message { stream, kind: ttrpc::REQUEST, flags: 0, payload })
    }

    /// Takes the answer of an own call. A refused registration ends the connection, others are logged.
    fn answered(&mut self, message: &Message) -> Result<(), SessionError> {
        let at = self.open.iter().position(|(stream, _)| *stream == message.stream);
        let Some(at) = at else { return Ok(()) };
        let (_, method) = self.open.swap_remove(at);
        let response = Response::decode(message.payload.as_slice())?;
        let Some(status) = response.status.filter(|status| status.code != 0) else { return Ok(()) };
        if method == "RegisterPlugin" {
            return Err(SessionError::Refused { method, message: status.message });
        }
        let message = serde_json::Value::from(status.message);
        self.host.log(&format!("event=call_failed method={method} reason={message}"));
        Ok(())
    }

    fn send(&mut self, connection: u32, message: &Message) -> Result<(), SessionError> {
        let mut out = Vec::new();
        frame::write(&mut out, connection, &message.bytes()?);
        self.stream.write_all(&out)?;
        Ok(self.stream.flush()?)
    }
}

#[cfg(test)]
mod tests;
