//! Commands of the documents that need a second kind of memory or privilege, in the order of the documents.

use std::process::Command;

use crate::NEARFAR;
use crate::commands::{COMMANDS, PRELUDE, Run};
use crate::inside::{STATE, done, libraries};
use crate::tier::system;

pub(crate) fn commands_succeed_and_leave_nothing() {
    let (before, mut failed) = (system(), Vec::new());
    let programs = std::path::Path::new(NEARFAR).parent().unwrap().to_str().unwrap();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
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
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &format!("{PRELUDE}{script}")])
            .current_dir(directory.path())
            .env("PATH", &path)
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
