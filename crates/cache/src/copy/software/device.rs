//! The software queue as others see it: something that takes descriptors, and somebody who carries them out.
//!
//! All is behind one lock, under which work is done too: what is seen in it is always between two descriptors. A drain is
//! over when all is that came before it, what hangs included; what comes after it waits.
#![expect(unsafe_code, reason = "descriptors are taken")]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::work::{Engine, Script, SoftwareConfig, Step, Work};
use crate::copy::dsa::format::Descriptor;
use crate::copy::dsa::queue::Limits;
use crate::copy::dsa::{Submit, SubmitError};

/// Who carries out descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Somebody else: a [`Worker`], or whoever calls [`SoftwareDevice::step`].
    Elsewhere,
    /// Whoever waits for the queue: one descriptor in each turn of waiting.
    OnCall,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    queue: VecDeque<Work>,
    hung: Vec<Work>,
    /// So many more times the queue says that it is full.
    refusals: u32,
    is_gone: bool,
    is_stopped: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The software device behind a queue.
#[derive(Clone, Debug)]
pub struct SoftwareDevice(Arc<Shared>);

/// A way to it that takes descriptors.
#[derive(Debug)]
pub struct SoftwareQueue {
    device: SoftwareDevice,
    pace: Pace,
}

impl SoftwareDevice {
    /// A device with nothing in its queue.
    #[must_use]
    pub fn new(config: SoftwareConfig, script: Script) -> Self {
        let state = State {
            engine: Engine::new(config, script),
            queue: VecDeque::new(),
            hung: Vec::new(),
            refusals: 0,
            is_gone: false,
            is_stopped: false,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A way to it.
    #[must_use]
    pub fn queue(&self, pace: Pace) -> SoftwareQueue {
        SoftwareQueue { device: self.clone(), pace }
    }

    /// What a driver may do with it, on a node.
    #[must_use]
    pub fn limits(&self, node: Option<u32>) -> Limits {
        let config = self.state().engine.config;
        Limits {
            entries: config.depth,
            batch_max: usize::try_from(config.batch_max).unwrap_or(usize::MAX),
            transfer_max: u64::from(config.transfer_max),
            node,
            block_on_fault: true,
        }
    }

    /// Has it say that it is full, so many times.
    pub fn refuse(&self, times: u32) {
        self.state().refusals = times;
    }

    /// From now on it takes nothing any more, as a device that was taken away.
    pub fn vanish(&self) {
        self.state().is_gone = true;
    }

    /// Descriptors it has been asked to do, members of batches among them.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.state().engine.seen
    }

    /// Carries out one descriptor; whether there was one that could be.
    pub fn step(&self) -> bool {
        self.state().step()
    }

    /// Carries out what hangs.
    pub fn release(&self) {
        let mut state = self.state();
        for work in std::mem::take(&mut state.hung) {
            if let Step::Hung(work) = state.engine.release(work) {
                state.hung.push(work);
            }
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Takes descriptors, as many as there is room for.
    ///
    /// # Safety
    /// As [`Submit::submit`].
    pub(super) unsafe fn take(&self, descriptors: &[Descriptor]) -> Result<usize, SubmitError> {
        let mut state = self.state();
        if state.is_gone {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(SubmitError::Refused { source });
        }
        if state.refusals > 0 {
            state.refusals -= 1;
            return Ok(0);
        }
        let room = state.engine.config.depth.saturating_sub(state.queue.len());
        let taken = room.min(descriptors.len());
        state.queue.extend(descriptors[..taken].iter().copied().map(Work::new));
        drop(state);
        self.0.changed.notify_all();
        Ok(taken)
    }

    /// Waits until there is room for a descriptor; there won't be if the device is stopped.
    pub(super) fn wait_for_room(&self) -> bool {
        let is_full =
            |state: &mut State| !state.is_stopped && state.queue.len() >= state.engine.config.depth;
        let state = self.0.changed.wait_while(self.state(), is_full);
        !state.unwrap_or_else(PoisonError::into_inner).is_stopped
    }
}

impl State {
    fn next(&mut self) -> Option<Work> {
        let drain = self.queue.iter().position(Work::is_drain);
        match drain {
            Some(0) if self.hung.is_empty() => self.queue.pop_front(),
            Some(0) => None,
            _ if self.queue.is_empty() => None,
            _ => {
                let at = self.engine.pick(drain.unwrap_or(self.queue.len()));
                self.queue.remove(at)
            }
        }
    }

    fn step(&mut self) -> bool {
        let Some(work) = self.next() else { return false };
        if let Step::Hung(work) = self.engine.run(work) {
            self.hung.push(work);
        }
        true
    }
}

impl Submit for SoftwareQueue {
    // SAFETY: (of the callers) as the trait says.
    unsafe fn submit(&mut self, descriptors: &[Descriptor]) -> Result<usize, SubmitError> {
        // SAFETY: the caller keeps the same promise.
        unsafe { self.device.take(descriptors) }
    }

    fn takes_batches(&self) -> bool {
        true
    }

    fn idle(&mut self) {
        if self.pace == Pace::OnCall {
            self.device.step();
        }
    }
}

/// A thread that carries out descriptors, until it is dropped.
#[derive(Debug)]
pub struct Worker {
    device: SoftwareDevice,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Begins to work for a device.
    #[must_use]
    pub fn start(device: &SoftwareDevice) -> Self {
        device.state().is_stopped = false;
        let device = device.clone();
        let other = device.clone();
        Self { device, thread: Some(thread::spawn(move || other.work())) }
    }
}

impl SoftwareDevice {
    fn work(&self) {
        let mut state = self.state();
        while !state.is_stopped {
            if state.step() {
                drop(state);
                self.0.changed.notify_all();
                state = self.state();
            } else {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.device.state().is_stopped = true;
        self.device.0.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has done what it could.
            let _ = thread.join();
        }
    }
}
