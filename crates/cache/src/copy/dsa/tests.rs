//! The driver on the software queue: each job is either copied completely or known to be unfinished, under any failure.

mod doors;
mod software;

use proptest::prelude::*;

use super::discover::{Mode, WorkQueue};
use super::format::{Descriptor, Opcode, Status};
use super::queue::Counts;
use super::*;
use crate::arena::WORD;
use crate::copy::testkit::Memory;
use crate::evict::Eviction;
use crate::tests::{KB, tiers};
use crate::{Cache, Making};
use software::{Act, Device, Door, Script, always};

/// For a device that works while its user waits: an operation not completed by then never completes.
const CONFIG: QueueConfig =
    QueueConfig { retries_max: 40, spins: u32::MAX, patience: 600, failures_max: 8 };

/// Words of jobs; those of 256 and more go to the device.
const MIXED: [usize; 9] = [625, 1, 8, 2500, 0, 512, 513, 37, 1125];
const DEVICE: u64 = 8 * (625 + 2500 + 512 + 513 + 1125);

fn limits(node: Option<u32>) -> WorkQueue {
    let (size, threshold, batch_max, transfer_max) = (128, 127, 1024, 1 << 31);
    WorkQueue {
        name: "wq0.0".into(),
        mode: Mode::Shared,
        size,
        threshold,
        batch_max,
        transfer_max,
        node,
    }
}

fn queue(device: &Device, takes_batches: bool) -> Queue {
    Queue::new(Box::new(Door(device.clone(), takes_batches)), limits(None), CONFIG)
}

fn dsa(script: Script, takes_batches: bool) -> (Dsa, Device) {
    let device = Device::new(script);
    (Dsa::of(vec![queue(&device, takes_batches)]), device)
}

fn counts(dsa: &Dsa) -> Counts {
    dsa.0[0].1.lock().unwrap().counts
}

fn is_usable(dsa: &Dsa) -> bool {
    dsa.0[0].1.lock().unwrap().is_usable()
}

/// Asserts that all jobs are done and complete; returns the counters of the first queue.
fn assert_done(dsa: &Dsa, lengths: &[usize]) -> Counts {
    let memory = Memory::new(lengths);
    let outcomes = memory.copy(dsa);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
    memory.assert_copied(&outcomes);
    counts(dsa)
}

#[test]
fn a_batch_arrives_whole_by_one_descriptor_or_many() {
    for (takes_batches, descriptors) in [(true, 6), (false, 5)] {
        let (dsa, device) = dsa(always(Act::Run), takes_batches);
        let counts = assert_done(&dsa, &MIXED);
        assert_eq!((counts.device_bytes, counts.cpu_bytes), (DEVICE, 0));
        assert_eq!(device.seen(), descriptors);
    }
}

#[test]
fn more_jobs_than_a_queue_holds_go_one_group_after_another() {
    let device = Device::new(always(Act::Run));
    let limits = WorkQueue { mode: Mode::Dedicated, size: 4, ..limits(None) };
    let queue = Queue::new(Box::new(Door(device.clone(), false)), limits, CONFIG);
    assert_eq!(assert_done(&Dsa::of(vec![queue]), &[300; 100]).device_bytes, 100 * 300 * 8);
    assert_eq!(device.seen(), 100);
}

#[test]
fn jobs_above_the_transfer_limit_are_copied_by_the_cpu() {
    let device = Device::new(always(Act::Run));
    let limits = WorkQueue { transfer_max: 4096, ..limits(None) };
    let queue = Queue::new(Box::new(Door(device, true)), limits, CONFIG);
    let counts = assert_done(&Dsa::of(vec![queue]), &MIXED);
    assert_eq!((counts.device_bytes, counts.cpu_bytes), (4096, 0));
}

#[test]
fn for_any_error_status_of_a_descriptor_the_cpu_copies_the_job() {
    for status in (2..0x80).chain([0x83]) {
        for takes_batches in [true, false] {
            let counts = assert_done(&dsa(always(Act::Refuse(status)), takes_batches).0, &MIXED);
            assert_eq!((counts.cpu_bytes, counts.unfinished), (DEVICE, 0), "{status:#x}");
            assert_eq!(counts.faults + counts.failures, 5, "{status:#x}");
        }
    }
}

#[test]
fn for_any_batch_status_the_cpu_copies_the_remaining_jobs() {
    for status in 2..0x80 {
        let refuse = move |_: u64, one: &Descriptor| {
            if one.opcode() == Opcode::Batch as u8 { Act::Refuse(status) } else { Act::Run }
        };
        let (dsa, _) = dsa(Box::new(refuse), true);
        assert_eq!(assert_done(&dsa, &MIXED).cpu_bytes, DEVICE, "{status:#x}");
        let is_known = Status(status).is_refusal() || Status(status) == Status::BATCH_PAGE_FAULT;
        assert_eq!(is_usable(&dsa), is_known, "{status:#x}: records may come late");
    }
}

#[test]
fn after_a_page_fault_the_cpu_goes_on_where_the_device_stopped() {
    for after in [0, 8, 2992, 3200, u32::MAX] {
        for takes_batches in [true, false] {
            let counts = assert_done(&dsa(always(Act::Fault(after)), takes_batches).0, &[400, 400]);
            let moved = u64::from(after.min(3200)) * 2;
            assert_eq!((counts.faults, counts.device_bytes), (2, moved));
            assert_eq!(counts.cpu_bytes, 6400 - moved);
        }
    }
    let backwards = dsa(always(Act::FaultBackwards(1000)), true).0;
    assert_eq!(assert_done(&backwards, &[400]).cpu_bytes, 3200);
}

#[test]
fn the_cpu_completes_a_batch_that_faults_on_its_descriptor_list() {
    for after in 0..=5 {
        let fault = move |_: u64, one: &Descriptor| {
            if one.opcode() == Opcode::Batch as u8 { Act::Fault(after) } else { Act::Run }
        };
        let (dsa, _) = dsa(Box::new(fault), true);
        let counts = assert_done(&dsa, &[400; 5]);
        assert_eq!(counts.device_bytes, u64::from(after) * 3200);
        assert!(is_usable(&dsa));
    }
}

#[test]
fn a_full_queue_is_retried_before_the_cpu_copies() {
    let (dsa, device) = dsa(always(Act::Run), true);
    device.refuse(30);
    let counts = assert_done(&dsa, &MIXED);
    assert_eq!((counts.full, counts.cpu_bytes), (30, 0));
    device.refuse(u32::MAX);
    assert_eq!(assert_done(&dsa, &MIXED).cpu_bytes, DEVICE);
    assert!(is_usable(&dsa), "others may leave");
}

#[test]
fn a_queue_that_fails_repeatedly_is_disabled() {
    let (broken, device) = dsa(always(Act::Refuse(0x20)), false);
    (0..8).for_each(|_| assert!(is_usable(&broken) && assert_done(&broken, &[400]).full == 0));
    assert!(!is_usable(&broken));
    let seen = device.seen();
    assert_done(&broken, &MIXED);
    assert_eq!(device.seen(), seen, "the CPU copied it all");
    let (gone, device) = dsa(always(Act::Run), true);
    device.vanish();
    (0..8).for_each(|_| assert!(assert_done(&gone, &MIXED).refused > 0));
    assert!(!is_usable(&gone));
}

#[test]
fn a_batch_uses_the_queue_on_its_node_or_another_while_that_is_busy() {
    let devices = [0, 1].map(|node| (node, Device::new(always(Act::Run))));
    let queue = |(node, device): &(u32, Device)| {
        Queue::new(Box::new(Door(device.clone(), true)), limits(Some(*node)), CONFIG)
    };
    let dsa = Dsa::of(devices.iter().map(queue).collect());
    let seen = || devices.each_ref().map(|(_, device)| device.seen());
    assert_done(&dsa, &[400]);
    assert_eq!(seen(), [1, 0], "memory of any node");
    let on_node = Memory::new(&[400]).on_node(1);
    on_node.assert_copied(&on_node.copy(&dsa));
    assert_eq!(seen(), [1, 1]);
    let used = dsa.0[1].1.lock().unwrap();
    on_node.assert_copied(&on_node.copy(&dsa));
    assert_eq!(seen(), [2, 1]);
    let others = dsa.0[0].1.lock().unwrap();
    on_node.assert_copied(&on_node.copy(&dsa));
    drop((used, others));
    assert_eq!(seen(), [2, 1], "the CPU copied it");
}

/// `act` happens to the `nth` move.
fn once(act: Act, nth: u64) -> Script {
    let mut moves = 0;
    Box::new(move |_, one| {
        let is_move = one.opcode() == Opcode::Move as u8;
        moves += u64::from(is_move);
        if is_move && moves == nth + 1 { act } else { Act::Run }
    })
}

#[test]
fn a_drain_detects_lost_descriptors_and_the_queue_is_disabled() {
    for act in [Act::Lose, Act::Forget] {
        for takes_batches in [true, false] {
            let (dsa, _) = dsa(once(act, 2), takes_batches);
            let counts = assert_done(&dsa, &[400; 6]);
            assert_eq!((counts.device_bytes, counts.cpu_bytes), (5 * 3200, 3200));
            assert_eq!(counts.drains, u64::from(!takes_batches));
            assert!(!is_usable(&dsa), "its record may come late");
            assert_eq!(assert_done(&dsa, &MIXED), counts);
        }
    }
}

#[test]
fn a_target_of_a_hung_descriptor_is_unfinished_and_stays_mapped() {
    for takes_batches in [true, false] {
        let (dsa, device) = dsa(once(Act::Hang, 1), takes_batches);
        let memory = Memory::new(&[400; 4]);
        let outcomes = memory.copy(&dsa);
        // A batch stops at a hung descriptor, so that its later members hang, too.
        let is_hung = |at: usize| if takes_batches { at >= 1 } else { at == 1 };
        for (at, outcome) in outcomes.iter().enumerate() {
            assert_eq!(*outcome == Outcome::Unfinished, is_hung(at));
            assert_eq!(memory.is_untouched(at), is_hung(at), "the CPU keeps away from it");
        }
        memory.assert_copied(&outcomes);
        assert!(!is_usable(&dsa));
        assert_done(&dsa, &MIXED);
        drop((memory, dsa));
        // The memory is still mapped without an owner: a write elsewhere would end the process.
        device.release();
    }
}

#[test]
fn a_drain_that_is_refused_proves_nothing() {
    for status in [0x10, 0x20] {
        let script = move |_: u64, one: &Descriptor| match Opcode::of(one.opcode()) {
            Some(Opcode::Drain) => Act::Refuse(status),
            Some(Opcode::Move) => Act::Lose,
            _ => Act::Run,
        };
        let (dsa, _) = dsa(Box::new(script), true);
        let memory = Memory::new(&[400]);
        assert_eq!(memory.copy(&dsa), [Outcome::Unfinished]);
        assert!(memory.is_untouched(0));
    }
}

#[test]
fn items_migrated_by_dsa_stay_intact() {
    let (dsa, _) =
        dsa(Box::new(|nth, _| if nth % 7 == 3 { Act::Fault(1000) } else { Act::Run }), true);
    let dsa = std::sync::Arc::new(dsa);
    let config = tiers(&[512 * KB, 4096 * KB], Eviction::S3Fifo, Making::Inline);
    let cache = Cache::with_copier(&config, dsa.clone()).unwrap();
    let value = |n: u32| n.to_le_bytes().repeat(1000);
    (0..500_u32).for_each(|n| cache.set(&n.to_le_bytes(), &value(n)).unwrap());
    let demoted = cache.counted().tiers[0].counts.demoted;
    assert!(demoted > 300, "{demoted}");
    let mut out = Vec::new();
    for n in 0..500_u32 {
        out.clear();
        assert!(cache.get(&n.to_le_bytes(), &mut out) && out == value(n), "item {n}");
    }
    let counts = counts(&dsa);
    assert!(counts.device_bytes > counts.cpu_bytes && counts.faults > 0, "{counts:?}");
    assert!(counts.device_bytes + counts.cpu_bytes >= demoted * 4000, "{counts:?}");
}

#[test]
fn a_machine_without_a_work_queue_gets_setup_instructions() {
    let none = NoDsa { why: vec![] }.to_string();
    assert!(none.contains("no work queue") && none.contains("docs/cache-copy.md"), "{none}");
    let some = NoDsa { why: vec!["can't open it".into(), "nor it".into()] }.to_string();
    assert!(some.contains("can't open it; nor it"), "{some}");
}

/// An act selected by a number.
fn some_act(number: u64) -> Act {
    match number % 23 {
        0 => Act::Fault(u32::try_from(number % 5000).unwrap()),
        1 => Act::FaultBackwards(9),
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
    fn any_fault_leaves_each_job_complete_or_unfinished(
        lengths in prop::collection::vec(0_usize..750, 0..90),
        seed: u64,
        batch_max in 0_u32..40,
        size in 1_u32..40,
        full in 0_u32..60,
        takes_batches: bool,
    ) {
        let mut state = seed | 1;
        let script = move |_: u64, one: &Descriptor| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if one.opcode() == Opcode::Drain as u8 { Act::Run } else { some_act(state) }
        };
        let device = Device::new(Box::new(script));
        let limits = WorkQueue { batch_max, size, mode: Mode::Dedicated, ..limits(None) };
        let queue = Queue::new(Box::new(Door(device.clone(), takes_batches)), limits, CONFIG);
        let dsa = Dsa::of(vec![queue]);
        device.refuse(full);
        let memory = Memory::new(&lengths);
        let outcomes = memory.copy(&dsa);
        memory.assert_copied(&outcomes);
        // The device writes late: only to unfinished targets.
        device.release();
        memory.assert_copied(&outcomes);
        let bytes: usize = lengths.iter().filter(|words| **words >= 256).sum::<usize>() * WORD;
        let counts = counts(&dsa);
        prop_assert!(counts.device_bytes + counts.cpu_bytes <= bytes as u64);
        if counts.unfinished == 0 {
            prop_assert_eq!(counts.device_bytes + counts.cpu_bytes, bytes as u64);
        }
    }
}
