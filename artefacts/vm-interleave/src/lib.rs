//! libnearfar_vm_interleave: turns QEMU's interleaved memory into weighted interleave by `LD_PRELOAD`, for
//! `nearfar vm run --preload`.
//!
//! QEMU sets the policy of a backend by libnuma's mbind(2), and has no mode for weighted interleave. This library
//! replaces that function, and requests weighted interleave (Linux 6.9) where QEMU requests interleave; the nodes and
//! all other policies stay. It does not see which backend a call is for, so `nearfar vm` refuses to use it if a backend
//! is to be interleaved without weights. A QEMU that is linked statically does not call it.
#![expect(unsafe_code, reason = "a function that C calls")]

use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

/// Modes of linux/mempolicy.h. Flags are in higher bits.
const INTERLEAVE: c_int = 3;
const WEIGHTED_INTERLEAVE: c_int = 6;
const MODE: c_int = 0xff;

/// mbind(2), as libnuma exports it.
///
/// # Safety
/// As mbind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mbind(
    address: *mut c_void,
    length: c_ulong,
    mode: c_int,
    nodes: *const c_ulong,
    max_node: c_ulong,
    flags: c_uint,
) -> c_long {
    let is_interleave = mode & MODE == INTERLEAVE;
    let mode = if is_interleave { mode & !MODE | WEIGHTED_INTERLEAVE } else { mode };
    // SAFETY: the caller's promise; the kernel reads `max_node` bits from `nodes`.
    unsafe { libc::syscall(libc::SYS_mbind, address, length, mode, nodes, max_node, flags) }
}
