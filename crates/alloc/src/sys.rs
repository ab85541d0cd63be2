//! The system calls of memory: mapping it, giving it back, and forgetting what was there.
//!
//! Everything here returns `None` or false instead of an error with a cause: callers are in the middle of an allocation, and
//! all they can say is ENOMEM.
#![expect(unsafe_code, reason = "memory is mapped here")]

use core::ptr::NonNull;

/// A page; larger pages of some kernels are multiples of it.
pub(crate) const PAGE: usize = 4096;

const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Fresh memory of zeroes, of which nothing is resident and nothing is promised.
pub(crate) fn map(length: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping, where nothing else is.
    let at = unsafe { mmap(0, length, [PROTECTION, FLAGS, -1], 0) };
    at.ok().and_then(|at| NonNull::new(at as *mut u8))
}

/// mmap(2) itself, which a library that stands for it would otherwise answer; `how` has protection, flags and file. The errno
/// if it fails.
///
/// # Safety
/// As mmap(2): what is at a fixed address goes.
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

/// Gives back what [`map`] gave, or a part of it.
///
/// # Safety
/// The range is mapped and nobody uses it any more.
pub(crate) unsafe fn unmap(at: usize, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(at as *mut libc::c_void, length) };
}

/// As [`unmap`], for what was mapped a moment ago and shown to nobody.
pub(crate) fn unmap_own(at: usize, length: usize) {
    // SAFETY: the caller mapped it and has no pointer into it.
    unsafe { unmap(at, length) };
}

/// Makes a range as [`map`] gives it: zeroes, nothing resident, no memory policy.
///
/// # Safety
/// The range lies in what [`map`] gave, and what is in it is not needed.
pub(crate) unsafe fn renew(at: usize, length: usize) -> bool {
    let flags = FLAGS | libc::MAP_FIXED;
    // SAFETY: the caller's promise: what was there may go.
    unsafe { mmap(at, length, [PROTECTION, flags, -1], 0) }.is_ok()
}

/// Makes a range zeroes again and gives its pages back; the policy stays. Whole pages within it only.
///
/// # Safety
/// As [`renew`].
pub(crate) unsafe fn discard(at: usize, length: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(at as *mut libc::c_void, length, libc::MADV_DONTNEED) == 0 }
}

/// Whether a range is of one mapping, with another behind it, so that [`shift`] can move it.
pub(crate) fn may_shift(from: usize, length: usize) -> bool {
    // Growing by a page in its place can't be, as there is something; but what is of several mappings is refused before that.
    // SAFETY: what is mapped does not change.
    let grown = unsafe { libc::mremap(from as *mut libc::c_void, length, length + PAGE, 0) };
    grown == libc::MAP_FAILED && errno() == libc::ENOMEM
}

/// Moves the pages of a mapping to another place, without copying. Nothing is mapped where it was, until [`fill`]. If the
/// kernel can't, nothing may be mapped where it should have gone: Linux up to 6.16 unmaps that first.
///
/// # Safety
/// Both ranges lie in what [`map`] gave and do not meet; what is in the second is not needed, and nobody uses the first.
pub(crate) unsafe fn shift(from: usize, length: usize, to: usize, to_length: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, place) = (from as *mut libc::c_void, to as *mut libc::c_void);
    // SAFETY: the caller's promise.
    unsafe { libc::mremap(from, length, to_length, flags, place) != libc::MAP_FAILED }
}

/// Makes a range in which nothing is mapped as [`map`] gives it. False if that can't be: another thread may have mapped something
/// there meanwhile, which stays.
pub(crate) fn fill(at: usize, length: usize) -> bool {
    let flags = FLAGS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing that is there is replaced.
    let mapped = unsafe { mmap(at, length, [PROTECTION, flags, -1], 0) };
    // Linux before 4.17 does not know the flag and may choose another place.
    if let Ok(elsewhere) = mapped
        && elsewhere != at
    {
        unmap_own(elsewhere, length);
    }
    mapped == Ok(at)
}

/// Asks for huge pages in a range, or for none.
pub(crate) fn advise_huge(at: usize, length: usize, huge: bool) {
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: the content of the range does not change.
    unsafe { libc::madvise(at as *mut libc::c_void, length, advice) };
}

/// Has the pages of a range be there at once, for writing or else for reading; where they can't be, they come as they are
/// touched.
pub(crate) fn populate(at: usize, length: usize, writing: bool) {
    let advice = if writing { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the content of the range does not change.
    unsafe { libc::madvise(at as *mut libc::c_void, length, advice) };
}

/// Writes a message to stderr, as far as it is taken.
pub(crate) fn say(text: &str) {
    write(libc::STDERR_FILENO, text);
}

/// Writes a text to a file, as far as it is taken.
pub(crate) fn write(file: i32, text: &str) {
    // SAFETY: the text is as long as it says.
    unsafe { libc::write(file, text.as_ptr().cast(), text.len()) };
}

/// Another number for stderr, which programs that are started do not have; -1 if there is none.
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
        // SAFETY: tests look at what is mapped.
        unsafe { *(at as *const u8) }
    }

    #[test]
    fn what_is_of_one_mapping_may_be_moved_and_no_other() {
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
    fn a_hole_is_filled_and_what_another_has_put_there_stays() {
        // Far below where the kernel puts what other tests' threads map meanwhile: it fills holes from above.
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
