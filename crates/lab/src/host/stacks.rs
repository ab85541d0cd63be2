//! The last words of a guest that must be ended by force: the kernel prints the stack of each task, and panics.
//!
//! A non-maskable interrupt reaches a kernel whose processes all wait. QEMU's monitor (QMP, "inject-nmi") sends it; the
//! kernel parameters `unknown_nmi_panic` and `panic_print` make the kernel answer (kernel-parameters.txt).

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What makes the kernel answer, with its tasks (bit 0) and timers (bit 2).
pub(super) const KERNEL_PARAMETERS: &str = "unknown_nmi_panic panic_print=5";

/// How long the monitor may take to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// How long the kernel may take to print: some 120 KiB, with two accesses to an emulated port for each character.
pub(super) const PRINTING: Duration = Duration::from_secs(20);

/// Sends the interrupt through the monitor at `path`.
pub(super) fn ask(path: &Path) -> io::Result<()> {
    let mut monitor = UnixStream::connect(path)?;
    monitor.set_read_timeout(Some(ANSWER))?;
    monitor.write_all(
        b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"inject-nmi\",\"id\":1}\n",
    )?;
    for line in BufReader::new(monitor).lines() {
        let line: serde_json::Value = serde_json::from_str(&line?)?;
        if line.get("id").is_some() {
            return Ok(());
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
