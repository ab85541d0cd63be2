//! Gives the shared library its name with the number of its binary interface.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearfar.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
