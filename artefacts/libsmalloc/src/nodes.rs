//! The two types of memory, and the classification of nodes.
//!
//! Nodes are read anew at each call, so that sizes are current.

use core::ffi::{CStr, c_uint};
use core::fmt;

use crate::nearfar::{self, Node};
use crate::{conf, text};

/// The maximum number of nodes Linux can be built with.
const MOST: usize = 1024;
const BITS: usize = u64::BITS as usize;
/// A number that no node has.
const NOWHERE: u32 = 1024;

/// A type of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Nodes with CPUs.
    Normal,
    /// Nodes without.
    Exmem,
}

impl Memory {
    pub(crate) const BOTH: [Self; 2] = [Self::Normal, Self::Exmem];

    /// The type with a C number; `None`, with errno EINVAL, if there is none.
    pub(crate) fn of_number(number: c_uint) -> Option<Self> {
        let found = Self::BOTH.get(number as usize).copied();
        if found.is_none() {
            text::set_errno(libc::EINVAL);
        }
        found
    }

    /// Its index in arrays with one element per type.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// The type of a node; `None` if it has no memory.
    fn of_node(node: &Node) -> Option<Self> {
        let memory = if node.cpus > 0 { Self::Normal } else { Self::Exmem };
        (node.size > 0).then_some(memory)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Normal => "Normal",
            Self::Exmem => "ExMem",
        })
    }
}

/// A set of nodes, as a bit mask in the kernel's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nodes([u64; MOST / BITS]);

impl Nodes {
    pub(crate) const NONE: Self = Self([0; MOST / BITS]);

    /// A set of these nodes; out-of-range numbers are ignored.
    pub(crate) fn from_numbers(numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut nodes = Self::NONE;
        for number in numbers {
            let number = number as usize;
            if let Some(word) = nodes.0.get_mut(number / BITS) {
                *word |= 1 << (number % BITS);
            }
        }
        nodes
    }

    /// The intersection.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let mut nodes = *self;
        for (word, other) in nodes.0.iter_mut().zip(&other.0) {
            *word &= other;
        }
        nodes
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// The words of the mask.
    pub(crate) const fn words(&self) -> &[u64] {
        &self.0
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..MOST).filter(|node| self.0[node / BITS] & (1 << (node % BITS)) != 0)
    }
}

/// Formats as `0,2,3`.
impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.iter().enumerate() {
            let before = if index > 0 { "," } else { "" };
            write!(f, "{before}{node}")?;
        }
        Ok(())
    }
}

/// The nodes of a node set expression; `None`, with errno and `nf_error` set, on failure.
pub(crate) fn named(set: &CStr) -> Option<Nodes> {
    conf::read_once();
    let mut room = [0; MOST];
    let found = nearfar::nodes(set, &mut room)?;
    Some(Nodes::from_numbers(found.iter().copied()))
}

/// Each node that has memory, with its type; `None`, with errno set, if the nodes can't be read.
pub(crate) fn each() -> Option<impl Iterator<Item = (u32, Memory, Node)>> {
    conf::read_once();
    let mut room = [0; MOST];
    let count = nearfar::nodes(c"all", &mut room)?.len();
    let one = |number: u32| {
        let node = nearfar::node(number)?;
        Some((number, Memory::of_node(&node)?, node))
    };
    Some(room.into_iter().take(count).filter_map(one))
}

/// The nodes of a type.
pub(crate) fn each_of(memory: Memory) -> impl Iterator<Item = (u32, Node)> {
    let of_it = move |(number, type_of_it, node)| (type_of_it == memory).then_some((number, node));
    each().into_iter().flatten().filter_map(of_it)
}

/// The set of all nodes of a type; `None`, with errno ENODEV, if there are none.
pub(crate) fn of(memory: Memory) -> Option<Nodes> {
    let numbers = each()?.filter(|found| found.1 == memory).map(|found| found.0);
    let nodes = Nodes::from_numbers(numbers);
    if nodes.is_empty() { text::none(libc::ENODEV) } else { Some(nodes) }
}

/// Parses a node number as strtol does with base 0: 12, 0xc, 014. `None` if it is not a number; an out-of-range number
/// becomes one that no node has.
pub(crate) fn number(text: &CStr) -> Option<u32> {
    let text = text.to_str().ok()?.trim();
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    let all = !digits.is_empty() && digits.bytes().all(|digit| char::from(digit).is_digit(base));
    let value = u32::from_str_radix(digits, base).ok().filter(|value| !negative || *value == 0);
    all.then(|| value.unwrap_or(NOWHERE))
}
