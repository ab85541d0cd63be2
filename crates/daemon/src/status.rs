//! The status file of a running service. It is for readers only, so that a full disk must not end a service that keeps
//! the machine's memory in order: a failed write is reported once, and the service goes on.

use nearfar_command::output;

/// Outcomes of writing the status so far.
#[derive(Debug, Default)]
pub(crate) struct Status {
    was_written: bool,
    fails: bool,
}

impl Status {
    /// Notes the outcome of a write. Only a failure of the first one ends the service: the command that started it waits
    /// for the file.
    ///
    /// # Errors
    /// The first write failed.
    pub(crate) fn written(&mut self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        match outcome {
            Ok(()) => (self.was_written, self.fails) = (true, false),
            Err(error) if !self.was_written => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut self.fails, true) {
                    output::note(format_args!("{error:#}; the service goes on without a status"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_write_has_to_succeed() {
        let failed = || Err(anyhow::anyhow!("No space left on device"));
        assert!(Status::default().written(failed()).is_err());
        let mut status = Status::default();
        for outcome in [Ok(()), failed(), failed(), Ok(()), failed()] {
            status.written(outcome).unwrap();
        }
        assert!(status.fails);
    }
}
