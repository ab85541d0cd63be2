//! A sandbox without /proc and /sys: calls that need to know the machine fail with their reason, all others work.
//!
//! A test program of its own: knowledge of the machine is cached for a while, and here the cache must be empty at
//! first.
#![expect(unsafe_code, reason = "a process of its own is made, and a C interface called")]
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::ffi::{CStr, CString, c_void};

use nearfar_alloc::ffi::*;

fn make(text: &str) -> Result<nf_kind_t, (i32, String)> {
    let written = CString::new(text).expect("no zero within");
    // SAFETY: a string.
    let kind = unsafe { nf_kind_create(written.as_ptr()) };
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: a string that stays until the next error.
    let said = unsafe { CStr::from_ptr(nf_error()) }.to_string_lossy().into_owned();
    if kind == NF_NONE { Err((errno, said)) } else { Ok(kind) }
}

/// Runs `act` in a child whose root is an empty directory; an error from `act` fails the test.
fn in_sandbox(act: impl FnOnce() -> Result<(), String>) {
    let root = CString::new(
        std::env::temp_dir()
            .join(format!("nearfar-empty-{}", std::process::id()))
            .into_os_string()
            .into_encoded_bytes(),
    )
    .unwrap();
    // SAFETY: a string.
    assert_eq!(unsafe { libc::mkdir(root.as_ptr(), 0o700) }, 0);
    // SAFETY: the child runs alone, and exits without exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no preconditions. Without root, the child becomes root in a user namespace of its own.
        let is_root = unsafe { libc::geteuid() } == 0;
        // SAFETY: no preconditions; this process has one thread.
        let apart = is_root || unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0;
        // SAFETY: a string.
        let inside = apart && unsafe { libc::chroot(root.as_ptr()) == 0 };
        // SAFETY: a string.
        let inside = inside && unsafe { libc::chdir(c"/".as_ptr()) == 0 };
        let done = if inside {
            act()
        } else {
            Err(format!("no sandbox: {}", std::io::Error::last_os_error()))
        };
        let code = done.map_or_else(
            |why| {
                let why = format!("{why}\n");
                // SAFETY: within the string.
                unsafe { libc::write(2, why.as_ptr().cast(), why.len()) };
                1
            },
            |()| 0,
        );
        // SAFETY: the child's end.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    // SAFETY: a string.
    unsafe { libc::rmdir(root.as_ptr()) };
    assert_eq!(status, 0, "see above");
}

/// Allocates small and large memory of a kind, writes to it, moves and frees it.
fn works(kind: nf_kind_t) -> Result<(), String> {
    for size in [10, 5000, 100_000, 5 << 20] {
        let memory = nf_malloc(kind, size);
        if memory.is_null() || nf_kind_of(memory) != kind {
            return Err(format!("{kind}: {size}: {memory:?}"));
        }
        // SAFETY: as many bytes as were requested.
        unsafe { memory.cast::<u8>().write_bytes(1, size) };
        // SAFETY: allocated above, and not used any more.
        let moved: *mut c_void = unsafe { nf_realloc(kind, memory, 2 * size) };
        // SAFETY: as above.
        unsafe { nf_free(moved) };
    }
    Ok(())
}

#[test]
fn without_proc_and_sys_only_plain_kinds_work() {
    in_sandbox(|| {
        for text in ["near", "far", "bind:0", "weighted:0=1", "capacity", "near;spill=default"] {
            match make(text) {
                Err((libc::ENODEV | libc::ENOSYS, said)) if said.contains("node") => {}
                other => return Err(format!("{text}: {other:?}")),
            }
        }
        // SAFETY: a string.
        if !unsafe { nf_malloc_placed(c"bind:0".as_ptr(), 100) }.is_null() {
            return Err("placed on a node that nobody knows".to_string());
        }
        let plain = make("default;limit=64m").map_err(|why| format!("default: {why:?}"))?;
        works(plain)?;
        works(NF_DEFAULT)
    });
    // A kind made before stays usable.
    let kind = make("bind:0").unwrap();
    in_sandbox(|| works(kind));
}
