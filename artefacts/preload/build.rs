//! Linker options of the library: its soname; jemalloc within it calls the system's mmap(2) and not the replacement;
//! and the library binds to its own functions. By default the dynamic linker would bind calls of `free` within the
//! library to the program's `free`, if it exports one, but not calls of `malloc` that were inlined.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearfar_preload.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap=mmap");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rerun-if-changed=build.rs");
}
