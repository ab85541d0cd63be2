//! Blocks of guest memory and their host addresses, from QEMU's `x-query-ramblock`.
//!
//! The command returns a table for people, one block a line: name, page size, offset, used and total length, host
//! virtual address, and `ro` or `rw` in newer versions. The block of a backend is named by the backend's id, in older machine
//! types by its path (`/objects/ID`), and behind a device by the device's path (`0000:00:01.0/ID`). As the table is not a
//! stable interface, lines that do not have this form are skipped, and a backend without a block is reported as such.

use nearfar_topology::Bytes;

/// A block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// QEMU's name of it.
    pub name: String,
    /// Size of its host pages.
    pub page: Bytes,
    /// Length in use.
    pub used: Bytes,
    /// Address in QEMU's process.
    pub address: u64,
}

impl Block {
    /// Whether it belongs to the backend with this id.
    #[must_use]
    pub fn is_of(&self, backend: &str) -> bool {
        self.name.rsplit('/').next() == Some(backend)
    }

    /// The address after its last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.address.saturating_add(self.used.0)
    }
}

/// Parses the table.
#[must_use]
pub fn parse(table: &str) -> Vec<Block> {
    table.lines().filter_map(block).collect()
}

fn block(line: &str) -> Option<Block> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let offset = words.iter().position(|word| word.starts_with("0x"))?;
    let hexadecimal = |at: usize| u64::from_str_radix(words.get(at)?.strip_prefix("0x")?, 16).ok();
    let unit = match *words.get(offset.checked_sub(1)?)? {
        "B" => 1_u64,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let count: u64 = words.get(offset.checked_sub(2)?)?.parse().ok()?;
    let name = words.get(..offset - 2)?.join(" ");
    Some(Block {
        name: (!name.is_empty()).then_some(name)?,
        page: Bytes(count.checked_mul(unit)?),
        used: Bytes(hexadecimal(offset + 1)?),
        address: hexadecimal(offset + 3)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As QEMU 10.0 prints it.
    const TABLE: &str = "              Block Name    PSize              Offset               Used              Total                HVA  RO
         0000:00:01.0/v0    4 KiB  0x0000000008000000 0x0000000010000000 0x0000000010000000 0x00007ff62bdff000  rw
                      m0    2 MiB  0x0000000000000000 0x0000000008000000 0x0000000008000000 0x00007ff63be00000  rw
    /rom@etc/acpi/tables    4 KiB  0x0000000018080000 0x0000000000020000 0x0000000000200000 0x00007ff688a00000  ro
";

    #[test]
    fn blocks_belong_to_the_backend_at_the_end_of_their_name() {
        let blocks = parse(TABLE);
        assert_eq!(blocks.len(), 3);
        assert_eq!(blocks[1].page, Bytes(2 << 20));
        assert_eq!((blocks[1].address, blocks[1].end()), (0x7ff6_3be0_0000, 0x7ff6_43e0_0000));
        let of = |id: &str| blocks.iter().filter(|block| block.is_of(id)).count();
        assert_eq!([of("v0"), of("m0"), of("0"), of("tables"), of("acpi")], [1, 1, 0, 1, 0]);
        let older = "  /objects/ram1   4 KiB  0x0 0x1000 0x1000 0x7f0000000000\n";
        assert!(parse(older)[0].is_of("ram1"));
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_skipped(text in "([a-z0-9/:.]{1,9}|4 KiB|0x[0-9a-f]{1,18}|[ -~]{0,9}|[ \n]){0,60}") {
            for block in parse(&text) {
                prop_assert!(!block.name.is_empty() && block.end() >= block.address);
            }
        }
    }
}
