//! libsmalloc.a: the modules of libsmalloc together with all of libnearfar, which the shared library links instead.
//!
//! With one archive a program is linked by naming it alone. The crate has no code of its own.

// Only for its C functions: the modules declare those they use.
use nearfar_alloc as _;

#[path = "../../libsmalloc/src/conf.rs"]
mod conf;
#[path = "../../libsmalloc/src/ffi.rs"]
pub mod ffi;
#[path = "../../libsmalloc/src/interleave.rs"]
mod interleave;
#[path = "../../libsmalloc/src/kinds.rs"]
mod kinds;
#[path = "../../libsmalloc/src/nearfar.rs"]
mod nearfar;
#[path = "../../libsmalloc/src/nodes.rs"]
mod nodes;
#[path = "../../libsmalloc/src/stats.rs"]
mod stats;
#[path = "../../libsmalloc/src/text.rs"]
mod text;
