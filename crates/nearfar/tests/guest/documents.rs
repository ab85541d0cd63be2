//! Commands of the documents that need a second kind of memory or privilege, in the order of the documents.

use std::path::Path;

use crate::NEARFAR;
use crate::commands::{self, COMMANDS, Run};
use crate::inside::{STATE, done, libraries};
use crate::tier::system;

pub(crate) fn commands_succeed_and_leave_nothing() {
    let (before, mut failed) = (system(), Vec::new());
    for (command, run) in COMMANDS.iter().flat_map(|(_, listed)| *listed) {
        let script = match run {
            Run::Guest => command,
            Run::GuestBy(script) => script,
            Run::Host => continue,
            Run::HostBy(text) | Run::Test(text) | Run::Never(text) => {
                assert!(!text.is_empty(), "{command}");
                continue;
            }
        };
        let directory = tempfile::tempdir().unwrap();
        let output = commands::shell(script, directory.path(), Path::new(NEARFAR))
            .env("NEARFAR_STATE", STATE)
            .env("NEARFAR_PRELOAD", libraries().join("libnearfar_preload.so"))
            .output()
            .unwrap();
        if !output.status.success() {
            failed.push(format!("{script}: {output:?}"));
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    done(&["weights", "--restore"]);
    assert_eq!(system(), before);
}
