//! The driver against the software queue: what is done, and that each thing that goes wrong ends with every job known and whole.

mod doors;
mod late;
pub(in crate::copy) mod machine;

use proptest::prelude::*;

use super::format::{Opcode, Status};
use super::queue::{OnFault, Target};
use super::*;
use crate::copy::cpu::{Cpu, CpuConfig};
use crate::copy::software::{
    Act, Order, Pace, Script, SoftwareConfig, SoftwareDevice, Worker, always,
};
use crate::copy::testkit::Memory;
use crate::copy::{Copier, Failure, Lanes, Outcome, Overlap};

/// For a device that is worked by whoever waits: what has not come back then never does.
const ON_CALL: QueueConfig = QueueConfig {
    in_flight_max: 16,
    group_max: 32,
    retries_max: 40,
    spins: u32::MAX,
    patience: 600,
    failures_max: 8,
    target: Target::Memory,
    on_fault: OnFault::Stop,
    cpu: CpuConfig { stream_from: 1 << 10, wide_from: 4 << 10, lanes: Lanes::Avx512 },
};
/// For one that a thread works for, which may have to wait for a CPU.
const THREADED: QueueConfig = QueueConfig { spins: 64, patience: 1 << 24, ..ON_CALL };

const MIXED: [usize; 9] = [5000, 1, 64, 20_000, 0, 4096, 4097, 300, 9000];

/// The software queue as one that takes no batches, as by `write()`.
#[derive(Debug)]
struct Plain(crate::copy::software::SoftwareQueue);

#[expect(unsafe_code, reason = "descriptors are passed on")]
impl Submit for Plain {
    // SAFETY: (of the callers) as the trait says.
    unsafe fn submit(&mut self, some: &[format::Descriptor]) -> Result<usize, SubmitError> {
        // SAFETY: the caller keeps the same promise.
        unsafe { self.0.submit(some) }
    }
    fn takes_batches(&self) -> bool {
        false
    }
    fn idle(&mut self) {
        self.0.idle();
    }
}

fn device(script: Script) -> SoftwareDevice {
    SoftwareDevice::new(SoftwareConfig::default(), script)
}

fn batches(device: &SoftwareDevice, config: QueueConfig) -> Dsa {
    let queue = Queue::new(Box::new(device.queue(Pace::OnCall)), device.limits(None), config);
    Dsa::new(vec![queue], Cpu::default())
}

fn plain(device: &SoftwareDevice, config: QueueConfig) -> Dsa {
    let door = Plain(device.queue(Pace::OnCall));
    Dsa::new(vec![Queue::new(Box::new(door), device.limits(None), config)], Cpu::default())
}

fn counts(dsa: &Dsa) -> Counts {
    dsa.counts().next().unwrap()
}

/// All is done and whole; what the queue counted.
fn assert_done(dsa: &mut Dsa, lengths: &[usize]) -> Counts {
    let mut memory = Memory::shifted(lengths, 5, 11);
    let outcomes = memory.copy(dsa);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
    memory.assert_copied(&outcomes);
    counts(dsa)
}

fn bytes(lengths: &[usize]) -> u64 {
    lengths.iter().map(|length| *length as u64).sum()
}

#[test]
fn a_batch_arrives_whole_by_one_descriptor_or_many() {
    for dsa in [
        &mut batches(&device(always(Act::Run)), ON_CALL),
        &mut plain(&device(always(Act::Run)), ON_CALL),
    ] {
        for _ in 0..3 {
            assert_done(dsa, &MIXED);
        }
        let counts = counts(dsa);
        assert_eq!((counts.done, counts.device_bytes), (24, 3 * bytes(&MIXED)));
        assert_eq!((counts.cpu_bytes, counts.drains, counts.leaked), (0, 0, 0));
    }
}

#[test]
fn more_pieces_than_the_queue_holds_go_one_after_another_without_its_ever_being_full() {
    let config =
        SoftwareConfig { depth: 3, batch_max: 4, transfer_max: 1000, ..SoftwareConfig::default() };
    for take in [batches, plain] {
        let device = SoftwareDevice::new(config, always(Act::Run));
        let counts = assert_done(&mut take(&device, ON_CALL), &MIXED);
        assert_eq!((counts.full, counts.cpu_bytes), (0, 0));
        assert_eq!(
            counts.done,
            MIXED.iter().map(|length| length.div_ceil(1000) as u64).sum::<u64>()
        );
    }
}

#[test]
fn order_does_not_matter_and_a_thread_may_work() {
    for order in [Order::InTurn, Order::Reversed, Order::Shuffled(7)] {
        let config = SoftwareConfig { order, ..SoftwareConfig::default() };
        for take in [batches, plain] {
            let device = SoftwareDevice::new(config, always(Act::Run));
            let _worker = Worker::start(&device);
            let counts = assert_done(&mut take(&device, THREADED), &[3000; 100]);
            assert_eq!(counts.device_bytes, 300_000);
        }
    }
}

#[test]
fn whatever_status_a_descriptor_comes_back_with_the_cpu_does_it() {
    for status in (2..0x80).chain([0x83]) {
        for take in [batches, plain] {
            let device = device(always(Act::Refuse(status)));
            let counts = assert_done(&mut take(&device, ON_CALL), &MIXED);
            assert_eq!(counts.cpu_bytes, bytes(&MIXED), "{status:#x}");
            assert_eq!(counts.faults + counts.failures, 8, "{status:#x}");
        }
    }
}

#[test]
fn whatever_status_a_batch_comes_back_with_what_it_did_not_do_the_cpu_does() {
    for status in 2..0x80 {
        let refuse = move |_: u64, one: &format::Descriptor| {
            if one.opcode() == Opcode::Batch as u8 { Act::Refuse(status) } else { Act::Run }
        };
        let counts = assert_done(&mut batches(&device(Box::new(refuse)), ON_CALL), &MIXED);
        assert_eq!((counts.cpu_bytes, counts.unknown), (bytes(&MIXED), 8), "{status:#x}");
        let is_over = Status(status).is_refusal() || Status(status) == Status::BATCH_PAGE_FAULT;
        assert_eq!(counts.leaked, u64::from(!is_over), "{status:#x}");
    }
}

#[test]
fn after_a_page_fault_the_cpu_goes_on_where_the_device_stopped() {
    for after in [0, 1, 63, 64, 2999, 3000, u32::MAX] {
        for take in [batches, plain] {
            let device = device(always(Act::Fault { after }));
            let counts = assert_done(&mut take(&device, ON_CALL), &[3000, 3000]);
            let moved = u64::from(after.min(3000)) * 2;
            assert_eq!((counts.faults, counts.device_bytes), (2, moved));
            assert_eq!(counts.cpu_bytes, 6000 - moved);
        }
    }
    let backwards = device(always(Act::FaultBackwards { after: 1000 }));
    assert_eq!(assert_done(&mut batches(&backwards, ON_CALL), &[3000]).cpu_bytes, 3000);
}

#[test]
fn a_device_told_to_wait_for_faults_does_so_where_the_queue_allows_it() {
    let device = device(always(Act::Fault { after: 10 }));
    let config = QueueConfig { on_fault: OnFault::Wait, target: Target::Cache, ..ON_CALL };
    assert_eq!(assert_done(&mut batches(&device, config), &[3000]).faults, 0);
    let limits = Limits { block_on_fault: false, ..device.limits(None) };
    let queue = Queue::new(Box::new(device.queue(Pace::OnCall)), limits, config);
    assert_eq!(assert_done(&mut Dsa::new(vec![queue], Cpu::default()), &[3000]).faults, 1);
}

#[test]
fn a_batch_whose_list_ends_early_is_done_in_part_and_the_cpu_does_the_rest() {
    for after in 0..=8 {
        let fault = move |_: u64, one: &format::Descriptor| {
            if one.opcode() == Opcode::Batch as u8 { Act::Fault { after } } else { Act::Run }
        };
        let counts = assert_done(&mut batches(&device(Box::new(fault)), ON_CALL), &MIXED);
        assert_eq!(counts.done, u64::from(after));
        assert_eq!((counts.unknown, counts.leaked), (8 - u64::from(after), 0));
    }
}

#[test]
fn a_batch_of_which_some_fail_is_done_but_for_these() {
    let every_third = |nth: u64, _: &format::Descriptor| match nth % 3 {
        1 => Act::Refuse(0x13),
        2 => Act::Fault { after: 100 },
        _ => Act::Run,
    };
    let counts = assert_done(&mut batches(&device(Box::new(every_third)), ON_CALL), &[3000; 30]);
    assert_eq!((counts.done, counts.failures, counts.faults), (10, 10, 10));
}

#[test]
fn a_full_queue_is_tried_again_and_one_that_stays_full_is_left_to_others() {
    let device = device(always(Act::Run));
    let mut dsa = batches(&device, ON_CALL);
    device.refuse(30);
    let counts = assert_done(&mut dsa, &MIXED);
    assert_eq!((counts.full, counts.crowded, counts.cpu_bytes), (30, 0, 0));
    device.refuse(u32::MAX);
    let counts = assert_done(&mut dsa, &MIXED);
    assert_eq!((counts.crowded, counts.cpu_bytes), (1, bytes(&MIXED)));
    assert!(dsa.is_usable(), "others may leave");
}

#[test]
fn a_queue_that_fails_again_and_again_is_not_used_any_more() {
    let broken = device(always(Act::Refuse(0x20)));
    let mut dsa = plain(&broken, QueueConfig { group_max: 1, ..ON_CALL });
    assert_done(&mut dsa, &[3000; 40]);
    assert!(!dsa.is_usable());
    let seen = broken.seen();
    assert_done(&mut dsa, &MIXED);
    assert_eq!(broken.seen(), seen, "the CPU did it all");
    let gone = device(always(Act::Run));
    let mut dsa = batches(&gone, ON_CALL);
    assert_done(&mut dsa, &MIXED);
    gone.vanish();
    for _ in 0..ON_CALL.failures_max {
        assert_done(&mut dsa, &MIXED);
    }
    assert!(!dsa.is_usable());
}

#[test]
fn jobs_go_to_the_device_on_their_node_and_without_queues_the_cpu_copies() {
    let devices = [0, 1].map(|node| (node, device(always(Act::Run))));
    let queue = |(node, device): &(u32, SoftwareDevice)| {
        Queue::new(Box::new(device.queue(Pace::OnCall)), device.limits(Some(*node)), ON_CALL)
    };
    let mut dsa = Dsa::new(devices.iter().map(queue).collect(), Cpu::default());
    let mut memory = Memory::new(&[4000; 10]).on_node(1);
    let outcomes = memory.copy(&mut dsa);
    memory.assert_copied(&outcomes);
    let done: Vec<u64> = dsa.counts().map(|counts| counts.done).collect();
    assert_eq!(done, [0, 10]);
    let mut memory = Memory::new(&[4000; 10]);
    let outcomes = memory.copy(&mut dsa);
    memory.assert_copied(&outcomes);
    let done: Vec<u64> = dsa.counts().map(|counts| counts.done).collect();
    assert_eq!(done, [5, 15], "by bytes where the node is not known");
    let mut none = Dsa::new(vec![], Cpu::default());
    assert!(!none.is_usable());
    let mut memory = Memory::new(&MIXED);
    let outcomes = memory.copy(&mut none);
    memory.assert_copied(&outcomes);
}

#[test]
fn a_job_whose_places_overlap_is_refused_and_never_given_to_the_device() {
    let device = device(always(Act::Run));
    let mut memory = Memory::new(&[400, 300]);
    memory.overlap(1, 10);
    let outcomes = memory.copy(&mut batches(&device, ON_CALL));
    assert_eq!(outcomes, [Outcome::Done, Outcome::Failed(Failure::Overlap)]);
    memory.assert_copied(&outcomes);
    assert_eq!(device.seen(), 1);
}

/// What may happen to a descriptor, by a number.
fn some_act(number: u64) -> Act {
    match number % 23 {
        0 => Act::Fault { after: u32::try_from(number % 5000).unwrap() },
        1 => Act::FaultBackwards { after: 9 },
        2 => Act::Refuse(0x10 + u8::try_from(number % 0x13).unwrap()),
        3 => Act::Forget,
        4 => Act::Lose,
        5 if number.is_multiple_of(5) => Act::Hang,
        _ => Act::Run,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn whatever_goes_wrong_each_job_is_whole_or_failed_and_settled_once_the_device_lets_go(
        lengths in prop::collection::vec(0_usize..6000, 0..90),
        seed: u64,
        depth in 1_usize..40,
        batch_max in 0_u32..40,
        transfer_max in 200_u32..9000,
        in_flight_max in 0_usize..20,
        full in 0_u32..60,
        is_plain: bool,
    ) {
        let mut state = seed | 1;
        let script = move |_: u64, one: &format::Descriptor| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if one.opcode() == Opcode::Drain as u8 { Act::Run } else { some_act(state) }
        };
        let order = Order::Shuffled(seed);
        let config = SoftwareConfig { depth, batch_max, transfer_max, order };
        let device = SoftwareDevice::new(config, Box::new(script));
        let config = QueueConfig { in_flight_max, ..ON_CALL };
        let mut dsa = if is_plain { plain(&device, config) } else { batches(&device, config) };
        device.refuse(full);
        let mut memory = Memory::new(&lengths);
        let outcomes = memory.copy(&mut dsa);
        memory.assert_copied(&outcomes);
        let given_up = |item: usize| outcomes[item] == Outcome::Failed(Failure::Unfinished);
        let expected: Vec<usize> = (0..lengths.len()).filter(|item| given_up(*item)).collect();
        // The device writes late: nothing but what was given up.
        let mut places = Vec::new();
        for _ in 0..400 {
            device.release();
            while device.step() {}
            dsa.settled(&mut places);
        }
        memory.assert_copied(&outcomes);
        let jobs = memory.jobs();
        let known = |place: &crate::copy::Place| jobs.iter().position(|job| job.place() == *place);
        let mut settled: Vec<usize> = places.iter().filter_map(known).collect();
        settled.sort_unstable();
        prop_assert_eq!(settled, expected);
    }
}
