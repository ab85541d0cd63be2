//! Turns sampled addresses into samples of pages: the page, its node, and the requesting node.

use std::collections::BTreeMap;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::pages;
use nearfar_policy::ports::{Counts, Targets};
use nearfar_policy::traffic::{PAGE, Page, Process, Sample};

use super::Scene;

/// An access reported by a sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) process: u32,
    /// Virtual.
    pub(crate) address: u64,
    pub(crate) cpu: u32,
    pub(crate) write: bool,
}

/// Converts accesses to samples.
#[derive(Debug)]
pub(crate) struct Placer {
    /// The index of each CPU's node.
    places: BTreeMap<u32, usize>,
}

impl Placer {
    pub(crate) fn new(scene: &Scene<'_>) -> Self {
        Self { places: scene.places() }
    }

    /// The index of a CPU's node.
    pub(crate) fn place(&self, cpu: u32) -> Option<usize> {
        self.places.get(&cpu).copied()
    }

    /// Samples of these accesses, with the current node of each page. Accesses that can't be placed are counted.
    pub(crate) fn samples(
        &self,
        fs: &dyn Fs,
        targets: &Targets,
        accesses: &[Access],
        counts: &mut Counts,
    ) -> Vec<Sample> {
        let wanted = |access: &&Access| targets.has(Process(access.process));
        let mut by_process: BTreeMap<u32, BTreeMap<u64, Option<pages::Place>>> = BTreeMap::new();
        for access in accesses.iter().filter(wanted) {
            let pages = by_process.entry(access.process).or_default();
            pages.insert(access.address / PAGE, None);
        }
        for (process, pages) in &mut by_process {
            let numbers: Vec<u64> = pages.keys().copied().collect();
            let found = pages::places(fs, *process, &numbers);
            pages.values_mut().zip(found).for_each(|(place, found)| *place = found);
        }
        let mut samples = Vec::new();
        for access in accesses.iter().filter(wanted) {
            let number = access.address / PAGE;
            let place = by_process.get(&access.process).and_then(|pages| *pages.get(&number)?);
            let (Some(place), Some(cpu)) = (place, self.places.get(&access.cpu)) else {
                counts.unplaced += 1;
                continue;
            };
            let page = Page { process: Process(access.process), number };
            let (node, huge) = (place.node, place.huge);
            samples.push(Sample { page, node, huge, cpu: *cpu, write: access.write });
        }
        counts.seen += samples.len() as u64;
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::RootFs;

    #[test]
    fn own_accesses_are_located_and_others_omitted_or_counted() {
        let memory = vec![1_u8; 16 << 10];
        let address = memory.as_ptr().addr() as u64 + PAGE;
        let us = std::process::id();
        let access = |process, address, cpu| Access { process, address, cpu, write: true };
        let all =
            [access(us, address, 0), access(us, 0, 0), access(us, address, 9), access(1, 5, 0)];
        let placer = Placer { places: [(0, 3)].into() };
        let targets = Targets::Processes([Process(us)].into());
        let mut counts = Counts::default();
        let samples = placer.samples(&RootFs::live().unwrap(), &targets, &all, &mut counts);
        assert_eq!(samples.len(), 1, "{samples:?}");
        assert_eq!((samples[0].page.number, samples[0].cpu), (address / PAGE, 3));
        assert!(samples[0].write);
        assert_eq!((counts.seen, counts.unplaced), (1, 2), "not mapped, and a CPU of no node");
        assert_eq!(memory[0], 1);
    }
}
