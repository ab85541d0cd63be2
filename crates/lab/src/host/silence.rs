//! Whether a guest still answers while its command runs. It is asked now and then; one that does not answer (its kernel
//! or the emulator hangs) is reported, but not ended, as only the user knows how long to wait.

use std::time::Duration;

use crate::clock::Deadline;

/// Time between questions, and the time for an answer.
const EVERY: Duration = Duration::from_secs(30);
/// The question: a signal that does nothing, which the guest acknowledges.
pub(super) const NO_SIGNAL: i32 = 0;
/// The message on a guest that has not answered.
pub(super) const REPORT: &str = "the guest does not answer: its kernel or the emulator hangs, or this machine is \
    overloaded; SIGTERM ends it and keeps its console";

/// The state of one session's questions.
#[derive(Debug)]
pub(super) struct Silence {
    next: Deadline,
    asked: bool,
    reported: bool,
}

/// The action at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// To ask the guest.
    Question,
    /// To tell the user that it has not answered.
    Report,
}

impl Silence {
    pub(super) fn new() -> Self {
        Self { next: Deadline::after(Some(EVERY)), asked: false, reported: false }
    }

    /// Records that something came from the guest; whether it had been reported as silent.
    pub(super) fn heard(&mut self) -> bool {
        std::mem::replace(self, Self::new()).reported
    }

    /// The time until the next look, at most `cap`.
    pub(super) fn left(&self, cap: Duration) -> Duration {
        self.next.left(cap)
    }

    /// The action due now. A guest is reported once for each silence.
    pub(super) fn due(&mut self) -> Option<Due> {
        if !self.next.passed() {
            return None;
        }
        self.next = Deadline::after(Some(EVERY));
        match (self.asked, self.reported) {
            (false, _) => {
                self.asked = true;
                Some(Due::Question)
            }
            (true, false) => {
                self.reported = true;
                Some(Due::Report)
            }
            (true, true) => None,
        }
    }
}
