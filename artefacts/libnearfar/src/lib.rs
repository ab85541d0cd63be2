//! libnearfar: the C interfaces of nearfar-alloc and nearfar-cache as a shared and a static library, and nothing else.
//!
//! The header is `crates/alloc/include/nearfar.h`. Of the cache, whose crate neither knows errno nor the allocator's `nf_error`, the
//! functions themselves are here ([`cache`]), each a few lines over `nearfar_cache::local`; those of the allocator are in its crate.

pub mod cache;

pub use cache::*;
pub use nearfar_alloc::ffi::*;
