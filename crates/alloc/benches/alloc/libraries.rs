//! The libraries under comparison, and how to load and call each.
//!
//! `pool` is a stand-in for hmalloc as its documentation describes it, built on jemalloc: one arena with hooks that map
//! and bind memory, no thread cache.
#![expect(unsafe_code, reason = "libraries are loaded and called")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

/// A library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// The core, as `malloc`.
    Jemalloc,
    /// mimalloc, as `malloc`.
    Mimalloc,
    /// libnearfar, a kind bound to node 0.
    Nearfar,
    /// libnearfar, `NF_DEFAULT`.
    NearfarDefault,
    /// libnearfar, allocating from two kinds alternately.
    NearfarTwo,
    /// An arena with hooks, as in hmalloc.
    Pool,
    /// memkind, MEMKIND_REGULAR.
    Memkind,
    /// UMF's disjoint pool over its OS provider.
    Umf,
    /// The C library's malloc.
    Libc,
}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type KindMalloc = unsafe extern "C" fn(u32, usize) -> *mut c_void;
type KindCreate = unsafe extern "C" fn(*const c_char) -> u32;
type Mallocx = unsafe extern "C" fn(usize, c_int) -> *mut c_void;
type Dallocx = unsafe extern "C" fn(*mut c_void, c_int);
type PoolMalloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type PoolFree = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Control =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

/// How a library is called.
pub(crate) enum Calls {
    /// `malloc(size)`, `free(object)`.
    Plain(Malloc, Free),
    /// `nf_malloc(kind, size)`, one kind for even sizes and one for odd, `nf_free(object)`.
    Kind(KindMalloc, [u32; 2], Free),
    /// `mallocx(size, flags)`, `dallocx(object, flags)`.
    Flags(Mallocx, c_int, Dallocx),
    /// `malloc(pool, size)`, `free(pool, object)`.
    Pool(PoolMalloc, usize, PoolFree),
}

impl Calls {
    #[inline(always)]
    pub(crate) fn allocate(&self, size: usize) -> usize {
        match self {
            // SAFETY: malloc and equivalents, called as their headers specify. The same holds for all below.
            Self::Plain(malloc, _) => unsafe { malloc(size) as usize },
            // SAFETY: as above.
            Self::Kind(malloc, kinds, _) => unsafe { malloc(kinds[size & 1], size) as usize },
            // SAFETY: as above.
            Self::Flags(mallocx, flags, _) => unsafe { mallocx(size, *flags) as usize },
            // SAFETY: as above.
            Self::Pool(malloc, pool, _) => unsafe { malloc(*pool as *mut c_void, size) as usize },
        }
    }

    #[inline(always)]
    pub(crate) fn free(&self, object: usize) {
        if object == 0 {
            return;
        }
        match self {
            // SAFETY: an object of this library to which no other pointer is left. The same holds for all below.
            Self::Plain(_, free) | Self::Kind(_, _, free) => unsafe { free(object as *mut c_void) },
            // SAFETY: as above.
            Self::Flags(_, flags, dallocx) => unsafe { dallocx(object as *mut c_void, *flags) },
            Self::Pool(_, pool, free) => {
                // SAFETY: as above.
                unsafe { free(*pool as *mut c_void, object as *mut c_void) };
            }
        }
    }
}

impl Library {
    pub(crate) const ALL: [Self; 9] = [
        Self::Jemalloc,
        Self::Mimalloc,
        Self::Nearfar,
        Self::NearfarDefault,
        Self::NearfarTwo,
        Self::Pool,
        Self::Memkind,
        Self::Umf,
        Self::Libc,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Jemalloc => "jemalloc",
            Self::Mimalloc => "mimalloc",
            Self::Nearfar => "nearfar",
            Self::NearfarDefault => "nearfar, NF_DEFAULT",
            Self::NearfarTwo => "nearfar, two kinds in turn",
            Self::Pool => "pool, as hmalloc",
            Self::Memkind => "memkind",
            Self::Umf => "UMF, disjoint pool",
            Self::Libc => "libc",
        }
    }

    /// The library to preload so that it provides `malloc`.
    pub(crate) fn preload(self) -> Option<&'static str> {
        match self {
            Self::Jemalloc | Self::Pool => Some("libjemalloc.so.2"),
            Self::Mimalloc => Some("libmimalloc.so.2"),
            _ => None,
        }
    }
}

impl std::str::FromStr for Library {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|library| library.name() == text);
        found.ok_or_else(|| format!("{text}: no such library"))
    }
}

fn dl_error() -> String {
    // SAFETY: a string that stays until the next failure, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn load(name: &str) -> Result<*mut c_void, String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: a string; loading runs the library's own constructors.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() { Err(dl_error()) } else { Ok(library) }
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a library that is loaded, or the default; a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(dl_error()) } else { Ok(found) }
}

/// A function by name, as its header has it.
fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let found = symbol(library, name)?;
    // SAFETY: a function pointer of the form that its header states, which the callers below have copied.
    Ok(unsafe { transmute_copy(&found) })
}

pub(crate) fn open(library: Library) -> Result<Calls, String> {
    match library {
        Library::Mimalloc => {
            // The dynamic linker ignores a missing preload library, so loading it here reports the error.
            load("libmimalloc.so.2")?;
            let malloc = function(libc::RTLD_DEFAULT, c"malloc")?;
            Ok(Calls::Plain(malloc, function(libc::RTLD_DEFAULT, c"free")?))
        }
        Library::Jemalloc | Library::Libc => {
            let malloc = function(libc::RTLD_DEFAULT, c"malloc")?;
            Ok(Calls::Plain(malloc, function(libc::RTLD_DEFAULT, c"free")?))
        }
        Library::Nearfar => nearfar([c"bind:0", c"bind:0"]),
        Library::NearfarDefault => nearfar([c"", c""]),
        Library::NearfarTwo => nearfar([c"bind:0", c"interleave:0"]),
        Library::Pool => pool(),
        Library::Memkind => memkind(),
        Library::Umf => umf(),
    }
}

fn nearfar(kinds: [&CStr; 2]) -> Result<Calls, String> {
    let path = std::env::var("LIBNEARFAR").map_err(|_| "LIBNEARFAR does not name libnearfar.so")?;
    let library = load(&path)?;
    let create: KindCreate = function(library, c"nf_kind_create")?;
    // An empty kind selects the default. SAFETY: strings.
    let first = if kinds[0].is_empty() { 0 } else { unsafe { create(kinds[0].as_ptr()) } };
    // SAFETY: as above.
    let second = if kinds[0] == kinds[1] { first } else { unsafe { create(kinds[1].as_ptr()) } };
    if first == u32::MAX || second == u32::MAX {
        return Err("nf_kind_create failed".into());
    }
    let (malloc, free) = (function(library, c"nf_malloc")?, function(library, c"nf_free")?);
    Ok(Calls::Kind(malloc, [first, second], free))
}

fn memkind() -> Result<Calls, String> {
    let library = load("libmemkind.so.0")?;
    let kind = symbol(library, c"MEMKIND_REGULAR")?;
    // SAFETY: a variable that holds the kind.
    let kind = unsafe { *kind.cast::<usize>() };
    // memkind_free returns nothing; the caller ignores the return value.
    let free = function(library, c"memkind_free")?;
    Ok(Calls::Pool(function(library, c"memkind_malloc")?, kind, free))
}

/// UMF's functions as declared in its headers; those that return a number return 0 on success.
type Make = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Set = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type SetList = unsafe extern "C" fn(*mut c_void, *mut c_uint, c_uint) -> c_int;
type Operations = unsafe extern "C" fn() -> *const c_void;
type MakeProvider = unsafe extern "C" fn(*const c_void, *const c_void, *mut *mut c_void) -> c_int;
type MakePool =
    unsafe extern "C" fn(*const c_void, *mut c_void, *const c_void, u32, *mut *mut c_void) -> c_int;

/// UMF_NUMA_MODE_BIND.
const UMF_BIND: c_int = 1;

/// The disjoint pool with default parameters over the OS provider, bound to node 0; `LIBUMF` names the library.
fn umf() -> Result<Calls, String> {
    let path = std::env::var("LIBUMF").map_err(|_| "LIBUMF does not name libumf.so.1")?;
    let library = load(&path)?;
    let good = |what: &str, status: c_int| match status {
        0 => Ok(()),
        _ => Err(format!("{what}: {status}")),
    };
    let made = |name: &CStr| {
        let (make, mut handle): (Make, _) = (function(library, name)?, null_mut());
        // SAFETY: a place for the handle.
        good(&name.to_string_lossy(), unsafe { make(&raw mut handle) })?;
        Ok::<_, String>(handle)
    };
    let operations = |name: &CStr| {
        let operations: Operations = function(library, name)?;
        // SAFETY: no preconditions.
        Ok::<_, String>(unsafe { operations() })
    };

    let params = made(c"umfOsMemoryProviderParamsCreate")?;
    let mode: Set = function(library, c"umfOsMemoryProviderParamsSetNumaMode")?;
    // SAFETY: parameters from above.
    good("numa mode", unsafe { mode(params, UMF_BIND) })?;
    let nodes: SetList = function(library, c"umfOsMemoryProviderParamsSetNumaList")?;
    let mut node = 0;
    // SAFETY: as above; a list of one, which is copied.
    good("numa list", unsafe { nodes(params, &raw mut node, 1) })?;

    let make: MakeProvider = function(library, c"umfMemoryProviderCreate")?;
    let (of_system, mut provider) = (operations(c"umfOsMemoryProviderOps")?, null_mut());
    // SAFETY: operations with parameters of theirs, and a place for the handle.
    good("provider", unsafe { make(of_system, params, &raw mut provider) })?;

    let params = made(c"umfDisjointPoolParamsCreate")?;
    let make: MakePool = function(library, c"umfPoolCreate")?;
    let (disjoint, mut pool) = (operations(c"umfDisjointPoolOps")?, null_mut());
    // SAFETY: as above; the provider stays.
    good("pool", unsafe { make(disjoint, provider, params, 0, &raw mut pool) })?;
    let free = function(library, c"umfPoolFree")?;
    Ok(Calls::Pool(function(library, c"umfPoolMalloc")?, pool as usize, free))
}

const MPOL_BIND: c_int = 2;

unsafe extern "C" fn pool_alloc(
    _hooks: *mut c_void,
    at: *mut c_void,
    size: usize,
    _alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let mapped = unsafe { libc::mmap(at, size, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return null_mut();
    }
    let mask = [1_u64; 1];
    // SAFETY: the range was mapped above; a mask of 64 bits.
    let bound =
        unsafe { libc::syscall(libc::SYS_mbind, mapped, size, MPOL_BIND, mask.as_ptr(), 64, 0) };
    if bound != 0 {
        return null_mut();
    }
    // SAFETY: a valid pointer for the result.
    unsafe { *zero = true };
    // SAFETY: as above.
    unsafe { *commit = true };
    mapped
}

unsafe extern "C" fn pool_dalloc(
    _hooks: *mut c_void,
    at: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: jemalloc does not use the range any more.
    unsafe { libc::munmap(at, size) != 0 }
}

type PoolAlloc = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    usize,
    *mut bool,
    *mut bool,
    c_uint,
) -> *mut c_void;
type PoolDalloc = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, bool, c_uint) -> bool;

#[repr(C)]
struct Hooks {
    alloc: PoolAlloc,
    dalloc: PoolDalloc,
    others: [usize; 7],
}

fn pool() -> Result<Calls, String> {
    let control: Control = function(libc::RTLD_DEFAULT, c"mallctl")?;
    let hooks = Hooks { alloc: pool_alloc, dalloc: pool_dalloc, others: [0; 7] };
    let mut hooks: *const Hooks = Box::leak(Box::new(hooks));
    let (mut arena, mut length): (c_uint, usize) = (0, size_of::<c_uint>());
    // SAFETY: a place for the arena's number, and a pointer to hooks that stay.
    let status = unsafe {
        control(
            c"arenas.create".as_ptr(),
            (&raw mut arena).cast(),
            &raw mut length,
            (&raw mut hooks).cast(),
            size_of::<usize>(),
        )
    };
    if status != 0 {
        return Err(format!("arenas.create: {status}"));
    }
    let arena = c_int::try_from(arena).map_err(|error| error.to_string())?;
    let flags = (arena + 1) << 20 | 1 << 8;
    let dallocx = function(libc::RTLD_DEFAULT, c"dallocx")?;
    Ok(Calls::Flags(function(libc::RTLD_DEFAULT, c"mallocx")?, flags, dallocx))
}
