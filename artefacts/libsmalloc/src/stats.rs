//! Sizes of types and nodes, and tables of them on stderr.
//!
//! The tables have upstream's columns and units, for programs that parse them: GB are 2^30 bytes.

use core::fmt;

use crate::nodes::{self, Memory};
use crate::{kinds, text};

/// Total memory of a type's nodes in bytes.
pub(crate) fn total(memory: Memory) -> u64 {
    nodes::each_of(memory).map(|(_, node)| node.size).sum()
}

/// Free memory of a type's nodes in bytes.
pub(crate) fn available(memory: Memory) -> u64 {
    nodes::each_of(memory).map(|(_, node)| node.free).sum()
}

/// The unit for a letter; other letters mean bytes.
#[derive(Clone, Copy, Debug)]
struct Unit {
    bytes: u64,
    name: &'static str,
}

impl Unit {
    const fn of(letter: u8) -> Self {
        let (bytes, name) = match letter {
            b'g' | b'G' => (1 << 30, "GB"),
            b'm' | b'M' => (1 << 20, "MB"),
            b'k' | b'K' => (1 << 10, "KB"),
            _ => (1, "B"),
        };
        Self { bytes, name }
    }

    const fn amount(self, bytes: u64) -> Amount {
        Amount { bytes, unit: self }
    }
}

/// An amount, padded to the width of its column.
#[derive(Clone, Copy, Debug)]
struct Amount {
    bytes: u64,
    unit: Unit,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.bytes as f64 / self.unit.bytes as f64;
        write!(f, "{amount:>15.1}{:>2}", self.unit.name)
    }
}

/// Prints a line for each type.
pub(crate) fn print(unit: u8) {
    let unit = Unit::of(unit);
    text::say(format_args!("SMDK Memory allocation stats:"));
    text::say(format_args!("{:>8} {:>17} {:>17} {:>17}", "Type", "Total", "Used", "Available"));
    for memory in Memory::BOTH {
        let [total, used, free] = [total(memory), kinds::allocated(memory), available(memory)]
            .map(|bytes| unit.amount(bytes));
        text::say(format_args!("{memory:>8} {total} {used} {free}"));
    }
}

/// Prints a line for each node.
pub(crate) fn print_nodes(unit: u8) {
    let unit = Unit::of(unit);
    text::say(format_args!("SMDK Memory allocation stats per node:"));
    text::say(format_args!("{:>8} {:>6} {:>17} {:>17}", "Type", "Node", "Total", "Available"));
    for (number, memory, node) in nodes::each().into_iter().flatten() {
        let (total, free) = (unit.amount(node.size), unit.amount(node.free));
        text::say(format_args!("{memory:>8} {number:>6} {total} {free}"));
    }
}
