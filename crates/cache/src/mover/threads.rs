//! Threads that move items, one that is for the disk alone, and what becomes of one that panics.
//!
//! Between rounds a mover takes out what has expired (`reap.rs`); where there are no movers a thread of its own may do that. One that
//! has panicked is told of at once to who wants to know, as a cache whose movers are gone goes on, but slowly.

use core::any::Any;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cache::Cache;

/// A mover that is not called looks after this time.
const PAUSE: Duration = Duration::from_millis(10);

/// What a thread said that panicked.
pub(crate) fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it panicked").to_owned()
}

/// A thread that moves items has panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("thread {thread} of the cache failed ({why}); start it again")]
pub struct Failed {
    /// The thread's name.
    pub thread: String,
    /// What it said.
    pub why: String,
}

type Then = Box<dyn Fn() + Send>;

/// What is to be done when a thread has panicked, and whether one has.
#[derive(Default)]
struct Alarm {
    is_on: AtomicBool,
    then: Mutex<Option<Then>>,
}

impl core::fmt::Debug for Alarm {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        to.debug_struct("Alarm").field("is_on", &self.is_on).finish_non_exhaustive()
    }
}

impl Alarm {
    /// Does what is to be done, if both are known.
    fn ring(&self) {
        let then = self.then.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(then) = then.as_ref().filter(|_| self.is_on.load(Acquire)) {
            then();
        }
    }
}

/// Rings if its thread panics.
struct Guard(Arc<Alarm>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_on.swap(true, AcqRel);
            self.0.ring();
        }
    }
}

/// Threads that do what [`Cache::step`] does, until dropped; one of them is for the disk alone, where there is one.
#[derive(Debug)]
pub struct Movers {
    cache: Arc<Cache>,
    stop: Arc<AtomicBool>,
    alarm: Arc<Alarm>,
    threads: Vec<JoinHandle<()>>,
    /// One of them reaps.
    reaps: bool,
}

impl Movers {
    /// Starts so many for memory, and one for the disk.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(cache: &Arc<Cache>, threads: usize) -> std::io::Result<Self> {
        let (stop, alarm) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut movers =
            Self { cache: Arc::clone(cache), stop, alarm, threads: Vec::new(), reaps: threads > 0 };
        for number in 0..threads {
            movers.spawn(&format!("mover-{number}"), work)?;
        }
        if cache.below.is_some() {
            movers.spawn("mover-disk", work_disk)?;
        }
        Ok(movers)
    }

    fn spawn(&mut self, name: &str, work: fn(&Cache, &AtomicBool)) -> std::io::Result<()> {
        let (cache, stop) = (Arc::clone(&self.cache), Arc::clone(&self.stop));
        let guard = Guard(Arc::clone(&self.alarm));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            work(&cache, &stop);
            drop(guard);
        });
        self.threads.push(thread?);
        Ok(())
    }

    /// Starts a thread that takes out what has expired ([`Cache::reap_some`]), unless those for memory do that.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn reap_too(&mut self) -> std::io::Result<()> {
        if !self.reaps {
            self.spawn("reaper", work_reaping)?;
            self.reaps = true;
        }
        Ok(())
    }

    /// Has something done as soon as one of the threads panics, in place of what was to be done before: such as ending what does
    /// not work well without it. It is done at once if one has panicked by now, and may be done more than once.
    pub fn on_failure(&self, then: impl Fn() + Send + 'static) {
        *self.alarm.then.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(then));
        self.alarm.ring();
    }

    /// Ends them, and waits for that.
    ///
    /// # Errors
    /// If one of them had panicked.
    pub fn end(mut self) -> Result<(), Failed> {
        self.join()
    }

    fn join(&mut self) -> Result<(), Failed> {
        self.stop.swap(true, AcqRel);
        self.cache.call_movers();
        if let Some(below) = &self.cache.below {
            below.call();
        }
        let mut ended = Ok(());
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            let one = thread.join();
            ended = ended.and(one.map_err(|panic| Failed { thread: name, why: said(&*panic) }));
        }
        ended
    }
}

fn work(cache: &Cache, stop: &AtomicBool) {
    while !stop.load(Acquire) {
        let moved = cache.step_in_memory();
        cache.reap_some();
        if moved == 0 {
            pause(cache);
        }
    }
}

/// Waits until somebody finds no room, or for so long.
fn pause(cache: &Cache) {
    let (wanted, bell) = &cache.wanted;
    let lock = wanted.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut lock, _) = bell
        .wait_timeout_while(lock, PAUSE, |wanted| !*wanted)
        .unwrap_or_else(PoisonError::into_inner);
    *lock = false;
}

fn work_reaping(cache: &Cache, stop: &AtomicBool) {
    while !stop.load(Acquire) {
        cache.reap_some();
        pause(cache);
    }
}

fn work_disk(cache: &Cache, stop: &AtomicBool) {
    let Some(below) = &cache.below else { return };
    while !stop.load(Acquire) {
        if cache.tick_disk().evicted == 0 {
            below.wait(PAUSE);
        }
    }
}

impl Drop for Movers {
    fn drop(&mut self) {
        // Who wants to know ends them.
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn breaks(_: &Cache, _: &AtomicBool) {
        panic!("broken, as this test wants it");
    }

    #[test]
    fn a_thread_that_panics_is_told_of_at_once_and_at_the_end() {
        let cache = Arc::new(Cache::new(&Config::of_bytes(8 << 20)).unwrap());
        let mut movers = Movers::start(&cache, 1).unwrap();
        let (to, from) = std::sync::mpsc::channel();
        let again = to.clone();
        movers.on_failure(move || to.send("at once").unwrap());
        movers.spawn("mover-broken", breaks).unwrap();
        assert_eq!(from.recv(), Ok("at once"));
        movers.on_failure(move || again.send("later").unwrap());
        assert_eq!(from.recv(), Ok("later"));
        let why = String::from("broken, as this test wants it");
        let failed = Failed { thread: "mover-broken".into(), why };
        assert_eq!(movers.end(), Err(failed));
        assert_eq!(Movers::start(&cache, 1).unwrap().end(), Ok(()));
    }
}
