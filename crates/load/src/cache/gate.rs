//! A barrier for workers, so that making connections is not measured, and all share one clock.
//!
//! A worker that fails before it is ready is counted when it is dropped; otherwise the others would wait for ever.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nearfar_kernel::clock::Stopwatch;

/// Number of workers at the gate, and the clock once it is open.
type State = (usize, Option<Stopwatch>);

/// A gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `workers` workers have arrived, then releases them; returns the clock started at that time.
    pub(crate) fn open(&self, workers: usize) -> Stopwatch {
        let waited = self.changed.wait_while(self.lock(), |(come, _)| *come < workers);
        let clock = Stopwatch::start();
        waited.unwrap_or_else(PoisonError::into_inner).1 = Some(clock);
        self.changed.notify_all();
        clock
    }

    fn come(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.0 += 1;
        self.changed.notify_all();
        state
    }

    fn pass(&self) -> Stopwatch {
        let mut state = self.come();
        loop {
            if let Some(clock) = state.1 {
                return clock;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A worker that has not passed the gate yet.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(Option<&'a Gate>);

impl<'a> Waiting<'a> {
    /// Before this gate.
    pub(crate) const fn before(gate: &'a Gate) -> Self {
        Self(Some(gate))
    }

    /// Passes it; `None` if that was done already.
    pub(crate) fn pass(&mut self) -> Option<Stopwatch> {
        self.0.take().map(Gate::pass)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            drop(gate.come());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_worker_does_not_block_the_others() {
        let gate = Gate::default();
        std::thread::scope(|scope| {
            let passed = scope.spawn(|| Waiting::before(&gate).pass().is_some());
            drop(Waiting::before(&gate));
            gate.open(2);
            assert!(passed.join().unwrap());
        });
        let mut late = Waiting::before(&gate);
        assert!(late.pass().is_some() && late.pass().is_none());
    }
}
