//! The system calls that put a mapping on a node and say where its pages are.
#![expect(unsafe_code, reason = "raw system calls; rustix has none for memory policies")]

use std::io;

use nearfar_topology::NodeId;

/// Bits of a node mask: ids 0..=1023.
const MASK_BITS: usize = 1024;
const MASK_WORDS: usize = MASK_BITS / 64;

/// Pages from the nodes of the mask and from no other.
const MPOL_BIND: usize = 2;

/// Binds the pages of `[address, address + bytes)` that are not yet there to `node`.
pub(super) fn bind(address: usize, bytes: usize, node: NodeId) -> io::Result<()> {
    let mut mask = [0u64; MASK_WORDS];
    let at = usize::from(node.0);
    let word = mask.get_mut(at / 64).ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (at % 64);
    // The kernel takes one bit less than it is told.
    let bits = MASK_BITS + 1;
    // SAFETY: mbind reads `bits` - 1 bits of `mask`, which has that many, and changes no memory: it sets the policy of
    // pages to come in the range.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, address, bytes, MPOL_BIND, mask.as_ptr(), bits, 0usize)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node of the page at each address; negative values are errnos (-2: not present).
pub(super) fn nodes_of(pages: &[usize]) -> io::Result<Vec<i32>> {
    let mut status = vec![0i32; pages.len()];
    let none = std::ptr::null::<i32>();
    // SAFETY: move_pages reads `count` entries of `pages` and writes `count` of `status`; both have that length and no
    // one else holds `status`. With `nodes` null it moves nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0usize,
            pages.len(),
            pages.as_ptr(),
            none,
            status.as_mut_ptr(),
            0usize,
        )
    };
    if result == 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
}
