//! The lab's emulated PMU: lines counted by CPU and node, and sampled accesses, read through a port of the guest.
//!
//! It counts and samples accesses that miss all caches of the *modelled* machine (crate timing, `pmu.rs`, defines the
//! protocol of the port). A sample has a virtual and a physical address and no process. This module finds the process:
//! the one that has that frame at that address now. Samples of pages that have moved in between are counted as not
//! placed, as are accesses of the kernel itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nearfar_kernel::chase;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::pages;
use nearfar_lab::pmu::{Answer, Lines, PORT, Request, Sampled};
use nearfar_policy::ports::{
    Cost, Counts, Grain, Nature, Reading, Scope, Sees, Sensor, Targets, Unusable, Why,
};
use nearfar_policy::traffic::carrefour::Sampling;
use nearfar_policy::traffic::{PAGE, Process, Reads};
use nearfar_topology::{BasisPoints, Nanoseconds, NodeId};

use super::place::{Access, Placer};
use super::{Scene, not_started};
use nearfar_kernel::clock;

pub(crate) const NAME: &str = "lab";
const PORTS: &str = "sys/class/virtio-ports";
/// Sampling periods of dense and of sparse sampling.
const DENSE: u64 = 8192;
const SPARSE: u64 = 4 * DENSE;
/// Above this many samples a second, only every second one is taken, or every fourth, and so on: finding its process
/// costs some microseconds of CPU time each.
const SAMPLES_MOST: u64 = 2000;
const THINNEST: u64 = 1024;
/// Parameters of the self-test: its sampling period, the lines it accesses, and the most samples it keeps, because
/// other programs' accesses are sampled too.
const TEST_EVERY: u64 = 1024;
const TEST_LINES: usize = 1 << 19;
/// Time limit of an answer, and the interval of polling for more of it.
const PATIENCE: Nanoseconds = Nanoseconds(5_000_000_000);
const NAP: Duration = Duration::from_millis(1);
/// The most bytes of an answer.
const ANSWER_MAX: usize = 16 << 20;
/// Upper bound of the lines of any machine between two answers: 2^50 bytes. A higher count is an error.
const LINES_MAX: u64 = 1 << 44;
/// Addresses from here on are the kernel's.
const KERNEL: u64 = 1 << 63;

/// The port, open.
#[derive(Debug)]
struct Port {
    file: File,
    token: u64,
}

impl Port {
    fn open(fs: &dyn Fs) -> Result<Self, Unusable> {
        let absent = || {
            let found = format!("no port {PORT}: not a guest of the lab with timed memory");
            Unusable::new(Why::Absent, found)
        };
        let ports = fs.list(PORTS).ok().flatten().ok_or_else(absent)?;
        let named = |name: &str| {
            let said = fs.read(&format!("{PORTS}/{name}/name")).ok().flatten();
            said.is_some_and(|said| said.trim() == PORT)
        };
        let port = ports.into_iter().find(|port| named(&port.name)).ok_or_else(absent)?;
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(nonblocking);
        let file = options.open(format!("/dev/{}", port.name)).map_err(|error| {
            let found = format!("/dev/{}: {error}", port.name);
            match error.kind() {
                ErrorKind::PermissionDenied => {
                    Unusable::new(Why::Forbidden, found).but("sudo nearfar sense")
                }
                ErrorKind::ResourceBusy => {
                    Unusable::new(Why::Taken, found).but("stop the other nearfar that reads it")
                }
                _ => Unusable::new(Why::Failed, found),
            }
        })?;
        Ok(Self { file, token: chase::now().0 })
    }

    /// Sends a request, and waits for the answer.
    fn ask(&mut self, request: Request) -> Result<Answer, Unusable> {
        let failed = |what: &str| Unusable::new(Why::Failed, format!("the port {PORT} {what}"));
        self.token += 1;
        let line = request.line(self.token);
        (&self.file).write_all(line.as_bytes()).map_err(|error| failed(&error.to_string()))?;
        let end = format!("end {}\n", self.token);
        let begun = chase::now();
        let (mut said, mut part) = (Vec::new(), vec![0; 1 << 16]);
        while !said.ends_with(end.as_bytes()) {
            match (&self.file).read(&mut part) {
                Ok(length) if length > 0 => said.extend_from_slice(&part[..length]),
                Err(error)
                    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    return Err(failed(&error.to_string()));
                }
                // The port's other end is not open yet, or there is no more data yet.
                _ if chase::now().0.saturating_sub(begun.0) > PATIENCE.0 => {
                    return Err(failed("does not answer"));
                }
                _ => clock::sleep(NAP),
            }
            if said.len() > ANSWER_MAX {
                return Err(failed("answers without end"));
            }
        }
        let text = String::from_utf8_lossy(&said);
        Answer::parse(text.lines(), self.token).ok_or_else(|| failed("gives an invalid answer"))
    }
}

/// The sensor.
#[derive(Debug)]
pub(crate) struct Lab<'a> {
    scene: Scene<'a>,
    placer: Placer,
    nodes: Vec<NodeId>,
    at_work: Option<AtWork>,
    cost: Cost,
}

#[derive(Debug)]
struct AtWork {
    port: Port,
    targets: Targets,
    since: Nanoseconds,
    /// Sampling period: the requested one, and the thinning factor.
    every: u64,
    asked: u64,
    thinning: u64,
    before: Vec<Lines>,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(scene: Scene<'a>) -> Self {
        let (placer, nodes) = (Placer::new(&scene), scene.nodes());
        Self { scene, placer, nodes, at_work: None, cost: Cost::default() }
    }

    /// Finds the processes of the samples; returns the accesses, each with the node that served it.
    fn owned(
        &self,
        targets: &Targets,
        samples: &[Sampled],
        counts: &mut Counts,
    ) -> Vec<(Access, u16)> {
        let mut open: BTreeMap<u64, Vec<&Sampled>> = BTreeMap::new();
        for sample in samples.iter().filter(|sample| sample.virtual_address < KERNEL) {
            open.entry(sample.virtual_address / PAGE).or_default().push(sample);
        }
        let mut found = Vec::new();
        for process in self.processes(targets) {
            if open.is_empty() {
                break;
            }
            let numbers: Vec<u64> = open.keys().copied().collect();
            let frames = pages::frames(self.scene.fs, process, &numbers);
            for (number, frame) in numbers.iter().zip(frames) {
                let (Some(frame), Some(of)) = (frame, open.get_mut(number)) else { continue };
                of.retain(|sample| {
                    let is_its = sample.physical_address / PAGE == frame;
                    let access = Access {
                        process,
                        address: sample.virtual_address,
                        cpu: sample.cpu,
                        write: sample.write,
                    };
                    found.extend(is_its.then_some((access, sample.node)));
                    !is_its
                });
            }
            open.retain(|_, of| !of.is_empty());
        }
        if *targets == Targets::Machine {
            counts.unplaced += (samples.len() - found.len()) as u64;
        }
        found
    }

    /// Reduces lines counted for all programs to those of the processes with these samples, cell by cell.
    fn leave_theirs(
        &self,
        accesses: &mut [Vec<u64>],
        samples: &[Sampled],
        owned: &[(Access, u16)],
    ) {
        let count = self.nodes.len();
        let mut seen = vec![vec![(0_u64, 0_u64); count]; count];
        let place = |node: u16| self.nodes.iter().position(|here| here.0 == node);
        for sample in samples {
            if let (Some(row), Some(column)) = (self.placer.place(sample.cpu), place(sample.node)) {
                seen[row][column].1 += 1;
            }
        }
        for (access, node) in owned {
            if let (Some(row), Some(column)) = (self.placer.place(access.cpu), place(*node)) {
                seen[row][column].0 += 1;
            }
        }
        let cells = accesses.iter_mut().flatten().zip(seen.into_iter().flatten());
        cells.for_each(|(lines, (ours, all))| *lines = part(*lines, ours, all));
    }

    fn processes(&self, targets: &Targets) -> Vec<u32> {
        match targets {
            Targets::Processes(these) => these.iter().map(|process| process.0).collect(),
            Targets::Machine => {
                let listed = self.scene.fs.list("proc").ok().flatten().unwrap_or_default();
                listed.iter().filter_map(|entry| entry.name.parse().ok()).collect()
            }
        }
    }

    /// Checks that our own accesses to memory are counted, and some of them sampled.
    fn test(&self, port: &mut Port) -> Result<(), Unusable> {
        let before = port.ask(Request::Start { every: TEST_EVERY })?;
        let memory = touch();
        let after = port.ask(Request::Read)?;
        let counted = since(&before.lines, &after.lines).map(|(_, _, reads, _)| reads).sum::<u64>();
        let us = Targets::Processes(BTreeSet::from([Process(std::process::id())]));
        let ours = self.owned(&us, &after.samples, &mut Counts::default()).len() as u64;
        drop(memory);
        port.ask(Request::Stop)?;
        let (lines, fewest) = (TEST_LINES as u64, TEST_LINES as u64 / TEST_EVERY / 4);
        if counted < lines / 2 || ours < fewest {
            let found = format!(
                "of {lines} lines read to test it {counted} were counted, and {ours} samples found to be of this process"
            );
            return Err(Unusable::new(Why::Mute, found));
        }
        Ok(())
    }
}

impl AtWork {
    /// Sets the sampling period.
    fn take_one_in(&mut self, every: u64) -> Result<(), Unusable> {
        if every != self.every {
            self.port.ask(Request::Start { every })?;
            self.every = every;
        }
        Ok(())
    }
}

/// The share of `lines` that belongs to us, if `ours` of `all` samples do. The process of some samples is unknown, as
/// for pages that have moved since: nearly all counts as all.
fn part(lines: u64, ours: u64, all: u64) -> u64 {
    if ours * 10 >= all * 9 {
        return lines;
    }
    u64::try_from(u128::from(lines) * u128::from(ours) / u128::from(all.max(1))).unwrap_or(lines)
}

/// The new thinning factor, after this many samples within this time at the factor `times`.
fn thinner(times: u64, samples: u64, elapsed: Nanoseconds) -> u64 {
    let in_a_second = u128::from(samples) * 1_000_000_000 / u128::from(elapsed.0.max(1));
    if in_a_second > u128::from(SAMPLES_MOST) && times < THINNEST {
        times * 2
    } else if in_a_second < u128::from(SAMPLES_MOST / 4) && times > 1 {
        times / 2
    } else {
        times
    }
}

/// A buffer of this many lines, each written and then read.
fn touch() -> Vec<u64> {
    let mut memory = vec![0_u64; TEST_LINES * 8];
    memory.iter_mut().step_by(8).for_each(|word| *word = 1);
    std::hint::black_box(memory.iter().step_by(8).sum::<u64>());
    memory
}

/// Lines read and written between two answers, by CPU and node.
fn since<'a>(
    before: &'a [Lines],
    after: &'a [Lines],
) -> impl Iterator<Item = (u32, NodeId, u64, u64)> + 'a {
    after.iter().map(move |after| {
        let same = |before: &&Lines| (before.cpu, before.node) == (after.cpu, after.node);
        let (reads, writes) = before.iter().find(same).map_or((0, 0), |of| (of.reads, of.writes));
        let more = |after: u64, before: u64| after.saturating_sub(before).min(LINES_MAX);
        let (reads, writes) = (more(after.reads, reads), more(after.writes, writes));
        (after.cpu, NodeId(after.node), reads, writes)
    })
}

impl Sensor for Lab<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::Pages,
            writes: true,
            cpu: true,
            traffic: true,
            latency: false,
            scope: Scope::Processes,
            nature: Nature::Emulated,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        self.test(&mut Port::open(self.scene.fs)?)
    }

    fn start(&mut self, targets: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        if let Some(at_work) = &mut self.at_work {
            at_work.targets = targets.clone();
            return Ok(());
        }
        let mut port = Port::open(self.scene.fs)?;
        self.test(&mut port)?;
        let before = port.ask(Request::Start { every: DENSE })?.lines;
        let targets = targets.clone();
        self.cost = Cost::default();
        let (every, asked, thinning) = (DENSE, DENSE, 1);
        self.at_work = Some(AtWork { port, targets, since: now, every, asked, thinning, before });
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        let begun = chase::own_cpu();
        let Some(at_work) = &mut self.at_work else { return Err(not_started(NAME)) };
        let answer = at_work.port.ask(Request::Read)?;
        let elapsed = Nanoseconds(now.0.saturating_sub(at_work.since.0));
        at_work.since = now;
        let (targets, every) = (at_work.targets.clone(), at_work.every);
        let before = std::mem::replace(&mut at_work.before, answer.lines);
        let thinning = thinner(at_work.thinning, answer.samples.len() as u64, elapsed);
        at_work.thinning = thinning;
        at_work.take_one_in(at_work.asked * thinning)?;
        let Some(at_work) = &self.at_work else { return Err(not_started(NAME)) };
        let count = self.nodes.len();
        let mut accesses = vec![vec![0_u64; count]; count];
        let (mut reads, mut writes) = (0, 0);
        for (cpu, node, read, written) in since(&before, &at_work.before) {
            let place = self.nodes.iter().position(|here| *here == node);
            let (Some(row), Some(column)) = (self.placer.place(cpu), place) else { continue };
            accesses[row][column] += read + written;
            (reads, writes) = (reads + read, writes + written);
        }
        let served = (0..count).map(|node| Some(accesses.iter().map(|row| row[node]).sum::<u64>()));
        let served = served.collect();
        let mut counts = Counts { lost: answer.lost, ..Counts::default() };
        let owned = self.owned(&targets, &answer.samples, &mut counts);
        if targets != Targets::Machine {
            self.leave_theirs(&mut accesses, &answer.samples, &owned);
        }
        let owned: Vec<Access> = owned.into_iter().map(|(access, _)| access).collect();
        let samples = self.placer.samples(self.scene.fs, &targets, &owned, &mut counts);
        self.cost.cpu.0 += chase::own_cpu().0.saturating_sub(begun.0);
        Ok(Reading {
            elapsed,
            coverage: BasisPoints(10_000),
            accesses: Some(accesses),
            served,
            reads: Reads::Lines { reads, writes },
            samples,
            per_sample: Some(every),
            counts,
            ..Reading::default()
        })
    }

    fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Unusable> {
        let Some(at_work) = &mut self.at_work else { return Err(not_started(NAME)) };
        at_work.asked = if sampling == Sampling::Dense { DENSE } else { SPARSE };
        at_work.take_one_in(at_work.asked * at_work.thinning)
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        match self.at_work.take() {
            Some(mut at_work) => at_work.port.ask(Request::Stop).map(drop),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_difference_of_two_answers() {
        let lines = |cpu, node, reads, writes| Lines { cpu, node, reads, writes };
        let before = [lines(0, 0, 5, 1), lines(1, 2, 7, 7)];
        let after = [lines(1, 2, 10, 7), lines(0, 0, 4, 3), lines(3, 0, 2, 2)];
        let found: Vec<_> = since(&before, &after).collect();
        let (zero, two) = (NodeId(0), NodeId(2));
        // A counter that was reset counts as zero rather than as a huge number.
        assert_eq!(found, [(1, two, 3, 0), (0, zero, 0, 2), (3, zero, 2, 2)]);
    }

    #[test]
    fn own_lines_are_the_share_of_own_samples_and_over_nine_tenths_count_as_all() {
        assert_eq!([part(1000, 1, 4), part(1000, 0, 7), part(1000, 93, 100)], [250, 0, 1000]);
        assert_eq!(part(1000, 0, 0), 1000, "nothing is known");
    }

    #[test]
    fn the_sampling_period_follows_the_rate_of_samples() {
        let second = Nanoseconds(1_000_000_000);
        let mut times = 1;
        let mut seen = Vec::new();
        for samples in [20_000, 10_000, 5_000, 2_500, 1_250, 400, 0, 0, 0, 0] {
            times = thinner(times, samples, second);
            seen.push(times);
        }
        assert_eq!(seen, [2, 4, 8, 16, 16, 8, 4, 2, 1, 1]);
        assert_eq!(thinner(THINNEST, u64::MAX, Nanoseconds(0)), THINNEST);
    }

    #[test]
    fn the_largest_answer_of_counts_is_summed_without_overflow() {
        let most = Lines { cpu: 0, node: 0, reads: u64::MAX, writes: u64::MAX };
        // The most lines of an answer.
        let (after, sums) = (vec![most; 1 << 16], [0_u64; 2]);
        let sums = since(&[], &after).fold(sums, |sums, (_, _, reads, writes)| {
            [sums[0].checked_add(reads).unwrap(), sums[1].checked_add(writes).unwrap()]
        });
        let all = sums[0].checked_add(sums[1]).unwrap();
        assert!(all == (1 << 61), "{all}");
    }

    #[test]
    fn without_the_port_it_is_absent() {
        let fs = nearfar_kernel::fs::TreeFs(nearfar_topology::Tree::new());
        assert_eq!(Port::open(&fs).unwrap_err().why, Why::Absent);
    }
}
