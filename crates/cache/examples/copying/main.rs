//! Measures the gain of batched copying for a mover over copying single items word by word, as ratios from one run.
//!
//! `cargo run --release -p nearfar-cache --example copying -- [rounds=200] [memory_mb=64] [copy=cpu] [nodes=NEAR/FAR]`.
//! Two caches of two tiers alternate; `nodes` binds the tiers to nodes (default: no binding). One cache prepares, copies
//! and publishes one item at a time by single words, the other in batches by `copy`. Each round fills the first tier,
//! then times the mover's step that frees its slots; the second tier has free space, so that all work is demotion.
//! Ratios are medians over rounds.

mod clock;

use std::io::{Error, Write, stdout};
use std::sync::Arc;

use nearfar_cache::copy::{Copier, Copying, Job, Outcome};
use nearfar_cache::{Cache, Config, Making};
use nearfar_kernel::mempolicy::Policy;
use nearfar_topology::{NodeSet, median};

/// Sizes of items: key, value and header.
const SIZES: [usize; 4] = [64, 512, 4 << 10, 64 << 10];
const BATCHES: [usize; 3] = [1, 4, 16];
const KEY: usize = 8;
const HEADER: usize = 8;

/// Copies word by word, without batches.
#[derive(Debug)]
struct Words;

impl Copier for Words {
    fn copy(&self, jobs: &[Job<'_>], outcomes: &mut Vec<Outcome>) {
        jobs.iter().for_each(Job::by_words);
        outcomes.clear();
        outcomes.resize(jobs.len(), Outcome::Done);
    }

    fn at_once(&self) -> usize {
        1
    }
}

/// Another copier, with this batch size.
#[derive(Debug)]
struct Batched(Arc<dyn Copier>, usize);

impl Copier for Batched {
    fn copy(&self, jobs: &[Job<'_>], outcomes: &mut Vec<Outcome>) {
        self.0.copy(jobs, outcomes);
    }

    fn at_once(&self) -> usize {
        self.1
    }
}

/// A cache, and the range of keys stored so far.
struct Side {
    cache: Cache,
    first: u64,
    next: u64,
}

impl Side {
    fn new(bytes: u64, nodes: &[Policy; 2], copier: Arc<dyn Copier>) -> Result<Self, Error> {
        let mut config = Config::of_bytes(bytes);
        config.tiers[0].policy = nodes[0].clone();
        let mut below = config.tiers[0].clone();
        (below.bytes, below.policy) = (2 * bytes, nodes[1].clone());
        config.tiers.push(below);
        (config.making, config.items) = (Making::Background, Some(4 * bytes / 64));
        let cache = Cache::with_copier(&config, copier).map_err(Error::other)?;
        Ok(Self { cache, first: 0, next: 0 })
    }

    fn demoted(&self) -> u64 {
        self.cache.counted().tiers[0].counts.demoted
    }

    /// Fills the first tier, and keeps at most `most` items in all; returns the nanoseconds per moved item.
    fn round(&mut self, value: &[u8], more: u64, most: u64) -> Result<f64, Error> {
        for _ in 0..more {
            self.cache.set(&self.next.to_le_bytes(), value).map_err(Error::other)?;
            self.next += 1;
        }
        while self.next - self.first > most {
            self.cache.delete(&self.first.to_le_bytes());
            self.first += 1;
        }
        let (before, began) = (self.demoted(), clock::now());
        self.cache.step();
        let took = began.elapsed();
        Ok(took.as_nanos() as f64 / (self.demoted() - before) as f64)
    }
}

fn bound(nodes: &str) -> Option<Policy> {
    NodeSet::parse_list(nodes).map(Policy::Bind)
}

fn main() -> Result<(), Error> {
    let (mut rounds, mut memory, mut copying) = (200_usize, 64_u64, Copying::Cpu);
    let mut nodes = [Policy::Default, Policy::Default];
    for argument in std::env::args().skip(1) {
        let set = argument.split_once('=').and_then(|(name, value)| {
            match name {
                "rounds" => rounds = value.parse().ok().filter(|rounds| *rounds > 0)?,
                "memory_mb" => memory = value.parse().ok()?,
                "copy" => copying = Copying::ALL.iter().find(|(name, _)| *name == value)?.1,
                "nodes" => {
                    let (near, far) = value.split_once('/')?;
                    nodes = [bound(near)?, bound(far)?];
                }
                _ => return None,
            }
            Some(())
        });
        set.ok_or_else(|| {
            Error::other(format!("{argument}: rounds=N, memory_mb=N, copy=NAME, nodes=NEAR/FAR"))
        })?;
    }
    let mut out = stdout().lock();
    writeln!(out, "item, bytes  batch  one by one, ns  batched, ns  ratio (quartiles)")?;
    for size in SIZES {
        for batch in BATCHES {
            let copier = copying.open().map_err(Error::other)?;
            let old = Side::new(memory << 20, &nodes, Arc::new(Words))?;
            let new = Side::new(memory << 20, &nodes, Arc::new(Batched(copier, batch)))?;
            let (mut sides, mut took) = ([old, new], [Vec::new(), Vec::new()]);
            let value = vec![7; size - HEADER - KEY];
            let slots = (memory << 20) / size as u64;
            // A twentieth of the slots is freed per round.
            let (more, most) = (slots / 25, slots + slots / 2);
            for round in 0..rounds + 60 {
                for (side, took) in sides.iter_mut().zip(&mut took) {
                    let one = side.round(&value, more, most)?;
                    if round >= 60 && one.is_finite() {
                        took.push(one);
                    }
                }
            }
            let mut ratios: Vec<f64> =
                took[0].iter().zip(&took[1]).map(|(old, new)| old / new).collect();
            let [old, new] = took.map(|took| median(took).unwrap_or(f64::NAN));
            ratios.sort_by(f64::total_cmp);
            let middle = median(ratios.iter().copied()).unwrap_or(f64::NAN);
            let quartiles = (ratios[ratios.len() / 4], ratios[ratios.len() * 3 / 4]);
            writeln!(
                out,
                "{size:>11}  {batch:>5}  {old:>14.0}  {new:>11.0}  {middle:>5.2} ({:.2} to {:.2})",
                quartiles.0, quartiles.1
            )?;
        }
    }
    Ok(())
}
