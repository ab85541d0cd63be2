//! The machine's nodes, and the residency of memory by node.
#![expect(unsafe_code, reason = "the C interface writes answers into slices")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};

use nearfar_alloc::ffi::{
    NF_MEMORY_CXL, NF_MEMORY_DRAM, NF_MEMORY_GPU, NF_MEMORY_HBM, NF_MEMORY_PMEM, nf_node,
    nf_node_t, nf_nodes, nf_residency,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use crate::failure::Failure;

/// Upper bound of node numbers.
const NODES: usize = 1024;

/// A node: its number, its kind of memory, its tier if known, its number of CPUs, its size and its free memory in
/// bytes.
type Node = (u32, &'static str, Option<u32>, u32, u64, u64);

fn of_set(words: &CStr) -> Result<Vec<u32>, Failure> {
    let mut nodes = vec![0; NODES];
    // SAFETY: a C string, and an array of the length passed.
    let count = unsafe { nf_nodes(words.as_ptr(), nodes.as_mut_ptr(), nodes.len()) };
    let count = usize::try_from(count).map_err(|_| Failure::in_words())?;
    nodes.truncate(count);
    Ok(nodes)
}

/// A node's description; `None` if it does not exist (any more).
fn about(node: u32) -> Option<Node> {
    let mut into = nf_node_t::default();
    // SAFETY: `into` is a valid place for it.
    let found = unsafe { nf_node(node, &raw mut into) } == 0;
    let memory = match into.memory {
        NF_MEMORY_DRAM => "dram",
        NF_MEMORY_CXL => "cxl",
        NF_MEMORY_HBM => "hbm",
        NF_MEMORY_PMEM => "pmem",
        NF_MEMORY_GPU => "gpu",
        _ => "unknown",
    };
    let tier = Some(into.tier).filter(|tier| *tier != u32::MAX);
    found.then_some((node, memory, tier, into.cpus, into.size, into.free))
}

/// The machine's nodes with memory.
#[pyfunction]
pub(crate) fn nodes(py: Python<'_>) -> PyResult<Vec<Node>> {
    let all = py.detach(|| Ok(of_set(c"all")?.into_iter().filter_map(about).collect()));
    all.map_err(|failure: Failure| failure.into())
}

/// The nodes of a node set expression.
#[pyfunction]
pub(crate) fn node_set(py: Python<'_>, words: &str) -> PyResult<Vec<u32>> {
    let text = CString::new(words)
        .map_err(|_| PyValueError::new_err(format!("{words:?} has a zero in it")))?;
    py.detach(|| of_set(&text)).map_err(PyErr::from)
}

/// Resident bytes of a range of addresses, by node.
#[pyfunction]
pub(crate) fn residency(
    py: Python<'_>,
    address: usize,
    length: usize,
) -> PyResult<BTreeMap<usize, u64>> {
    let mut bytes = vec![0; NODES];
    py.detach(|| {
        let at = std::ptr::without_provenance::<c_void>(address);
        // SAFETY: an array of the length passed; the range itself is not accessed.
        let asked = unsafe { nf_residency(at, length, bytes.as_mut_ptr(), bytes.len()) };
        if asked == 0 { Ok(()) } else { Err(Failure::of("residency")) }
    })?;
    Ok(bytes.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0).collect())
}

/// The layout of an object with the buffer protocol: address, item size in bytes, shape, and strides in bytes.
#[pyfunction]
pub(crate) fn layout(thing: &Bound<'_, PyAny>) -> PyResult<(usize, usize, Vec<usize>, Vec<isize>)> {
    let view = PyUntypedBuffer::get(thing)?;
    if view.suboffsets().is_some() {
        return Err(PyBufferError::new_err(
            "the buffer lies in pieces (suboffsets), so it has no place; ask about its parts",
        ));
    }
    let address = view.buf_ptr().addr();
    Ok((address, view.item_size(), view.shape().to_vec(), view.strides().to_vec()))
}
