//! A worker's loop over its connections: requests go to the connections in rotation while they have room, answers are
//! processed as they arrive. In a closed loop a connection has room again when all its requests were answered, in an
//! open loop as soon as one was.
//!
//! A lost connection is reconnected; its outstanding requests count as errors. A server that can't be reached within
//! the time limit ([`Server::patience`]), or is silent for [`SILENCES`] times as long, ends the run. Requests that are
//! due while no connection has room start late, but are timed from their due time.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use crate::requests::{Op, Request};
use anyhow::{Context as _, bail, ensure};
use rustix::event::epoll::EventFlags;
use rustix::event::{Timespec, epoll};

use super::super::job::{Done, Job, Phase};
use super::super::pace::{Pace, ns};
use super::super::source::Pulled;
use super::super::tally::Outcome;
use super::Server;
use super::lane::{Arrived, Asked, Lane, Meaning, Pending};

/// Shorter waits are busy-waits.
const SPIN_NS: u64 = 60_000;
/// Longer waits are divided, to check in between whether to stop.
const WAIT_MAX_NS: u64 = 50_000_000;
/// Interval between attempts to reconnect.
const RETRY_NS: u64 = 100_000_000;
/// Wait while a trace's next requests are being read.
const LATER_NS: u64 = 50_000;
/// The most events per poll.
const EVENTS: usize = 64;
/// Least number of outstanding commands per connection while all keys are stored.
const PRELOAD_DEPTH: usize = 32;
/// A server that owes answers and is silent for this many times the time limit counts as failed.
const SILENCES: u64 = 12;

/// A connection's slot.
#[derive(Debug, Default)]
struct Place {
    /// The connection, unless it is lost.
    lane: Option<Box<Lane>>,
    /// Whether it is in [`Lanes::ready`].
    is_ready: bool,
    /// Whether it is in [`Lanes::unsent`].
    is_unsent: bool,
    /// When to reconnect.
    retry: u64,
    /// When it was lost, unless there was an answer since.
    lost: Option<u64>,
}

/// A worker's connections.
pub(super) struct Lanes<'a, 'b> {
    server: &'a Server,
    job: &'a mut Job<'b>,
    epoll: OwnedFd,
    depth: usize,
    multiget: usize,
    places: Vec<Place>,
    /// Number of lost connections.
    lost: usize,
    /// The time limit, in nanoseconds.
    patience: u64,
    /// Time of the last input, or of the first send after everything was answered.
    heard: u64,
    /// Connections that may have room, each once.
    ready: VecDeque<usize>,
    /// Connections with something to send.
    unsent: Vec<usize>,
    /// Reads that will be sent as one command.
    group: Vec<Pending>,
    /// Outstanding requests.
    under_way: usize,
    /// Set once no more requests start.
    ended: Option<u64>,
    /// Kept to reuse its memory.
    spare: Vec<Pending>,
    next: Request,
}

impl<'a, 'b> Lanes<'a, 'b> {
    /// Connects.
    pub(super) fn connect(server: &'a Server, job: &'a mut Job<'b>) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll")?;
        let depth = server.depth as usize;
        let mut lanes = Self {
            server,
            depth: if job.span.phase == Phase::Preload { depth.max(PRELOAD_DEPTH) } else { depth },
            multiget: server.multiget as usize,
            job,
            epoll,
            places: Vec::new(),
            lost: 0,
            patience: u64::try_from(server.patience.as_nanos()).unwrap_or(u64::MAX),
            heard: 0,
            ready: VecDeque::new(),
            unsent: Vec::new(),
            group: Vec::new(),
            under_way: 0,
            ended: None,
            spare: Vec::new(),
            next: Request::default(),
        };
        for at in 0..server.connections as usize {
            let lane = Some(lanes.open(at)?);
            lanes.places.push(Place { lane, ..Place::default() });
            lanes.offer(at);
        }
        Ok(lanes)
    }

    fn open(&self, at: usize) -> anyhow::Result<Box<Lane>> {
        let connection = self.server.address.connect()?;
        connection.without_waiting()?;
        // Edge-triggered: no system call is needed before and after each write that would block.
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&self.epoll, &connection, data, flags).context("adding to an epoll")?;
        Ok(Box::new(Lane::new(connection)))
    }

    /// Waits for the other workers, then sends requests until the job is over.
    pub(super) fn drive(mut self) -> anyhow::Result<()> {
        self.job.begin();
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = ns(self.job.clock);
            self.reopen(now)?;
            let wait = self.begin(now);
            while let Some(at) = self.unsent.pop() {
                self.places[at].is_unsent = false;
                self.flush(at)?;
            }
            let now = ns(self.job.clock);
            if let Some(ended) = self.ended {
                if self.under_way > 0 && now.saturating_sub(ended) > self.patience {
                    self.give_up();
                }
                if self.under_way == 0 {
                    return Ok(());
                }
            }
            let silent = now.saturating_sub(self.heard);
            if self.under_way > 0 && silent > self.patience.saturating_mul(SILENCES) {
                bail!(
                    "{}: owes answers, and none has come for {} s",
                    self.server.address,
                    silent / 1_000_000_000
                );
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
                self.receive(at, event.flags)?;
            }
        }
    }

    /// Starts the due requests; returns the time until the next one is due.
    fn begin(&mut self, mut now: u64) -> u64 {
        let end = self.job.span.end;
        let mut wait = WAIT_MAX_NS;
        while self.ended.is_none() {
            let due = self.job.pace.due();
            if now >= end {
                self.job.tally.overdue = self.job.pace.overdue(self.job.span.counts_from..end);
                self.ended = Some(now);
            } else if due.is_some_and(|due| due >= end) {
                // No further request will be due in time.
                self.ended = Some(end);
            } else if let Some(due) = due.filter(|due| *due > now) {
                let left = due - now;
                wait = if left < SPIN_NS { 0 } else { (left - SPIN_NS / 2).min(WAIT_MAX_NS) };
                break;
            } else if self.room().is_none() {
                break;
            } else {
                match self.job.pull(&mut self.next) {
                    Pulled::Ready => {
                        now = ns(self.job.clock);
                        self.send(due.unwrap_or(now));
                    }
                    Pulled::Later => {
                        wait = LATER_NS;
                        break;
                    }
                    Pulled::End => self.ended = Some(now),
                }
            }
        }
        self.send_group();
        wait
    }

    /// The first connection with room.
    fn room(&mut self) -> Option<usize> {
        loop {
            let at = *self.ready.front()?;
            if self.has_room(at) {
                return Some(at);
            }
            self.ready.pop_front();
            self.places[at].is_ready = false;
        }
    }

    fn has_room(&self, at: usize) -> bool {
        self.places[at].lane.as_ref().is_some_and(|lane| lane.commands() < self.depth)
    }

    /// Appends a connection with room to the others that have some.
    fn offer(&mut self, at: usize) {
        if self.has_room(at) && !self.places[at].is_ready {
            self.places[at].is_ready = true;
            self.ready.push_back(at);
        }
    }

    /// Records that a connection, the first of [`Lanes::ready`], has something to send.
    fn used(&mut self, at: usize) {
        if self.ready.front() == Some(&at) {
            self.ready.pop_front();
            self.places[at].is_ready = false;
        }
        self.offer(at);
        if !self.places[at].is_unsent {
            self.places[at].is_unsent = true;
            self.unsent.push(at);
        }
    }

    /// Sends the next request over the first connection with room, which must exist.
    fn send(&mut self, from: u64) {
        let Some(at) = self.room() else { return };
        let mut pending = self.spare.pop().unwrap_or_default();
        std::mem::swap(&mut pending.request, &mut self.next);
        pending.from = from;
        pending.fills = false;
        pending.before = Outcome::default();
        pending.asked = Asked::first(pending.request.op);
        if self.under_way == 0 {
            self.heard = ns(self.job.clock);
        }
        self.under_way += 1;
        if pending.asked == Asked::Get && self.multiget > 1 {
            self.group.push(pending);
            if self.group.len() == self.multiget {
                self.send_group();
            }
            return;
        }
        // A pending read of the same key is sent first.
        if self.group.iter().any(|read| read.request.key == pending.request.key) {
            self.send_group();
        }
        if let Some(lane) = &mut self.places[at].lane {
            lane.ask(pending, &mut self.job.values);
            self.used(at);
        }
    }

    /// Sends the collected reads, if there are any and there is room.
    fn send_group(&mut self) {
        if self.group.is_empty() {
            return;
        }
        let Some(at) = self.room() else { return };
        if matches!(self.job.pace, Pace::Closed) {
            let now = ns(self.job.clock);
            self.group.iter_mut().for_each(|read| read.from = now);
        }
        if let Some(lane) = &mut self.places[at].lane {
            lane.ask_together(self.group.drain(..));
            self.used(at);
        }
    }

    fn flush(&mut self, at: usize) -> anyhow::Result<()> {
        let Some(lane) = &mut self.places[at].lane else { return Ok(()) };
        lane.flush().or_else(|error| self.lose(at, &error))
    }

    /// Receives input of connection `at`, and sends data that could not be sent before.
    fn receive(&mut self, at: usize, told: EventFlags) -> anyhow::Result<()> {
        // There is no further event for an end that came with the last bytes.
        let ends = told.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        while let Some(lane) = self.places.get_mut(at).and_then(|place| place.lane.as_mut()) {
            let arrived = match lane.receive() {
                Ok(arrived) => arrived,
                Err(error) => return self.lose(at, &error),
            };
            let now = ns(self.job.clock);
            self.heard = now;
            while let Some(lane) = &mut self.places[at].lane {
                match lane.answer() {
                    Ok(Some((pending, said))) => self.answered(at, pending, said, now),
                    Ok(None) => break,
                    Err(error) => return self.lose(at, &error),
                }
            }
            if arrived == Arrived::Nothing || (arrived == Arrived::Some && !ends) {
                break;
            }
        }
        // In a closed loop commands are sent together once all were answered: sent one by one as answers arrive, each
        // would cost both sides a wake-up, and they would stay apart.
        let answered = self.places[at].lane.as_ref().is_some_and(|lane| lane.commands() == 0);
        if answered || !matches!(self.job.pace, Pace::Closed) {
            self.offer(at);
        }
        self.flush(at)
    }

    /// Counts an answer, and sends the request that follows from it.
    fn answered(&mut self, at: usize, pending: Pending, said: Meaning, now: u64) {
        let place = &mut self.places[at];
        let Some(lane) = &place.lane else { return };
        place.lost = None;
        self.under_way -= 1;
        let request = &pending.request;
        let mut outcome = pending.before;
        let tally = &mut self.job.tally;
        match said {
            Meaning::Value(range) => {
                let value = lane.bytes(range);
                outcome = Outcome { found: true, read: value.len() as u64, ..outcome };
                self.job.check(&request.key, value);
            }
            Meaning::Foreign => tally.wrong.add(1, || {
                format!("another key's value for {:?}", String::from_utf8_lossy(&request.key))
            }),
            Meaning::Done => {
                let stored = if pending.asked == Asked::Set { request.value_bytes } else { 0 };
                outcome = Outcome { found: true, written: stored as u64, ..outcome };
            }
            Meaning::Missing => {}
            Meaning::Refused(range) => {
                let (why, bytes) = (lane.bytes(range), request.value_bytes);
                let why = || format!("a value of {bytes} bytes: {}", String::from_utf8_lossy(why));
                tally.refused.add(1, why);
                outcome.refused = true;
            }
            Meaning::Error(range) => {
                let why = lane.bytes(range);
                tally.errors.add(1, || String::from_utf8_lossy(why).into_owned());
                return self.spare.push(pending);
            }
        }
        self.finish(at, pending, outcome, now);
    }

    fn finish(&mut self, at: usize, mut pending: Pending, outcome: Outcome, now: u64) {
        let was_read = pending.asked == Asked::Get;
        let updates = was_read && pending.request.op == Op::Update && outcome.found;
        if !updates {
            let (kind, from) = (pending.kind(), pending.from);
            self.job.done(Done { kind, outcome, from, to: Some(now) });
        }
        let fills = was_read && pending.request.fill && !outcome.found;
        let Some(lane) = self.places[at].lane.as_mut().filter(|_| updates || fills) else {
            return self.spare.push(pending);
        };
        pending.before = if updates { outcome } else { Outcome::default() };
        pending.fills = fills;
        pending.asked = Asked::Set;
        // A store that fills is timed by itself, an update as a whole.
        pending.from = if fills { now } else { pending.from };
        lane.ask(pending, &mut self.job.values);
        self.under_way += 1;
    }

    /// Counts a connection's outstanding requests as errors; reconnects later, unless that has failed for too long.
    fn lose(&mut self, at: usize, error: &std::io::Error) -> anyhow::Result<()> {
        let now = ns(self.job.clock);
        let place = &mut self.places[at];
        let Some(lane) = place.lane.take() else { return Ok(()) };
        let since = *place.lost.get_or_insert(now);
        place.retry = now + RETRY_NS;
        self.lost += 1;
        let waiting = lane.into_waiting();
        self.under_way -= waiting.len();
        let why = || format!("{}: connection lost: {error}", self.server.address);
        self.job.tally.errors.add(waiting.len() as u64, why);
        self.spare.extend(waiting);
        ensure!(now - since <= self.patience, why());
        Ok(())
    }

    /// Reconnects the connections that are due.
    fn reopen(&mut self, now: u64) -> anyhow::Result<()> {
        let places = if self.lost == 0 { 0 } else { self.places.len() };
        for at in 0..places {
            let Place { lane: None, lost: Some(since), retry, .. } = self.places[at] else {
                continue;
            };
            if retry > now || self.ended.is_some() {
                continue;
            }
            match self.open(at) {
                Ok(lane) => {
                    self.places[at].lane = Some(lane);
                    self.lost -= 1;
                    self.offer(at);
                }
                Err(error) if now - since > self.patience => return Err(error),
                Err(_) => self.places[at].retry = now + RETRY_NS,
            }
        }
        Ok(())
    }

    /// Counts all outstanding requests as errors.
    fn give_up(&mut self) {
        let under_way = std::mem::take(&mut self.under_way) as u64;
        let within = self.server.patience.as_secs();
        self.job.tally.errors.add(under_way, || format!("no answer within {within} s of the end"));
    }
}

#[cfg(test)]
mod tests;
