//! Calls on files of DAMON, which return EBUSY instead of waiting.

use std::io;
use std::time::Duration;

use crate::clock::{Stopwatch, sleep};

/// DAMON's files return EBUSY instead of waiting while the kernel, or one of its threads, handles another request.
const DAMON: &str = "sys/kernel/mm/damon/";
/// How long EBUSY is taken for that. A request of another reader is pending for an aggregation interval, seconds at the
/// most; if DAMON is held by another session, the error persists.
const BUSY: Duration = Duration::from_secs(3);
/// Retries before the first pause, and pauses.
const BUSY_TRIES: u32 = 100;
const BUSY_NAP: Duration = Duration::from_millis(1);

/// Makes a call on an open file, with retries while DAMON is busy.
pub(super) fn once_free<T>(path: &str, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let may_wait = path.trim_start_matches('/').starts_with(DAMON);
    let (mut tries, waited) = (0, Stopwatch::start());
    loop {
        match call() {
            Err(error)
                if may_wait
                    && error.kind() == io::ErrorKind::ResourceBusy
                    && waited.elapsed() < BUSY =>
            {
                tries += 1;
                if tries < BUSY_TRIES { std::thread::yield_now() } else { sleep(BUSY_NAP) }
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_busy_damon_files_are_retried() {
        let tries_of = |path: &str, free_after: u32| {
            let mut tries = 0;
            let result = once_free(path, || {
                tries += 1;
                if tries > free_after { Ok(()) } else { Err(Errno::BUSY.into()) }
            });
            (result.is_ok(), tries)
        };
        assert_eq!(tries_of("/sys/kernel/mm/damon/admin/kdamonds/0/state", 5), (true, 6));
        assert!(!tries_of("sys/kernel/mm/damon/admin/kdamonds/0/state", u32::MAX).0);
        assert_eq!(tries_of("sys/kernel/mm/numa/demotion_enabled", 5), (false, 1));
    }
}
