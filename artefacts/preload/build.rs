//! Links the library: its name, and that jemalloc within it calls mmap(2) itself and not the one that stands for it here.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearfar_preload.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap=mmap");
    println!("cargo::rerun-if-changed=build.rs");
}
