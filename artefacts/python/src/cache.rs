//! Caches: bytes by key, over `nearfar_cache::local`.
//!
//! The GIL is released where a call may wait for a disk or copies much; other calls take less time than releasing it
//! would. A thread that holds the GIL never waits for a thread that wants it: threads hold the cache's locks only while
//! they run without the GIL.
#![expect(unsafe_code, reason = "memory that Python shows is read")]
#![expect(clippy::needless_pass_by_value, reason = "PyO3 hands over what it has made of arguments")]

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearfar_cache::local::{About, Failure, LocalCache, With};
use nearfar_cache::settings::{Settings, SettingsError};
use nearfar_cache::store::Refused;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{
    PyBufferError, PyMemoryError, PyOSError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// From this size on copying takes so long that the GIL is released.
const LONG_LEAST: usize = 256 << 10;
/// From this number of items on, too.
const MANY: usize = 16;

/// An item: value, flags, remaining seconds (0: no expiry), CAS number.
type Found<'py> = (Bound<'py, PyBytes>, u32, u32, u64);

/// Attributes of an item to store: flags, and time to live in seconds (0: no expiry).
type Wanted = (u32, u32);

/// A cache.
#[pyclass(frozen, subclass, weakref, module = "nearfar._nearfar")]
pub(crate) struct Cache {
    /// `None` once it is closed.
    cache: Mutex<Option<Arc<LocalCache>>>,
    has_disk: bool,
    /// Length in bytes of the longest value stored so far.
    longest: AtomicUsize,
}

fn with_of((flags, ttl): Wanted) -> With {
    With { flags, ttl }
}

fn not_made(error: &SettingsError) -> PyErr {
    let (errno, words) = (error.errno(), error.to_string());
    match errno {
        libc::ENOMEM => PyMemoryError::new_err(words),
        libc::EINVAL | libc::ENODEV => PyValueError::new_err(words),
        _ => PyOSError::new_err((errno, words)),
    }
}

fn failed(failure: Failure) -> PyErr {
    let words = failure.to_string();
    match failure {
        Failure::Refused(Refused::NoMemory { .. }) => PyMemoryError::new_err(words),
        Failure::Forked => PyRuntimeError::new_err(words),
        _ => PyValueError::new_err(words),
    }
}

/// Whether the item was stored; false if the existing item (or its absence) forbids it.
fn stored(done: Result<u64, Failure>) -> PyResult<bool> {
    match done {
        Ok(_) => Ok(true),
        Err(Failure::Absent | Failure::Exists) => Ok(false),
        Err(failure) => Err(failed(failure)),
    }
}

/// A key: bytes, or text encoded as UTF-8.
struct Key(Vec<u8>);

impl FromPyObject<'_, '_> for Key {
    type Error = PyErr;

    fn extract(key: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = key.cast::<PyBytes>() {
            return Ok(Self(bytes.as_bytes().to_vec()));
        }
        if let Ok(text) = key.cast::<PyString>() {
            return Ok(Self(text.to_str()?.as_bytes().to_vec()));
        }
        let sort = key.get_type().name()?;
        Err(PyTypeError::new_err(format!("a key is bytes or str, not {sort}")))
    }
}

/// A value: any contiguous object with the buffer protocol. It stays alive while this exists.
struct Value(PyUntypedBuffer);

impl FromPyObject<'_, '_> for Value {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let view = PyUntypedBuffer::get(&value).map_err(|_| {
            let sort = value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
            PyTypeError::new_err(format!(
                "a value is bytes or other memory (the buffer protocol), not {sort}: encode it; nothing is pickled here"
            ))
        })?;
        if view.is_c_contiguous() {
            return Ok(Self(view));
        }
        Err(PyBufferError::new_err("a value is memory in one piece; copy it first"))
    }
}

impl Value {
    fn bytes(&self) -> &[u8] {
        let length = self.0.len_bytes();
        if length == 0 {
            return &[];
        }
        // SAFETY: the buffer has that length, and stays valid while the view exists.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), length) }
    }
}

impl Cache {
    /// Locks the state; the lock is held for a few instructions at a time.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<LocalCache>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> PyResult<Arc<LocalCache>> {
        self.lock().clone().ok_or_else(|| failed(Failure::Closed))
    }

    /// Calls `act` with the cache; without the GIL if that may take long.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        length: usize,
        act: impl FnOnce(&LocalCache) -> T + Send,
    ) -> PyResult<T> {
        let cache = self.open()?;
        Ok(if self.has_disk || length >= LONG_LEAST {
            // Dropping the last reference may close the cache.
            py.detach(move || act(&cache))
        } else {
            act(&cache)
        })
    }

    /// Records the length of a value before it is stored.
    fn noted(&self, value: &Value) -> usize {
        let length = value.0.len_bytes();
        if self.longest.load(Relaxed) < length {
            self.longest.fetch_max(length, Relaxed);
        }
        length
    }

    fn read(&self, py: Python<'_>, key: &Key, out: &mut Vec<u8>) -> PyResult<Option<About>> {
        let longest = self.longest.load(Relaxed);
        self.with(py, longest, |cache| cache.get(&key.0, out))?.map_err(failed)
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(py: Python<'_>, settings: Vec<(String, String)>) -> PyResult<Self> {
        let mut all = Settings::default();
        for (name, value) in &settings {
            all.set(name, value).map_err(|error| not_made(&error))?;
        }
        let has_disk = settings.iter().any(|(name, _)| name == "disk");
        // Opening reads files about the machine, and the disk.
        let cache = py.detach(|| all.open()).map_err(|error| not_made(&error))?;
        let cache = Mutex::new(Some(Arc::new(cache)));
        Ok(Self { cache, has_disk, longest: AtomicUsize::new(0) })
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    /// The maximum number of bytes of a key and its value together.
    #[getter]
    fn item_max(&self) -> PyResult<usize> {
        Ok(self.open()?.largest())
    }

    /// Closes the cache; does nothing if it is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(cache) = self.lock().take() else { return Ok(()) };
        let closed = py.detach(move || cache.close());
        closed.map_err(|error| match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(failure) => failed(*failure),
            None => error.into(),
        })
    }

    /// A value; None if the key is missing.
    fn load<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut out = Vec::new();
        Ok(self.read(py, &key, &mut out)?.map(|_| PyBytes::new(py, &out)))
    }

    /// An item; None if the key is missing.
    fn load_item<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Found<'py>>> {
        let mut out = Vec::new();
        let found = self.read(py, &key, &mut out)?;
        Ok(found.map(|about| (PyBytes::new(py, &out), about.flags, about.ttl, about.cas)))
    }

    /// Whether the key exists.
    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.with(py, 0, |cache| cache.has(&key.0))?.map_err(failed)
    }

    /// Values, in the order of keys.
    fn load_all<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let cache = self.open()?;
        let (mut out, mut ends) = (Vec::new(), Vec::with_capacity(keys.len()));
        let mut read = || {
            keys.iter().try_for_each(|key| {
                let found = cache.get(&key.0, &mut out)?;
                ends.push((found.is_some(), out.len()));
                Ok(())
            })
        };
        let is_long = self.has_disk
            || keys.len() >= MANY
            || self.longest.load(Relaxed).saturating_mul(keys.len()) >= LONG_LEAST;
        if is_long { py.detach(read) } else { read() }.map_err(failed)?;
        let mut start = 0;
        let values = ends.into_iter().map(|(is_there, end)| {
            let value = is_there.then(|| PyBytes::new(py, &out[start..end]));
            start = end;
            value
        });
        Ok(values.collect())
    }

    /// Stores a value.
    fn store(&self, py: Python<'_>, key: Key, value: Value, how: Wanted) -> PyResult<()> {
        let (length, with) = (self.noted(&value), with_of(how));
        let value = value.bytes();
        let done = self.with(py, length, |cache| cache.set(&key.0, value, with))?;
        done.map(|_| ()).map_err(failed)
    }

    /// Stores values in order, until one fails.
    fn store_all(&self, py: Python<'_>, pairs: Vec<(Key, Value)>, how: Wanted) -> PyResult<()> {
        let lengths: usize = pairs.iter().map(|(_, value)| self.noted(value)).sum();
        let with = with_of(how);
        let pairs: Vec<_> =
            pairs.iter().map(|(key, value)| (key.0.as_slice(), value.bytes())).collect();
        let length = if pairs.len() >= MANY { LONG_LEAST } else { lengths };
        let done = self.with(py, length, |cache| {
            pairs.iter().try_for_each(|(key, value)| cache.set(key, value, with).map(|_| ()))
        });
        done?.map_err(failed)
    }

    /// Stores a value if the key is missing.
    fn store_new(&self, py: Python<'_>, key: Key, value: Value, how: Wanted) -> PyResult<bool> {
        let (length, with) = (self.noted(&value), with_of(how));
        let value = value.bytes();
        stored(self.with(py, length, |cache| cache.add(&key.0, value, with))?)
    }

    /// Stores a value if the key exists.
    fn store_over(&self, py: Python<'_>, key: Key, value: Value, how: Wanted) -> PyResult<bool> {
        let (length, with) = (self.noted(&value), with_of(how));
        let value = value.bytes();
        stored(self.with(py, length, |cache| cache.replace(&key.0, value, with))?)
    }

    /// Stores a value if the item still has this CAS number.
    fn store_same(
        &self,
        py: Python<'_>,
        key: Key,
        value: Value,
        how: (u32, u32, u64),
    ) -> PyResult<bool> {
        let (flags, ttl, cas) = how;
        let (length, with) = (self.noted(&value), With { flags, ttl });
        let value = value.bytes();
        stored(self.with(py, length, |cache| cache.cas(&key.0, value, with, cas))?)
    }

    /// Appends bytes to a value.
    fn append(&self, py: Python<'_>, key: Key, value: Value) -> PyResult<bool> {
        let (length, value) = (self.noted(&value), value.bytes());
        stored(self.with(py, length, |cache| cache.append(&key.0, value))?)
    }

    /// Prepends bytes to a value.
    fn prepend(&self, py: Python<'_>, key: Key, value: Value) -> PyResult<bool> {
        let (length, value) = (self.noted(&value), value.bytes());
        stored(self.with(py, length, |cache| cache.prepend(&key.0, value))?)
    }

    /// Adds to a number; None if the key is missing.
    #[pyo3(signature = (key, by = 1))]
    fn incr(&self, py: Python<'_>, key: Key, by: u64) -> PyResult<Option<u64>> {
        counted(self.with(py, 0, |cache| cache.incr(&key.0, by))?)
    }

    /// Subtracts from a number, saturating at 0; None if the key is missing.
    #[pyo3(signature = (key, by = 1))]
    fn decr(&self, py: Python<'_>, key: Key, by: u64) -> PyResult<Option<u64>> {
        counted(self.with(py, 0, |cache| cache.decr(&key.0, by))?)
    }

    /// Sets the time to live of an item.
    fn set_ttl(&self, py: Python<'_>, key: Key, ttl: u32) -> PyResult<bool> {
        self.with(py, 0, |cache| cache.touch(&key.0, ttl))?.map_err(failed)
    }

    /// Removes an item.
    fn delete(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.with(py, 0, |cache| cache.delete(&key.0))?.map_err(failed)
    }

    /// Removes all items.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LONG_LEAST, LocalCache::flush)?.map_err(failed)
    }

    /// Statistics by name.
    fn figures(&self, py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
        self.with(py, LONG_LEAST, LocalCache::stats)?.map_err(failed)
    }
}

fn counted(done: Result<u64, Failure>) -> PyResult<Option<u64>> {
    match done {
        Ok(sum) => Ok(Some(sum)),
        Err(Failure::Absent) => Ok(None),
        Err(failure) => Err(failed(failure)),
    }
}
