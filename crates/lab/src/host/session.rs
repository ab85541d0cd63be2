//! A session: streams, signals and time limits between the user and the guest's runner, until the command has ended.
//!
//! One loop takes events from small threads: one reads the port, one writes it, one reads standard input, one writes each
//! output, one waits for signals. So nothing that blocks (a reader that stopped, a guest that hangs) blocks anything else.

use std::fs;
use std::io::{self, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;

use super::files::RunFiles;
use super::terminal::{self, Raw};
use super::vm::Vm;
use super::{Ended, Plan, RunError};
use crate::clock::Deadline;
use crate::wire::{CHUNK, CREDIT, Decoder, Frame, Outcome, Start, Stream, VERSION};

/// How long a command may take to end after its time limit, and a guest to answer a signal.
const GRACE: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(2);
/// What timeout(1) ends with.
const TIMED_OUT: u8 = 124;

/// What a session leaves: how it ended, and the plugin's statistics.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) ended: Ended,
    pub(super) statistics: String,
}

#[derive(Debug)]
enum Event {
    Frame(Frame),
    PortClosed(Option<String>),
    Signal(i32),
    Input(Vec<u8>),
    Written(Stream, usize),
    Broken(Stream),
}

/// How far the guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Booting,
    Starting,
    Running,
    OutOfTime,
}

/// A session in progress.
#[derive(Debug)]
pub(super) struct Session<'a> {
    vm: Vm,
    files: &'a RunFiles,
    plan: &'a Plan,
    stage: Stage,
    deadline: Deadline,
    unanswered: Option<Deadline>,
    to_guest: Sender<Vec<u8>>,
    outputs: Vec<(Stream, Sender<Vec<u8>>, thread::JoinHandle<()>)>,
    input_credit: Option<Sender<usize>>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    raw: Option<Raw>,
}

impl<'a> Session<'a> {
    /// Over a started QEMU.
    pub(super) fn new(vm: Vm, port: UnixStream, files: &'a RunFiles, plan: &'a Plan) -> Self {
        let (sender, events) = mpsc::channel();
        let to_guest = write_port(port.try_clone().ok());
        read_port(port, sender.clone());
        Self {
            vm,
            files,
            plan,
            stage: Stage::Booting,
            deadline: Deadline::after(Some(plan.boot_limit)),
            unanswered: None,
            to_guest,
            outputs: Vec::new(),
            input_credit: None,
            events,
            sender,
            raw: None,
        }
    }

    /// Runs the command to its end.
    pub(super) fn run(mut self, mut start: Start) -> Result<Finished, RunError> {
        watch_signals(self.sender.clone())
            .map_err(|source| RunError::Process { what: "watching for signals", source })?;
        if self.plan.terminal {
            start.terminal = Some(terminal::size());
        }
        loop {
            let event =
                match self.events.recv_timeout(self.deadline.left(Duration::from_secs(3600))) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Some(ended) = self.too_long()? {
                            return Ok(self.finish(ended));
                        }
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return Err(self.lost(None)),
                };
            match event {
                Event::Frame(Frame::Hello(hello)) if hello.version == VERSION => {
                    self.stage = Stage::Starting;
                    self.files.started();
                    self.send(&Frame::Start(start.clone()));
                }
                Event::Frame(Frame::Hello(hello)) => {
                    let found = format!(
                        "the guest's runner speaks version {}, not {VERSION}",
                        hello.version
                    );
                    return Err(self.failed(found));
                }
                Event::Frame(Frame::Exit(outcome)) => {
                    let ended = self.outcome(outcome)?;
                    return Ok(self.finish(ended));
                }
                Event::Frame(frame) => self.frame(frame),
                Event::PortClosed(why) => return Err(self.lost(why)),
                Event::Signal(number) => {
                    if let Some(ended) = self.signal(number) {
                        return Ok(self.finish(ended));
                    }
                }
                Event::Input(bytes) => self.send(&Frame::Data(Stream::In, bytes)),
                Event::Written(stream, count) => {
                    self.send(&Frame::Credit(stream, u32::try_from(count).unwrap_or(CREDIT)));
                }
                Event::Broken(stream) => self.send(&Frame::Broken(stream)),
            }
        }
    }

    fn send(&self, frame: &Frame) {
        // A closed port is told by its reader.
        let _ = self.to_guest.send(frame.encode());
    }

    fn frame(&mut self, frame: Frame) {
        match frame {
            Frame::Running => self.running(),
            Frame::Data(stream @ (Stream::Out | Stream::Err), bytes) => {
                if let Some((_, output, _)) = self.outputs.iter().find(|(own, _, _)| *own == stream)
                {
                    let _ = output.send(bytes);
                }
            }
            Frame::Credit(Stream::In, more) => {
                let more = usize::try_from(more).unwrap_or_default();
                if let Some(credit) = &self.input_credit {
                    let _ = credit.send(more);
                }
            }
            Frame::Broken(Stream::In) => self.input_credit = None,
            Frame::Alive => self.unanswered = None,
            // Nothing else is for a host.
            _ => {}
        }
    }

    fn running(&mut self) {
        self.stage = Stage::Running;
        self.deadline = Deadline::after(self.plan.limit);
        if self.plan.terminal {
            self.raw = Raw::stdin();
        }
        let out = write_output(Stream::Out, io::stdout(), self.sender.clone());
        let err = write_output(Stream::Err, io::stderr(), self.sender.clone());
        self.outputs = vec![out, err];
        self.input_credit = Some(read_input(self.sender.clone()));
    }

    /// A signal to us is one for the command; before it runs, it ends us.
    fn signal(&mut self, number: i32) -> Option<Ended> {
        if number == SIGWINCH {
            if self.plan.terminal {
                let (rows, columns) = terminal::size();
                self.send(&Frame::Window(rows, columns));
            }
            return None;
        }
        let own =
            Ended { status: u8::try_from(number).unwrap_or(0).saturating_add(128), message: None };
        if matches!(self.stage, Stage::Booting | Stage::Starting) {
            return Some(own);
        }
        if self.unanswered.is_some_and(Deadline::passed) {
            let message = Some("the guest does not answer; ended it".to_owned());
            return Some(Ended { message, ..own });
        }
        self.unanswered.get_or_insert_with(|| Deadline::after(Some(ANSWER)));
        self.send(&Frame::Signal(number));
        None
    }

    /// What a passed deadline means.
    fn too_long(&mut self) -> Result<Option<Ended>, RunError> {
        if !self.deadline.passed() {
            return Ok(None);
        }
        let limit = self.plan.limit.unwrap_or_default().as_secs_f64();
        match self.stage {
            Stage::Booting | Stage::Starting => {
                let found = format!(
                    "the guest did not come up within {} s",
                    self.plan.boot_limit.as_secs()
                );
                Err(self.failed(found))
            }
            Stage::Running => {
                self.stage = Stage::OutOfTime;
                self.deadline = Deadline::after(Some(GRACE));
                self.send(&Frame::Signal(SIGTERM));
                Ok(None)
            }
            Stage::OutOfTime => {
                let message = format!(
                    "time limit of {limit} s reached, and SIGTERM did not end the command; ended the guest"
                );
                Ok(Some(Ended { status: TIMED_OUT, message: Some(message) }))
            }
        }
    }

    fn outcome(&mut self, outcome: Outcome) -> Result<Ended, RunError> {
        let ended = |status, message| Ended { status, message };
        if self.stage == Stage::OutOfTime {
            let limit = self.plan.limit.unwrap_or_default().as_secs_f64();
            return Ok(ended(
                TIMED_OUT,
                Some(format!("time limit of {limit} s reached; ended the command")),
            ));
        }
        Ok(match outcome {
            Outcome::Exited(status) => ended(status, None),
            Outcome::Killed(signal) => {
                ended(u8::try_from(signal).unwrap_or(0).saturating_add(128), None)
            }
            Outcome::NotFound(message) => ended(127, Some(message)),
            Outcome::NotExecutable(message) => ended(126, Some(message)),
            Outcome::Failed(message) => return Err(self.failed(message)),
        })
    }

    /// Ends QEMU, then waits until the command's output has been taken.
    fn finish(self, ended: Ended) -> Finished {
        let Self { vm, files, outputs, raw, .. } = self;
        vm.end();
        for (_, output, thread) in outputs {
            drop(output);
            let _ = thread.join();
        }
        drop(raw);
        let statistics = fs::read_to_string(files.statistics()).unwrap_or_default();
        Finished { ended, statistics }
    }

    fn failed(&mut self, found: String) -> RunError {
        self.raw = None;
        RunError::Guest { found, log: self.files.keep_console() }
    }

    /// The port closed: QEMU or the guest is gone. Looks for the reason.
    fn lost(&mut self, why: Option<String>) -> RunError {
        let patience = Deadline::after(Some(GRACE));
        let mut status = self.vm.ended();
        while status.is_none() && !patience.passed() {
            crate::clock::sleep(Duration::from_millis(5));
            status = self.vm.ended();
        }
        let console = String::from_utf8_lossy(&fs::read(self.files.console()).unwrap_or_default())
            .into_owned();
        let said = fs::read_to_string(self.files.qemu()).unwrap_or_default();
        let found = if let Some(panic) =
            console.lines().find_map(|line| line.split_once("Kernel panic - "))
        {
            format!("the guest's kernel panicked ({})", panic.1.trim())
        } else if let Some(word) =
            console.lines().rev().find_map(|line| line.split_once("nearfar-lab: "))
        {
            format!("the guest failed: {}", word.1.trim())
        } else if let Some(why) = why {
            format!("the guest sent something that makes no sense ({why})")
        } else if let Some(last) = said.lines().last() {
            format!("QEMU ended: {}", last.trim())
        } else {
            match status {
                Some(status) => format!("QEMU ended before the command ({status})"),
                None => "the guest closed the connection".to_owned(),
            }
        };
        // A crash, unlike a refusal of its arguments, is by a signal.
        let crashed = status.is_some_and(|status| status.signal().is_some());
        if self.stage == Stage::Booting && (crashed || is_the_emulators(&console)) {
            return RunError::Boot { found, log: self.files.keep_console() };
        }
        self.failed(found)
    }
}

/// Whether a kernel's panic is the emulator's doing: a breakpoint that the kernel puts into its own code for a moment while it
/// changes it, executed by another CPU after it has gone.
fn is_the_emulators(console: &str) -> bool {
    console.contains("Oops: int3:") && console.contains("Kernel panic - not syncing:")
}

fn read_port(mut port: UnixStream, events: Sender<Event>) {
    thread::spawn(move || {
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; 2 * CHUNK];
        loop {
            match port.read(&mut buffer) {
                Ok(count @ 1..) => decoder.push(&buffer[..count]),
                Ok(_) | Err(_) => {
                    let _ = events.send(Event::PortClosed(None));
                    return;
                }
            }
            loop {
                let event = match decoder.next() {
                    Ok(Some(frame)) => Event::Frame(frame),
                    Ok(None) => break,
                    Err(error) => Event::PortClosed(Some(error.to_string())),
                };
                let last = matches!(event, Event::PortClosed(_));
                if events.send(event).is_err() || last {
                    return;
                }
            }
        }
    });
}

fn write_port(port: Option<UnixStream>) -> Sender<Vec<u8>> {
    let (sender, frames) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        let Some(mut port) = port else { return };
        for frame in frames {
            if port.write_all(&frame).is_err() {
                return;
            }
        }
    });
    sender
}

fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH])?;
    thread::spawn(move || {
        for number in signals.forever() {
            if events.send(Event::Signal(number)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Reads standard input as far as the guest has room; the sender gives it more.
fn read_input(events: Sender<Event>) -> Sender<usize> {
    let (sender, more) = mpsc::channel();
    thread::spawn(move || {
        let mut room = usize::try_from(CREDIT).unwrap_or(CHUNK);
        let mut buffer = vec![0; CHUNK];
        loop {
            room += more.try_iter().sum::<usize>();
            while room == 0 {
                match more.recv() {
                    Ok(credit) => room += credit,
                    Err(_) => return,
                }
            }
            let wanted = room.min(CHUNK);
            // Not through the standard library's own buffer: what is read is gone for whoever reads after us.
            let count = match rustix::io::read(io::stdin(), &mut buffer[..wanted]) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => 0,
            };
            room -= count;
            if events.send(Event::Input(buffer[..count].to_vec())).is_err() || count == 0 {
                return;
            }
        }
    });
    sender
}

fn write_output(
    stream: Stream,
    mut to: impl Write + Send + 'static,
    events: Sender<Event>,
) -> (Stream, Sender<Vec<u8>>, thread::JoinHandle<()>) {
    let (sender, chunks) = mpsc::channel::<Vec<u8>>();
    let thread = thread::spawn(move || {
        for chunk in chunks {
            if to.write_all(&chunk).and_then(|()| to.flush()).is_err() {
                let _ = events.send(Event::Broken(stream));
                return;
            }
            let _ = events.send(Event::Written(stream, chunk.len()));
        }
    });
    (stream, sender, thread)
}

#[cfg(test)]
mod tests {
    use super::is_the_emulators;

    #[test]
    fn a_breakpoint_left_over_is_the_emulators_and_another_panic_is_not() {
        let of = |oops: &str| {
            format!(
                "[    1.426346] {oops}: 0000 [#1] SMP NOPTI\n\
                 [    1.427225] Kernel panic - not syncing: Fatal exception in interrupt\n"
            )
        };
        assert!(is_the_emulators(&of("Oops: int3")));
        assert!(!is_the_emulators(&of("Oops: general protection fault")));
        let no_init = "[    1.2] Kernel panic - not syncing: No working init found.\n";
        assert!(!is_the_emulators(no_init));
    }
}
