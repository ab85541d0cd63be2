//! Notifications to the service manager (sd_notify(3)): ready, watchdog, stopping.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. The units are in `share/systemd`.

use std::time::Duration;

use sd_notify::NotifyState;

use nearfar_kernel::clock::Stopwatch;

/// The service manager, if there is one.
#[derive(Debug)]
pub struct Supervisor {
    /// Interval of watchdog notifications; `None` if there is no watchdog.
    interval: Option<Duration>,
    notified: Stopwatch,
    is_ready: bool,
}

impl Supervisor {
    /// The service manager that started this process.
    #[must_use]
    pub fn find() -> Self {
        // Twice as often as required, so that one late iteration is not a failure.
        let interval = sd_notify::watchdog_enabled().map(|interval| interval / 2);
        Self { interval, notified: Stopwatch::start(), is_ready: false }
    }

    /// Reports that the service is ready, the first time it is called.
    pub fn ready(&mut self, status: &str) {
        if !self.is_ready {
            self.is_ready = true;
            say(&[NotifyState::Ready, NotifyState::Status(status)]);
        }
    }

    /// Sends a watchdog notification when due; to be called in each iteration of the service's loop.
    pub fn alive(&mut self) {
        if self.interval.is_some_and(|interval| self.notified.elapsed() >= interval) {
            self.notified = Stopwatch::start();
            say(&[NotifyState::Watchdog]);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        say(&[NotifyState::Stopping]);
    }
}

fn say(state: &[NotifyState<'_>]) {
    // A service manager that does not listen is no error.
    let _ = sd_notify::notify(state);
}
