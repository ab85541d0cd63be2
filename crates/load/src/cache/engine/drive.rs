//! The request loop for engines that answer synchronously.
//!
//! In a closed loop only one request in [`TIMED`] is timed: reading the clock twice takes as long as a quarter of a
//! request to a cache in memory, and would be counted as the cache's time. In an open loop every request is timed, from
//! its due time.

use crate::requests::{Op, Request};

use super::super::job::{Done, Job};
use super::super::pace::{TIMED, ns, wait};
use super::super::source::Pulled;
use super::super::tally::{Kind, Outcome};
use super::Door;

/// Waits for the other workers, then sends requests until the job is over.
pub(super) fn drive(door: &mut Door<'_>, job: &mut Job<'_>) {
    job.begin();
    let (mut request, mut read) = (Request::default(), Vec::new());
    let clock = job.clock;
    let mut now = ns(clock);
    loop {
        let due = job.pace.due();
        if let Some(due) = due {
            now = wait(clock, due.min(job.span.end), job.shared.stop);
        }
        if now >= job.span.end {
            job.tally.overdue = job.pace.overdue(job.span.counts_from..job.span.end);
            break;
        }
        let timed = due.is_some() || job.begun.is_multiple_of(TIMED);
        match job.pull(&mut request) {
            Pulled::Ready => {}
            Pulled::Later => {
                std::thread::yield_now();
                now = ns(clock);
                continue;
            }
            Pulled::End => break,
        }
        if timed {
            now = ns(clock);
        }
        ask(door, job, (&request, &mut read), Asked { from: due.unwrap_or(now), timed });
    }
    if let Some((from, _)) = job.tally.span {
        job.tally.stretch(from, ns(clock));
    }
}

/// Start of a request, and whether it is timed.
#[derive(Clone, Copy)]
struct Asked {
    from: u64,
    timed: bool,
}

fn ask(
    door: &mut Door<'_>,
    job: &mut Job<'_>,
    (request, read): (&Request, &mut Vec<u8>),
    asked: Asked,
) {
    let kind = Kind::from(request.op);
    let mut outcome = match request.op {
        Op::Set | Op::LoneSet => store(door, job, request),
        Op::Delete => Outcome { found: door.delete(&request.key), ..Outcome::default() },
        Op::Get | Op::LoneGet | Op::Update => {
            read.clear();
            let found = door.get(&request.key, read);
            if found {
                job.check(&request.key, read);
            }
            Outcome { found, read: read.len() as u64, ..Outcome::default() }
        }
    };
    if request.op == Op::Update && outcome.found {
        let stored = store(door, job, request);
        outcome = Outcome { refused: stored.refused, written: stored.written, ..outcome };
    }
    let to = asked.timed.then(|| ns(job.clock));
    job.done(Done { kind, outcome, from: asked.from, to });
    if request.fill && !outcome.found {
        let outcome = store(door, job, request);
        let from = to.unwrap_or(asked.from);
        job.done(Done { kind: Kind::Fill, outcome, from, to: to.map(|_| ns(job.clock)) });
    }
}

fn store(door: &mut Door<'_>, job: &mut Job<'_>, request: &Request) -> Outcome {
    let Request { key, value_bytes, ttl, .. } = request;
    match door.set(key, job.values.make(key, *value_bytes), *ttl) {
        Ok(()) => Outcome { found: true, written: *value_bytes as u64, ..Outcome::default() },
        Err(refused) => {
            job.tally.refused.add(1, || format!("a value of {value_bytes} bytes: {refused}"));
            Outcome { refused: true, ..Outcome::default() }
        }
    }
}
