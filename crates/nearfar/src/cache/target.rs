//! A target that answers at once, and the loop that asks it.
//!
//! In a closed loop the clock is looked at for one request in [`TIMED`] alone: reading it twice takes as long as a quarter of a
//! request to a cache in memory, and would be counted as the cache's. In an open loop each is timed, from when it was due.

use nearfar_cache::workload::{Op, Request};

use super::job::{Done, Job};
use super::pace::{ns, wait};
use super::source::Pulled;
use super::tally::{Kind, Outcome};

/// One request in so many is timed in a closed loop.
pub(crate) const TIMED: u64 = 16;

/// A connection to a cache, or what stands for one: each worker has its own.
pub(crate) trait Target {
    /// Appends the value of `key` to `out`; false if there is none.
    ///
    /// # Errors
    /// There is no answer, or it is not understood.
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> anyhow::Result<bool>;

    /// Stores `value` under `key` for `ttl` seconds (0 is for ever); false if it was refused.
    ///
    /// # Errors
    /// As of [`Target::get`].
    fn set(&mut self, key: &[u8], value: &[u8], ttl: u32) -> anyhow::Result<bool>;

    /// Removes `key`; false if it was not there.
    ///
    /// # Errors
    /// As of [`Target::get`].
    fn delete(&mut self, key: &[u8]) -> anyhow::Result<bool>;
}

/// Asks until the job is over.
pub(crate) fn drive(target: &mut impl Target, job: &mut Job<'_>) {
    let (mut request, mut read) = (Request::default(), Vec::new());
    let clock = job.span.clock;
    let mut now = ns(clock);
    loop {
        let due = job.pace.due();
        if let Some(due) = due {
            now = wait(clock, due.min(job.span.end), job.stop);
        }
        if now >= job.span.end {
            job.tally.overdue = job.pace.overdue(job.span.end);
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
        let asked = Asked { from: due.unwrap_or(now), timed };
        if let Err(error) = ask(target, job, &request, &mut read, asked) {
            job.tally.errors.add(1, || format!("{error:#}"));
        }
    }
    if let Some((from, _)) = job.tally.span {
        job.tally.stretch(from, ns(clock));
    }
    job.pass_on();
}

/// When a request began, and whether it is timed.
#[derive(Clone, Copy)]
struct Asked {
    from: u64,
    timed: bool,
}

fn ask(
    target: &mut impl Target,
    job: &mut Job<'_>,
    request: &Request,
    read: &mut Vec<u8>,
    asked: Asked,
) -> anyhow::Result<()> {
    let kind = Kind::from(request.op);
    let mut outcome = match request.op {
        Op::Set | Op::LoneSet => store(target, job, request)?,
        Op::Delete => Outcome { found: target.delete(&request.key)?, ..Outcome::default() },
        Op::Get | Op::LoneGet | Op::Update => {
            read.clear();
            let found = target.get(&request.key, read)?;
            if found {
                job.check(&request.key, read);
            }
            Outcome { found, read: read.len() as u64, ..Outcome::default() }
        }
    };
    if request.op == Op::Update && outcome.found {
        let stored = store(target, job, request)?;
        outcome = Outcome { refused: stored.refused, written: stored.written, ..outcome };
    }
    let clock = job.span.clock;
    let to = asked.timed.then(|| ns(clock));
    job.done(Done { kind, outcome, from: asked.from, to });
    if request.fill && !outcome.found {
        let outcome = store(target, job, request)?;
        let from = to.unwrap_or(asked.from);
        job.done(Done { kind: Kind::Fill, outcome, from, to: to.map(|_| ns(clock)) });
    }
    Ok(())
}

fn store(
    target: &mut impl Target,
    job: &mut Job<'_>,
    request: &Request,
) -> anyhow::Result<Outcome> {
    let Request { key, value_bytes, ttl, .. } = request;
    let stored = target.set(key, job.values.make(key, *value_bytes), *ttl)?;
    if !stored {
        job.tally.refused.add(1, || format!("a value of {value_bytes} bytes"));
    }
    let written = if stored { *value_bytes as u64 } else { 0 };
    Ok(Outcome { found: stored, refused: !stored, written, ..Outcome::default() })
}
