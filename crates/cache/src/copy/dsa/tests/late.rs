//! Devices that come back late or never: who writes a destination, and when it can be used again.

use super::*;
use crate::copy::Place;

/// What hangs is let go when a drain is handed over.
#[derive(Debug)]
struct Releasing(crate::copy::software::SoftwareQueue, SoftwareDevice);

#[expect(unsafe_code, reason = "descriptors are passed on")]
impl Submit for Releasing {
    // SAFETY: (of the callers) as the trait says.
    unsafe fn submit(&mut self, some: &[format::Descriptor]) -> Result<usize, SubmitError> {
        if some.iter().any(|one| one.opcode() == Opcode::Drain as u8) {
            self.1.release();
        }
        // SAFETY: the caller keeps the same promise.
        unsafe { self.0.submit(some) }
    }
    fn takes_batches(&self) -> bool {
        true
    }
    fn idle(&mut self) {
        self.0.idle();
    }
}

/// The `nth` move has this happen to it.
fn once(act: Act, nth: u64) -> Script {
    let mut moves = 0;
    Box::new(move |_, one| {
        let is_move = one.opcode() == Opcode::Move as u8;
        moves += u64::from(is_move);
        if is_move && moves == nth + 1 { act } else { Act::Run }
    })
}

fn settled(dsa: &mut Dsa) -> Vec<Place> {
    let mut places = Vec::new();
    dsa.settled(&mut places);
    places
}

#[test]
fn a_descriptor_that_was_lost_is_found_out_by_a_drain_and_the_cpu_does_it() {
    for take in [batches, plain] {
        let device = device(once(Act::Lose, 2));
        let counts = assert_done(&mut take(&device, ON_CALL), &[3000; 6]);
        assert_eq!((counts.done, counts.unknown, counts.cpu_bytes), (5, 1, 3000));
        assert_eq!(counts.leaked, 1, "its record may come late");
    }
}

#[test]
fn a_record_that_was_lost_costs_a_second_copy_and_no_more() {
    for take in [batches, plain] {
        let device = device(once(Act::Forget, 2));
        let counts = assert_done(&mut take(&device, ON_CALL), &[3000; 6]);
        assert_eq!((counts.unknown, counts.cpu_bytes, counts.leaked), (1, 3000, 1));
    }
    let forget = |_: u64, one: &format::Descriptor| {
        if one.opcode() == Opcode::Batch as u8 { Act::Forget } else { Act::Run }
    };
    let counts = assert_done(&mut batches(&device(Box::new(forget)), ON_CALL), &[3000; 6]);
    assert_eq!((counts.done, counts.cpu_bytes), (6, 0), "members have records of their own");
    assert_eq!((counts.drains, counts.leaked), (1, 1));
}

#[test]
fn a_device_that_is_only_slow_is_waited_for_while_its_queue_drains() {
    let device = device(once(Act::Hang, 1));
    let door = Releasing(device.queue(Pace::OnCall), device.clone());
    let queue = Queue::new(Box::new(door), device.limits(None), ON_CALL);
    let counts = assert_done(&mut Dsa::new(vec![queue], Cpu::default()), &[3000; 4]);
    assert_eq!((counts.drains, counts.unfinished, counts.cpu_bytes), (1, 0, 0));
}

#[test]
fn what_hangs_is_given_up_written_by_the_device_alone_and_usable_once_it_let_go() {
    for take in [batches, plain] {
        let device = device(once(Act::Hang, 1));
        let mut dsa = take(&device, ON_CALL);
        let mut memory = Memory::new(&[3000; 4]);
        let outcomes = memory.copy(&mut dsa);
        // A batch goes on after what hangs, so what is behind it there hangs too.
        let unfinished = Outcome::Failed(Failure::Unfinished);
        assert_eq!((outcomes[0], outcomes[1]), (Outcome::Done, unfinished));
        memory.assert_copied(&outcomes);
        assert!(memory.is_untouched(1), "the CPU has kept away from it");
        assert!(settled(&mut dsa).is_empty());
        assert!(!dsa.is_usable());
        let seen = device.seen();
        assert_done(&mut dsa, &MIXED);
        assert_eq!(device.seen(), seen, "it gets nothing more");
        device.release();
        while device.step() {}
        assert!(memory.is_copied(1), "written late");
        memory.assert_copied(&outcomes);
        let places = settled(&mut dsa);
        let expected: Vec<Place> = memory.jobs().iter().map(crate::copy::Job::place).collect();
        assert!(
            places.contains(&expected[1]) && places.iter().all(|place| expected.contains(place))
        );
        assert_eq!(places.len(), outcomes.iter().filter(|one| **one == unfinished).count());
        assert!(settled(&mut dsa).is_empty(), "named once");
        assert!(dsa.is_usable());
        assert_done(&mut dsa, &MIXED);
        assert!(device.seen() > seen);
    }
}

#[test]
fn a_job_in_pieces_is_settled_as_a_whole() {
    let config = SoftwareConfig { transfer_max: 1000, ..SoftwareConfig::default() };
    let device =
        SoftwareDevice::new(config, Box::new(|nth, _| if nth < 2 { Act::Hang } else { Act::Run }));
    let mut dsa = plain(&device, ON_CALL);
    let mut memory = Memory::new(&[3500, 800]);
    let outcomes = memory.copy(&mut dsa);
    assert_eq!(outcomes, [Outcome::Failed(Failure::Unfinished), Outcome::Done]);
    device.release();
    while device.step() {}
    assert_eq!(settled(&mut dsa), [memory.jobs()[0].place()]);
}

#[test]
fn a_drain_that_is_refused_proves_nothing() {
    for status in [0x10, 0x20] {
        let mut moves = once(Act::Hang, 0);
        let script = move |nth: u64, one: &format::Descriptor| {
            if one.opcode() == Opcode::Drain as u8 { Act::Refuse(status) } else { moves(nth, one) }
        };
        let device = device(Box::new(script));
        // What hangs holds the drain up; one that jumps the queue is answered wrongly.
        let door = Jumping(device.queue(Pace::OnCall));
        let queue = Queue::new(Box::new(door), device.limits(None), ON_CALL);
        let mut dsa = Dsa::new(vec![queue], Cpu::default());
        let mut memory = Memory::new(&[3000]);
        assert_eq!(memory.copy(&mut dsa), [Outcome::Failed(Failure::Unfinished)]);
        assert!(memory.is_untouched(0));
        device.release();
        assert_eq!(settled(&mut dsa).len(), 1);
    }
}

/// Drains are taken for invalid batches, which nothing holds up.
#[derive(Debug)]
struct Jumping(crate::copy::software::SoftwareQueue);

#[expect(unsafe_code, reason = "descriptors are passed on")]
impl Submit for Jumping {
    // SAFETY: (of the callers) as the trait says.
    unsafe fn submit(&mut self, some: &[format::Descriptor]) -> Result<usize, SubmitError> {
        let jump = |one: &format::Descriptor| match Opcode::of(one.opcode()) {
            Some(Opcode::Drain) => {
                format::Descriptor::batch(0, 0).recorded_at(one.record_address())
            }
            _ => *one,
        };
        let some: Vec<format::Descriptor> = some.iter().map(jump).collect();
        // SAFETY: the caller keeps the same promise; a batch of none is refused.
        unsafe { self.0.submit(&some) }
    }
    fn takes_batches(&self) -> bool {
        true
    }
    fn idle(&mut self) {
        self.0.idle();
    }
}

#[test]
fn a_batch_that_was_started_is_waited_for_when_the_queue_is_dropped() {
    let device = device(always(Act::Run));
    let mut memory = Memory::new(&[3000; 5]);
    let mut dsa = batches(&device, ON_CALL);
    dsa.start(&memory.jobs());
    assert!(!dsa.poll(), "nobody has worked yet");
    drop(dsa);
    memory.assert_copied(&[Outcome::Done; 5]);
    // One that hangs is not waited for without end, and what the device still writes to stays.
    let device = SoftwareDevice::new(SoftwareConfig::default(), always(Act::Hang));
    let mut dsa = batches(&device, ON_CALL);
    dsa.start(&memory.jobs());
    drop(dsa);
    device.release();
    while device.step() {}
    memory.assert_copied(&[Outcome::Done; 5]);
}
