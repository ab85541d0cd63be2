//! The memory policy calls: set_mempolicy(2), get_mempolicy(2), mbind(2). Neither libc nor rustix has them.
//!
//! They control the placement of pages and may migrate them; they never change the contents of memory, nor mappings, so
//! they are safe to offer for any address.
#![expect(unsafe_code, reason = "system calls that no safe crate offers")]

use std::io;

use libc::{c_int, c_long, c_uint, c_ulong};

/// Nodes in a mask: the maximum with which Linux can be built.
pub(crate) const NODES: usize = 1024;
const BITS: usize = c_ulong::BITS as usize;

/// A set of nodes in the form of the calls.
pub(crate) type Mask = [c_ulong; NODES / BITS];

/// The calls ignore the last of `maxnode` bits.
const MAXNODE: c_ulong = NODES as c_ulong + 1;

/// Sets bit `node`, which is below [`NODES`].
pub(crate) fn insert(mask: &mut Mask, node: usize) {
    mask[node / BITS] |= 1 << (node % BITS);
}

/// Whether bit `node`, which is below [`NODES`], is set.
pub(crate) fn contains(mask: &Mask, node: usize) -> bool {
    mask[node / BITS] & (1 << (node % BITS)) != 0
}

/// set_mempolicy(2): the calling thread's policy for pages it touches from now on.
pub(crate) fn set_mempolicy(mode: c_int, mask: &Mask) -> io::Result<()> {
    // SAFETY: set_mempolicy reads `maxnode - 1` = NODES bits from the mask, which has that many, and keeps no pointer.
    let status = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), MAXNODE) };
    done(status)
}

/// get_mempolicy(2): the calling thread's policy.
pub(crate) fn get_mempolicy() -> io::Result<(c_int, Mask)> {
    let mut mode: c_int = 0;
    let mut mask: Mask = [0; NODES / BITS];
    // SAFETY: get_mempolicy writes one int to `mode` and `maxnode - 1` = NODES bits to the mask, which has that many;
    // both live until it returns. Without flags the address is not used.
    let status = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            MAXNODE,
            std::ptr::null::<u8>(),
            c_long::from(0_u8),
        )
    };
    done(status).map(|()| (mode, mask))
}

/// get_mempolicy(2) with MPOL_F_MEMS_ALLOWED: the nodes that the calling thread may have in policies.
pub(crate) fn mems_allowed() -> io::Result<Mask> {
    const MEMS_ALLOWED: c_long = 4;
    let nowhere = std::ptr::null::<u8>();
    let mut mask: Mask = [0; NODES / BITS];
    // SAFETY: with this flag get_mempolicy writes `maxnode - 1` = NODES bits to the mask, which has that many and lives
    // until it returns, and nothing else: the mode pointer is null, and the address must be null.
    let status = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            nowhere,
            mask.as_mut_ptr(),
            MAXNODE,
            nowhere,
            MEMS_ALLOWED,
        )
    };
    done(status).map(|()| mask)
}

/// mbind(2): the policy of the mappings from `address` on, over `length` bytes.
pub(crate) fn mbind(
    address: usize,
    length: usize,
    mode: c_int,
    mask: &Mask,
    flags: c_uint,
) -> io::Result<()> {
    // SAFETY: mbind reads NODES bits from the mask, which has that many, and keeps no pointer. The range is only looked
    // up in this process's mappings: unmapped ranges give EFAULT, and the content of no page changes.
    let status = unsafe {
        libc::syscall(libc::SYS_mbind, address, length, mode, mask.as_ptr(), MAXNODE, flags)
    };
    done(status)
}

/// set_mempolicy_home_node(2): the node around which a range's policy is ordered.
pub(crate) fn set_mempolicy_home_node(
    address: usize,
    length: usize,
    node: c_ulong,
    flags: c_ulong,
) -> io::Result<()> {
    // SAFETY: the call takes no pointers; the range is only looked up in this process's mappings.
    let status =
        unsafe { libc::syscall(libc::SYS_set_mempolicy_home_node, address, length, node, flags) };
    done(status)
}

/// move_pages(2) of this process for no pages at all, which does nothing where the call exists.
pub(crate) fn move_no_pages() -> io::Result<()> {
    let none = std::ptr::null_mut::<u8>();
    // SAFETY: with a count of zero the kernel reads and writes none of the three arrays.
    let status =
        unsafe { libc::syscall(libc::SYS_move_pages, 0_i32, 0_usize, none, none, none, 0_i32) };
    done(status)
}

/// move_pages(2) of a process (0: this one) without target nodes, which migrates nothing: returns for each of `pages`
/// its node, or a negative errno (`-ENOENT` and `-EFAULT`: no page there).
pub(crate) fn nodes_of_pages(
    process: c_int,
    pages: &[usize],
    nodes: &mut [c_int],
) -> io::Result<()> {
    let count = pages.len().min(nodes.len());
    let nowhere = std::ptr::null::<c_int>();
    // SAFETY: the kernel reads `count` addresses, which it does not follow, and writes `count` numbers; both slices have as many.
    let status = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            process,
            count,
            pages.as_ptr(),
            nowhere,
            nodes.as_mut_ptr(),
            0_i32,
        )
    };
    done(status)
}

fn done(status: c_long) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
