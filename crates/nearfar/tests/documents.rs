//! Commands shown in the documents: each is run, here or in a guest (`guest/documents.rs`), or has a reason why not
//! (`documents/commands.rs`).
//!
//! A block ```` ```sh ```` has a command a line, `#` begins a comment, and `\` at the end of a line continues it. A block
//! ```` ```console ```` has commands after `$` and their output, with lines broken for the page, and `...` for lines left out:
//! `nearfar vm` for the recorded machine `lab-cxl-2tier`, and others in a guest.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

#[path = "documents/commands.rs"]
mod commands;
#[path = "tidy/files.rs"]
mod files;
#[path = "documents/shown.rs"]
mod shown;

use commands::{COMMANDS, Run};
use files::{complain, markdown, root};
use shown::{DEMO, IN_GUEST, blocks, matches, sessions};

/// The commands of a block, without comments.
fn commands_of(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let bare = joined.lines().map(|line| {
        let line = if line.starts_with('#') { "" } else { line };
        let command = line.split_once(" #").map_or(line, |(command, _)| command);
        command.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    bare.filter(|command| !command.is_empty()).collect()
}

#[test]
fn a_block_parses_as_a_shell_parses_it() {
    let text =
        "a\n```sh\nnearfar topo   # all\n# none\nnearfar run \\\n  -- CMD # x\n```\n```c\nx\n```\n";
    let found: Vec<String> = blocks(text, "sh").into_iter().flat_map(commands_of).collect();
    assert_eq!(found, ["nearfar topo", "nearfar run -- CMD"]);
}

#[test]
fn every_shown_command_is_run_or_has_a_reason() {
    let mut findings = Vec::new();
    let documents = markdown();
    for (name, text) in &documents {
        let blocks = blocks(text, "sh").into_iter().chain(blocks(text, "bash"));
        let shown: BTreeSet<String> = blocks.flat_map(commands_of).collect();
        let listed: &[(&str, Run)] =
            COMMANDS.iter().find(|(file, _)| file == name).map_or(&[], |(_, listed)| listed);
        let all = listed.iter().any(|(command, _)| *command == "*");
        for command in &shown {
            if !all && !listed.iter().any(|(one, _)| one == command) {
                findings.push(format!("{name}: documents/commands.rs does not run `{command}`"));
            }
        }
        for (command, _) in listed {
            if *command != "*" && !shown.contains(*command) {
                findings.push(format!("{name}: does not show `{command}`"));
            }
        }
    }
    for (file, _) in COMMANDS {
        if !documents.iter().any(|(name, _)| name == file) {
            findings.push(format!("documents/commands.rs: there is no {file}"));
        }
    }
    complain(&findings);
}

/// The anchor that a heading has in a browser.
fn anchor(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let (mut findings, mut links) = (Vec::new(), 0);
    for (name, text) in markdown() {
        let prose = text.split("```").step_by(2);
        let targets = prose.flat_map(|part| part.split("](").skip(1));
        let targets = targets.filter_map(|rest| rest.split([')', ' ', '\n']).next());
        for target in targets.filter(|target| !target.contains("://")) {
            links += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let from = Path::new(&name).parent().unwrap();
            let file =
                if path.is_empty() { root().join(&name) } else { root().join(from).join(path) };
            let known = std::fs::read_to_string(&file).unwrap_or_default();
            let mut headings = known.lines().filter(|line| line.starts_with('#')).map(anchor);
            if !file.exists() || !heading.is_empty() && !headings.any(|one| one == heading) {
                findings.push(format!("{name}: {target} leads nowhere"));
            }
        }
    }
    assert!(links > 80, "{links}: are links found?");
    complain(&findings);
}

#[test]
fn every_schema_named_in_help_is_in_the_page_on_json() {
    let page = std::fs::read_to_string(root().join("docs/json.md")).unwrap();
    let mut findings = Vec::new();
    for (name, text) in files::below(&["crates/nearfar/src", "crates/lab/src/cli"], "rs") {
        for found in text.split("nearfar.").skip(1) {
            let end = found.find(|c: char| !matches!(c, 'a'..='z' | '-' | '/' | '0'..='9'));
            let schema = &found[..end.unwrap_or(found.len())];
            let is_schema = schema.split_once('/').is_some_and(|(_, n)| n.parse::<u8>().is_ok());
            if is_schema
                && text.contains("schema nearfar.")
                && !page.contains(&format!("`nearfar.{schema}`"))
            {
                findings.push(format!("{name}: docs/json.md does not have nearfar.{schema}"));
            }
        }
    }
    complain(&findings);
}

#[test]
fn named_tests_exist_and_exceptions_have_reasons() {
    let sources = files::below(&["artefacts", "crates"], "rs");
    let mut findings = Vec::new();
    for (command, run) in COMMANDS.iter().flat_map(|(_, listed)| *listed) {
        match run {
            Run::Test(name) => {
                let function = format!("fn {name}()");
                if !sources.iter().any(|(_, text)| text.contains(&function)) {
                    findings.push(format!("{command}: there is no test {name}"));
                }
            }
            Run::Never(text) | Run::HostBy(text) | Run::GuestBy(text) => {
                assert!(!text.is_empty(), "{command}");
            }
            Run::Host | Run::Guest => {}
        }
    }
    complain(&findings);
}

/// Runs a script in an empty directory.
fn run(script: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let nearfar = Path::new(env!("CARGO_BIN_EXE_nearfar"));
    commands::shell(script, directory.path(), nearfar)
        .env("ROOT", root())
        .env("ABI", nearfar.with_file_name("../abi"))
        .env("NEARFAR_STATE", directory.path().join("state"))
        .output()
        .unwrap()
}

#[test]
fn commands_that_need_no_second_kind_of_memory_succeed_here() {
    for (command, run_by) in COMMANDS.iter().flat_map(|(_, listed)| *listed) {
        let script = match run_by {
            Run::Host => command,
            Run::HostBy(script) => script,
            Run::Guest | Run::GuestBy(_) | Run::Test(_) | Run::Never(_) => continue,
        };
        let output = run(script);
        assert!(output.status.success(), "{script}: {output:?}");
    }
}

#[test]
fn shown_output_is_compared_word_by_word() {
    assert!(matches("a b\n c", "a\nb c\n") && matches("a ... d", "a b c d"));
    assert!(!matches("a b", "a b c") && !matches("a c", "a b") && !matches("a ... d", "a b"));
}

#[test]
fn shown_output_is_printed_by_its_command() {
    let machine = root().join("fixtures/machines/lab-cxl-2tier.tree");
    let domain = "<domain type='kvm'><memory unit='GiB'>2</memory><vcpu>4</vcpu>\
                  <cpu><numa><cell id='0' cpus='0-3' memory='1' unit='GiB'/>\
                  <cell id='1' memory='1' unit='GiB'/></numa></cpu></domain>";
    let prepared = "mkdir demo; cp \"$ROOT/fixtures/demo/cxl-2tier.json\" demo/demo.json; \
                    cp \"$ROOT/fixtures/machines/lab-cxl-2tier.tree\" machine.tree";
    let mut runs = 0;
    for (name, text) in markdown() {
        for (command, shown) in sessions(&text) {
            if IN_GUEST.contains(&&*name) && command != DEMO.0 {
                continue;
            }
            let command = if command == DEMO.0 { DEMO.1 } else { &command };
            let on_machine = format!(" --sysfs {} ", machine.display());
            let command = ["args", "run --dry-run", "xml"].iter().fold(
                command.to_owned(),
                |command, word| {
                    let from = format!("nearfar vm {word} ");
                    command.replace(&from, &format!("nearfar vm {word}{on_machine}"))
                },
            );
            let output = run(&format!(
                "{prepared}; printf '%s' \"{domain}\" > domain.xml; {command} 2>&1 || true"
            ));
            let output = String::from_utf8(output.stdout).unwrap();
            assert!(matches(&shown, &output), "{name}: {command}\n{output}\nshown:\n{shown}");
            runs += 1;
        }
    }
    assert!(runs > 5, "{runs} commands: are blocks found?");
}

/// The text of a man page, with roff's escapes removed.
fn manual(name: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/man").join(name)).unwrap();
    page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
}

#[test]
fn pages_on_files_have_each_key_and_their_examples_are_valid() {
    let keys = |text: &str, first: fn(&str) -> Option<&str>| -> BTreeSet<String> {
        text.lines().filter_map(first).map(str::to_owned).collect()
    };
    let saved = run("nearfar tier config --save FILE > /dev/null 2>&1; cat FILE");
    let options = String::from_utf8(saved.stdout).unwrap();
    let options = keys(&options, |line| {
        let (key, _) = line.trim_start_matches('#').split_once(" =")?;
        (!key.contains(' ')).then_some(key)
    });
    let machines = std::fs::read_to_string(root().join("docs/machine-file.md")).unwrap();
    let figures = keys(&machines, |line| line.strip_prefix("| `")?.split('`').next());
    assert!(options.len() >= 12 && figures.len() >= 25, "{options:?} {figures:?}");
    for (page, keys, check) in [
        ("nearfar-tier.toml.5", options, "nearfar tier config --check FILE"),
        ("nearfar-machine.5", figures, "nearfar lab machines ./FILE"),
    ] {
        let text = manual(page);
        for key in keys {
            assert!(text.contains(&key), "{page} does not have {key}");
        }
        let (_, example) = text.split_once(".nf\n").unwrap();
        let (example, _) = example.split_once(".fi\n").unwrap();
        let is_of_manual = machines.contains(&format!("```toml\n{example}```\n"));
        assert!(is_of_manual || page != "nearfar-machine.5", "docs/machine-file.md: {example}");
        let output = run(&format!("cat > FILE << 'END'\n{example}END\n{check}"));
        assert!(output.status.success(), "{page}: {output:?}");
    }
}
