//! A session: streams, signals and time limits between the user and the guest's runner, until the command has ended.
//!
//! One loop takes events from small threads: one reads the port, one writes it, one reads standard input, one writes
//! each output, one waits for signals. So a blocked thread (a reader that stopped, a guest that hangs) blocks nothing
//! else.

use std::fs;
use std::io::{self, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;

use super::boot::{self, Boot, LOOK};
use super::files::RunFiles;
use super::silence::{Due, NO_SIGNAL, REPORT, Silence};
use super::stacks;
use super::terminal::{self, Raw};
use super::vm::Vm;
use super::{Ended, Plan, RunError};
use crate::clock::Deadline;
use crate::fetch::Say;
use crate::wire::{CHUNK, CREDIT, Decoder, Frame, Outcome, Start, Stream, VERSION};

/// How long a command may take to end after its time limit, and a guest to acknowledge a signal.
const GRACE: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(3);
/// The longest wait for an event.
const LONG: Duration = Duration::from_secs(3600);
/// Exit status of timeout(1) on expiry.
const TIMED_OUT: u8 = 124;

/// Result of a session: the end of the command, and the plugin's statistics.
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

/// Progress of the guest.
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
    boot: Boot,
    deadline: Deadline,
    unanswered: Option<Deadline>,
    /// The last signal received by this process.
    asked: Option<i32>,
    /// The signal that must end the command, and its deadline.
    ending: Option<(i32, Deadline)>,
    /// Questions to the guest while the command runs.
    silence: Silence,
    to_guest: Sender<Vec<u8>>,
    outputs: Vec<(Stream, Sender<Vec<u8>>, thread::JoinHandle<()>)>,
    input_credit: Option<Sender<usize>>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    raw: Option<Raw>,
}

impl<'a> Session<'a> {
    /// A session with a started QEMU.
    pub(super) fn new(vm: Vm, port: UnixStream, files: &'a RunFiles, plan: &'a Plan) -> Self {
        let (sender, events) = mpsc::channel();
        let to_guest = write_port(port.try_clone().ok());
        read_port(port, sender.clone());
        Self {
            vm,
            files,
            plan,
            stage: Stage::Booting,
            boot: Boot::new(files.console(), &plan.append, plan.boot_limit / 2),
            deadline: Deadline::after(Some(plan.boot_limit)),
            unanswered: None,
            asked: None,
            ending: None,
            silence: Silence::new(),
            to_guest,
            outputs: Vec::new(),
            input_credit: None,
            events,
            sender,
            raw: None,
        }
    }

    /// Runs the command to its end.
    pub(super) fn run(mut self, mut start: Start, say: &dyn Say) -> Result<Finished, RunError> {
        watch_signals(self.sender.clone())
            .map_err(|source| RunError::Process { what: "watching for signals", source })?;
        if self.plan.terminal {
            start.terminal = Some(terminal::size());
        }
        loop {
            let event = match self.events.recv_timeout(self.patience()) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    self.watch(say);
                    let late = self.unheeded();
                    if let Some(ended) =
                        late.map_or_else(|| self.too_long(), |late| Ok(Some(late)))?
                    {
                        return Ok(self.finish(ended));
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost(None)),
            };
            if matches!(event, Event::Frame(_)) && self.silence.heard() {
                say.line("the guest answers again");
            }
            match event {
                Event::Frame(Frame::Hello(hello)) if hello.version == VERSION => {
                    // From here on the terminal is the command's.
                    say.status("");
                    self.stage = Stage::Starting;
                    self.files.started();
                    self.vm.begin().map_err(|found| self.failed(found))?;
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
        // The reader reports a closed port.
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
            // Other frames are not for a host.
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

    /// Handles a signal to this process: forwards it to the command; before that runs, ends the session.
    fn signal(&mut self, number: i32) -> Option<Ended> {
        if number == SIGWINCH {
            if self.plan.terminal {
                let (rows, columns) = terminal::size();
                self.send(&Frame::Window(rows, columns));
            }
            return None;
        }
        let again = self.asked.replace(number) == Some(number);
        if matches!(self.stage, Stage::Booting | Stage::Starting) {
            return Some(Ended::new(by_signal(number), None));
        }
        self.unanswered.get_or_insert_with(|| Deadline::after(Some(ANSWER)));
        // SIGTERM and SIGHUP end the command, and so does a repeated signal; it may handle a single SIGINT in another
        // way.
        if matches!(number, SIGTERM | SIGHUP) || (again && matches!(number, SIGINT | SIGQUIT)) {
            self.ending.get_or_insert_with(|| (number, Deadline::after(Some(GRACE))));
        }
        self.send(&Frame::Signal(number));
        None
    }

    /// How long to wait for the next event.
    fn patience(&self) -> Duration {
        let signals = [self.unanswered, self.ending.map(|(_, deadline)| deadline)];
        let longest = match self.stage {
            Stage::Booting => LOOK,
            Stage::Running => self.silence.left(LONG),
            Stage::Starting | Stage::OutOfTime => LONG,
        };
        let left = signals.into_iter().flatten().map(|deadline| deadline.left(longest)).min();
        self.deadline.left(longest).min(left.unwrap_or(longest))
    }

    /// Asks the guest for a sign of life, and reports one that has not answered.
    fn watch(&mut self, say: &dyn Say) {
        if self.stage != Stage::Running {
            return;
        }
        match self.silence.due() {
            Some(Due::Question) => self.send(&Frame::Signal(NO_SIGNAL)),
            Some(Due::Report) => say.line(REPORT),
            None => {}
        }
    }

    /// Reports a guest that has not acknowledged a signal in time, or a command that has not ended by one.
    fn unheeded(&mut self) -> Option<Ended> {
        let signal = self.ending.map_or(SIGTERM, |(signal, _)| signal);
        let message = if self.unanswered.is_some_and(Deadline::passed) {
            "the guest did not answer the signal; ended it"
        } else if self.ending.is_some_and(|(_, deadline)| deadline.passed()) {
            "the command did not end by the signal; ended the guest"
        } else {
            return None;
        };
        Some(Ended::new(by_signal(signal), Some(self.with_stacks(message))))
    }

    /// Has a guest that is ended by force print the stacks of its tasks, and keeps its console.
    fn with_stacks(&mut self, message: &str) -> String {
        let mut log = "its console";
        if stacks::ask(&self.files.monitor()).is_ok() {
            // The kernel then powers off.
            self.vm.wait(stacks::PRINTING);
            log = "the stacks of its processes";
        }
        format!("{message}; {log}: {}", self.files.keep_console().display())
    }

    /// Handles a passed deadline.
    fn too_long(&mut self) -> Result<Option<Ended>, RunError> {
        if self.stage == Stage::Booting && self.boot.hangs() {
            let silence = self.plan.boot_limit.as_secs() / 2;
            let found =
                format!("the guest hangs: nothing for {silence} s, and {}", self.boot.last());
            return Err(RunError::Boot { found, log: self.files.keep_console() });
        }
        if !self.deadline.passed() {
            return Ok(None);
        }
        let limit = self.plan.limit.unwrap_or_default().as_secs_f64();
        match self.stage {
            Stage::Booting | Stage::Starting => {
                let found = format!(
                    "the guest did not come up within {} s (--boot-timeout gives it more), and {}",
                    self.plan.boot_limit.as_secs(),
                    self.boot.last()
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
                let message = self.with_stacks(&format!(
                    "time limit of {limit} s reached, and SIGTERM did not end the command; ended the guest"
                ));
                Ok(Some(Ended::new(TIMED_OUT, Some(message))))
            }
        }
    }

    fn outcome(&mut self, outcome: Outcome) -> Result<Ended, RunError> {
        if self.stage == Stage::OutOfTime {
            let limit = self.plan.limit.unwrap_or_default().as_secs_f64();
            let message = format!("time limit of {limit} s reached; ended the command");
            return Ok(Ended::new(TIMED_OUT, Some(message)));
        }
        Ok(match outcome {
            Outcome::Exited(status) => Ended::new(status, None),
            Outcome::Killed(signal) => Ended::new(by_signal(signal), None),
            Outcome::NotFound(message) => Ended::new(127, Some(message)),
            Outcome::NotExecutable(message) => Ended::new(126, Some(message)),
            Outcome::Failed(message) => return Err(self.failed(message)),
        })
    }

    /// Ends QEMU, then waits until the command's output has been taken; after a signal, for a short time only.
    fn finish(self, mut ended: Ended) -> Finished {
        let is_end = |number| matches!(number, SIGHUP | SIGINT | SIGQUIT | SIGTERM);
        let Self { vm, files, outputs, raw, asked, events, .. } = self;
        ended.interrupted = asked.is_some_and(is_end);
        vm.end();
        let mut patience = Deadline::after(ended.interrupted.then_some(GRACE));
        for (_, output, thread) in outputs {
            drop(output);
            while !thread.is_finished() && !patience.passed() {
                if let Ok(Event::Signal(number)) = events.recv_timeout(Duration::from_millis(5))
                    && is_end(number)
                {
                    ended.interrupted = true;
                    patience = Deadline::after(Some(Duration::ZERO));
                }
            }
        }
        drop(raw);
        let statistics = fs::read_to_string(files.statistics()).unwrap_or_default();
        Finished { ended, statistics }
    }

    fn failed(&mut self, found: String) -> RunError {
        self.raw = None;
        RunError::Guest { found, log: self.files.keep_console() }
    }

    /// Finds the reason why the port closed: QEMU or the guest has ended.
    fn lost(&mut self, why: Option<String>) -> RunError {
        let status = self.vm.wait(GRACE);
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
        // A crash, unlike refused arguments, ends by a signal.
        let crashed = status.is_some_and(|status| status.signal().is_some());
        if self.stage == Stage::Booting && (crashed || boot::is_the_emulators(&console)) {
            return RunError::Boot { found, log: self.files.keep_console() };
        }
        self.failed(found)
    }
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

/// The exit status of a command that a signal has ended.
fn by_signal(number: i32) -> u8 {
    u8::try_from(number).unwrap_or(0).saturating_add(128)
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

/// Reads standard input as far as the guest has room; the returned sender grants more.
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
            // Not through the standard library's buffer: buffered bytes would be lost to a later reader of the same
            // input.
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
