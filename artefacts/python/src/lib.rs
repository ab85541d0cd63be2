//! nearfar._nearfar: nearfar-alloc and nearfar-cache for Python, and nothing else.
//!
//! `kind` holds kinds and ends them with their last user, `buffer` is memory of a kind as an object, `hook` is what numpy
//! calls for memory, `replicated` is regions with a copy on each node, `cache` is caches, `machine` answers what nodes there are and
//! which of them memory is on; `failure` says what went wrong.
//! Each is a line or two over the C interface, or over the Rust one where that is shorter. Defaults, dataclasses, arrays, tensors and `py_smdk` are Python, in `python/`.
//! Not here: interpreters without a GIL, and several interpreters in a process; Python refuses or serialises both.
//! Read next: `kind.rs`.

mod buffer;
mod cache;
mod failure;
mod hook;
mod kind;
mod machine;
mod replicated;

use pyo3::prelude::*;

/// Memory by kind, as the package `nearfar` uses it: not for use by programs.
#[pymodule]
mod _nearfar {
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::hook::{numpy_handler, numpy_use};
    #[pymodule_export]
    use crate::kind::{Kind, stats};
    #[pymodule_export]
    use crate::machine::{layout, node_set, nodes, residency};
    #[pymodule_export]
    use crate::replicated::Replicated;
}
