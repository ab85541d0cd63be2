//! nearfar._nearfar: bindings of nearfar-alloc and nearfar-cache for Python.
//!
//! `kind` holds kinds and destroys them with their last user, `buffer` is memory of a kind as an object, `hook` is
//! numpy's memory handler, `replicated` is regions with a copy on each node, `cache` is caches, `machine` lists the
//! nodes and the residency of memory by node; `failure` converts errors. Each function is a line or two over the C
//! interface, or over the Rust one where that is shorter. Defaults, dataclasses, arrays, tensors and `py_smdk` are
//! Python, in `python/`. Not supported: interpreters without a GIL, and several interpreters in a process; Python
//! refuses or serialises both. Read next: `kind.rs`.

mod buffer;
mod cache;
mod failure;
mod hook;
mod kind;
mod machine;
mod replicated;

use pyo3::prelude::*;

/// The extension module of the package `nearfar`. Internal: programs use the package.
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
