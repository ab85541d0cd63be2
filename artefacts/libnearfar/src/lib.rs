//! libnearfar: the C interfaces of nearfar-alloc and nearfar-cache as a shared and a static library.
//!
//! The header is `crates/alloc/include/nearfar.h`. The allocator's functions are in its crate. The cache's crate knows
//! neither errno nor the allocator's `nf_error`, so its C functions are here ([`cache`]), each a few lines over
//! `nearfar_cache::local`.

pub mod cache;

pub use cache::*;
pub use nearfar_alloc::ffi::*;
