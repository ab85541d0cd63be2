//! Linker options of the library: its soname.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearfar_vm_interleave.so");
    println!("cargo::rerun-if-changed=build.rs");
}
