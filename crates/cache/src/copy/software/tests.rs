//! The software queue by itself: what keeps to the format and what does not, and in which order things are done.
#![expect(unsafe_code, reason = "descriptors are handed over")]

use super::*;
use crate::copy::dsa::Submit;
use crate::copy::dsa::format::{Descriptor, Flags, Record, Status};
use crate::copy::dsa::line::{self, Line, lines};

const HERE: u64 = 0;

/// Memory that descriptors of a test are about: records, a list, and bytes.
struct Bench {
    device: SoftwareDevice,
    records: Box<[Line]>,
    list: Box<[Line]>,
    bytes: Vec<u8>,
}

impl Bench {
    fn new(config: SoftwareConfig) -> Self {
        let device = SoftwareDevice::new(config, always(Act::Run));
        Self { device, records: lines(8), list: lines(8), bytes: (0..=255).collect() }
    }

    fn record_address(&self, at: usize) -> u64 {
        line::address(&self.records) + 64 * at as u64
    }

    /// A move of `length` bytes from one index to another, with a record.
    fn copy(&mut self, from: usize, to: usize, length: u32, record: usize) -> Descriptor {
        let base = self.bytes.as_mut_ptr().expose_provenance() as u64;
        let descriptor = Descriptor::copy(base + from as u64, base + to as u64, length);
        descriptor.recorded_at(self.record_address(record))
    }

    /// Has a list done as a batch; its status and how many were done.
    fn batch(&mut self, list: &[Descriptor]) -> (u8, u32) {
        list.iter().zip(&self.list).for_each(|(one, line)| line.put(one));
        let count = u32::try_from(list.len()).unwrap();
        let batch = Descriptor::batch(line::address(&self.list), count);
        let record = self.run(batch.recorded_at(self.record_address(0))).unwrap();
        (record.status.0, record.completed)
    }

    /// Has a descriptor done; its record is the first.
    fn run(&mut self, descriptor: Descriptor) -> Option<Record> {
        self.records.iter().for_each(Line::clear);
        let mut queue = self.device.queue(Pace::Elsewhere);
        // SAFETY: all it reads and writes is of this bench, which outlives the step below, or is refused.
        assert_eq!(unsafe { queue.submit(&[descriptor]) }.unwrap(), 1);
        assert!(self.device.step());
        self.records[0].record()
    }

    fn status(&mut self, descriptor: Descriptor) -> u8 {
        self.run(descriptor).unwrap().status.0
    }

    fn status_at(&self, record: usize) -> Option<u8> {
        self.records[record].record().map(|record| record.status.0)
    }
}

#[test]
fn what_does_not_keep_to_the_format_is_refused_with_the_status_for_it() {
    let config = SoftwareConfig { batch_max: 4, transfer_max: 100, ..SoftwareConfig::default() };
    let mut bench = Bench::new(config);
    let good = bench.copy(0, 128, 100, 0);
    assert_eq!(bench.status(good), 1);
    assert_eq!(bench.bytes[128..228], (0..100).collect::<Vec<u8>>());
    let other = |at: usize, bits: u64| {
        let mut words = good.words();
        words[at] ^= bits;
        Descriptor::from_words(words)
    };
    assert_eq!(bench.status(other(0, 4 << 56)), Status::BAD_OPCODE.0);
    assert_eq!(bench.status(other(0, 0x80 << 32)), Status::BAD_FLAGS.0);
    assert_eq!(bench.status(other(7, 1)), Status::BAD_RESERVED.0);
    assert_eq!(bench.status(other(4, 1)), Status::BAD_SIZE.0, "101 bytes");
    assert_eq!(bench.status(other(4, 100)), Status::BAD_SIZE.0, "no bytes");
    let record = bench.record_address(0);
    for count in [0, 1, 5] {
        let batch = Descriptor::batch(HERE, count).recorded_at(record);
        assert_eq!(bench.status(batch), Status::BAD_COUNT.0);
    }
    let batch = Descriptor::batch(32, 2).recorded_at(record);
    assert_eq!(bench.status(batch), Status::BAD_LIST.0);
}

#[test]
fn a_record_comes_only_where_and_when_it_was_asked_for() {
    let mut bench = Bench::new(SoftwareConfig::default());
    let record = bench.record_address(0);
    assert_eq!(bench.run(Descriptor::noop().recorded_at(record)), Some(Record::DONE));
    assert_eq!(bench.run(Descriptor::noop().recorded_at(record + 16)), None, "not aligned");
    let mut words = Descriptor::noop().with(Flags::RECORD_VALID).words();
    words[1] = record;
    assert_eq!(bench.run(Descriptor::from_words(words)), None, "all went well");
    words[0] |= 9 << 56;
    assert_eq!(bench.run(Descriptor::from_words(words)).unwrap().status, Status::BAD_OPCODE);
}

#[test]
fn a_batch_tells_of_its_members_and_takes_neither_batches_nor_drains() {
    let mut bench = Bench::new(SoftwareConfig::default());
    let good = bench.copy(0, 200, 50, 1);
    let empty = bench.copy(0, 200, 0, 2);
    let record = bench.record_address(3);
    assert_eq!(bench.batch(&[good, Descriptor::noop().recorded_at(record)]), (1, 2));
    assert_eq!((bench.status_at(1), bench.status_at(3)), (Some(1), Some(1)));
    assert_eq!(bench.batch(&[good, empty]), (Status::BATCH_FAILED.0, 2));
    assert_eq!((bench.status_at(1), bench.status_at(2)), (Some(1), Some(0x13)));
    for nested in [Descriptor::drain(), Descriptor::batch(HERE, 2)] {
        assert_eq!(bench.batch(&[good, nested.recorded_at(record)]).0, Status::BATCH_FAILED.0);
        assert_eq!(bench.status_at(3), Some(Status::BAD_OPCODE.0));
    }
}

#[test]
fn order_is_free_but_for_fences() {
    let config = SoftwareConfig { order: Order::Reversed, ..SoftwareConfig::default() };
    let mut bench = Bench::new(config);
    // Byte 0 goes to 100 and from there to 101: that works only if the first is first.
    let (first, second) = (bench.copy(0, 100, 1, 1), bench.copy(100, 101, 1, 2));
    assert_eq!(bench.batch(&[first, second]).0, 1);
    assert_eq!(bench.bytes[101], 100, "the second came first");
    assert_eq!(bench.batch(&[first, second.with(Flags::FENCE)]).0, 1);
    assert_eq!(bench.bytes[101], 0);
}

#[test]
fn a_drain_waits_for_what_came_before_and_what_comes_after_for_it() {
    let mut bench = Bench::new(SoftwareConfig { depth: 3, ..SoftwareConfig::default() });
    let hang = SoftwareDevice::new(
        SoftwareConfig { depth: 3, ..SoftwareConfig::default() },
        Box::new(|nth, _| if nth == 0 { Act::Hang } else { Act::Run }),
    );
    bench.device = hang.clone();
    let record = |at| bench.record_address(at);
    let some = [
        Descriptor::noop().recorded_at(record(1)),
        Descriptor::drain().recorded_at(record(2)),
        Descriptor::noop().recorded_at(record(3)),
        Descriptor::noop().recorded_at(record(4)),
    ];
    let mut queue = hang.queue(Pace::Elsewhere);
    // SAFETY: all it writes is records of this bench, which outlives the steps below.
    assert_eq!(unsafe { queue.submit(&some) }.unwrap(), 3, "it holds no more");
    while hang.step() {}
    let statuses = |bench: &Bench| [1, 2, 3].map(|at| bench.status_at(at));
    assert_eq!(statuses(&bench), [None; 3]);
    hang.release();
    while hang.step() {}
    assert_eq!(statuses(&bench), [Some(1); 3]);
}
