//! A stand-in for inference with a language model: the memory accesses, without the model.
//!
//! Each *instance* is a thread with weights of its own, in one buffer per layer, and a *context* (the keys and values
//! of attention) in blocks. For each token it frees the oldest block of its context and allocates and fills a new one,
//! as do servers with continuous batching and paged contexts, and reads all weights and all of the context once.
//! Weights are multiplied with the activations of `batch` sequences, a tile at a time, so that a batch reads weights
//! once and computes for each sequence. With [`Access::Lookup`] it follows a chain of dependent single values instead,
//! the access pattern of sparse models and embeddings: that is bound by latency and does not saturate memory.
//!
//! All memory comes from the global allocator, so a replacement of malloc decides its placement. Not here: nodes.

use std::sync::Barrier;
use std::thread;

use serde::Serialize;

use crate::random::Random;
use nearfar_kernel::clock::Stopwatch;

/// The `schema` of a [`Report`].
pub const SCHEMA: &str = "nearfar.inference/1";

/// Values per cache line, with separate sums.
const LANES: usize = 16;
/// Values that are multiplied for all of a batch before the next are read: 4 KiB, so they stay in the first-level
/// cache.
const TILE: usize = 1024;
/// Dependent single values read per token.
const LOOKUPS: usize = 20_000;

/// Access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// All weights and the context in order, for each token
    Stream,
    /// Single values, each address from the previous value
    Lookup,
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Threads with a model each.
    pub instances: usize,
    /// Weights of each, in bytes.
    pub weights_bytes: usize,
    /// Number of buffers of the weights.
    pub layers: usize,
    /// Context of each, in bytes.
    pub context_bytes: usize,
    /// Size of a context block, in bytes.
    pub block_bytes: usize,
    /// Sequences computed per pass over the weights.
    pub batch: usize,
    /// Access pattern.
    pub access: Access,
    /// Run time.
    pub seconds: f64,
    /// Part of the run time that is left out of rates.
    pub warm_up_s: f64,
    /// Length of a window of throughput.
    pub window_s: f64,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Its parameters.
    #[serde(flatten)]
    pub plan: Plan,
    /// Tokens of all instances, including the warm-up.
    pub tokens: u64,
    /// Tokens per second of all instances together, after the warm-up; a batch counts as one.
    pub tokens_per_s: f64,
    /// Bytes of weights and contexts read per second, after the warm-up.
    pub read_bytes_per_second: f64,
    /// Tokens per second of the slowest instance.
    pub slowest_tokens_per_s: f64,
    /// Throughput over time.
    pub windows: Vec<Window>,
    /// Result of the computation, so that it is not optimised away.
    pub sum: f64,
}

/// A time window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// End of the window, from the time at which all instances had their weights.
    pub end_s: f64,
    /// Tokens completed in it.
    pub tokens: u64,
}

/// A model with its context.
struct Instance {
    layers: Vec<Vec<f32>>,
    context: Vec<Vec<f32>>,
    oldest: usize,
    activations: Vec<[f32; LANES]>,
    sums: Vec<[f32; LANES]>,
    at: Random,
}

/// `count` values that differ a little, written one by one.
fn values(count: usize) -> Vec<f32> {
    const ROW: [f32; 8] = [0.5, -0.25, 0.125, 1.0, -0.5, 0.75, -1.0, 0.25];
    let mut values = Vec::with_capacity(count);
    values.extend(ROW.iter().cycle().take(count));
    values
}

/// Adds the products of values and activations to the sums, separately per lane.
fn multiply_add(values: &[f32], activations: &[f32; LANES], sums: &mut [f32; LANES]) {
    let mut lanes = *sums;
    for line in values.chunks_exact(LANES) {
        for ((sum, value), activation) in lanes.iter_mut().zip(line).zip(activations) {
            *sum += value * activation;
        }
    }
    *sums = lanes;
}

impl Instance {
    fn load(plan: &Plan, number: usize) -> Self {
        let of = |bytes: usize| values(bytes / size_of::<f32>());
        let blocks = (plan.context_bytes / plan.block_bytes).max(1);
        Self {
            layers: (0..plan.layers).map(|_| of(plan.weights_bytes / plan.layers)).collect(),
            context: (0..blocks).map(|_| of(plan.block_bytes)).collect(),
            oldest: 0,
            activations: vec![[0.5; LANES]; plan.batch],
            sums: vec![[0.0; LANES]; plan.batch],
            at: Random::new(number as u64),
        }
    }

    /// Computes one more token; returns the bytes read for it.
    fn token(&mut self, plan: &Plan) -> usize {
        // Freed before the next is allocated, as by servers without spare memory.
        self.context[self.oldest] = Vec::new();
        self.context[self.oldest] = values(plan.block_bytes / size_of::<f32>());
        self.oldest = (self.oldest + 1) % self.context.len();
        match plan.access {
            Access::Stream => self.stream(),
            Access::Lookup => self.look_up(),
        }
    }

    fn stream(&mut self) -> usize {
        let Self { layers, context, activations, sums, .. } = self;
        for tile in layers.iter().flat_map(|layer| layer.chunks(TILE)) {
            for (activations, sums) in activations.iter().zip(&mut *sums) {
                multiply_add(tile, activations, sums);
            }
        }
        // Each sequence of a batch has its own part of the context.
        if let (Some(activations), Some(sums)) = (activations.first(), sums.first_mut()) {
            context.iter().for_each(|block| multiply_add(block, activations, sums));
        }
        let read = layers.iter().chain(&*context).map(|buffer| size_of_val(buffer.as_slice()));
        read.sum()
    }

    fn look_up(&mut self) -> usize {
        let Self { layers, context, at, sums, .. } = self;
        let buffers = layers.len() + context.len();
        let mut sum = 0.0;
        let mut last = 0_u32;
        for _ in 0..LOOKUPS {
            let [which, place] = [at.bits() ^ u64::from(last), at.bits() ^ u64::from(last)];
            let below =
                |bits: u64, below: usize| usize::try_from(bits >> 33).unwrap_or(0) % below.max(1);
            let buffer = below(which, buffers);
            let buffer = layers.get(buffer).or_else(|| context.get(buffer - layers.len()));
            let value = buffer.and_then(|buffer| buffer.get(below(place, buffer.len())));
            let value = value.copied().unwrap_or_default();
            (sum, last) = (sum + value, value.to_bits());
        }
        sums[0][0] += sum;
        LOOKUPS * size_of::<f32>()
    }
}

/// Result of an instance: completion times of its tokens, and bytes read per token.
struct Done {
    tokens_s: Vec<f64>,
    read_bytes: usize,
    sum: f64,
}

impl Done {
    /// Tokens per second, from the first completed after the warm-up to the last.
    fn rate(&self, warm_up_s: f64) -> f64 {
        let mut counted = self.tokens_s.iter().copied().filter(|done| *done >= warm_up_s);
        let (first, count) = (counted.next(), counted.clone().count());
        let last = counted.next_back();
        #[expect(clippy::cast_precision_loss, reason = "counts of tokens")]
        let rate = first.zip(last).map_or(0.0, |(first, last)| count as f64 / (last - first));
        rate
    }
}

/// Allocates all instances, then runs them for the planned time.
#[must_use]
pub fn run(plan: &Plan) -> Report {
    let loaded = Barrier::new(plan.instances);
    let (plan, loaded) = (*plan, &loaded);
    let work = move |number: usize| {
        let mut instance = Instance::load(&plan, number);
        loaded.wait();
        let watch = Stopwatch::start();
        let (mut tokens_s, mut counted) = (Vec::with_capacity(1 << 12), 0);
        let read_bytes = loop {
            let read_bytes = instance.token(&plan);
            let now_s = watch.elapsed().as_secs_f64();
            tokens_s.push(now_s);
            counted += usize::from(now_s >= plan.warm_up_s);
            // A rate needs two.
            if now_s >= plan.seconds && counted >= 2 {
                break read_bytes;
            }
        };
        let sum = instance.sums.as_flattened().iter().copied().map(f64::from).sum();
        Done { tokens_s, read_bytes, sum }
    };
    let done: Vec<Done> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..plan.instances).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    report(&plan, &done)
}

fn report(plan: &Plan, done: &[Done]) -> Report {
    let rates: Vec<_> = done.iter().map(|done| done.rate(plan.warm_up_s)).collect();
    #[expect(clippy::cast_precision_loss, reason = "bytes of a token")]
    let read = rates.iter().zip(done).map(|(rate, done)| rate * done.read_bytes as f64);
    Report {
        schema: SCHEMA.into(),
        plan: *plan,
        tokens: done.iter().map(|done| done.tokens_s.len() as u64).sum(),
        tokens_per_s: rates.iter().sum(),
        read_bytes_per_second: read.sum(),
        slowest_tokens_per_s: rates.iter().copied().reduce(f64::min).unwrap_or(0.0),
        windows: windows(plan, done),
        sum: done.iter().map(|done| done.sum).sum(),
    }
}

/// Complete windows; tokens after the last one are left out.
fn windows(plan: &Plan, done: &[Done]) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut end_s = plan.window_s;
    while end_s <= plan.seconds + plan.window_s / 2.0 {
        let within = |at: &&f64| **at > end_s - plan.window_s && **at <= end_s;
        let tokens = done.iter().flat_map(|done| &done.tokens_s).filter(within).count();
        windows.push(Window { end_s, tokens: tokens as u64 });
        end_s += plan.window_s;
    }
    windows
}

/// The result as text.
#[must_use]
pub fn text(report: &Report) -> String {
    let Report { plan, tokens, tokens_per_s, read_bytes_per_second, slowest_tokens_per_s, .. } =
        report;
    let mib = |bytes: usize| bytes >> 20;
    format!(
        "{} instances with {} MiB of weights in {} layers and {} MiB of context, batches of {}\n\
         {tokens} tokens, {tokens_per_s:.1} a second, {:.2} GB/s read; the slowest instance {slowest_tokens_per_s:.1} a second\n",
        plan.instances,
        mib(plan.weights_bytes),
        plan.layers,
        mib(plan.context_bytes),
        plan.batch,
        read_bytes_per_second / 1e9
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            instances: 2,
            weights_bytes: 1 << 20,
            layers: 4,
            context_bytes: 1 << 19,
            block_bytes: 1 << 16,
            batch: 3,
            access: Access::Stream,
            seconds: 0.05,
            warm_up_s: 0.0,
            window_s: 0.01,
        }
    }

    #[test]
    fn a_token_reads_all_weights_and_all_of_the_context_and_renews_a_block() {
        let plan = plan();
        let mut instance = Instance::load(&plan, 0);
        assert_eq!((instance.layers.len(), instance.context.len()), (4, 8));
        for token in 1..=9 {
            assert_eq!(instance.token(&plan), (1 << 20) + (1 << 19));
            assert_eq!(instance.oldest, token % 8);
        }
        // Eight values with sum 0.875, twice per line, times one half.
        let values = f64::from(9 * (1 << 18));
        let of_weights: f64 = instance.sums[2].iter().copied().map(f64::from).sum();
        assert!((of_weights - values * 0.875 / 16.0).abs() < 1.0, "{of_weights}");
        let with_context: f64 = instance.sums[0].iter().copied().map(f64::from).sum();
        assert!((with_context / of_weights - 1.5).abs() < 1e-3, "{with_context}");
    }

    #[test]
    fn lookups_read_single_values_of_every_buffer() {
        let plan = Plan { access: Access::Lookup, ..plan() };
        let mut instance = Instance::load(&plan, 7);
        assert_eq!(instance.token(&plan), LOOKUPS * 4);
        assert!(instance.sums[0][0].abs() > 0.0);
    }

    #[test]
    fn rates_begin_with_the_first_token_after_the_warm_up() {
        let done = Done { tokens_s: vec![0.5, 1.0, 1.5, 2.0, 2.25], read_bytes: 100, sum: 0.0 };
        assert!((done.rate(0.9) - 3.0 / 1.25).abs() < 1e-9);
        assert!((done.rate(0.0) - 4.0 / 1.75).abs() < 1e-9);
        assert!(done.rate(2.2).abs() < 1e-9, "one token has no rate");
        let plan = Plan { seconds: 2.0, window_s: 1.0, ..plan() };
        let report = report(&plan, &[done]);
        let windows: Vec<_> = report.windows.iter().map(|window| window.tokens).collect();
        assert_eq!((windows, report.tokens), (vec![2, 2], 5));
    }

    #[test]
    fn every_instance_makes_tokens() {
        // On a busy machine an instance may have got hardly any time: then it gets more.
        let ran = |seconds| run(&Plan { seconds, ..plan() });
        let mut reports = [0.05, 0.5, 5.0, 30.0].into_iter().map(ran);
        let report = reports.find(|report| report.slowest_tokens_per_s > 0.0);
        let report = report.expect("each instance makes two tokens in half a minute");
        assert!(report.tokens >= 4, "{report:?}");
        assert!(text(&report).contains("2 instances with 1 MiB of weights in 4 layers"));
    }
}
