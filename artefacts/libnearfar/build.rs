//! Gives the shared library its name with the number of its binary interface, and has it stay when a program lets go of it:
//! threads that have used it call it as they end, and memory it gave may still be in use.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearfar.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
