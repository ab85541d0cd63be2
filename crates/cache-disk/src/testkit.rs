//! For tests of the tier and of its users: a device that fails on purpose, and children that are killed.

mod child;

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::event::{event, reset};
use super::locks::lock;
use super::{Access, Aligned, BLOCK, BlockFile, Device, Done, Job, Queue, Wait};

pub use child::{kill_after, of_parent};

/// The behaviour of a failing device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    None,
    /// An error.
    Error,
    /// Half of it is done.
    Short,
    /// A bit is changed.
    Flip,
}

/// A request: whether it is a read, its address and length.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Whether it is a read.
    pub is_read: bool,
    /// Its address.
    pub at: u64,
    /// Its length.
    pub len: usize,
}

type Rule = Box<dyn FnMut(Asked) -> Fault + Send>;

/// A device that fails by a rule.
pub struct Faulty {
    inner: BlockFile,
    /// Taken out during a request, so that it may use the device.
    rule: Mutex<Option<Rule>>,
    /// Number of next reaps that complete nothing.
    stalls: AtomicUsize,
    this: std::sync::Weak<Faulty>,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Faulty")
    }
}

impl Faulty {
    /// On a file.
    ///
    /// # Panics
    /// If the file can't be opened.
    #[must_use]
    pub fn new(path: &Path) -> Arc<Self> {
        let inner = BlockFile::open(path, Access::Plain).expect("a file in the test's folder");
        Arc::new_cyclic(|this| Self {
            inner,
            rule: Mutex::new(None),
            stalls: AtomicUsize::new(0),
            this: this.clone(),
        })
    }

    /// Fails by this rule from now on.
    pub fn by(&self, rule: impl FnMut(Asked) -> Fault + Send + 'static) {
        *lock(&self.rule) = Some(Box::new(rule));
    }

    /// Makes the next `times` reaps complete nothing.
    pub fn stall(&self, times: usize) {
        self.stalls.store(times, Relaxed);
    }

    /// One request in `share` fails, in any way.
    pub fn by_chance(&self, seed: u64, share: u64) {
        let mut state = seed;
        self.by(move |_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let faults = [Fault::Error, Fault::Short, Fault::Flip];
            let chosen = faults[usize::try_from((state >> 60) % 3).unwrap_or(0)];
            if (state >> 32).is_multiple_of(share) { chosen } else { Fault::None }
        });
    }

    fn fault(&self, is_read: bool, at: u64, len: usize) -> Fault {
        let Some(mut rule) = lock(&self.rule).take() else { return Fault::None };
        let fault = rule(Asked { is_read, at, len });
        lock(&self.rule).get_or_insert(rule);
        fault
    }
}

impl Device for Faulty {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.inner.reserve(bytes)
    }
    fn bytes(&self) -> io::Result<u64> {
        self.inner.bytes()
    }
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let read = self.inner.read_at(into, at)?;
        match self.fault(true, at, into.len()) {
            Fault::None => return Ok(read),
            Fault::Error => return Err(rustix::io::Errno::IO.into()),
            Fault::Short => return Ok(read / 2 / 512 * 512),
            Fault::Flip => into[20] ^= 0x10,
        }
        Ok(read)
    }
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<usize> {
        match self.fault(false, at, from.len()) {
            Fault::None => self.inner.write_at(from, at),
            Fault::Error => Err(rustix::io::Errno::NOSPC.into()),
            Fault::Short => self.inner.write_at(&from[..from.len() / 2 / BLOCK * BLOCK], at),
            Fault::Flip => {
                let mut changed = Aligned::new(from.len()).expect("memory for a test");
                changed[..from.len()].copy_from_slice(from);
                changed[from.len() / 3] ^= 1;
                self.inner.write_at(&changed[..from.len()], at)
            }
        }
    }
    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
    fn queue(&self, _: u32) -> io::Result<Box<dyn Queue>> {
        let device = self.this.upgrade().expect("a queue is asked of a device that is there");
        Ok(Box::new(Late { device, waiting: VecDeque::new(), ready: event()? }))
    }
    fn align(&self) -> usize {
        self.inner.align()
    }
    fn how(&self) -> String {
        String::from("failing on purpose")
    }
}

/// A queue that completes one job per reap, the last first.
#[derive(Debug)]
struct Late {
    device: Arc<Faulty>,
    waiting: VecDeque<(u64, Job)>,
    ready: OwnedFd,
}

impl Queue for Late {
    fn push(&mut self, token: u64, job: Job) -> Result<(), Job> {
        self.waiting.push_back((token, job));
        rustix::io::write(&self.ready, &1_u64.to_ne_bytes()).expect("a counter takes a one");
        Ok(())
    }
    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn reap(&mut self, _: Wait, done: &mut Vec<Done>) -> io::Result<()> {
        let stalls = &self.device.stalls;
        if stalls.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Ok(());
        }
        reset(&self.ready);
        let Some((token, mut job)) = self.waiting.pop_back() else { return Ok(()) };
        let result = match &mut job {
            Job::Read { into, part, at } => self.device.read_at(&mut into[part.clone()], *at),
            Job::Write { from, part, at } => self.device.write_at(&from[part.clone()], *at),
        };
        done.push(Done { token, job, result });
        if !self.waiting.is_empty() {
            rustix::io::write(&self.ready, &1_u64.to_ne_bytes()).expect("a counter takes a one");
        }
        Ok(())
    }
    fn under_way(&self) -> usize {
        self.waiting.len()
    }
    fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
