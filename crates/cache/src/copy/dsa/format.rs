//! Descriptors and completion records, byte by byte; this module submits nothing.
//!
//! # A descriptor: 64 bytes, aligned to 64, little endian
//! | bytes | content |
//! |---|---|
//! | 0..4 | PASID (20 bits), and in bit 31 whether it is privileged; both filled in by ENQCMD, the queue or the kernel |
//! | 4..7 | flags (24 bits) |
//! | 7 | operation |
//! | 8..16 | address of the completion record, a multiple of 32 |
//! | 16..24 | source; for a batch the list of descriptors, a multiple of 64 |
//! | 24..32 | destination |
//! | 32..36 | bytes to move; for a batch the number of descriptors, at least 2 |
//! | 36..38 | interrupt handle; not used here |
//! | 38..64 | zero in all operations used here |
//!
//! Operations used: 0 no-op, 1 batch, 2 drain (completes when all earlier descriptors of the queue have), 3 move. Flags used:
//! `0x4` the completion address is valid, `0x8` a completion record is requested in any case. Without `0x2` (block on fault) a
//! page fault ends an operation; without `0x100` (cache control) the destination goes to memory.
//!
//! # A completion record: 32 bytes, aligned to 32, little endian
//! | bytes | content |
//! |---|---|
//! | 0 | status: 0 until the operation is complete; bit 7 marks a fault of a write |
//! | 1 | result: for an incomplete move, 1 if it ran from the end towards the beginning |
//! | 2..4 | details of a fault |
//! | 4..8 | bytes moved, if incomplete; for a batch the completed descriptors |
//! | 8..16 | the faulting address |
//! | 16..32 | unused by moves |
//!
//! Statuses: see [`Status::says`]. 1 is success; 3 a page fault without permission to block; 5 one or more descriptors
//! of a batch failed; 6 the list of a batch could not be read to its end; 16 and up: the descriptor is invalid, or the
//! hardware failed. Source: Linux, `include/uapi/linux/idxd.h`; Intel's architecture specification for DSA.

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 64;
/// The least number of descriptors in a batch.
pub(super) const BATCH_MIN: usize = 2;

const OPCODE_SHIFT: u32 = 56;
const FLAGS_SHIFT: u32 = 32;
const FLAGS_MASK: u64 = 0xff_ffff;

/// Operations used here, with the device's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Opcode {
    /// No operation, except for its completion record.
    Noop = 0,
    /// Processes a list of descriptors.
    Batch = 1,
    /// Waits for all earlier descriptors of the queue.
    Drain = 2,
    /// Copies bytes.
    Move = 3,
}

#[cfg(test)]
impl Opcode {
    /// The operation with this code; `None` for others.
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::Noop, Self::Batch, Self::Drain, Self::Move]
            .into_iter()
            .find(|one| *one as u8 == byte)
    }
}

/// Flags of a descriptor; they can be combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u32);

impl Flags {
    /// The completion address is valid.
    pub(super) const RECORD_VALID: Self = Self(0x4);
    /// A completion record is written even after success.
    pub(super) const RECORD_WANTED: Self = Self(0x8);

    /// The union of both.
    pub(super) fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }
}

#[cfg(test)]
impl Flags {
    /// Whether it contains all of `some`.
    pub(super) fn has(self, some: Self) -> bool {
        self.0 & some.0 == some.0
    }
}

/// A descriptor, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Descriptor {
    words: [u64; 8],
}

impl Descriptor {
    fn new(opcode: Opcode) -> Self {
        let mut words = [0; 8];
        words[0] = u64::from(opcode as u8) << OPCODE_SHIFT;
        Self { words }
    }

    /// A no-op.
    pub(super) fn noop() -> Self {
        Self::new(Opcode::Noop)
    }

    /// A drain: completes once all descriptors submitted before have.
    pub(super) fn drain() -> Self {
        Self::new(Opcode::Drain)
    }

    /// A batch of the `count` descriptors from address `list` on, processed in any order.
    pub(super) fn batch(list: u64, count: u32) -> Self {
        let mut descriptor = Self::new(Opcode::Batch);
        descriptor.words[2] = list;
        descriptor.words[4] = u64::from(count);
        descriptor
    }

    /// A copy of `length` bytes.
    pub(super) fn copy(source: u64, destination: u64, length: u32) -> Self {
        let mut descriptor = Self::new(Opcode::Move);
        (descriptor.words[2], descriptor.words[3]) = (source, destination);
        descriptor.words[4] = u64::from(length);
        descriptor
    }

    /// Requests a completion record at `address`, after success as well.
    pub(super) fn recorded_at(mut self, address: u64) -> Self {
        self.words[1] = address;
        self.with(Flags::RECORD_VALID.and(Flags::RECORD_WANTED))
    }

    /// Adds flags.
    pub(super) fn with(mut self, flags: Flags) -> Self {
        self.words[0] |= (u64::from(flags.0) & FLAGS_MASK) << FLAGS_SHIFT;
        self
    }

    /// Its eight words.
    pub(super) fn words(&self) -> [u64; 8] {
        self.words
    }

    /// Its bytes.
    pub(super) fn to_bytes(self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }
}

/// For the device's side of a queue, in tests.
#[cfg(test)]
impl Descriptor {
    /// From its eight words.
    pub(super) fn from_words(words: [u64; 8]) -> Self {
        Self { words }
    }

    /// From its bytes.
    pub(super) fn from_bytes(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self { words }
    }

    /// The code of its operation.
    pub(super) fn opcode(&self) -> u8 {
        self.words[0].to_le_bytes()[7]
    }

    /// Its flags.
    pub(super) fn flags(&self) -> Flags {
        let flags = (self.words[0] >> FLAGS_SHIFT) & FLAGS_MASK;
        Flags(u32::try_from(flags).unwrap_or_default())
    }

    /// The address of its completion record.
    pub(super) fn record_address(&self) -> u64 {
        self.words[1]
    }

    /// Source address: of bytes, or of descriptors.
    pub(super) fn source(&self) -> u64 {
        self.words[2]
    }

    /// Destination address.
    pub(super) fn destination(&self) -> u64 {
        self.words[3]
    }

    /// Size: bytes, or number of descriptors.
    pub(super) fn size(&self) -> u32 {
        let [a, b, c, d, ..] = self.words[4].to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Whether all bytes reserved in the operations used here are zero.
    pub(super) fn is_reserved_zero(&self) -> bool {
        self.words[4] >> 48 == 0 && self.words[5..].iter().all(|word| *word == 0)
    }
}

/// Status of a completed operation, without the bit for write faults. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) u8);

#[cfg(test)]
impl Status {
    /// Unknown or unsupported operation.
    pub(super) const BAD_OPCODE: Self = Self(0x10);
    /// Flags invalid for the operation.
    pub(super) const BAD_FLAGS: Self = Self(0x11);
    /// A reserved field is not zero.
    pub(super) const BAD_RESERVED: Self = Self(0x12);
    /// The transfer size is too large, or zero.
    pub(super) const BAD_SIZE: Self = Self(0x13);
    /// Too many descriptors, or fewer than two.
    pub(super) const BAD_COUNT: Self = Self(0x14);
    /// The list is not aligned to 64 bytes.
    pub(super) const BAD_LIST: Self = Self(0x18);
    /// One or more descriptors of the batch failed.
    pub(super) const BATCH_FAILED: Self = Self(0x05);
}

impl Status {
    /// Success.
    pub(super) const SUCCESS: Self = Self(0x01);
    /// Stopped by a page fault.
    pub(super) const PAGE_FAULT: Self = Self(0x03);
    /// The list of the batch could not be read to its end.
    pub(super) const BATCH_PAGE_FAULT: Self = Self(0x06);
    /// Decodes a record's first byte; `None` if the operation is not complete.
    pub(super) fn of(byte: u8) -> Option<Self> {
        let status = byte & 0x7f;
        (status != 0).then_some(Self(status))
    }

    /// Whether the descriptor was rejected as invalid, so that the operation did not start.
    pub(super) fn is_refusal(self) -> bool {
        (0x10..=0x1e).contains(&self.0)
    }

    /// Its description.
    pub(super) fn says(self) -> &'static str {
        match self.0 {
            0x01 => "done",
            0x02 => "done, the comparison was false",
            0x03 => "a page fault, and the device was not to wait",
            0x04 => "a page fault, and a response to it that was invalid",
            0x05 => "one or more descriptors of the batch failed",
            0x06 => "a page fault in the list of the batch",
            0x07 => "an offset in a delta record is not larger than the last",
            0x08 => "an offset in a delta record is out of range",
            0x09 => "data integrity fields differ",
            0x10 => "no such operation",
            0x11 => "invalid flags",
            0x12 => "a reserved field is not zero",
            0x13 => "the transfer size is out of range",
            0x14 => "the number of descriptors is out of range",
            0x15 => "the size of the delta record is out of range",
            0x16 => "buffers overlap",
            0x17 => "the destinations of a dual cast differ in bits 11:0",
            0x18 => "the list of descriptors is not aligned",
            0x19 => "invalid interrupt handle",
            0x1a => "a page fault at the completion address",
            0x1b => "the completion address is not aligned",
            0x1c => "an address is not aligned",
            0x1d => "privileged, and not allowed to be",
            0x1e => "the traffic class does not fit",
            0x1f => "a page fault while reading back",
            0x20 => "a hardware error",
            0x21 => "a hardware error while reading back",
            0x22 => "an address could not be translated",
            _ => "a status that is not known",
        }
    }
}

/// A completion record of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The status.
    pub(super) status: Status,
    /// The operation's own result.
    pub(super) result: u8,
    /// Bytes moved, or descriptors done.
    pub(super) completed: u32,
    /// The faulting address, if any.
    pub(super) fault: u64,
}

impl Record {
    /// Decodes the first two words; `None` if the operation is not complete.
    pub(super) fn from_words(first: u64, second: u64) -> Option<Self> {
        let [status, result, _, _, a, b, c, d] = first.to_le_bytes();
        let completed = u32::from_le_bytes([a, b, c, d]);
        Some(Self { status: Status::of(status)?, result, completed, fault: second })
    }
}

#[cfg(test)]
impl Record {
    /// Success.
    pub(super) const DONE: Self =
        Self { status: Status::SUCCESS, result: 0, completed: 0, fault: 0 };

    /// A failure without any work done.
    pub(super) fn failed(status: Status) -> Self {
        Self { status, ..Self::DONE }
    }

    /// The first two words.
    pub(super) fn to_words(self) -> [u64; 2] {
        let [a, b, c, d] = self.completed.to_le_bytes();
        [u64::from_le_bytes([self.status.0, self.result, 0, 0, a, b, c, d]), self.fault]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_move_descriptor_has_the_layout_of_the_device() {
        let bytes = Descriptor::copy(0x1122_3344_5566_7788, 0x99aa, 0x0102_0304)
            .recorded_at(0xabc0)
            .to_bytes();
        assert_eq!(bytes[..4], [0; 4], "the PASID is left to the hardware");
        assert_eq!(bytes[4..8], [0x0c, 0x00, 0x00, 0x03]);
        assert_eq!(bytes[8..16], 0xabc0_u64.to_le_bytes());
        assert_eq!(bytes[16..24], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(bytes[24..32], 0x99aa_u64.to_le_bytes());
        assert_eq!(bytes[32..36], [4, 3, 2, 1]);
        assert_eq!(bytes[36..], [0; 28]);
    }

    #[test]
    fn a_batch_points_to_its_list_and_a_drain_to_nothing() {
        let batch = Descriptor::batch(0x4000, 17).recorded_at(0x20);
        assert_eq!((batch.opcode(), batch.source(), batch.size()), (1, 0x4000, 17));
        assert!(batch.is_reserved_zero());
        assert_eq!(Descriptor::drain().to_bytes()[7], 2);
        assert_eq!(Descriptor::noop(), Descriptor::default());
        assert_eq!(size_of::<Descriptor>(), DESCRIPTOR_BYTES);
        assert_eq!(align_of::<Descriptor>(), DESCRIPTOR_BYTES);
    }

    #[test]
    fn a_record_is_complete_when_its_status_without_bit_seven_is_nonzero() {
        assert_eq!(Record::from_words(0xffff_ffff_ffff_ff00, 1), None);
        assert_eq!(Record::from_words(0x80, 1), None);
        let record = Record::from_words(0x0000_1000_0000_0183, 0xdead_0000).unwrap();
        let expected =
            Record { status: Status::PAGE_FAULT, result: 1, completed: 4096, fault: 0xdead_0000 };
        assert_eq!(record, expected);
    }

    #[test]
    fn each_status_has_a_distinct_description() {
        let known = (1..=9).chain(0x10..=0x22).map(|status| Status(status).says());
        let mut said: Vec<&str> = known.collect();
        said.push(Status(0x7f).says());
        let all = said.len();
        said.sort_unstable();
        said.dedup();
        assert_eq!(said.len(), all);
    }

    proptest! {
        #[test]
        fn words_and_bytes_are_the_same_descriptor(words: [u64; 8]) {
            let descriptor = Descriptor::from_words(words);
            prop_assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()), descriptor);
            prop_assert_eq!(descriptor.words(), words);
        }

        #[test]
        fn a_completion_record_round_trips_through_words(status in 1_u8..0x80, result: u8, completed: u32, fault: u64) {
            let record = Record { status: Status(status), result, completed, fault };
            let [first, second] = record.to_words();
            prop_assert_eq!(Record::from_words(first, second), Some(record));
        }
    }
}
