//! Processes with a shared address space: kcmp(2).
#![expect(unsafe_code, reason = "kcmp, which no safe crate offers")]

/// `KCMP_VM` of linux/kcmp.h: compares address spaces.
const KCMP_VM: libc::c_int = 1;

/// Whether two processes have one address space; `None` if the kernel does not report it (CONFIG_KCMP, permission, or
/// one has ended).
pub(crate) fn share_memory(one: u32, other: u32) -> Option<bool> {
    let number = |pid: u32| i32::try_from(pid).ok();
    let (one, other) = (number(one)?, number(other)?);
    // SAFETY: kcmp takes five numbers and accesses no memory of this process.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_u64, 0_u64) };
    match order {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}
