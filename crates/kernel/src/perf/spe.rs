//! Arm's Statistical Profiling Extension: packets of its trace (Arm Architecture Reference Manual, DDI 0487, chapter
//! D17).
//!
//! A packet is a header byte, in some cases after an extension byte that widens the index, and a payload whose length
//! is in the header. A record is a sequence of packets that ends with "end" or with a timestamp. Records of loads and
//! stores with an address are returned; a byte that begins no packet is skipped, and parsing continues with the next
//! recognised packet.

/// A load or store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The virtual address.
    pub address: u64,
    /// The physical one, if requested and permitted.
    pub physical: Option<u64>,
    /// The process, if the kernel writes it to the context register.
    pub context: Option<u32>,
    /// Whether it was a write.
    pub write: bool,
    /// Cycles from dispatch to completion.
    pub latency: u16,
    /// Whether it missed the last-level cache,
    pub missed: bool,
    /// or was answered by another socket.
    pub remote: bool,
}

/// The fields of an incomplete record.
#[derive(Default)]
struct Open {
    access: Access,
    has_address: bool,
    is_access: bool,
}

/// Loads and stores in a trace; and the number of bytes that began no packet.
#[must_use]
pub fn accesses(trace: &[u8]) -> (Vec<Access>, u64) {
    let (mut found, mut open, mut odd) = (Vec::new(), Open::default(), 0);
    let mut at = 0;
    while let Some(first) = trace.get(at) {
        let (header, index, start) = match first & 0xe0 {
            0x20 => {
                let Some(second) = trace.get(at + 1) else { break };
                (*second, (first & 3) << 3, at + 2)
            }
            _ => (*first, 0, at + 1),
        };
        if start == at + 2 && header == 0 {
            // Padding up to an address of 2^n.
            at = (at + 1).next_multiple_of(2 << (first & 0xf));
            continue;
        }
        let Some(length) = payload(header) else {
            odd += 1;
            at += 1;
            continue;
        };
        let Some(bytes) = trace.get(start..start + length) else { break };
        at = start + length;
        let mut word = [0; 8];
        word[..length].copy_from_slice(bytes);
        if open.take(header, index, u64::from_le_bytes(word)) {
            found.extend((open.is_access && open.has_address).then_some(open.access));
            open = Open::default();
        }
    }
    (found, odd)
}

/// Length of the payload after this header.
const fn payload(header: u8) -> Option<usize> {
    let sized = 1 << (header >> 4 & 3);
    match header {
        0x00 | 0x01 => Some(0),
        0x71 => Some(8),
        _ if header & 0xcf == 0x42 || header & 0xcf == 0x43 => Some(sized),
        _ if header & 0xfc == 0x64 || header & 0xfc == 0x48 => Some(sized),
        _ if header & 0xf8 == 0xb0 || header & 0xf8 == 0x98 => Some(sized),
        _ => None,
    }
}

impl Open {
    /// Processes a packet; returns whether the record ends with it.
    fn take(&mut self, header: u8, index: u8, word: u64) -> bool {
        const LAST_LEVEL_MISS: u64 = 1 << 9;
        const REMOTE: u64 = 1 << 10;
        let access = &mut self.access;
        match header {
            0x01 | 0x71 => return true,
            _ if header & 0xcf == 0x42 => {
                access.missed = word & LAST_LEVEL_MISS != 0;
                access.remote = word & REMOTE != 0;
            }
            _ if header & 0xfc == 0x64 => access.context = u32::try_from(word).ok(),
            _ if header & 0xfc == 0x48 => {
                // Class 1 is loads, stores and atomics; bit 0 marks those that write.
                self.is_access = header & 3 == 1;
                access.write = word & 1 != 0;
            }
            _ if header & 0xf8 == 0xb0 => match index | header & 7 {
                2 => {
                    self.has_address = true;
                    access.address = word << 8 >> 8;
                }
                3 => access.physical = Some(word << 8 >> 8),
                _ => {}
            },
            _ if header & 0xf8 == 0x98 && index | header & 7 == 0 => {
                access.latency = u16::try_from(word).unwrap_or(u16::MAX);
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(access: &Access) -> Vec<u8> {
        let mut bytes = vec![0x65];
        bytes.extend(access.context.unwrap().to_le_bytes());
        bytes.extend([0x49, u8::from(access.write)]);
        let events = 2 | u16::from(access.missed) << 9 | u16::from(access.remote) << 10;
        bytes.push(0x52);
        bytes.extend(events.to_le_bytes());
        bytes.push(0xb0);
        bytes.extend(0xffff_u64.to_le_bytes());
        bytes.push(0xb2);
        bytes.extend((access.address | 0xab << 56).to_le_bytes());
        bytes.push(0xb3);
        bytes.extend((access.physical.unwrap() | 1 << 63).to_le_bytes());
        bytes.push(0x98);
        bytes.extend(access.latency.to_le_bytes());
        // The issue latency, after an extension.
        bytes.extend([0x99, 7, 0, 0x21, 0x98, 9, 0]);
        bytes.push(0x71);
        bytes.extend(1_u64.to_le_bytes());
        bytes
    }

    fn access() -> impl Strategy<Value = Access> {
        let (a48, pid) = (0..1_u64 << 48, any::<u32>());
        (a48.clone(), a48, pid, any::<[bool; 3]>(), any::<u16>()).prop_map(|of| Access {
            address: of.0,
            physical: Some(of.1),
            context: Some(of.2),
            write: of.3[0],
            missed: of.3[1],
            remote: of.3[2],
            latency: of.4,
        })
    }

    #[test]
    fn records_without_an_access_or_address_are_skipped() {
        let branch = [0x4a, 0x01, 0xb0, 1, 0, 0, 0, 0, 0, 0, 0, 0x01];
        let no_address = [0x49, 0x00, 0x01];
        let bytes = [&branch[..], &no_address, &[0, 0, 0]].concat();
        assert_eq!(accesses(&bytes), (vec![], 0));
        assert_eq!(accesses(&[0xff, 0x80]), (vec![], 2));
    }

    proptest! {
        #[test]
        fn accesses_are_read_as_they_were_written(all in prop::collection::vec(access(), 0..6)) {
            let bytes: Vec<u8> = all.iter().flat_map(encode).collect();
            prop_assert_eq!(accesses(&bytes), (all, 0));
        }

        #[test]
        fn the_parser_finds_the_next_record_after_invalid_bytes(access in access()) {
            let bytes = [&[0xff, 0xff, 0x01][..], &encode(&access)].concat();
            prop_assert_eq!(accesses(&bytes), (vec![access], 2));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (found, odd) = accesses(&bytes);
            prop_assert!(found.len() as u64 + odd <= bytes.len() as u64);
        }
    }
}
