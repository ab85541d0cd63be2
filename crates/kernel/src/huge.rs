//! Huge pages of other processes: split into small pages, and collapsed again.
//!
//! No call splits a huge page directly, but two have that effect: advice about a *part* of one (process_madvise with
//! MADV_COLD for one piece) makes the kernel split it, and MADV_COLLAPSE over the whole range collapses it again.
//! Contents and nodes stay: the pieces stay in place, and a collapsed page is on the node of most pieces. A huge page
//! mapped by several processes is not split. Both need the right to trace the process, and CAP_SYS_NICE.
//!
//! The kernel does not promise this behaviour, so it is tried on this process's own memory first ([`offers`]).

use std::io;

use nearfar_policy::traffic::{PAGE, Page};

use crate::moving::{Owner, OwnerError};
use crate::sys::remote::{self as sys, Region, Resize};

const SMALL: usize = 4096;
const HUGE: usize = 512 * SMALL;

/// Supported operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Huge pages can be split.
    pub split: bool,
    /// Small pages can be collapsed.
    pub join: bool,
}

/// Reasons why it could not be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HugeError {
    /// The kernel gave no huge page for the trial.
    #[error(
        "the kernel gave no huge page to try splitting on; /sys/kernel/mm/transparent_hugepage/enabled says whether it gives any"
    )]
    NoHugePage,
    /// The call is refused.
    #[error(
        "huge pages of other processes: {call} was refused ({source}); this takes root (CAP_SYS_PTRACE, CAP_SYS_NICE)"
    )]
    Call {
        /// Its name.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// This process itself can't be inspected.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// Tries the operations on this process's own memory.
///
/// # Errors
/// [`HugeError`], if they could not be tried.
pub fn offers() -> Result<Offers, HugeError> {
    let failed = |call| move |source| HugeError::Call { call, source };
    let us = Owner::open(std::process::id())?;
    let mut region = Region::huge(2 * HUGE).map_err(failed("mmap"))?;
    region.fill(7);
    let at = region.address().next_multiple_of(HUGE);
    let huge = || huge_bytes(at).map_err(failed("reading /proc/self/smaps"));
    let page =
        Page { process: nearfar_policy::traffic::Process(us.pid()), number: at as u64 / PAGE };
    let whole = huge()?;
    if whole == 0 {
        return Err(HugeError::NoHugePage);
    }
    split(&us, page).map_err(failed("process_madvise"))?;
    let split = huge()? < whole;
    // A kernel without it (before Linux 6.1) returns EINVAL.
    let join = split && join(&us, page).is_ok() && huge()? == whole;
    Ok(Offers { split: split && region.holds(7), join: join && region.holds(7) })
}

/// Splits the huge page that contains this page. A small page is only marked as unused.
///
/// # Errors
/// The errno: EPERM without permission, ESRCH if the process has ended.
pub fn split(owner: &Owner, page: Page) -> io::Result<()> {
    let address = address(page.whole())?;
    advise(owner, (address, SMALL), Resize::Cold)
}

/// Collapses the small pages around this one into a huge page.
///
/// # Errors
/// The errno: as above, EINVAL before Linux 6.1 or where a mapping has no room for one, ENOMEM, EBUSY, EAGAIN.
pub fn join(owner: &Owner, page: Page) -> io::Result<()> {
    advise(owner, (address(page.whole())?, HUGE), Resize::Collapse)
}

fn advise(owner: &Owner, (address, length): (usize, usize), resize: Resize) -> io::Result<()> {
    let done = sys::advise(owner.handle(), address, length, resize)?;
    if done == length { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn address(page: Page) -> io::Result<usize> {
    let address = page.number.checked_mul(PAGE).and_then(|at| usize::try_from(at).ok());
    address.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Bytes in huge pages of this process's mapping that contains this address.
fn huge_bytes(address: usize) -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps")?;
    let (mut ours, mut found) = (false, 0);
    for line in text.lines() {
        let range = line.split_ascii_whitespace().next().and_then(|word| word.split_once('-'));
        let parsed =
            range.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)));
        if let Some((Ok(start), Ok(end))) = parsed {
            ours = (start..end).contains(&address);
        } else if let Some(kib) = line.strip_prefix("AnonHugePages:").filter(|_| ours) {
            let kib = kib.trim().trim_end_matches(" kB").parse().unwrap_or(0_u64);
            found += kib << 10;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_policy::traffic::Process;

    #[test]
    fn own_huge_pages_can_be_split_and_collapsed_if_available() {
        match offers() {
            // Linux 6.1 and newer support both.
            Ok(found) => assert_eq!(found, Offers { split: true, join: true }),
            Err(error) => {
                let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
                let never = text.is_ok_and(|text| text.contains("[never]"));
                assert!(never, "huge pages are there, but {error}");
            }
        }
    }

    #[test]
    fn unmapped_addresses_are_rejected() {
        let us = Owner::open(std::process::id()).unwrap();
        let page = Page { process: Process(us.pid()), number: u64::MAX };
        assert_eq!(split(&us, page).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let nowhere = Page { process: Process(us.pid()), number: 1 };
        assert!(split(&us, nowhere).is_err() && join(&us, nowhere).is_err());
    }
}
