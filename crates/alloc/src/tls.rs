//! A thread's one word: where what it keeps is.
//!
//! Every allocation reads it, so it must cost one load. `thread_local!` in a shared library asks a function of the dynamic
//! linker for the address each time; the initial-exec model (ELF Handling For Thread-Local Storage, section 4.3) has it at
//! a fixed distance from the thread pointer. Rust can't name that model, so the word is declared in assembly. A library that
//! uses it can be loaded late as long as the C library has a few bytes of static TLS in reserve (glibc has 512 and more).
//! Where neither x86-64 nor 64-bit Arm it is a `thread_local!`.
#![expect(unsafe_code, reason = "a thread-local word that the compiler can't declare")]

use crate::thread::Thread;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod word {
    use super::Thread;
    use core::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss,\"awT\",@nobits",
        ".balign 8",
        ".globl nearfar_thread_word",
        ".hidden nearfar_thread_word",
        ".type nearfar_thread_word,@tls_object",
        ".size nearfar_thread_word,8",
        "nearfar_thread_word:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(crate) fn get() -> *mut Thread {
        let word: *mut Thread;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the linker puts the word's distance from the thread pointer where the first instruction reads it; every
        // thread has the word there, zero at first.
        unsafe {
            asm!(
                "mov {word}, qword ptr [rip + nearfar_thread_word@GOTTPOFF]",
                "mov {word}, qword ptr fs:[{word}]",
                word = out(reg) word,
                options(nostack, preserves_flags, readonly),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!(
                "mrs {base}, tpidr_el0",
                "adrp {word}, :gottprel:nearfar_thread_word",
                "ldr {word}, [{word}, #:gottprel_lo12:nearfar_thread_word]",
                "ldr {word}, [{base}, {word}]",
                base = out(reg) _,
                word = out(reg) word,
                options(nostack, preserves_flags, readonly),
            );
        }
        word
    }

    #[inline(always)]
    pub(crate) fn set(value: *mut Thread) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as for reading; the word is this thread's alone.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + nearfar_thread_word@GOTTPOFF]",
                "mov qword ptr fs:[{at}], {value}",
                at = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!(
                "mrs {base}, tpidr_el0",
                "adrp {at}, :gottprel:nearfar_thread_word",
                "ldr {at}, [{at}, #:gottprel_lo12:nearfar_thread_word]",
                "str {value}, [{base}, {at}]",
                base = out(reg) _,
                at = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod word {
    use super::Thread;
    use std::cell::Cell;

    thread_local! {
        static WORD: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
    }

    pub(crate) fn get() -> *mut Thread {
        WORD.get()
    }

    pub(crate) fn set(value: *mut Thread) {
        WORD.set(value);
    }
}

pub(crate) use word::{get, set};

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[test]
    fn each_thread_has_a_word_of_its_own_that_is_none_at_first() {
        let set_and_get = |value: usize| {
            assert_eq!(get(), null_mut());
            set(value as *mut Thread);
            let found = get() as usize;
            set(null_mut());
            found
        };
        std::thread::spawn(move || {
            assert_eq!(std::thread::spawn(move || set_and_get(64)).join().unwrap(), 64);
            assert_eq!(set_and_get(128), 128);
        })
        .join()
        .unwrap();
    }
}
