//! What is left for the CPU of a copy that the device is done with.
//!
//! Only a record that says done is believed to mean it. Of a page fault, bytes that were moved before count if the move went
//! forward; from anything else nothing counts, and the CPU copies all of it: it may, as the device is done with it and the
//! two places are apart.

use super::format::{Record, Status};

/// What is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Done,
    /// The bytes from this one on, as the device met a page fault.
    Faulted(usize),
    /// All bytes: the operation failed.
    Failed,
    /// All bytes: it was not run, or nothing is known of it.
    Unknown,
}

/// Of a copy of `length` bytes, of which the device is done.
pub(super) fn judge(record: Option<Record>, length: usize) -> Verdict {
    let Some(record) = record else { return Verdict::Unknown };
    match record.status {
        Status::SUCCESS => Verdict::Done,
        Status::PAGE_FAULT => {
            let moved = usize::try_from(record.completed).unwrap_or(usize::MAX);
            let is_forward = record.result == 0;
            Verdict::Faulted(if is_forward && moved <= length { moved } else { 0 })
        }
        _ => Verdict::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u8, result: u8, completed: u32) -> Verdict {
        let record = Record { result, completed, ..Record::failed(Status(status)) };
        judge(Some(record), 100)
    }

    #[test]
    fn only_success_is_done_and_only_a_fault_leaves_a_part() {
        assert_eq!(judge(None, 100), Verdict::Unknown);
        assert_eq!(of(1, 0, 0), Verdict::Done);
        assert_eq!(of(3, 0, 40), Verdict::Faulted(40));
        for status in (2..0x80).filter(|status| *status != 3) {
            assert_eq!(of(status, 0, 40), Verdict::Failed, "{status:#x}");
        }
    }

    #[test]
    fn a_fault_on_the_way_back_or_beyond_the_end_counts_for_nothing() {
        assert_eq!(of(3, 1, 40), Verdict::Faulted(0));
        assert_eq!(of(3, 0, 101), Verdict::Faulted(0));
        assert_eq!(of(3, 0, 100), Verdict::Faulted(100));
    }
}
