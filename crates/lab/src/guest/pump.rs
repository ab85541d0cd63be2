//! Moves bytes between the port and the command's streams, in one loop that polls all of them.
//!
//! Each stream has its own credit (see `wire`), so a stream without a reader blocks no other, and signals always pass.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::command::{self, Started};
use super::{GuestError, doing};
use crate::wire::{CHUNK, CREDIT, Decoder, Frame, Outcome, Stream};

/// Bytes queued for the port above which the command's output is not read.
const BACKLOG: usize = 512 << 10;

/// The command's output or error output.
#[derive(Debug)]
struct Source {
    stream: Stream,
    fd: Option<OwnedFd>,
    credit: u32,
}

/// The command's input.
#[derive(Debug, Default)]
struct Sink {
    fd: Option<OwnedFd>,
    waiting: VecDeque<u8>,
    ended: bool,
}

/// The runner's state.
#[derive(Debug)]
pub(super) struct Pump {
    port: OwnedFd,
    to_host: VecDeque<u8>,
    decoder: Decoder,
    command: Option<Command>,
}

#[derive(Debug)]
struct Command {
    pid: Pid,
    pidfd: OwnedFd,
    input: Sink,
    sources: [Source; 2],
    terminal: bool,
    ended: Option<Outcome>,
}

/// The next action after a round.
#[derive(PartialEq, Eq)]
enum Next {
    Again,
    HostGone,
}

impl Pump {
    /// A pump on an open port.
    pub(super) fn new(port: OwnedFd) -> Result<Self, GuestError> {
        rustix::io::ioctl_fionbio(&port, true).map_err(doing("setting up the port"))?;
        Ok(Self { port, to_host: VecDeque::new(), decoder: Decoder::default(), command: None })
    }

    /// Queues a frame for the host.
    pub(super) fn send(&mut self, frame: &Frame) {
        self.to_host.extend(frame.encode());
    }

    /// Serves until the host disconnects.
    pub(super) fn serve(&mut self, reenter: &[String]) -> Result<(), GuestError> {
        loop {
            let port = self.wait()?;
            reap(&mut self.command);
            if port.intersects(PollFlags::IN | PollFlags::HUP)
                && self.read_port(reenter)? == Next::HostGone
            {
                return Ok(());
            }
            self.move_input();
            self.move_output();
            self.finish();
            self.write_port()?;
        }
    }

    /// Waits until a stream is ready; with a timeout, because orphans must be reaped too. Returns the port's events.
    fn wait(&self) -> Result<PollFlags, GuestError> {
        let mut port = PollFlags::IN;
        port.set(PollFlags::OUT, !self.to_host.is_empty());
        let mut fds = vec![PollFd::new(&self.port, port)];
        let mut limit = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
        if let Some(command) = &self.command {
            if command.ended.is_none() {
                fds.push(PollFd::new(&command.pidfd, PollFlags::IN));
            } else if self.may_finish() {
                limit.tv_nsec = 0;
            }
            let room = self.to_host.len() < BACKLOG;
            for source in &command.sources {
                if let (Some(fd), true) = (&source.fd, room && source.credit > 0) {
                    fds.push(PollFd::new(fd, PollFlags::IN));
                }
            }
            if let (Some(fd), false) = (&command.input.fd, command.input.waiting.is_empty()) {
                fds.push(PollFd::new(fd, PollFlags::OUT));
            }
        }
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(fds[0].revents()),
            Err(source) => Err(GuestError::Os { what: "waiting", source }),
        }
    }

    fn read_port(&mut self, reenter: &[String]) -> Result<Next, GuestError> {
        let mut buffer = [0; CHUNK];
        loop {
            match rustix::io::read(&self.port, &mut buffer) {
                Ok(0) => return Ok(Next::HostGone),
                Ok(count) => self.decoder.push(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(source) => return Err(GuestError::Os { what: "reading the port", source }),
            }
        }
        while let Some(frame) = self.decoder.next()? {
            self.handle(frame, reenter);
        }
        Ok(Next::Again)
    }

    fn handle(&mut self, frame: Frame, reenter: &[String]) {
        match (frame, &mut self.command) {
            (Frame::Start(start), None) => {
                let frame = match command::start(&start, reenter).and_then(Command::new) {
                    Ok(mut command) => {
                        command.terminal = start.terminal.is_some();
                        self.command = Some(command);
                        Frame::Running
                    }
                    Err(outcome) => Frame::Exit(outcome),
                };
                self.send(&frame);
            }
            (Frame::Data(Stream::In, bytes), Some(command)) => {
                command.input.ended |= bytes.is_empty();
                if command.input.fd.is_some() {
                    command.input.waiting.extend(bytes);
                }
            }
            (Frame::Credit(stream, more), Some(command)) => {
                if let Some(source) = command.source(stream) {
                    source.credit = source.credit.saturating_add(more);
                }
            }
            (Frame::Broken(stream), Some(command)) => {
                if let Some(source) = command.source(stream) {
                    source.fd = None;
                }
            }
            (Frame::Signal(number), command) => {
                if let (Some(command), Some(signal)) = (command, Signal::from_named_raw(number)) {
                    let _ = rustix::process::kill_process_group(command.pid, signal);
                }
                self.send(&Frame::Alive);
            }
            (Frame::Window(rows, columns), Some(command)) => {
                if let (true, Some(terminal)) = (command.terminal, &command.input.fd) {
                    let _ = command::resize(terminal, rows, columns);
                }
            }
            // Other frames are not for a guest.
            _ => {}
        }
    }

    fn move_input(&mut self) {
        let Some(Command { input, terminal, .. }) = &mut self.command else { return };
        let mut written = 0;
        while let Some(fd) = &input.fd {
            let (bytes, _) = input.waiting.as_slices();
            if bytes.is_empty() {
                break;
            }
            match rustix::io::write(fd, bytes) {
                Ok(count) => {
                    input.waiting.drain(..count);
                    written += count;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => {
                    input.fd = None;
                    input.waiting.clear();
                }
            }
        }
        // A terminal stays open for its output; its end of input is a character, not an end of file.
        if input.ended && input.waiting.is_empty() && !*terminal {
            input.fd = None;
        }
        let broken = input.fd.is_none() && !input.ended;
        input.ended |= broken;
        if let Ok(more @ 1..) = u32::try_from(written) {
            self.send(&Frame::Credit(Stream::In, more));
        }
        if broken {
            self.send(&Frame::Broken(Stream::In));
        }
    }

    fn move_output(&mut self) {
        let Some(command) = &mut self.command else { return };
        for source in &mut command.sources {
            while self.to_host.len() < BACKLOG {
                let Some(frame) = source.read() else { break };
                self.to_host.extend(frame.encode());
            }
        }
    }

    /// Whether the command's remaining output can be sent.
    fn may_finish(&self) -> bool {
        let stalled = |source: &Source| source.fd.is_some() && source.credit == 0;
        self.to_host.len() < BACKLOG
            && self.command.as_ref().is_some_and(|command| !command.sources.iter().any(stalled))
    }

    /// Once the command has ended and all its output is queued, sends its exit status. (Its output was read after its
    /// end was seen, to the last byte or until the credit was used up.)
    fn finish(&mut self) {
        if self.may_finish()
            && let Some(outcome) = self.command.as_mut().and_then(|command| command.ended.take())
        {
            rustix::fs::sync();
            self.send(&Frame::Exit(outcome));
            self.command = None;
        }
    }

    fn write_port(&mut self) -> Result<(), GuestError> {
        loop {
            let (bytes, _) = self.to_host.as_slices();
            if bytes.is_empty() {
                return Ok(());
            }
            match rustix::io::write(&self.port, &bytes[..bytes.len().min(CHUNK)]) {
                Ok(count) => drop(self.to_host.drain(..count)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(source) => return Err(GuestError::Os { what: "writing the port", source }),
            }
        }
    }
}

impl Source {
    /// Reads the next bytes or the end of the stream; `None` if nothing can be read now.
    fn read(&mut self) -> Option<Frame> {
        let fd = self.fd.as_ref()?;
        let mut buffer = [0; CHUNK];
        let room = usize::try_from(self.credit).unwrap_or(usize::MAX).min(CHUNK);
        if room == 0 {
            return None;
        }
        match rustix::io::read(fd, &mut buffer[..room]) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Ok(count @ 1..) => {
                self.credit -= u32::try_from(count).unwrap_or(self.credit);
                Some(Frame::Data(self.stream, buffer[..count].to_vec()))
            }
            // A terminal returns an error once no process has it open.
            Ok(0) | Err(_) => {
                self.fd = None;
                Some(Frame::Data(self.stream, Vec::new()))
            }
        }
    }
}

impl Command {
    fn new(started: Started) -> Result<Self, Outcome> {
        let Started { pid, input, output, errors } = started;
        let set_up = || -> rustix::io::Result<OwnedFd> {
            for fd in [Some(&input), Some(&output), errors.as_ref()].into_iter().flatten() {
                rustix::io::ioctl_fionbio(fd.as_fd(), true)?;
            }
            rustix::process::pidfd_open(pid, PidfdFlags::empty())
        };
        let pidfd = set_up().map_err(|error| Outcome::Failed(format!("watching it: {error}")))?;
        let source = |stream, fd| Source { stream, fd, credit: CREDIT };
        Ok(Self {
            pid,
            pidfd,
            input: Sink { fd: Some(input), ..Sink::default() },
            sources: [source(Stream::Out, Some(output)), source(Stream::Err, errors)],
            terminal: false,
            ended: None,
        })
    }

    fn source(&mut self, stream: Stream) -> Option<&mut Source> {
        self.sources.iter_mut().find(|source| source.stream == stream)
    }
}

/// Reaps every process that ended: the command, and orphans, which the first process inherits.
fn reap(command: &mut Option<Command>) {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if let Some(command) = command
            && command.pid == pid
        {
            command.ended = Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Outcome::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
                (None, Some(signal)) => Outcome::Killed(signal),
                (None, None) => continue,
            });
        }
    }
}
