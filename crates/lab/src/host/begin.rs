//! Tells the timing plugin that the guest is up: it models memory from then on, which more than doubles the time of a boot.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

/// Time limit of the plugin's answer, which a thread of QEMU gives at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket to which the plugin connects as QEMU loads it.
#[derive(Debug)]
pub(super) struct Begin(UnixListener);

impl Begin {
    /// Listens at `path`, in place of an earlier guest's socket.
    pub(super) fn listen(path: &Path) -> io::Result<Self> {
        // One that stays is an error of the next call.
        let _ = fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Tells the plugin, and waits until it has heard. One that has not connected models memory from the start, or there is
    /// none.
    pub(super) fn tell(&self) -> io::Result<()> {
        let mut plugin = match self.0.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            connected => connected?.0,
        };
        plugin.set_read_timeout(Some(PATIENCE))?;
        plugin.write_all(b"\n")?;
        plugin.read_exact(&mut [0])
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_start_message_is_acknowledged_by_the_plugin_or_skipped_without_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("begins");
        assert!(Begin::listen(&path).unwrap().tell().is_ok(), "there is no plugin");
        let begin = Begin::listen(&path).unwrap();
        let mut plugin = UnixStream::connect(&path).unwrap();
        let answers = std::thread::spawn(move || {
            let mut word = [0];
            plugin.read_exact(&mut word).and_then(|()| plugin.write_all(&word))
        });
        begin.tell().unwrap();
        answers.join().unwrap().unwrap();
        drop(UnixStream::connect(&path).unwrap());
        assert!(begin.tell().is_err(), "it has ended");
    }
}
