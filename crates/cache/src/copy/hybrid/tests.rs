//! The hybrid over the software queue: that every job is whole whoever has it, what is learnt, and what is left out.

use std::cell::Cell;

use super::*;
use crate::copy::dsa::{Dsa, Queue, QueueConfig};
use crate::copy::software::{Act, Pace, Script, SoftwareConfig, SoftwareDevice, Worker, always};
use crate::copy::testkit::Memory;

/// Each look at it takes so many nanoseconds.
struct Ticks(Cell<u64>, u64);

impl Clock for Ticks {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + self.1);
        self.0.get()
    }
}

type Tested = Hybrid<Dsa, Ticks>;

fn hybrid(device: &SoftwareDevice, pace: Pace) -> Tested {
    let patience = if pace == Pace::OnCall { 600 } else { 1 << 24 };
    let config = QueueConfig { patience, spins: 600, retries_max: 40, ..QueueConfig::default() };
    let queue = Queue::new(Box::new(device.queue(pace)), device.limits(None), config);
    let (dsa, clock) = (Dsa::new(vec![queue], Cpu::default()), Ticks(Cell::new(0), 1000));
    Hybrid::new(dsa, Cpu::default(), clock, SplitConfig::default(), Tuner::default())
}

fn device(script: Script) -> SoftwareDevice {
    SoftwareDevice::new(SoftwareConfig::default(), script)
}

const MIXED: [usize; 8] = [100, 5000, 64 << 10, 0, 2000, 3000, 200_000, 1];

fn copy(hybrid: &mut Tested) -> Vec<Outcome> {
    let mut memory = Memory::shifted(&MIXED, 9, 3);
    let outcomes = memory.copy(hybrid);
    memory.assert_copied(&outcomes);
    outcomes
}

#[test]
fn both_work_on_a_batch_the_small_ones_being_the_cpus() {
    let device = device(always(Act::Run));
    let _worker = Worker::start(&device);
    let mut hybrid = hybrid(&device, Pace::Elsewhere);
    for _ in 0..50 {
        assert!(copy(&mut hybrid).iter().all(|outcome| *outcome == Outcome::Done));
    }
    let HybridCounts { batches, left_out, device_bytes, cpu_bytes, sampled } = hybrid.counts();
    assert_eq!((batches, left_out), (50, 0));
    assert_eq!(device_bytes + cpu_bytes, 50 * MIXED.iter().sum::<usize>() as u64);
    assert!(device_bytes > 0 && cpu_bytes >= 50 * 2101 && sampled > 0);
}

#[test]
fn both_are_timed_by_the_clock_it_was_given() {
    let device = device(always(Act::Run));
    let mut hybrid = hybrid(&device, Pace::OnCall);
    copy(&mut hybrid);
    let HybridCounts { device_bytes, cpu_bytes, sampled, .. } = hybrid.counts();
    let Rates { floor_ns, device: rate, cpu } = hybrid.tuner().rates(device_bytes + cpu_bytes);
    // It looks at the clock when the device begins, when the CPU does, when it ends, and when the device has.
    assert_eq!((sampled, floor_ns, cpu), (1, 3000, cpu_bytes * 1_000_000));
    assert_eq!(rate, device_bytes * 1_000_000_000 / (3000 - 3000 / 16 * 15));
}

#[test]
fn batches_with_page_faults_are_done_and_left_out_of_the_tuning() {
    for act in [Act::Fault { after: 70 }, Act::Refuse(0x20), Act::Lose] {
        let device = device(always(act));
        let mut hybrid = hybrid(&device, Pace::OnCall);
        let before = hybrid.tuner().rates(270_000);
        let outcomes = copy(&mut hybrid);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done), "{act:?}");
        assert_eq!(hybrid.tuner().rates(270_000), before, "{act:?}");
        assert_eq!((hybrid.counts().left_out, hybrid.counts().sampled), (1, 0), "{act:?}");
    }
}

#[test]
fn a_job_the_device_did_not_come_back_with_is_failed_though_the_cpu_did_its_part() {
    let device = device(always(Act::Hang));
    let mut hybrid = hybrid(&device, Pace::OnCall);
    let mut memory = Memory::new(&[1 << 20, 100]);
    let outcomes = memory.copy(&mut hybrid);
    assert_eq!(outcomes, [Outcome::Failed(Failure::Unfinished), Outcome::Done]);
    memory.assert_copied(&outcomes);
    let counts = hybrid.counts();
    assert!(counts.device_bytes > 0 && counts.cpu_bytes > 100, "it was cut");
    // Until it is settled, the CPU does all.
    copy(&mut hybrid);
    assert_eq!(hybrid.counts().batches, counts.batches);
    device.release();
    while device.step() {}
    let mut places = Vec::new();
    hybrid.settled(&mut places);
    assert_eq!(places, [memory.jobs()[0].place()]);
    assert!(memory.is_copied(0));
}

#[test]
fn a_job_whose_places_overlap_is_refused_whoever_would_have_had_it() {
    let device = device(always(Act::Run));
    let mut hybrid = hybrid(&device, Pace::OnCall);
    for item in 0..2 {
        let mut memory = Memory::new(&[100_000, 100]);
        memory.overlap(item, 64);
        let outcomes = memory.copy(&mut hybrid);
        assert_eq!(outcomes[item], Outcome::Failed(Failure::Overlap));
        assert_eq!(outcomes[1 - item], Outcome::Done);
        memory.assert_copied(&outcomes);
    }
}
