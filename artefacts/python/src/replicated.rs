//! Replicated regions: read and written by calls, and exposed as the copy of a thread's node with the buffer protocol.
//!
//! While a view exists, writes are refused and the region stays alive; a view is created only while no thread writes,
//! and shows all earlier writes.
#![expect(unsafe_code, reason = "memory is shown")]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearfar_alloc::{OutOfRegion, ReplicatedError};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyMemoryError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// From this size on copying takes so long that the GIL is released.
const LONG_LEAST: usize = 1 << 20;

/// Statistics of a region: writes, collapses, copies, settled.
type Figures = (u64, u64, u64, u64);

#[derive(Debug)]
struct State {
    /// `None` once it is closed.
    region: Option<Arc<nearfar_alloc::Replicated>>,
    /// Number of existing views.
    views: usize,
    /// Number of threads that are writing.
    writers: usize,
}

/// A replicated region.
#[pyclass(frozen, subclass, weakref, module = "nearfar._nearfar")]
pub(crate) struct Replicated {
    words: String,
    size: usize,
    state: Mutex<State>,
}

fn refused(error: &ReplicatedError) -> PyErr {
    let (errno, words) = (error.errno(), error.to_string());
    match errno {
        libc::ENOMEM => PyMemoryError::new_err(words),
        libc::EINVAL | libc::ENODEV => PyValueError::new_err(words),
        _ => PyOSError::new_err((errno, words)),
    }
}

fn outside(error: OutOfRegion) -> PyErr {
    PyIndexError::new_err(error.to_string())
}

/// Calls `act`, without the GIL if it takes long.
fn long<T: Send>(py: Python<'_>, length: usize, act: impl FnOnce() -> T + Send) -> T {
    if length < LONG_LEAST { act() } else { py.detach(act) }
}

impl Replicated {
    /// Locks the state; the lock is held for a few instructions at a time.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, state: &State) -> PyResult<Arc<nearfar_alloc::Replicated>> {
        let closed = || PyValueError::new_err("the replicated region is closed; make another");
        state.region.clone().ok_or_else(closed)
    }

    fn region(&self) -> PyResult<Arc<nearfar_alloc::Replicated>> {
        self.open(&self.lock())
    }

    /// Counts a writer, unless there are views.
    fn begin_writing(&self) -> PyResult<Arc<nearfar_alloc::Replicated>> {
        let mut state = self.lock();
        let region = self.open(&state)?;
        if state.views > 0 {
            let views = state.views;
            return Err(PyBufferError::new_err(format!(
                "the region has {views} view(s), which show it as it is; release them (memoryview.release()) before it is \
                 written"
            )));
        }
        state.writers += 1;
        Ok(region)
    }
}

#[pymethods]
impl Replicated {
    #[new]
    #[pyo3(signature = (size, words = ""))]
    fn new(py: Python<'_>, size: isize, words: &str) -> PyResult<Self> {
        let size = usize::try_from(size)
            .map_err(|_| PyValueError::new_err(format!("size {size} is negative")))?;
        // Creating a region reads files about the machine.
        let made = py.detach(|| nearfar_alloc::Replicated::new(words, size));
        let region = Some(Arc::new(made.map_err(|error| refused(&error))?));
        let state = Mutex::new(State { region, views: 0, writers: 0 });
        Ok(Self { words: words.into(), size, state })
    }

    /// The specification it was made from.
    #[getter]
    fn words(&self) -> &str {
        &self.words
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().region.is_none()
    }

    /// The nodes of the copies, home first.
    #[getter]
    fn nodes(&self) -> PyResult<Vec<u32>> {
        Ok(self.region()?.nodes())
    }

    /// Destroys the region; does nothing if it is closed. Raises BufferError while views of it live.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let last = {
            let mut state = self.lock();
            if state.views > 0 {
                let views = state.views;
                return Err(PyBufferError::new_err(format!(
                    "the region has {views} view(s); release them before it is closed"
                )));
            }
            state.region.take()
        };
        py.detach(|| drop(last));
        Ok(())
    }

    /// Bytes from an offset on; without a size, up to the end.
    #[pyo3(signature = (offset = 0, size = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        size: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let region = self.region()?;
        let length = size.unwrap_or_else(|| self.size.saturating_sub(offset));
        // Refuse an invalid range before allocating memory for it.
        region.read(offset.saturating_add(length), &mut []).map_err(outside)?;
        PyBytes::new_with(py, length, |into| {
            long(py, length, || region.read(offset, into)).map_err(outside)
        })
    }

    /// Reads into a buffer, as many bytes as it has.
    #[pyo3(signature = (into, offset = 0))]
    fn readinto(&self, py: Python<'_>, into: &Bound<'_, PyAny>, offset: usize) -> PyResult<usize> {
        let region = self.region()?;
        let view = PyUntypedBuffer::get(into)?;
        if view.readonly() || !view.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "readinto takes memory in one piece that may be written",
            ));
        }
        let (at, length) = (view.buf_ptr() as usize, view.len_bytes());
        if length > 0 {
            // SAFETY: the buffer has that length, is writable, and stays valid while the view exists.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, length) };
            long(py, length, || region.read(offset, bytes)).map_err(outside)?;
        }
        Ok(length)
    }

    /// Writes bytes from an offset on.
    #[pyo3(signature = (data, offset = 0))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        let view = PyUntypedBuffer::get(data)?;
        if !view.is_c_contiguous() {
            return Err(PyBufferError::new_err("write takes memory in one piece; copy it first"));
        }
        let region = self.begin_writing()?;
        let (at, length) = (view.buf_ptr() as usize, view.len_bytes());
        let bytes: &[u8] = if length == 0 {
            &[]
        } else {
            // SAFETY: the buffer has that length, and stays valid while the view exists.
            unsafe { std::slice::from_raw_parts(at as *const u8, length) }
        };
        let done = long(py, length, || region.write(offset, bytes));
        self.lock().writers -= 1;
        done.map_err(outside)
    }

    /// Waits until every copy contains all earlier writes.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.region()?;
        long(py, self.size, || region.sync());
        Ok(())
    }

    /// Its statistics, in the order of nf_replicated_stats_t.
    fn figures(&self) -> PyResult<Figures> {
        let found = self.region()?.stats();
        Ok((found.writes, found.collapses, found.copies, found.settled))
    }

    fn __len__(&self) -> usize {
        self.size
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let own = slf.get();
        let region = {
            let mut state = own.lock();
            let region = own.open(&state)?;
            if state.writers > 0 {
                return Err(PyBufferError::new_err(
                    "another thread writes the region; a view of it can't begin meanwhile",
                ));
            }
            state.views += 1;
            region
        };
        long(slf.py(), own.size, || region.sync());
        let length = ffi::Py_ssize_t::try_from(own.size)?;
        let at = region.as_ptr().cast_mut().cast();
        // SAFETY: the view is Python's; a copy has that length and lives as long as the region, which can't be closed
        // while there are views and lives as long as the object, to which the view holds a reference. It is marked
        // read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), at, length, 1, flags) };
        if filled == 0 {
            return Ok(());
        }
        own.lock().views -= 1;
        Err(PyErr::fetch(slf.py()))
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lock().views -= 1;
    }
}
