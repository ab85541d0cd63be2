//! libsmalloc: the functions of Samsung SMDK's libsmalloc, over libnearfar's memory kinds.
//!
//! A *type* is normal memory (nodes with CPUs) or exmem (nodes without). Here, from the outside in: [`ffi`] is the C
//! interface (`include/smdk_opt_api.h`); `interleave` selects a thread's kind; `kinds` creates and records kinds;
//! `nodes` classifies nodes; `stats` prints; `conf` reads the one variable; `nearfar` declares the functions used of
//! libnearfar. Not here: allocation and placement (crate nearfar-alloc).
//!
//! No function waits for another thread or ends the program. The static library, `libsmalloc-static`, has these modules
//! too.

mod conf;
pub mod ffi;
mod interleave;
mod kinds;
mod nearfar;
mod nodes;
mod stats;
mod text;
