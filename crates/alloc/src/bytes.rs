//! Copying memory that other threads may write at the same time.
//!
//! The result may mix old and new bytes; the caller (`granule`) detects that and discards it. Rust has no such copy:
//! concurrent plain access to memory is a data race. So on x86-64 the loads and stores are machine instructions, and
//! elsewhere they are atomic, word by word where the addresses allow it.
#![expect(unsafe_code, reason = "memory that threads share is copied")]

/// Copies `length` bytes from `from` to `to`, which do not overlap.
///
/// # Safety
/// Both ranges stay mapped during the copy, and `to` is writable. Other threads access either range only by this
/// function.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn copy(from: usize, to: usize, length: usize) {
    // SAFETY: reads `length` bytes from the first on and writes as many from the second on, as the caller promises; the stack and
    // flags that are to be kept are not touched.
    unsafe {
        core::arch::asm!(
            "cmp {left}, 64",
            "jb 3f",
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "cmp {left}, 64",
            "jae 2b",
            "3:",
            "cmp {left}, 8",
            "jb 5f",
            "4:",
            "mov {word}, [{from}]",
            "mov [{to}], {word}",
            "add {from}, 8",
            "add {to}, 8",
            "sub {left}, 8",
            "cmp {left}, 8",
            "jae 4b",
            "5:",
            "test {left}, {left}",
            "jz 7f",
            "6:",
            "mov {word:l}, [{from}]",
            "mov [{to}], {word:l}",
            "inc {from}",
            "inc {to}",
            "dec {left}",
            "jnz 6b",
            "7:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) length => _,
            word = out(reg_abcd) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// As above, for architectures without a machine-code copy here.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(from: usize, to: usize, length: usize) {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// # Safety
    /// Memory for a `T` that lives as long as it is used.
    unsafe fn at<'a, T>(address: usize) -> &'a T {
        // SAFETY: the caller's promise.
        unsafe { &*(address as *const T) }
    }
    let mut done = 0;
    if from % 8 == 0 && to % 8 == 0 {
        while done + 8 <= length {
            // SAFETY: within what the caller promises, at a multiple of eight.
            let word = unsafe { at::<AtomicU64>(from + done) }.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { at::<AtomicU64>(to + done) }.store(word, Ordering::Relaxed);
            done += 8;
        }
    }
    for byte in done..length {
        // SAFETY: within what the caller promises.
        let value = unsafe { at::<AtomicU8>(from + byte) }.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { at::<AtomicU8>(to + byte) }.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_copies_exactly_the_requested_bytes() {
        let from: Vec<u8> = (0..400_u16).map(|byte| (byte % 251) as u8).collect();
        for length in (0..150).chain([200, 255, 256, 257, 380]) {
            for (shift, other) in [(0, 0), (1, 0), (0, 3), (7, 5), (8, 16)] {
                let mut to = vec![0xee_u8; 400];
                // SAFETY: both have 400 bytes.
                unsafe {
                    copy(from.as_ptr() as usize + shift, to.as_mut_ptr() as usize + other, length);
                };
                let mut expected = vec![0xee_u8; 400];
                expected[other..other + length].copy_from_slice(&from[shift..shift + length]);
                assert_eq!(to, expected, "{length} bytes from {shift} to {other}");
            }
        }
    }
}
