//! A detached mount of a kernel file system (fsopen(2), fsmount(2)): visible only to this process, and gone when the
//! descriptor is closed.
#![expect(unsafe_code, reason = "system calls that are not among what is used of rustix")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

const CLOSE_ON_EXEC: u32 = 1;
/// fsconfig(2): create the file system as configured.
const CREATE: u32 = 6;

/// Read only.
const READ_ONLY: u32 = 1;

/// The root directory of a file system of this type.
pub(crate) fn detached(kind: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a string that ends in zero, and flags.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOSE_ON_EXEC) };
    let context = owned(context)?;
    let none = std::ptr::null::<u8>();
    // SAFETY: this command takes neither key nor value; both must be null.
    let made = unsafe {
        libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, 0_i32)
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: takes only numbers.
    let mount =
        unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOSE_ON_EXEC, READ_ONLY) };
    owned(mount)
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(descriptor).unwrap_or(-1);
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the call has just created, owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
