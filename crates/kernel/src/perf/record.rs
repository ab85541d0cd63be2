//! Parses records of a perf ring (include/uapi/linux/perf_event.h, enum perf_event_type).
//!
//! A record is a header (type, 32 bits; misc, 16; total size, 16) and the fields of its type. A sample's fields have
//! the kernel's order, whichever of them were requested ([`Parts`]):
//!
//! ```text
//! identifier, ip, pid tid, time, address, id, stream, cpu, period, raw (length, bytes), weight, data source, physical address
//! ```
//!
//! The bytes come from the kernel, but are not trusted: a record that is truncated, or claims to be longer than the
//! rest, ends parsing, and is counted.

/// The fields of a sample, as bits of `sample_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(pub u64);

impl Parts {
    /// The instruction.
    pub const IP: Self = Self(1);
    /// Process and thread.
    pub const THREAD: Self = Self(1 << 1);
    /// Time.
    pub const TIME: Self = Self(1 << 2);
    /// The accessed address.
    pub const ADDRESS: Self = Self(1 << 3);
    /// The CPU.
    pub const CPU: Self = Self(1 << 7);
    /// Events since the previous sample.
    pub const PERIOD: Self = Self(1 << 8);
    /// Additional data of the kind of event: a tracepoint's fields.
    pub const RAW: Self = Self(1 << 10);
    /// The cost: for loads, cycles.
    pub const WEIGHT: Self = Self(1 << 14);
    /// The source of the data.
    pub const SOURCE: Self = Self(1 << 15);
    /// The physical address.
    pub const PHYSICAL: Self = Self(1 << 19);

    /// All supported ones.
    const KNOWN: u64 = 0x8_c58f;

    /// The union.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it contains all of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A sampled access. Fields that were not requested are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The instruction.
    pub ip: u64,
    /// The process; `u32::MAX` if it has ended.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Nanoseconds on perf's clock.
    pub time: u64,
    /// The virtual address.
    pub address: u64,
    /// The CPU.
    pub cpu: u32,
    /// Events since the previous sample.
    pub period: u64,
    /// The cost.
    pub weight: u64,
    /// The source of the data; see [`super::source`].
    pub source: u64,
    /// The physical address.
    pub physical: u64,
    /// A tracepoint's fields.
    pub raw: Vec<u8>,
    /// Whether the CPU was in user mode.
    pub user: bool,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A sample.
    Sample(Sample),
    /// This many records were lost.
    Lost(u64),
    /// The kernel stops sampling until its next timer tick, because it took too much time.
    Throttled,
    /// Hardware has written part of its trace.
    Trace {
        /// Bytes.
        length: u64,
        /// Whether some was lost.
        truncated: bool,
        /// Whether samples collided in the hardware.
        collisions: bool,
    },
}

/// Arbitrary bytes as the parts of samples and records, for fuzz targets.
#[cfg(fuzzing)]
pub fn fuzz(data: &[u8]) {
    if let Some((parts, bytes)) = data.split_first_chunk() {
        let _ = records(bytes, Parts(u64::from_le_bytes(*parts) & Parts::KNOWN));
    }
}

/// The records in `bytes`; and the number of invalid ones.
#[must_use]
pub fn records(bytes: &[u8], parts: Parts) -> (Vec<Record>, u64) {
    const LOST: u32 = 2;
    const THROTTLE: u32 = 5;
    const SAMPLE: u32 = 9;
    const AUX: u32 = 11;
    const LOST_SAMPLES: u32 = 13;
    let mut found = Vec::new();
    let (mut rest, mut odd) = (bytes, 0);
    while !rest.is_empty() {
        let mut fields = Fields(rest);
        let (kind, misc_size) = (fields.half(), fields.half());
        let length = misc_size.map_or(0, |word| (word >> 16) as usize);
        if length < 8 || length > rest.len() {
            // The start of the next record is unknown.
            odd += 1;
            break;
        }
        let (record, after) = rest.split_at(length);
        rest = after;
        let mut fields = Fields(&record[8..]);
        let user = misc_size.is_some_and(|word| word & 7 == 2);
        let record = match kind {
            Some(SAMPLE) => {
                fields.sample(parts).map(|sample| Sample { user, ..sample }).map(Record::Sample)
            }
            Some(LOST) => fields.word().and_then(|_| fields.word()).map(Record::Lost),
            Some(LOST_SAMPLES) => fields.word().map(Record::Lost),
            Some(THROTTLE) => Some(Record::Throttled),
            Some(AUX) => fields.trace(),
            _ => continue,
        };
        match record {
            Some(record) => found.push(record),
            None => odd += 1,
        }
    }
    (found, odd)
}

/// Bytes that are consumed from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    fn half(&mut self) -> Option<u32> {
        let (half, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*half))
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn sample(&mut self, parts: Parts) -> Option<Sample> {
        if parts.0 & !Parts::KNOWN != 0 {
            return None;
        }
        let mut sample = Sample::default();
        let word = |fields: &mut Self, part, to: &mut u64| {
            if parts.has(part) {
                *to = fields.word()?;
            }
            Some(())
        };
        word(self, Parts::IP, &mut sample.ip)?;
        if parts.has(Parts::THREAD) {
            (sample.pid, sample.tid) = (self.half()?, self.half()?);
        }
        word(self, Parts::TIME, &mut sample.time)?;
        word(self, Parts::ADDRESS, &mut sample.address)?;
        if parts.has(Parts::CPU) {
            (sample.cpu, _) = (self.half()?, self.half()?);
        }
        word(self, Parts::PERIOD, &mut sample.period)?;
        if parts.has(Parts::RAW) {
            let length = usize::try_from(self.half()?).ok()?;
            sample.raw = self.bytes(length)?.to_vec();
        }
        word(self, Parts::WEIGHT, &mut sample.weight)?;
        word(self, Parts::SOURCE, &mut sample.source)?;
        word(self, Parts::PHYSICAL, &mut sample.physical)?;
        Some(sample)
    }

    fn trace(&mut self) -> Option<Record> {
        let (_, length, flags) = (self.word()?, self.word()?, self.word()?);
        let (truncated, collisions) = (flags & 1 != 0, flags & 8 != 0);
        Some(Record::Trace { length, truncated, collisions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: Parts = Parts(Parts::KNOWN);

    fn encoded(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(body.len() + 8).unwrap();
        [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
    }

    /// Encodes a sample as the kernel does.
    fn encode(sample: &Sample, parts: Parts) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |part: Parts, bytes: &[u8]| {
            if parts.has(part) {
                body.extend_from_slice(bytes);
            }
        };
        put(Parts::IP, &sample.ip.to_ne_bytes());
        put(Parts::THREAD, &sample.pid.to_ne_bytes());
        put(Parts::THREAD, &sample.tid.to_ne_bytes());
        put(Parts::TIME, &sample.time.to_ne_bytes());
        put(Parts::ADDRESS, &sample.address.to_ne_bytes());
        put(Parts::CPU, &u64::from(sample.cpu).to_ne_bytes());
        put(Parts::PERIOD, &sample.period.to_ne_bytes());
        put(Parts::RAW, &u32::try_from(sample.raw.len()).unwrap().to_ne_bytes());
        put(Parts::RAW, &sample.raw);
        put(Parts::WEIGHT, &sample.weight.to_ne_bytes());
        put(Parts::SOURCE, &sample.source.to_ne_bytes());
        put(Parts::PHYSICAL, &sample.physical.to_ne_bytes());
        encoded(9, if sample.user { 2 } else { 1 }, &body)
    }

    #[test]
    fn lost_throttled_and_trace_records_are_parsed() {
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let bytes = [
            encoded(2, 0, &words(&[7, 40])),
            encoded(5, 0, &words(&[1, 2, 3])),
            encoded(6, 0, &words(&[1, 2, 3])),
            encoded(13, 0, &words(&[2])),
            encoded(11, 0, &words(&[64, 128, 9])),
            encoded(99, 0, &[]),
            encoded(2, 0, &words(&[7])),
        ];
        let trace = Record::Trace { length: 128, truncated: true, collisions: true };
        let known = vec![Record::Lost(40), Record::Throttled, Record::Lost(2), trace];
        assert_eq!(records(&bytes.concat(), ALL), (known, 1));
        assert_eq!(records(&[1, 2, 3], ALL), (vec![], 1));
        assert_eq!(records(&encoded(9, 2, &[0; 64]), Parts(1 << 40)), (vec![], 1));
    }

    #[test]
    fn a_tracepoint_that_says_it_is_longer_than_its_record_is_not_believed() {
        for length in [5_u32, 1 << 31, u32::MAX] {
            let body = [&length.to_ne_bytes()[..], &[0; 4]].concat();
            let bytes = [encoded(9, 2, &body), encoded(13, 0, &3_u64.to_ne_bytes())].concat();
            assert_eq!(records(&bytes, Parts::RAW), (vec![Record::Lost(3)], 1), "{length}");
        }
    }

    fn sample() -> impl Strategy<Value = Sample> {
        let words = (any::<[u64; 7]>(), any::<[u32; 3]>(), any::<bool>());
        (words, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|((w, h, user), raw)| Sample {
            ip: w[0],
            time: w[1],
            address: w[2],
            period: w[3],
            weight: w[4],
            source: w[5],
            physical: w[6],
            pid: h[0],
            tid: h[1],
            cpu: h[2],
            user,
            raw,
        })
    }

    proptest! {
        #[test]
        fn samples_are_read_as_they_were_written(samples in prop::collection::vec(sample(), 0..5)) {
            let bytes: Vec<u8> = samples.iter().flat_map(|sample| encode(sample, ALL)).collect();
            let read = samples.into_iter().map(Record::Sample).collect::<Vec<_>>();
            prop_assert_eq!(records(&bytes, ALL), (read, 0));
        }

        #[test]
        fn unrequested_sample_fields_are_zero(sample in sample(), asked in any::<u64>()) {
            let parts = Parts(asked & Parts::KNOWN);
            let (read, odd) = records(&encode(&sample, parts), parts);
            prop_assert_eq!(odd, 0);
            let Record::Sample(read) = &read[0] else { panic!("{read:?}") };
            let like = |part, read: u64, written: u64| read == if parts.has(part) { written } else { 0 };
            prop_assert!(like(Parts::ADDRESS, read.address, sample.address));
            prop_assert!(like(Parts::SOURCE, read.source, sample.source));
            prop_assert!(like(Parts::CPU, u64::from(read.cpu), u64::from(sample.cpu)));
            prop_assert!(like(Parts::THREAD, u64::from(read.pid), u64::from(sample.pid)));
            prop_assert_eq!(read.user, sample.user);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), parts in any::<u64>()) {
            let (found, odd) = records(&bytes, Parts(parts & Parts::KNOWN));
            prop_assert!(found.len() as u64 + odd <= bytes.len() as u64 / 8 + 1);
        }

        #[test]
        fn a_truncated_record_does_not_hide_earlier_records(sample in sample(), cut in 1_usize..20) {
            let whole = encode(&sample, ALL);
            let bytes = [&whole[..], &whole[..whole.len() - cut]].concat();
            prop_assert_eq!(records(&bytes, ALL), (vec![Record::Sample(sample)], 1));
        }
    }
}
