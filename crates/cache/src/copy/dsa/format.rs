//! Descriptors and completion records, byte by byte; nothing is sent anywhere from here.
//!
//! # A descriptor: 64 bytes, on a multiple of 64, little endian
//! | bytes | what |
//! |---|---|
//! | 0..4 | PASID (20 bits), and in bit 31 whether it is privileged; both filled in by ENQCMD, the queue or the kernel |
//! | 4..7 | flags (24 bits) |
//! | 7 | operation |
//! | 8..16 | where the completion record goes, a multiple of 32 |
//! | 16..24 | source; of a batch the list of descriptors, a multiple of 64 |
//! | 24..32 | destination |
//! | 32..36 | bytes to move; of a batch the number of descriptors, at least 2 |
//! | 36..38 | interrupt handle; not used here |
//! | 38..64 | zero in all operations used here |
//!
//! Operations used: 0 nothing, 1 batch, 2 drain (done when all is done that was in the queue before it), 3 move. Flags used:
//! `0x1` fence (in a batch: what is before is done first), `0x2` block on fault, `0x4` the completion address is valid, `0x8`
//! a completion record is wanted whatever happens, `0x100` the destination goes to the last-level cache.
//!
//! # A completion record: 32 bytes, on a multiple of 32, little endian
//! | bytes | what |
//! |---|---|
//! | 0 | status: 0 until the operation is over; bit 7 says of a fault that it was a write's |
//! | 1 | result: of a move that stopped, 1 if it went from the end towards the beginning |
//! | 2..4 | more about a fault |
//! | 4..8 | bytes moved, if it stopped; of a batch the descriptors done |
//! | 8..16 | the address that faulted |
//! | 16..32 | nothing that a move has |
//!
//! Statuses: see [`Status::says`]. 1 is done; 3 a page fault where the device was not told to wait for it; 5 one or more
//! descriptors of a batch failed; 6 the list of a batch could not be read to its end; 16 and up: the descriptor is invalid,
//! or the hardware failed. Source: Linux, `include/uapi/linux/idxd.h`; Intel's architecture specification for DSA.

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 64;
/// The fewest descriptors a batch has.
pub const BATCH_MIN: usize = 2;

const OPCODE_SHIFT: u32 = 56;
const FLAGS_SHIFT: u32 = 32;
const FLAGS_MASK: u64 = 0xff_ffff;

/// Operations that are used here; the byte is the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Does nothing, and says so in its completion record.
    Noop = 0,
    /// Has a list of descriptors done.
    Batch = 1,
    /// Waits for what was in the queue before.
    Drain = 2,
    /// Copies bytes.
    Move = 3,
}

impl Opcode {
    /// The operation of a byte, if it is one of these.
    #[must_use]
    pub fn of(byte: u8) -> Option<Self> {
        [Self::Noop, Self::Batch, Self::Drain, Self::Move]
            .into_iter()
            .find(|one| *one as u8 == byte)
    }
}

/// Flags of a descriptor; they are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// What comes before in the batch is done first.
    pub const FENCE: Self = Self(0x1);
    /// The device waits for a fault to be resolved instead of giving up.
    pub const BLOCK_ON_FAULT: Self = Self(0x2);
    /// The completion address counts.
    pub const RECORD_VALID: Self = Self(0x4);
    /// A completion record is written even if all went well.
    pub const RECORD_WANTED: Self = Self(0x8);
    /// The destination goes to the last-level cache, not to memory.
    pub const TO_CACHE: Self = Self(0x100);

    /// Both.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Whether all of `some` are among these.
    #[must_use]
    pub fn has(self, some: Self) -> bool {
        self.0 & some.0 == some.0
    }
}

/// A descriptor, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Descriptor {
    words: [u64; 8],
}

impl Descriptor {
    fn new(opcode: Opcode) -> Self {
        let mut words = [0; 8];
        words[0] = u64::from(opcode as u8) << OPCODE_SHIFT;
        Self { words }
    }

    /// Nothing.
    #[must_use]
    pub fn noop() -> Self {
        Self::new(Opcode::Noop)
    }

    /// Over when all is that was handed to the queue before.
    #[must_use]
    pub fn drain() -> Self {
        Self::new(Opcode::Drain)
    }

    /// The `count` descriptors from address `list` on, in any order.
    #[must_use]
    pub fn batch(list: u64, count: u32) -> Self {
        let mut descriptor = Self::new(Opcode::Batch);
        descriptor.words[2] = list;
        descriptor.words[4] = u64::from(count);
        descriptor
    }

    /// `length` bytes from one address to another.
    #[must_use]
    pub fn copy(source: u64, destination: u64, length: u32) -> Self {
        let mut descriptor = Self::new(Opcode::Move);
        (descriptor.words[2], descriptor.words[3]) = (source, destination);
        descriptor.words[4] = u64::from(length);
        descriptor
    }

    /// Has a completion record written to an address, whatever happens.
    #[must_use]
    pub fn recorded_at(mut self, address: u64) -> Self {
        self.words[1] = address;
        self.with(Flags::RECORD_VALID.and(Flags::RECORD_WANTED))
    }

    /// Adds flags.
    #[must_use]
    pub fn with(mut self, flags: Flags) -> Self {
        self.words[0] |= (u64::from(flags.0) & FLAGS_MASK) << FLAGS_SHIFT;
        self
    }

    /// From its eight words.
    #[must_use]
    pub fn from_words(words: [u64; 8]) -> Self {
        Self { words }
    }

    /// Its eight words.
    #[must_use]
    pub fn words(&self) -> [u64; 8] {
        self.words
    }

    /// From its bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self { words }
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// The operation's byte.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.words[0].to_le_bytes()[7]
    }

    /// Its flags.
    #[must_use]
    pub fn flags(&self) -> Flags {
        let flags = (self.words[0] >> FLAGS_SHIFT) & FLAGS_MASK;
        Flags(u32::try_from(flags).unwrap_or_default())
    }

    /// Where its completion record goes.
    #[must_use]
    pub fn record_address(&self) -> u64 {
        self.words[1]
    }

    /// Where it reads: bytes, or descriptors.
    #[must_use]
    pub fn source(&self) -> u64 {
        self.words[2]
    }

    /// Where it writes.
    #[must_use]
    pub fn destination(&self) -> u64 {
        self.words[3]
    }

    /// How much: bytes, or descriptors.
    #[must_use]
    pub fn size(&self) -> u32 {
        let [a, b, c, d, ..] = self.words[4].to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Whether all is zero that is zero in the operations used here.
    #[must_use]
    pub fn is_reserved_zero(&self) -> bool {
        self.words[4] >> 48 == 0 && self.words[5..].iter().all(|word| *word == 0)
    }
}

/// How an operation ended, without the bit about faults. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// Done.
    pub const SUCCESS: Self = Self(0x01);
    /// Stopped by a page fault.
    pub const PAGE_FAULT: Self = Self(0x03);
    /// One or more descriptors of the batch failed.
    pub const BATCH_FAILED: Self = Self(0x05);
    /// The list of the batch could not be read to its end.
    pub const BATCH_PAGE_FAULT: Self = Self(0x06);
    /// No such operation, or not there.
    pub const BAD_OPCODE: Self = Self(0x10);
    /// Flags that don't go with the operation.
    pub const BAD_FLAGS: Self = Self(0x11);
    /// What is to be zero is not.
    pub const BAD_RESERVED: Self = Self(0x12);
    /// Too many bytes, or none.
    pub const BAD_SIZE: Self = Self(0x13);
    /// Too many descriptors, or fewer than two.
    pub const BAD_COUNT: Self = Self(0x14);
    /// The list is not on a multiple of 64.
    pub const BAD_LIST: Self = Self(0x18);

    /// Of a record's first byte; `None` is not over yet.
    #[must_use]
    pub fn of(byte: u8) -> Option<Self> {
        let status = byte & 0x7f;
        (status != 0).then_some(Self(status))
    }

    /// Whether the descriptor was not begun at all, as it is not valid.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        (0x10..=0x1e).contains(&self.0)
    }

    /// What it means.
    #[must_use]
    pub fn says(self) -> &'static str {
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

/// A completion record of an operation that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// How it ended.
    pub status: Status,
    /// The operation's own result.
    pub result: u8,
    /// Bytes moved, or descriptors done.
    pub completed: u32,
    /// The address that faulted, if one did.
    pub fault: u64,
}

impl Record {
    /// All went well.
    pub const DONE: Self = Self { status: Status::SUCCESS, result: 0, completed: 0, fault: 0 };

    /// Nothing was done, and why.
    #[must_use]
    pub fn failed(status: Status) -> Self {
        Self { status, ..Self::DONE }
    }

    /// From the first two words; `None` is not over yet.
    #[must_use]
    pub fn from_words(first: u64, second: u64) -> Option<Self> {
        let [status, result, _, _, a, b, c, d] = first.to_le_bytes();
        let completed = u32::from_le_bytes([a, b, c, d]);
        Some(Self { status: Status::of(status)?, result, completed, fault: second })
    }

    /// The first two words.
    #[must_use]
    pub fn to_words(&self) -> [u64; 2] {
        let [a, b, c, d] = self.completed.to_le_bytes();
        [u64::from_le_bytes([self.status.0, self.result, 0, 0, a, b, c, d]), self.fault]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_move_has_its_fields_where_the_device_looks_for_them() {
        let bytes = Descriptor::copy(0x1122_3344_5566_7788, 0x99aa, 0x0102_0304)
            .recorded_at(0xabc0)
            .with(Flags::TO_CACHE)
            .to_bytes();
        assert_eq!(bytes[..4], [0; 4], "the PASID is left to the hardware");
        assert_eq!(bytes[4..8], [0x0c, 0x01, 0x00, 0x03]);
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
    fn a_record_is_over_once_its_status_is_not_zero_and_bit_seven_is_no_status() {
        assert_eq!(Record::from_words(0xffff_ffff_ffff_ff00, 1), None);
        assert_eq!(Record::from_words(0x80, 1), None);
        let record = Record::from_words(0x0000_1000_0000_0183, 0xdead_0000).unwrap();
        let expected =
            Record { status: Status::PAGE_FAULT, result: 1, completed: 4096, fault: 0xdead_0000 };
        assert_eq!(record, expected);
    }

    #[test]
    fn each_status_says_something_of_its_own() {
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
        fn a_record_comes_back_from_its_words(status in 1_u8..0x80, result: u8, completed: u32, fault: u64) {
            let record = Record { status: Status(status), result, completed, fault };
            let [first, second] = record.to_words();
            prop_assert_eq!(Record::from_words(first, second), Some(record));
        }
    }
}
