//! Commands of nearfar run by another user than root.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// User and group `nobody`.
const ID: u32 = 65534;

/// A user with a copy of nearfar, as the directory of this build may be closed to other users.
pub(crate) struct OtherUser(TempDir);

impl OtherUser {
    /// `None` if this process is not root's.
    #[expect(clippy::print_stdout, reason = "a test that can't run here says so")]
    pub(crate) fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can run a command as another user");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_nearfar"), dir.path().join("nearfar")).unwrap();
        Some(Self(dir))
    }

    /// A directory that the user can read.
    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    /// The command with these arguments.
    pub(crate) fn nearfar(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.dir().join("nearfar"));
        command.args(arguments).current_dir("/").uid(ID).gid(ID);
        command
    }
}
