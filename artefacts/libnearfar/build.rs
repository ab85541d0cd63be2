//! Sets the shared library's soname with its ABI number, and keeps it loaded after dlclose: threads that have used it
//! call it as they end, and memory it allocated may still be in use.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnearfar.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
