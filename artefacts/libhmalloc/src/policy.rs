//! A placement policy: a kernel mode with nodes, as a specification for libnearfar and as numbers for mbind(2).
//!
//! Mappings are bound with the kernel's own numbers, so that a program that reads its policy back finds the mode it
//! set; a kind's specification expresses the intended placement, not a mode.
#![expect(unsafe_code, reason = "mbind(2) is called")]

use core::ffi::{c_int, c_ulong, c_void};

use crate::nearfar::NODES;

/// Linux's modes (include/uapi/linux/mempolicy.h) that take nodes.
const PREFERRED: c_int = 1;
const BIND: c_int = 2;
const INTERLEAVE: c_int = 3;
const PREFERRED_MANY: c_int = 5;
const WEIGHTED_INTERLEAVE: c_int = 6;

const BITS: usize = c_ulong::BITS as usize;

/// A mode with its nodes in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    mode: c_int,
    nodes: Vec<u32>,
}

impl Policy {
    /// Returns `None` if there are no nodes, or the mode takes none.
    pub(crate) fn new(mode: c_int, mut nodes: Vec<u32>) -> Option<Self> {
        verb(mode)?;
        if mode == PREFERRED {
            // This mode takes a single node; the kernel picks the same one.
            nodes.truncate(1);
        }
        Some(Self { mode, nodes })
    }

    /// The specification of a kind with this policy.
    pub(crate) fn kind(&self) -> String {
        format!("{}:{}", verb(self.mode).unwrap_or_default(), list(self.nodes.iter().copied()))
    }

    /// Places a mapping; false with errno on failure.
    pub(crate) fn bind(&self, memory: *mut c_void, length: usize) -> bool {
        let mut mask: [c_ulong; NODES / BITS] = [0; NODES / BITS];
        for node in &self.nodes {
            let node = *node as usize;
            if let Some(word) = mask.get_mut(node / BITS) {
                *word |= 1 << (node % BITS);
            }
        }
        // The kernel reads one bit less than the count passed.
        let bits = NODES + 1;
        // SAFETY: mbind reads that many bits of the mask; it changes nothing in memory.
        let status = unsafe {
            libc::syscall(libc::SYS_mbind, memory, length, self.mode, mask.as_ptr(), bits, 0)
        };
        status == 0
    }
}

/// The word for a mode in a kind's specification.
const fn verb(mode: c_int) -> Option<&'static str> {
    match mode {
        PREFERRED | PREFERRED_MANY => Some("prefer"),
        BIND => Some("bind"),
        INTERLEAVE => Some("interleave"),
        WEIGHTED_INTERLEAVE => Some("weighted"),
        _ => None,
    }
}

/// Formats nodes as a node set.
pub(crate) fn list(nodes: impl Iterator<Item = u32>) -> String {
    nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(",")
}
