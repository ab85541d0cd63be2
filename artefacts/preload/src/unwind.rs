//! Replacements of the unwinder's functions that the standard library calls. Without them libgcc_s would be loaded,
//! which takes a tenth of a short program's start.
//!
//! A panic in this library aborts (profile `abi`), so this library never unwinds. The symbols are hidden: programs that
//! throw and catch use their own.
#![expect(unsafe_code, reason = "symbols that Rust would export")]

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp abort@PLT"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b abort"
    };
}

macro_rules! never_called {
    ($($name:literal)*) => {
        core::arch::global_asm!(".text", $(
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
        )* jump!());
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
never_called! {
    "_Unwind_Backtrace" "_Unwind_DeleteException" "_Unwind_GetDataRelBase" "_Unwind_GetIP" "_Unwind_GetIPInfo"
    "_Unwind_GetLanguageSpecificData" "_Unwind_GetRegionStart" "_Unwind_GetTextRelBase" "_Unwind_RaiseException" "_Unwind_Resume"
    "_Unwind_SetGR" "_Unwind_SetIP" "_Unwind_GetCFA" "_Unwind_FindEnclosingFunction"
}
