//! `nearfar run -w 0=3,1=1`: a thread that keeps the memory of a program and its descendants at weights of their own.
//!
//! Passes over the processes follow each other fast while they migrate pages, for at most half of the time. One that finds
//! nothing to migrate doubles the pause to the next, and searching takes at most a twentieth of the time. Pages are migrated
//! as [`Spread`] says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nearfar_kernel::clock::Stopwatch;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::moving::Spread;
use nearfar_kernel::process;
use nearfar_policy::Weights;
use nearfar_topology::Bytes;

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);
const RUN_PER_COST: u32 = 20;

/// The thread.
#[derive(Debug)]
pub struct Spreading {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Spreading {
    /// Starts it for a process and its descendants.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(root: u32, weights: Weights) -> std::io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let builder = thread::Builder::new().name("weights".into());
        let thread = builder.spawn(move || work(root, Spread::new(weights), &is_over))?;
        Ok(Self { ends, thread })
    }

    /// Ends it; pages stay where they are.
    pub fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

fn work(root: u32, mut spread: Spread, is_over: &AtomicBool) {
    let is_over = || is_over.load(Ordering::Relaxed);
    let Ok(fs) = RootFs::live() else { return };
    let mut pause = FIRST;
    loop {
        thread::park_timeout(pause);
        if is_over() {
            return;
        }
        let begun = Stopwatch::start();
        let mut moved = Bytes(0);
        let processes = process::tree(&fs, root).unwrap_or_default();
        spread.keep(&processes);
        for pid in processes {
            // One that has ended meanwhile, or that may not be read (a set-user-ID program), is left alone.
            let pass = spread.pass(&fs, pid, &is_over).unwrap_or_default();
            moved.0 = moved.0.saturating_add(pass.0);
        }
        pause = match moved {
            Bytes(0) => (pause * 2).min(LONGEST).max(begun.elapsed() * RUN_PER_COST),
            _ => begun.elapsed().max(FIRST),
        };
    }
}
