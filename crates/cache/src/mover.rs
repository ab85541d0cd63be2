//! Threads that move items between tiers, a separate one for the disk, and the report of one that panics.
//!
//! Between rounds a mover removes expired items (`expire.rs`); without movers a separate thread may do that. A panic is
//! reported at once to the callback that is set, because a cache without its movers goes on, but slowly.

use core::any::Any;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cache::Cache;

/// Longest pause of a mover that is not called.
const PAUSE: Duration = Duration::from_millis(10);

/// The message of a panic, as a thread's handle gives it.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
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
    /// The message of the panic.
    pub why: String,
}

type Then = Box<dyn Fn() + Send>;

/// The callback for a thread that panics, and whether one has.
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
    /// Calls the callback if it is set and a thread has panicked.
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

/// Threads that repeat [`Cache::step`] until dropped; one of them serves the disk, if the cache has one.
#[derive(Debug)]
pub struct Movers {
    cache: Arc<Cache>,
    stop: Arc<AtomicBool>,
    alarm: Arc<Alarm>,
    threads: Vec<JoinHandle<()>>,
    /// One of them removes expired items.
    expires: bool,
}

impl Movers {
    /// Starts this number of threads for memory, and one for the disk.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(cache: &Arc<Cache>, threads: usize) -> std::io::Result<Self> {
        let (stop, alarm) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut movers = Self {
            cache: Arc::clone(cache),
            stop,
            alarm,
            threads: Vec::new(),
            expires: threads > 0,
        };
        for number in 0..threads {
            movers.spawn(&format!("mover-{number}"), work)?;
        }
        if cache.contents().below().is_some() {
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

    /// Starts a thread that removes expired items ([`Cache::expire_some`]), unless those for memory do that.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn expire_too(&mut self) -> std::io::Result<()> {
        if !self.expires {
            self.spawn("reaper", work_expiring)?;
            self.expires = true;
        }
        Ok(())
    }

    /// Sets the callback for a panic of one of the threads, in place of the one before: for example, to end a server that
    /// depends on it. It is called at once if a thread has panicked already, and may be called more than once.
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
        self.cache.placement().call_movers();
        if let Some(below) = self.cache.contents().below() {
            below.call();
        }
        let mut ended = Ok(());
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            let one = thread.join();
            ended = ended
                .and(one.map_err(|panic| Failed { thread: name, why: panic_message(&*panic) }));
        }
        ended
    }
}

fn work(cache: &Cache, stop: &AtomicBool) {
    while !stop.load(Acquire) {
        let moved = cache.step_in_memory();
        cache.expire_some();
        if moved == 0 {
            cache.placement().wait_for_call(PAUSE);
        }
    }
}

fn work_expiring(cache: &Cache, stop: &AtomicBool) {
    while !stop.load(Acquire) {
        cache.expire_some();
        cache.placement().keep_to_limits();
        cache.placement().wait_for_call(PAUSE);
    }
}

fn work_disk(cache: &Cache, stop: &AtomicBool) {
    let Some(below) = cache.contents().below() else { return };
    while !stop.load(Acquire) {
        if cache.tick_disk().evicted == 0 {
            below.wait(PAUSE);
        }
    }
}

impl Drop for Movers {
    fn drop(&mut self) {
        // The callback ends them.
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
    fn a_thread_panic_is_reported_immediately_and_at_shutdown() {
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
