//! Memory modules as firmware describes them (SMBIOS): size, type and speed. Only root may read the table.
//!
//! The table is a sequence of structures: type, length of the formatted part, handle (2 bytes), the rest of that part, then
//! strings that end with an empty one. A memory module is type 17. Source: DMTF DSP0134, "Memory Device".

use std::collections::BTreeMap;
use std::io::Read as _;

use nearfar_topology::Bytes;

const TABLE: &str = "/sys/firmware/dmi/tables/DMI";
/// Longer tables are not read to their end.
const TABLE_MAX: u64 = 1 << 20;
const MODULE: u8 = 17;

/// Modules that are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// Size of each.
    pub size: Bytes,
    /// `DDR5` and the like; `None` for a type that is not known here.
    pub kind: Option<&'static str>,
    /// Transfers per microsecond (MT/s) that it is made for,
    pub speed: Option<u32>,
    /// and that it runs at.
    pub configured: Option<u32>,
}

/// Kinds of modules, each with their number.
pub type Modules = BTreeMap<Module, usize>;

/// The modules of the running machine with their numbers; none if the table can't be read.
#[must_use]
pub fn modules() -> Modules {
    let mut table = Vec::new();
    if let Ok(file) = std::fs::File::open(TABLE) {
        // A table that is cut off has fewer modules.
        let _ = file.take(TABLE_MAX).read_to_end(&mut table);
    }
    parse(&table)
}

/// The modules in a table. Parts that make no sense end it.
fn parse(mut table: &[u8]) -> Modules {
    let mut found = BTreeMap::new();
    while let [kind, length, ..] = *table {
        let length = usize::from(length);
        let Some((fields, rest)) = table.split_at_checked(length).filter(|_| length >= 4) else {
            break;
        };
        if let Some(module) = (kind == MODULE).then(|| module(fields)).flatten() {
            *found.entry(module).or_default() += 1;
        }
        let Some(end) = rest.windows(2).position(|two| two == [0, 0]) else { break };
        table = &rest[end + 2..];
    }
    found
}

fn module(fields: &[u8]) -> Option<Module> {
    let word = |at: usize| {
        let bytes = fields.get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    };
    let double = |at: usize| Some(u32::from(word(at)?) | u32::from(word(at + 2)?) << 16);
    let size = match word(0x0c)? {
        0 | 0xffff => return None,
        0x7fff => u64::from(double(0x1c)? & 0x7fff_ffff) << 20,
        size if size & 0x8000 != 0 => u64::from(size & 0x7fff) << 10,
        size => u64::from(size) << 20,
    };
    let speed = |at: usize, extended: usize| match word(at)? {
        0 => None,
        0xffff => double(extended).map(|speed| speed & 0x7fff_ffff),
        speed => Some(speed.into()),
    };
    let kind = match fields.get(0x12)? {
        0x18 => Some("DDR3"),
        0x1a => Some("DDR4"),
        0x1e => Some("LPDDR4"),
        0x20 => Some("HBM"),
        0x21 => Some("HBM2"),
        0x22 => Some("DDR5"),
        0x23 => Some("LPDDR5"),
        0x24 => Some("HBM3"),
        _ => None,
    };
    Some(Module {
        size: Bytes(size),
        kind,
        speed: speed(0x15, 0x54),
        configured: speed(0x20, 0x58),
    })
}

/// Arbitrary bytes as a table, for fuzz targets.
#[cfg(fuzzing)]
pub fn fuzz(data: &[u8]) {
    let _ = parse(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A structure with these words at these offsets.
    fn structure(kind: u8, length: u8, words: &[(usize, u16)], strings: &[u8]) -> Vec<u8> {
        let mut fields = vec![0; length.into()];
        (fields[0], fields[1]) = (kind, length);
        for (at, word) in words {
            fields[*at..*at + 2].copy_from_slice(&word.to_le_bytes());
        }
        [fields, strings.to_vec(), vec![0, 0]].concat()
    }

    #[test]
    fn modules_are_counted_by_size_type_and_speed() {
        // 32 GiB of DDR5 made for 5600 and run at 4800, twice; 16 GiB of DDR4; an empty slot.
        let quick = [(0x0c, 0x7fff), (0x1c, 0x8000), (0x12, 0x22), (0x15, 5600), (0x20, 4800)];
        let plain = [(0x0c, 0x4000), (0x12, 0x1a), (0x15, 3200), (0x20, 0)];
        let table = [
            structure(0, 26, &[], b"vendor\0version"),
            structure(17, 92, &quick, b"DIMM_A1\0P0"),
            structure(17, 92, &quick, b"DIMM_B1"),
            structure(17, 40, &plain, b""),
            structure(17, 40, &[(0x0c, 0)], b"empty"),
            structure(127, 4, &[], b""),
        ]
        .concat();
        let module = |gib: u64, kind, speed, configured| Module {
            size: Bytes(gib << 30),
            kind: Some(kind),
            speed: Some(speed),
            configured,
        };
        let expected =
            [(module(16, "DDR4", 3200, None), 1), (module(32, "DDR5", 5600, Some(4800)), 2)];
        assert_eq!(parse(&table), BTreeMap::from(expected));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn parsing_any_smbios_bytes_does_not_panic(bytes: Vec<u8>, length: u8, rest: Vec<u8>) {
            parse(&bytes);
            parse(&[&[17, length], &rest[..]].concat());
        }
    }
}
