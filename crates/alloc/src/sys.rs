//! The system calls for memory: mapping it, unmapping it, and discarding its content.
//!
//! Functions here return `None` or false instead of an error with a cause: callers are in the middle of an allocation,
//! and all they can report is ENOMEM.
#![expect(unsafe_code, reason = "memory is mapped here")]

use core::ptr::NonNull;

/// A page; larger pages of some kernels are multiples of it.
pub(crate) const PAGE: usize = 4096;

const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps fresh zeroed memory, none of it resident and without overcommit accounting.
pub(crate) fn map(length: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping at an address chosen by the kernel.
    let at = unsafe { mmap(0, length, [PROTECTION, FLAGS, -1], 0) };
    at.ok().and_then(|at| NonNull::new(at as *mut u8))
}

/// mmap(2) itself, bypassing a library that replaces it; `how` has protection, flags and file. Returns the errno on
/// failure.
///
/// # Safety
/// As mmap(2): an existing mapping at a fixed address is replaced.
pub(crate) unsafe fn mmap(
    at: usize,
    length: usize,
    how: [i32; 3],
    offset: i64,
) -> Result<usize, i32> {
    let [protection, flags, file] = how;
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "an address")]
    let done = |mapped: libc::c_long| mapped as usize;
    // SAFETY: the caller's promise.
    let mapped =
        unsafe { libc::syscall(libc::SYS_mmap, at, length, protection, flags, file, offset) };
    if mapped == -1 { Err(errno()) } else { Ok(done(mapped)) }
}

/// Unmaps a range mapped by [`map`], or a part of it.
///
/// # Safety
/// The range is mapped and not used any more.
pub(crate) unsafe fn unmap(at: usize, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(at as *mut libc::c_void, length) };
}

/// As [`unmap`], for a mapping that was made a moment ago and not shared.
pub(crate) fn unmap_own(at: usize, length: usize) {
    // SAFETY: the caller mapped it and has no pointer into it.
    unsafe { unmap(at, length) };
}

/// Restores a range to the state in which [`map`] returns it: zeroes, nothing resident, no memory policy.
///
/// # Safety
/// The range lies in a mapping made by [`map`], and its content is not needed.
pub(crate) unsafe fn renew(at: usize, length: usize) -> bool {
    let flags = FLAGS | libc::MAP_FIXED;
    // SAFETY: the caller's promise: the content may be lost.
    unsafe { mmap(at, length, [PROTECTION, flags, -1], 0) }.is_ok()
}

/// Makes a range zeroes again and frees its pages; the policy stays. Only whole pages within the range.
///
/// # Safety
/// As [`renew`].
pub(crate) unsafe fn discard(at: usize, length: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(at as *mut libc::c_void, length, libc::MADV_DONTNEED) == 0 }
}

/// Whether a range is one mapping, with another behind it, so that [`shift`] can move it.
pub(crate) fn may_shift(from: usize, length: usize) -> bool {
    // Growing by a page in place always fails, as there is another mapping; but a range of several mappings fails with
    // another error.
    // SAFETY: no mapping changes.
    let grown = unsafe { libc::mremap(from as *mut libc::c_void, length, length + PAGE, 0) };
    grown == libc::MAP_FAILED && errno() == libc::ENOMEM
}

/// Moves the pages of a mapping to another place, without copying. The old place is unmapped, until [`fill`]. On
/// failure the new place may be unmapped: Linux up to 6.16 unmaps it first.
///
/// # Safety
/// Both ranges lie in a mapping made by [`map`] and do not overlap; the content of the second is not needed, and the
/// first is not used.
pub(crate) unsafe fn shift(from: usize, length: usize, to: usize, to_length: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, place) = (from as *mut libc::c_void, to as *mut libc::c_void);
    // SAFETY: the caller's promise.
    unsafe { libc::mremap(from, length, to_length, flags, place) != libc::MAP_FAILED }
}

/// Maps an unmapped range as [`map`] does. False if that fails: another thread may have mapped something there
/// meanwhile, which stays.
pub(crate) fn fill(at: usize, length: usize) -> bool {
    let flags = FLAGS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: an existing mapping is not replaced.
    let mapped = unsafe { mmap(at, length, [PROTECTION, flags, -1], 0) };
    // Linux before 4.17 does not know the flag and may choose another place.
    if let Ok(elsewhere) = mapped
        && elsewhere != at
    {
        unmap_own(elsewhere, length);
    }
    mapped == Ok(at)
}

/// Requests huge pages in a range, or forbids them.
pub(crate) fn advise_huge(at: usize, length: usize, huge: bool) {
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: the content of the range does not change.
    unsafe { libc::madvise(at as *mut libc::c_void, length, advice) };
}

/// Populates the pages of a range, for writing or else for reading; on failure they are faulted in when touched.
pub(crate) fn populate(at: usize, length: usize, writing: bool) {
    let advice = if writing { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the content of the range does not change.
    unsafe { libc::madvise(at as *mut libc::c_void, length, advice) };
}

/// Calls `act` without cancellation points: a thread that were cancelled in there (pthread_cancel(3)) would end in the
/// middle of an allocation, with locks held.
pub(crate) fn uncancelled<T>(act: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: a place for the state.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let done = act();
    // SAFETY: a state that the call above has written.
    unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    done
}

/// Of POSIX's `pthread_setcancelstate`, as glibc numbers it.
const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Reads the first bytes of a file, at most `into.len()`; returns how many, or `None` if it can't be read. Bypasses the
/// C library, whose calls are cancellation points (pthread_cancel(3)) that could end the thread in the middle of an
/// allocation, with locks held.
pub(crate) fn read_file(path: &core::ffi::CStr, into: &mut [u8]) -> Option<usize> {
    let (dir, flags) = (libc::AT_FDCWD, libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: a string.
    let file = unsafe { libc::syscall(libc::SYS_openat, dir, path.as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    // SAFETY: as many bytes as there is room for.
    let read = unsafe { libc::syscall(libc::SYS_read, file, into.as_mut_ptr(), into.len()) };
    // SAFETY: opened above, and not used elsewhere.
    unsafe { libc::syscall(libc::SYS_close, file) };
    usize::try_from(read).ok()
}

/// Writes a message to stderr; ignores errors and short writes.
pub(crate) fn say(text: &str) {
    write(libc::STDERR_FILENO, text);
}

/// Writes a text to a file; ignores errors and short writes. Not a cancellation point.
pub(crate) fn write(file: i32, text: &str) {
    // SAFETY: the text is as long as it says.
    unsafe { libc::syscall(libc::SYS_write, file, text.as_ptr(), text.len()) };
}

/// Duplicates stderr to a high number, close-on-exec; -1 on failure.
pub(crate) fn keep_stderr() -> i32 {
    const OUT_OF_THE_WAY: i32 = 200;
    // SAFETY: no preconditions.
    unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) }
}

/// Sets errno.
pub(crate) fn set_errno(error: i32) {
    // SAFETY: no preconditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own.
    unsafe { at.write(error) };
}

/// Errno.
pub(crate) fn errno() -> i32 {
    // SAFETY: no preconditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own.
    unsafe { at.read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(at: usize) -> u8 {
        // SAFETY: tests read mapped memory.
        unsafe { *(at as *const u8) }
    }

    #[test]
    fn only_a_range_within_one_mapping_can_be_moved() {
        let from = map(16 * PAGE).unwrap().as_ptr() as usize;
        // SAFETY: mapped above.
        unsafe { (from as *mut u8).write_bytes(7, 8 * PAGE) };
        assert!(may_shift(from, 8 * PAGE));
        // SAFETY: as above.
        let advised =
            unsafe { libc::madvise(from as *mut libc::c_void, PAGE, libc::MADV_DONTFORK) };
        assert_eq!(advised, 0);
        assert!(!may_shift(from, 8 * PAGE));
        assert_eq!((byte(from), byte(from + 8 * PAGE - 1)), (7, 7));
        unmap_own(from, 16 * PAGE);
        assert!(!may_shift(from, 8 * PAGE), "nothing is there");
    }

    #[test]
    fn fill_maps_a_hole_and_never_replaces_another_mapping() {
        // Far below the addresses that the kernel gives to concurrent tests' mappings: it fills holes from above.
        let at = 1 << 44;
        assert!(fill(at, 16 * PAGE));
        unmap_own(at + PAGE, 4 * PAGE);
        assert!(fill(at + PAGE, 4 * PAGE));
        assert_eq!(byte(at + 2 * PAGE), 0);
        // SAFETY: mapped above.
        unsafe { (at as *mut u8).write_bytes(7, 16 * PAGE) };
        unmap_own(at + PAGE, 2 * PAGE);
        assert!(!fill(at + PAGE, 4 * PAGE));
        assert_eq!(byte(at + 3 * PAGE), 7);
    }
}
