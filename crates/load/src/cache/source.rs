//! A worker's requests: generated, or its share of a trace that one thread reads for all.
//!
//! A trace's requests are assigned to workers by the hash of their key, so that those of a key stay in order. Batches
//! pass through channels of bounded length: a trace is never held in memory as a whole.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::unpack::unpacked;
use crate::random::Random;
use crate::requests::{Format, Layout, Request, Stream, Synthetic, Trace};
use anyhow::Context as _;

/// Requests per batch, and batches queued for a worker.
const BATCH: usize = 256;
const BATCHES: usize = 16;

/// Whether there was a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulled {
    /// There was.
    Ready,
    /// Not yet.
    Later,
    /// There will be none any more.
    End,
}

/// Source of a worker's requests.
#[derive(Debug)]
pub(crate) enum Source {
    /// Generated.
    Drawn(Stream),
    /// Stores of every `step`-th key, each once.
    Stores {
        /// The workload with the keys.
        workload: Arc<Synthetic>,
        /// The next key.
        next: u64,
        /// Distance between two keys.
        step: u64,
    },
    /// Read by another thread.
    Passed {
        /// Receiver of batches.
        batches: Receiver<Vec<Request>>,
        /// The rest of the current one, in reverse order.
        current: Vec<Request>,
    },
}

impl Source {
    /// Makes `request` the next one, if there is one.
    pub(crate) fn pull(&mut self, request: &mut Request) -> Pulled {
        match self {
            Self::Drawn(stream) => stream.next(request),
            Self::Stores { workload, next, step } => {
                if *next >= workload.parts().keys {
                    return Pulled::End;
                }
                workload.store(*next, request);
                *next += *step;
            }
            Self::Passed { batches, current } => {
                if current.is_empty() {
                    match batches.try_recv() {
                        Ok(batch) => *current = batch,
                        Err(TryRecvError::Empty) => return Pulled::Later,
                        Err(TryRecvError::Disconnected) => return Pulled::End,
                    }
                    current.reverse();
                }
                match current.pop() {
                    Some(next) => *request = next,
                    None => return Pulled::Later,
                }
            }
        }
        Pulled::Ready
    }
}

/// The sender that distributes a trace.
#[derive(Debug)]
pub(crate) struct Passing {
    workers: Vec<Option<SyncSender<Vec<Request>>>>,
}

/// One source per worker, and the sender that feeds them.
pub(crate) fn passing(workers: usize) -> (Passing, Vec<Source>) {
    let (senders, sources) = (0..workers)
        .map(|_| {
            let (sender, batches) = sync_channel(BATCHES);
            (Some(sender), Source::Passed { batches, current: Vec::new() })
        })
        .unzip();
    (Passing { workers: senders }, sources)
}

impl Passing {
    /// Reads the trace to its end, up to this many requests, or until no worker receives any more.
    pub(crate) fn read(mut self, file: &TraceFile, limit: u64) -> anyhow::Result<()> {
        let (mut trace, mut request) = (file.trace()?, Request::default());
        let mut batches = vec![Vec::with_capacity(BATCH); self.workers.len()];
        let named = || file.name();
        let mut left = limit;
        while left > 0 && trace.next(&mut request).with_context(named)? {
            left -= 1;
            let worker = self.worker(&request);
            batches[worker].push(std::mem::take(&mut request));
            if batches[worker].len() == BATCH {
                let full = std::mem::replace(&mut batches[worker], Vec::with_capacity(BATCH));
                if !self.pass(worker, full) {
                    return Ok(());
                }
            }
        }
        for (worker, rest) in batches.into_iter().enumerate() {
            self.pass(worker, rest);
        }
        Ok(())
    }

    /// The worker for a request.
    fn worker(&self, request: &Request) -> usize {
        // FNV-1a, whose low bits alone are poorly distributed.
        let hash = request.key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let at = Random::new(hash).below(self.workers.len() as u64);
        usize::try_from(at).unwrap_or(0)
    }

    /// Whether any worker still receives, this batch or others.
    fn pass(&mut self, worker: usize, batch: Vec<Request>) -> bool {
        let sender = &mut self.workers[worker];
        if sender.as_ref().is_some_and(|sender| sender.send(batch).is_err()) {
            *sender = None;
        }
        self.workers.iter().any(Option::is_some)
    }
}

type Opened = Trace<Box<dyn BufRead + Send>>;

/// A trace in a file, or at standard input (`-`).
pub struct TraceFile {
    path: PathBuf,
    layout: Layout,
    fill: bool,
    format: Format,
    /// As opened for its format: a pipe can't be opened again.
    opened: Mutex<Option<Opened>>,
}

impl TraceFile {
    /// Opens a trace, and finds its format. Without `fill` no read that misses stores.
    ///
    /// # Errors
    /// It can't be read, or its first line is of no known format.
    pub(crate) fn open(path: &Path, layout: &Layout, fill: bool) -> anyhow::Result<Self> {
        let trace = opened(path, layout, fill)?;
        let format = trace.format();
        let opened = Mutex::new(Some(trace));
        Ok(Self { path: path.to_owned(), layout: layout.clone(), fill, format, opened })
    }

    /// Its format.
    pub(crate) const fn format(&self) -> Format {
        self.format
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The trace from its beginning.
    fn trace(&self) -> anyhow::Result<Opened> {
        match self.opened.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(trace) => Ok(trace),
            None => opened(&self.path, &self.layout, self.fill),
        }
    }
}

impl fmt::Debug for TraceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, format, fill, .. } = self;
        write!(f, "TraceFile({}, {format:?}, fill: {fill})", path.display())
    }
}

fn opened(path: &Path, layout: &Layout, fill: bool) -> anyhow::Result<Opened> {
    let named = || path.display().to_string();
    let reader = if path == Path::new("-") {
        unpacked(io::stdin())
    } else {
        File::open(path).and_then(unpacked)
    };
    Trace::new(reader.with_context(named)?, layout, fill).with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{Op, Parts, Popularity, Ratios, Sizes};
    use std::fmt::Write as _;

    fn all(source: &mut Source) -> Vec<Request> {
        let (mut requests, mut request) = (Vec::new(), Request::default());
        loop {
            match source.pull(&mut request) {
                Pulled::Ready => requests.push(request.clone()),
                Pulled::Later => std::thread::yield_now(),
                Pulled::End => return requests,
            }
        }
    }

    #[test]
    fn a_trace_is_partitioned_by_key_and_keeps_the_order_of_each_key() {
        let mut text = String::from("key,op,size\n");
        for at in 0..4000 {
            writeln!(text, "k{},SET,{at}", at % 10).unwrap();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let (passing, mut sources) = passing(3);
        let shares: Vec<Vec<Request>> = std::thread::scope(|scope| {
            let trace = TraceFile::open(file.path(), &Layout::Recognised, true).unwrap();
            let reader = scope.spawn(move || passing.read(&trace, 3000));
            let workers: Vec<_> =
                sources.iter_mut().map(|source| scope.spawn(|| all(source))).collect();
            let shares = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            reader.join().unwrap().unwrap();
            shares
        });
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 3000);
        for key in 0..10 {
            let of = |share: &Vec<Request>| {
                let mine =
                    share.iter().filter(|request| request.key == format!("k{key}").as_bytes());
                mine.map(|request| request.value_bytes).collect::<Vec<_>>()
            };
            let mut with = shares.iter().map(of).filter(|sizes| !sizes.is_empty());
            let sizes = with.next().unwrap();
            assert!(sizes.len() == 300 && sizes.is_sorted() && with.next().is_none());
        }
    }

    #[test]
    fn a_reader_ends_without_receivers_and_names_an_invalid_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("key,op,size\n{}", "k,SET,1\n".repeat(10_000)))
            .unwrap();
        let (reader, sources) = passing(1);
        drop(sources);
        let trace = TraceFile::open(file.path(), &Layout::Recognised, true).unwrap();
        assert!(reader.read(&trace, u64::MAX).is_ok());
        std::fs::write(file.path(), "key,op,size\nk,SET,1\nk,SAT,1\n").unwrap();
        let (reader, mut sources) = passing(1);
        let trace = TraceFile::open(file.path(), &Layout::Recognised, true).unwrap();
        let error = format!("{:#}", reader.read(&trace, u64::MAX).unwrap_err());
        assert!(error.contains("line 3: operation \"SAT\""), "{error}");
        assert_eq!(all(&mut sources[0]), []);
        assert!(TraceFile::open(Path::new("/nowhere.csv"), &Layout::Recognised, true).is_err());
    }

    #[test]
    fn workers_together_preload_each_key_once() {
        let parts = Parts {
            keys: 10,
            popularity: Popularity::Uniform,
            key_bytes: Sizes::fixed(8),
            value_bytes: Sizes::fixed(1),
            ttl: None,
            ratios: Ratios { get: 1.0, ..Ratios::default() },
            fill: false,
        };
        let workload = Arc::new(Synthetic::new(parts, 1).unwrap());
        let stores = |next| Source::Stores { workload: Arc::clone(&workload), next, step: 3 };
        let mut keys: Vec<_> = (0..3)
            .flat_map(|worker| all(&mut stores(worker)))
            .map(|request| (request.op, request.key))
            .collect();
        keys.sort();
        keys.dedup();
        assert_eq!((keys.len(), keys[0].0), (10, Op::Set));
    }
}
