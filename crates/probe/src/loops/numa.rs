//! The system call that returns the node of pages.
#![expect(unsafe_code, reason = "a raw system call; rustix has no move_pages")]

use std::io;

/// The node of the page at each address; negative values are errnos (-2: not present).
pub(super) fn nodes_of(pages: &[usize]) -> io::Result<Vec<i32>> {
    let mut status = vec![0i32; pages.len()];
    let none = std::ptr::null::<i32>();
    // SAFETY: move_pages reads `count` entries of `pages` and writes `count` of `status`; both have that length and
    // nothing else accesses `status`. With `nodes` null it moves nothing.
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
