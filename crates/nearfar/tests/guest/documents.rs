//! Commands of the documents that need a second kind of memory or privilege, in the order of the documents.

use std::path::Path;

use crate::NEARFAR;
use crate::commands::{self, COMMANDS, Run};
use crate::inside::{STATE, done, libraries};
use crate::shown::{DEMO, IN_GUEST, matches, sessions};
use crate::tier::system;

pub(crate) fn documented_commands_succeed_and_leave_nothing() {
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

/// The text with `#` for each number, whether it has decimals and separators or not: `49 MiB` was `48.9 MiB` elsewhere.
fn without_figures(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        let is_within = matches!(character, '.' | ',')
            && masked.ends_with('#')
            && rest.peek().is_some_and(char::is_ascii_digit);
        if !character.is_ascii_digit() && !is_within {
            masked.push(character);
        } else if !masked.ends_with('#') {
            masked.push('#');
        }
    }
    masked
}

pub(crate) fn documented_sessions_print_the_shown_output() {
    let before = system();
    assert_eq!(without_figures("12 of 3.45 x, 1,000. 7 of 8.."), "# of # x, #. # of #..");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let texts = IN_GUEST.map(|name| std::fs::read_to_string(root.join(name)).unwrap());
    // docs/probe.md shows the report that this saves.
    done(&["probe", "--quick"]);
    let shown = texts.iter().flat_map(|text| sessions(text));
    for (command, shown) in shown.filter(|(command, _)| command != DEMO.0) {
        let directory = tempfile::tempdir().unwrap();
        let script = format!("{{ {command}; }} 2>&1");
        let output = commands::shell(&script, directory.path(), Path::new(NEARFAR))
            .env("NEARFAR_STATE", STATE)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{command}: {printed}");
        let is_shown = matches(&without_figures(&shown), &without_figures(&printed));
        assert!(is_shown, "{command}:\n{printed}\nshown:\n{shown}");
    }
    assert_eq!(system(), before);
}
