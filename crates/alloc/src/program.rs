//! Detects whether this program's malloc calls reach the preload library.
//!
//! The dynamic linker searches the executable before preloaded libraries, so an executable that exports its own malloc
//! (rustc links jemalloc) uses that one, as does one whose user preloads another malloc first. An executable linked at
//! fixed addresses may have a local stub as the address of a function it only imports; such a stub leads here.
#![expect(unsafe_code, reason = "the dynamic linker is asked")]

use core::ptr::null_mut;

/// `RTLD_DL_SYMENT` of dlfcn.h: the symbol that covers an address.
const SYMBOL: libc::c_int = 1;

/// Whether the program's malloc is the function at `ours`.
pub(crate) fn calls(ours: usize) -> bool {
    // SAFETY: a name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    found as usize == ours || found.is_null() || is_import(found)
}

/// Whether an address is a stub for a function that the object around it imports.
fn is_import(address: *mut libc::c_void) -> bool {
    let mut info = libc::Dl_info {
        dli_fname: null_mut(),
        dli_fbase: null_mut(),
        dli_sname: null_mut(),
        dli_saddr: null_mut(),
    };
    let mut symbol: *mut libc::c_void = null_mut();
    // SAFETY: valid pointers for the results, of the types that this flag requires.
    let known = unsafe { libc::dladdr1(address, &raw mut info, &raw mut symbol, SYMBOL) };
    // SAFETY: a symbol of an object that stays loaded, if there is one.
    let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() };
    known != 0 && symbol.is_some_and(|symbol| symbol.st_shndx == 0)
}
