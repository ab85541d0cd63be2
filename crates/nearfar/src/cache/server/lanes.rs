//! A worker's loop over its connections: requests go to each in turn as long as it has room, answers are taken as they come.
//!
//! A connection that is lost costs the requests under way on it, which count as errors, and is made anew; a server that can't be
//! reached for [`PATIENCE`] ends the run. Requests that are due while no connection has room begin late and are timed from when
//! they were due all the same.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use anyhow::Context as _;
use nearfar_cache::workload::{Op, Request};
use rustix::event::{Timespec, epoll};

use super::super::job::{Done, Job};
use super::super::pace::ns;
use super::super::source::Pulled;
use super::super::tally::Outcome;
use super::lane::{Answer, Lane, Pending};
use super::reply::{Asked, Reply};
use super::{PATIENCE, Server};

/// Shorter waits are spent looking.
const SPIN_NS: u64 = 60_000;
/// Longer ones end here, to look whether all is to stop.
const WAIT_MAX_NS: u64 = 50_000_000;
/// Between two attempts at a connection that was lost.
const RETRY_NS: u64 = 100_000_000;
/// While a trace's next requests are being read.
const LATER_NS: u64 = 50_000;
/// Connections that are told of at once.
const EVENTS: usize = 64;

/// A connection, or when to make it anew.
enum Place {
    Open(Box<Lane>),
    Lost { retry: u64, since: u64 },
}

/// A worker's connections.
pub(super) struct Lanes<'a, 'b> {
    server: &'a Server,
    job: &'a mut Job<'b>,
    epoll: OwnedFd,
    places: Vec<Place>,
    /// Connections with room, each once.
    ready: VecDeque<usize>,
    /// Connections with something to send.
    dirty: Vec<usize>,
    under_way: usize,
    /// No more requests begin.
    ended: Option<u64>,
    /// Kept for their memory.
    spare: Vec<Pending>,
    next: Request,
}

impl<'a, 'b> Lanes<'a, 'b> {
    /// Makes the connections.
    pub(super) fn connect(server: &'a Server, job: &'a mut Job<'b>) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll")?;
        let mut lanes = Self {
            server,
            job,
            epoll,
            places: Vec::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            under_way: 0,
            ended: None,
            spare: Vec::new(),
            next: Request::default(),
        };
        for at in 0..server.connections as usize {
            let lane = lanes.open(at)?;
            lanes.places.push(Place::Open(lane));
            lanes.ready.push_back(at);
        }
        Ok(lanes)
    }

    fn open(&self, at: usize) -> anyhow::Result<Box<Lane>> {
        let connection = self.server.address.connect()?;
        connection.without_waiting()?;
        // Told once when something changes: nothing need be said before and after each write that does not go through.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&self.epoll, &connection, data, flags).context("adding to an epoll")?;
        Ok(Box::new(Lane::new(connection)))
    }

    /// Asks until the job is over.
    pub(super) fn drive(mut self) -> anyhow::Result<()> {
        let clock = self.job.span.clock;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = ns(clock);
            self.reopen(now)?;
            let wait = self.begin(now);
            for at in std::mem::take(&mut self.dirty) {
                self.flush(at);
            }
            if let Some(ended) = self.ended {
                if self.under_way == 0 {
                    break;
                }
                if ns(clock).saturating_sub(ended) > PATIENCE.as_nanos() as u64 {
                    self.give_up();
                    break;
                }
            }
            events.clear();
            let wait = Timespec { tv_sec: 0, tv_nsec: i64::try_from(wait).unwrap_or(0) };
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for answers"),
            }
            for event in &events {
                let at = usize::try_from({ event.data }.u64()).unwrap_or(usize::MAX);
                self.receive(at);
            }
        }
        self.job.pass_on();
        Ok(())
    }

    /// Begins what is due; gives how long nothing else will be.
    fn begin(&mut self, mut now: u64) -> u64 {
        let clock = self.job.span.clock;
        while self.ended.is_none() {
            let due = self.job.pace.due();
            if now >= self.job.span.end || due.is_some_and(|due| due >= self.job.span.end) {
                if now < self.job.span.end {
                    // Nothing more will be due in time.
                    self.ended = Some(self.job.span.end);
                    break;
                }
                self.job.tally.overdue = self.job.pace.overdue(self.job.span.end);
                self.ended = Some(now);
                break;
            }
            if let Some(wait) = due.and_then(|due| due.checked_sub(now)).filter(|wait| *wait > 0) {
                return if wait < SPIN_NS { 0 } else { (wait - SPIN_NS / 2).min(WAIT_MAX_NS) };
            }
            let Some(at) = self.ready.front().copied() else { return WAIT_MAX_NS };
            match self.job.pull(&mut self.next) {
                Pulled::Ready => {}
                Pulled::Later => return LATER_NS,
                Pulled::End => {
                    self.ended = Some(now);
                    break;
                }
            }
            now = ns(clock);
            self.send(at, due.unwrap_or(now));
        }
        WAIT_MAX_NS
    }

    /// Sends the next request over connection `at`, the first of those with room.
    fn send(&mut self, at: usize, from: u64) {
        let Place::Open(lane) = &mut self.places[at] else { return };
        let mut pending = self.spare.pop().unwrap_or_default();
        std::mem::swap(&mut pending.request, &mut self.next);
        pending.from = from;
        pending.fills = false;
        pending.before = Outcome::default();
        let asked = match pending.request.op {
            Op::Get | Op::LoneGet | Op::Update => Asked::Get,
            Op::Set | Op::LoneSet => Asked::Set,
            Op::Delete => Asked::Delete,
        };
        if lane.waiting.is_empty() || !self.dirty.contains(&at) {
            self.dirty.push(at);
        }
        lane.ask(pending, asked, &mut self.job.values);
        self.under_way += 1;
        self.ready.pop_front();
        if lane.waiting.len() < self.server.pipeline as usize {
            self.ready.push_back(at);
        }
    }

    fn flush(&mut self, at: usize) {
        let Place::Open(lane) = &mut self.places[at] else { return };
        if let Err(error) = lane.flush() {
            self.lose(at, &error);
        }
    }

    /// Takes what has arrived over connection `at`, and sends what could not be sent before.
    fn receive(&mut self, at: usize) {
        let Some(Place::Open(lane)) = self.places.get_mut(at) else { return };
        let had_room = lane.waiting.len() < self.server.pipeline as usize;
        loop {
            let Some(Place::Open(lane)) = self.places.get_mut(at) else { return };
            let more = match lane.receive() {
                Ok(more) => more,
                Err(error) => return self.lose(at, &error),
            };
            loop {
                let Some(Place::Open(lane)) = self.places.get_mut(at) else { return };
                match lane.answer() {
                    Ok(Some(answer)) => self.answered(at, answer),
                    Ok(None) => break,
                    Err(error) => return self.lose(at, &error),
                }
            }
            if !more {
                break;
            }
        }
        let Some(Place::Open(lane)) = self.places.get(at) else { return };
        if !had_room && lane.waiting.len() < self.server.pipeline as usize {
            self.ready.push_back(at);
        }
        self.flush(at);
    }

    /// Counts an answer, and sends what follows from it.
    fn answered(&mut self, at: usize, answer: Answer) {
        let Place::Open(lane) = &mut self.places[at] else { return };
        let now = ns(self.job.span.clock);
        self.under_way -= 1;
        let request = &answer.pending.request;
        let mut outcome = answer.pending.before;
        let storing = answer.pending.asked == Some(Asked::Set);
        match &answer.reply {
            Reply::Value(range) => {
                let value = lane.bytes(&answer, range.clone());
                self.job.check(&request.key, value);
                outcome = Outcome { found: true, read: value.len() as u64, ..outcome };
            }
            Reply::Foreign => self.job.tally.wrong.add(1, || {
                format!("another key's value for {:?}", String::from_utf8_lossy(&request.key))
            }),
            Reply::Done if storing => {
                outcome = Outcome { found: true, written: request.value_bytes as u64, ..outcome };
            }
            Reply::Done => outcome.found = true,
            Reply::Missing => {}
            Reply::Refused(range) => {
                let why = lane.bytes(&answer, range.clone());
                let bytes = request.value_bytes;
                let why = || format!("a value of {bytes} bytes: {}", String::from_utf8_lossy(why));
                self.job.tally.refused.add(1, why);
                outcome.refused = true;
            }
            Reply::Error(range) => {
                let why = lane.bytes(&answer, range.clone());
                self.job.tally.errors.add(1, || String::from_utf8_lossy(why).into_owned());
                self.spare.push(answer.pending);
                return;
            }
        }
        self.finish(at, answer.pending, outcome, now);
    }

    fn finish(&mut self, at: usize, mut pending: Pending, outcome: Outcome, now: u64) {
        let Place::Open(lane) = &mut self.places[at] else { return };
        let first = pending.asked == Some(Asked::Get);
        let again = first && pending.request.op == Op::Update && outcome.found;
        if !again {
            let (kind, from) = (pending.kind(), pending.from);
            self.job.done(Done { kind, outcome, from, to: Some(now) });
        }
        let fills = first && pending.request.fill && !outcome.found;
        if !again && !fills {
            return self.spare.push(pending);
        }
        pending.before = if again { outcome } else { Outcome::default() };
        pending.fills = fills;
        // A store that fills is timed by itself, an update as a whole.
        pending.from = if fills { now } else { pending.from };
        lane.ask(pending, Asked::Set, &mut self.job.values);
        self.under_way += 1;
    }

    /// Counts what is under way on a connection as errors; it will be made anew.
    fn lose(&mut self, at: usize, error: &std::io::Error) {
        let now = ns(self.job.span.clock);
        let lost = Place::Lost { retry: now, since: now };
        let Place::Open(lane) = std::mem::replace(&mut self.places[at], lost) else { return };
        let waiting = lane.waiting.len();
        self.under_way -= waiting;
        self.ready.retain(|ready| *ready != at);
        let address = &self.server.address;
        self.job.tally.errors.add(waiting as u64, || format!("{address}: connection lost: {error}"));
        self.spare.extend(lane.waiting);
    }

    fn reopen(&mut self, now: u64) -> anyhow::Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        for at in 0..self.places.len() {
            let Place::Lost { retry, since } = self.places[at] else { continue };
            if retry > now {
                continue;
            }
            match self.open(at) {
                Ok(lane) => {
                    self.places[at] = Place::Open(lane);
                    self.ready.push_back(at);
                }
                Err(error) if now - since > PATIENCE.as_nanos() as u64 => return Err(error),
                Err(_) => self.places[at] = Place::Lost { retry: now + RETRY_NS, since },
            }
        }
        Ok(())
    }

    /// What has no answer will have none.
    fn give_up(&mut self) {
        let under_way = self.under_way as u64;
        let within = PATIENCE.as_secs();
        self.job.tally.errors.add(under_way, || format!("no answer within {within} s of the end"));
    }
}
