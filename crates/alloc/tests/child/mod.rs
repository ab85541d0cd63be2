//! A child of fork for tests.

#![expect(unsafe_code, reason = "processes are forked and waited for")]

/// Whether a condition holds in the child of a fork.
pub(crate) fn holds_in_a_child(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child allocates, starts threads of its own, frees and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: nothing is to be done at the end; a child that hangs is ended.
        unsafe { libc::alarm(60) };
        let status = i32::from(!holds());
        // SAFETY: as above.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}
