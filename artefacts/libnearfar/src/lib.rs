//! libnearfar: the C interface of nearfar-alloc as a shared and a static library, and nothing else.
//!
//! The header is `crates/alloc/include/nearfar.h`.

pub use nearfar_alloc::ffi::*;
