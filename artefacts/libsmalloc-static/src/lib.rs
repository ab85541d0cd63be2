//! libsmalloc.a: the modules of libsmalloc, and all of libnearfar, which the shared library stands on instead.
//!
//! One archive, so that a program is linked by naming it alone. Nothing of its own is here.

// Only for the functions that C knows: the modules declare what they use of them.
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
