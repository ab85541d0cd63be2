//! Programs with privileges other than their caller's, for tests of libraries that must not read variables then.

use std::fs::{Permissions, metadata, set_permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

/// A directory that any user may read, where set-user-ID programs have effect; `None`, with a message, without root, which
/// alone can make such a program and start it as another user.
#[expect(clippy::print_stdout, reason = "a test that can't run here says so")]
pub(crate) fn public_dir() -> Option<tempfile::TempDir> {
    if metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIPPED: it needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    Some(dir)
}

/// The program with this mode, as another user will run it.
pub(crate) fn as_nobody(program: &Path, mode: u32) -> Command {
    set_permissions(program, Permissions::from_mode(mode)).unwrap();
    let mut run = Command::new("setpriv");
    run.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    run
}
