//! Kinds: created from a specification, destroyed with their last user.
//!
//! Every object that has memory of a kind, or may allocate from it, holds its [`Handle`]; dropping the last handle
//! destroys the kind. So memory can't outlive its kind, and a kind that is in use can't be closed.
#![expect(unsafe_code, reason = "kinds are made, asked and ended over the C interface")]

use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearfar_alloc::ffi::{
    NF_JSON, NF_NONE, NF_TEXT, nf_kind_create, nf_kind_destroy, nf_kind_of, nf_kind_t, nf_stats,
    nf_stats_t, nf_stats_text,
};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use crate::failure::Failure;

/// A live kind.
#[derive(Debug)]
pub(crate) struct Handle(nf_kind_t);

impl Handle {
    fn create(words: &CString) -> Result<Self, Failure> {
        // SAFETY: a C string.
        let kind = unsafe { nf_kind_create(words.as_ptr()) };
        if kind == NF_NONE { Err(Failure::in_words()) } else { Ok(Self(kind)) }
    }

    /// Its number in the C interface.
    pub(crate) const fn number(&self) -> nf_kind_t {
        self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: every user of the kind or of its memory holds this handle; the last one is gone.
        unsafe { nf_kind_destroy(self.0) };
    }
}

/// Statistics of a kind: allocated, kept, set aside, limit (`None`: no limit), binds, spilled, failed.
type Figures = (u64, u64, u64, Option<u64>, u64, u64, u64);

/// A memory kind.
#[pyclass(frozen, subclass, weakref, module = "nearfar._nearfar")]
pub(crate) struct Kind {
    words: String,
    handle: Mutex<Option<Arc<Handle>>>,
}

impl Kind {
    /// Locks the state; the lock is held for a few instructions at a time, with the GIL and without calling Python.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Handle>>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle, which keeps the kind alive.
    pub(crate) fn hold(&self) -> PyResult<Arc<Handle>> {
        let closed = || {
            let words = &self.words;
            PyValueError::new_err(format!(
                "kind {words:?} is closed; make another: Kind({words:?})"
            ))
        };
        self.lock().clone().ok_or_else(closed)
    }
}

#[pymethods]
impl Kind {
    #[new]
    fn new(py: Python<'_>, words: &str) -> PyResult<Self> {
        let text = CString::new(words)
            .map_err(|_| PyValueError::new_err(format!("{words:?} has a zero in it")))?;
        // Creating a kind reads files about the machine.
        let handle = py.detach(|| Handle::create(&text))?;
        Ok(Self { words: words.into(), handle: Mutex::new(Some(Arc::new(handle))) })
    }

    /// The specification it was made from.
    #[getter]
    fn words(&self) -> &str {
        &self.words
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Destroys the kind and returns all its address space; does nothing if it is closed.
    ///
    /// Raises BufferError while buffers or arrays of it live, or a numpy_in block with it runs.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let last = {
            let mut place = self.lock();
            match place.take().map(Arc::try_unwrap) {
                None => return Ok(()),
                Some(Ok(last)) => last,
                Some(Err(used)) => {
                    let users = Arc::strong_count(&used) - 1;
                    *place = Some(used);
                    let words = &self.words;
                    return Err(PyBufferError::new_err(format!(
                        "kind {words:?} has {users} user(s): buffers, arrays or numpy_in blocks; release them before \
                         it is closed, or leave it to end with the last of them"
                    )));
                }
            }
        };
        py.detach(|| drop(last));
        Ok(())
    }

    /// Its statistics, in the order of nf_stats_t.
    fn figures(&self) -> PyResult<Figures> {
        let handle = self.hold()?;
        let mut into = nf_stats_t::default();
        // SAFETY: `into` is a valid place for them.
        if unsafe { nf_stats(handle.number(), &raw mut into) } != 0 {
            return Err(Failure::of(&self.words).into());
        }
        let nf_stats_t { allocated, kept, set_aside, limit, binds, spilled, failed } = into;
        let limit = Some(limit).filter(|limit| *limit != u64::MAX);
        Ok((allocated, kept, set_aside, limit, binds, spilled, failed))
    }

    /// Its statistics and its residency, as text or as JSON.
    fn report(&self, py: Python<'_>, json: bool) -> PyResult<String> {
        let handle = self.hold()?;
        py.detach(|| report(handle.number(), json)).map_err(PyErr::from)
    }

    /// Whether memory belongs to this kind itself; false for memory of its spill.
    fn owns(&self, address: usize) -> PyResult<bool> {
        let handle = self.hold()?;
        Ok(nf_kind_of(std::ptr::without_provenance::<c_void>(address)) == handle.number())
    }
}

/// Statistics and residency of all kinds, as text or as JSON.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>, json: bool) -> PyResult<String> {
    py.detach(|| report(NF_NONE, json)).map_err(PyErr::from)
}

fn report(kind: nf_kind_t, json: bool) -> Result<String, Failure> {
    let format = if json { NF_JSON } else { NF_TEXT };
    let mut text = vec![0_u8; 4096];
    loop {
        // SAFETY: the buffer has the length passed.
        let length = unsafe { nf_stats_text(kind, format, text.as_mut_ptr().cast(), text.len()) };
        // Without any kind the text may be empty; for an existing kind that is an error.
        if length == 0 && kind != NF_NONE {
            return Err(Failure::of("figures"));
        }
        if length < text.len() {
            text.truncate(length);
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        // The text may have grown in between.
        text.resize(length + length / 8 + 1, 0);
    }
}
