//! Where pages go: a mode of the kernel's and nodes, in words for libnearfar and in numbers for mbind(2).
//!
//! Mappings are bound in the kernel's own numbers, so that a program that reads its policy back finds what it asked for; a
//! kind's words stand for what is best for memory, not for a mode.
#![expect(unsafe_code, reason = "mbind(2) is called")]

use core::ffi::{c_int, c_ulong, c_void};

use crate::nearfar::NODES;

/// Linux's modes (include/uapi/linux/mempolicy.h) that go with nodes.
const PREFERRED: c_int = 1;
const BIND: c_int = 2;
const INTERLEAVE: c_int = 3;
const PREFERRED_MANY: c_int = 5;
const WEIGHTED_INTERLEAVE: c_int = 6;

const BITS: usize = c_ulong::BITS as usize;

/// A mode with its nodes, which are in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    mode: c_int,
    nodes: Vec<u32>,
}

impl Policy {
    /// `None` if the mode goes with no nodes, or is none.
    pub(crate) fn new(mode: c_int, mut nodes: Vec<u32>) -> Option<Self> {
        verb(mode)?;
        if mode == PREFERRED {
            // One node is all that this mode takes; the kernel picks the same.
            nodes.truncate(1);
        }
        Some(Self { mode, nodes })
    }

    /// The kind with this policy, as libnearfar writes it.
    pub(crate) fn kind(&self) -> String {
        format!("{}:{}", verb(self.mode).unwrap_or_default(), list(self.nodes.iter().copied()))
    }

    /// Places a mapping; false with errno if the kernel refuses.
    pub(crate) fn bind(&self, memory: *mut c_void, length: usize) -> bool {
        let mut mask: [c_ulong; NODES / BITS] = [0; NODES / BITS];
        for node in &self.nodes {
            let node = *node as usize;
            if let Some(word) = mask.get_mut(node / BITS) {
                *word |= 1 << (node % BITS);
            }
        }
        // The kernel reads one bit less than it is told of.
        let bits = NODES + 1;
        // SAFETY: mbind reads that many bits of the mask; it changes nothing in memory.
        let status = unsafe {
            libc::syscall(libc::SYS_mbind, memory, length, self.mode, mask.as_ptr(), bits, 0)
        };
        status == 0
    }
}

/// What libnearfar calls a mode.
const fn verb(mode: c_int) -> Option<&'static str> {
    match mode {
        PREFERRED | PREFERRED_MANY => Some("prefer"),
        BIND => Some("bind"),
        INTERLEAVE => Some("interleave"),
        WEIGHTED_INTERLEAVE => Some("weighted"),
        _ => None,
    }
}

/// Nodes as a set is written.
pub(crate) fn list(nodes: impl Iterator<Item = u32>) -> String {
    nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(",")
}
