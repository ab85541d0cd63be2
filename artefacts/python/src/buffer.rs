//! Memory of a kind as an object with the buffer protocol.
//!
//! The memory lives exactly as long as its object: it is never moved, shrunk or freed while a view exists, because
//! every view holds a reference to the object.
#![expect(unsafe_code, reason = "memory is allocated, shown and given back")]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use nearfar_alloc::ffi::{nf_aligned_alloc, nf_calloc, nf_free};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::kind::{Handle, Kind};

/// From this size on zeroed memory is mapped afresh by the kernel, at a page boundary.
const FRESH_LEAST: usize = 4 << 20;
const PAGE: usize = 4096;
/// From this size on freeing takes milliseconds, so the GIL is released.
const LONG_LEAST: usize = 64 << 20;

/// An allocation request.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    length: usize,
    /// A power of two.
    alignment: usize,
    zeroed: bool,
}

/// Memory of a kind, freed when it is dropped.
#[derive(Debug)]
struct Memory {
    at: NonNull<u8>,
    length: usize,
    // Dropped after the memory is freed.
    _kind: Arc<Handle>,
}

// SAFETY: the memory is not tied to a thread, and nothing here accesses it after construction.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates; `None` if the kind has no such memory.
    fn new(kind: Arc<Handle>, wanted: Wanted) -> Option<Self> {
        let Wanted { length, alignment, zeroed } = wanted;
        let fresh = zeroed && length >= FRESH_LEAST && alignment <= PAGE;
        let at: *mut c_void = if fresh {
            nf_calloc(kind.number(), 1, length)
        } else {
            nf_aligned_alloc(kind.number(), alignment, length)
        };
        let at = NonNull::new(at.cast::<u8>())?;
        let memory = Self { at, length, _kind: kind };
        if zeroed && !fresh {
            // SAFETY: exclusively ours, and of that length.
            unsafe { at.write_bytes(0, length) };
        }
        Some(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let at = self.at.expose_provenance().get();
        // SAFETY: allocated in `new`, and every view holds a reference to the object that owns this.
        let free = move || unsafe { nf_free(std::ptr::with_exposed_provenance_mut(at)) };
        // At interpreter shutdown no thread waits for the GIL.
        if self.length < LONG_LEAST || Python::try_attach(|py| py.detach(free)).is_none() {
            free();
        }
    }
}

/// Memory of a kind.
#[pyclass(frozen, subclass, weakref, module = "nearfar._nearfar")]
pub(crate) struct Buffer {
    memory: Memory,
    kind: Py<Kind>,
}

#[pymethods]
impl Buffer {
    #[new]
    #[pyo3(signature = (kind, size, alignment = 64, *, zeroed = true))]
    fn new(kind: &Bound<'_, Kind>, size: isize, alignment: isize, zeroed: bool) -> PyResult<Self> {
        let length = usize::try_from(size)
            .map_err(|_| PyValueError::new_err(format!("size {size} is negative")))?;
        let power = usize::try_from(alignment).ok().filter(|number| number.is_power_of_two());
        let alignment = power.ok_or_else(|| {
            PyValueError::new_err(format!("alignment {alignment} is not a power of two"))
        })?;
        let none = || {
            let words =
                kind.repr().map_or_else(|_| String::from("the kind"), |repr| repr.to_string());
            let why = if words.contains("limit=") {
                "its limit is reached, or so is that of the process; \
                 a kind with a limit may spill (\"far;limit=4g;spill=near\")"
            } else {
                "the process may have no more memory"
            };
            PyMemoryError::new_err(format!("{words} has no room for {length} bytes: {why}"))
        };
        let wanted = Wanted { length, alignment, zeroed };
        let memory = Memory::new(kind.get().hold()?, wanted).ok_or_else(none)?;
        Ok(Self { memory, kind: kind.clone().unbind() })
    }

    /// The kind it belongs to.
    #[getter]
    fn kind(&self, py: Python<'_>) -> Py<Kind> {
        self.kind.clone_ref(py)
    }

    /// Its start address.
    #[getter]
    fn address(&self) -> usize {
        self.memory.at.addr().get()
    }

    fn __len__(&self) -> usize {
        self.memory.length
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Memory { at, length, .. } = &slf.get().memory;
        let length = ffi::Py_ssize_t::try_from(*length)?;
        // SAFETY: the view is Python's; the memory has that length, is writable, and lives as long as the object, to
        // which the view holds a reference.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), at.as_ptr().cast(), length, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
