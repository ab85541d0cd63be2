//! libsmalloc: the functions of Samsung SMDK's libsmalloc, over libnearfar's memory kinds.
//!
//! A *type* is normal memory (nodes with CPUs) or exmem (nodes without). Here, from the outside in: [`ffi`] is the C
//! interface (`include/smdk_opt_api.h`); `interleave` chooses a thread's kind; `kinds` makes kinds and remembers them;
//! `nodes` says which nodes are of a type; `stats` prints; `conf` reads the one variable; `nearfar` is what is asked of
//! libnearfar. Not here: how memory is allocated and placed (crate nearfar-alloc).
//!
//! No function waits for another thread or ends the program. The static library, `libsmalloc-static`, has these modules too.

mod conf;
pub mod ffi;
mod interleave;
mod kinds;
mod nearfar;
mod nodes;
mod stats;
mod text;
