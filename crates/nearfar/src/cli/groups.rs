//! Commands in groups: the list in `nearfar --help`, and an option before the command.
//!
//! The parser has groups of options only, so the list of commands is written here, in place of the parser's own.

use std::ffi::OsString;

use clap::{Arg, Command};
use nearfar_command::output::wrapped_to;

/// The groups in the order of the help, each with its commands.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Look", &["status", "topo", "ps", "doctor", "sense", "report", "snapshot"]),
    ("Decide", &["weights", "why", "off"]),
    ("Place", &["run", "move", "tier", "balance", "vm", "oci-runtime", "nri", "dra"]),
    ("Measure", &["probe", "record"]),
    ("Serve", &["cache", "daemon"]),
    ("Learn", &["demo", "lab", "sim", "completions", "man", "dev"]),
];

const END: &str = "nearfar COMMAND --help shows its options; nearfar alone is nearfar status.";

/// The option of single commands that may stand before the command, as in kubectl and systemctl.
const BEFORE: &str = "--json";

/// The command with a help that lists subcommands by group, in lines of at most `columns` characters.
pub(crate) fn grouped(command: Command, columns: usize) -> Command {
    let mut list = String::new();
    for (group, names) in GROUPS {
        list += &format!("\n{group}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let first = format!("  {name:<12} ");
            wrapped_to(columns, &mut list, &first, &about, first.len());
        }
    }
    let mut options = String::new();
    for (option, meaning) in of_every_command(&command) {
        let first = format!("  {option:<18} ");
        wrapped_to(columns, &mut options, &first, &meaning, first.len());
    }
    let mut end = String::new();
    wrapped_to(columns, &mut end, "", END, 0);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{list}\nOptions:\n{{options}}\n\n\
         Options of every command:\n{options}\n{end}"
    ))
}

/// The options of every command, as written and with their meaning.
pub(crate) fn of_every_command(root: &Command) -> Vec<(String, String)> {
    let described = |option: &Arg| {
        let long = option.get_long()?;
        let short = option.get_short().map_or("    ".into(), |short| format!("-{short}, "));
        let values = option.get_value_names().unwrap_or_default();
        let takes = option.get_num_args().is_some_and(|number| number.takes_values());
        let value = values.iter().filter(|_| takes).map(|value| format!("[={value}]"));
        let meaning = option.get_help().map(ToString::to_string).unwrap_or_default();
        Some((format!("{short}--{long}{}", value.collect::<String>()), meaning))
    };
    let json = ("    --json".to_owned(), "Print JSON; in commands that show something".to_owned());
    let global = root.get_arguments().filter(|option| option.is_global_set());
    [json].into_iter().chain(global.filter_map(described)).collect()
}

/// The command that passes its arguments on.
const RUNTIME: &str = "oci-runtime";

/// The arguments of an OCI runtime, which begin at `at`, with `--` before the first that is not an option of `command`: each
/// of these takes a value.
fn runtimes(command: &Command, mut words: Vec<OsString>, mut at: usize) -> Vec<OsString> {
    let own: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
    while let Some(word) = words.get(at) {
        let word = word.to_string_lossy();
        let name = word.split('=').next().unwrap_or_default();
        if !name.strip_prefix("--").is_some_and(|name| own.contains(&name)) {
            break;
        }
        at += if word.contains('=') { 1 } else { 2 };
    }
    if words.get(at).is_some_and(|word| word != "--") {
        words.insert(at, "--".into());
    }
    words
}

/// The arguments, with an option that stands before the command moved behind it. Without a command it belongs to
/// `status`. An OCI runtime's options are left to the runtime.
pub(crate) fn in_order(root: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    if words.is_empty() {
        return words;
    }
    let is_option = |word: &&OsString| word.as_encoded_bytes().starts_with(b"-");
    let options = 1 + words.iter().skip(1).take_while(is_option).count();
    if let (Some(word), Some(command)) = (words.get(options), root.find_subcommand(RUNTIME))
        && word == RUNTIME
    {
        return runtimes(command, words, options + 1);
    }
    let (before, rest) = (words.drain(1..options).collect::<Vec<_>>(), words.split_off(1));
    let others = before.iter().filter(|word| *word != BEFORE).cloned();
    words.extend(others);
    if words.len() == options {
        return [words, rest].concat();
    }
    let (mut at, mut command) = (words.len(), root);
    words.extend(rest);
    if words.len() == at {
        words.push("status".into());
    }
    while let Some(below) = words.get(at).and_then(|word| command.find_subcommand(word)) {
        (at, command) = (at + 1, below);
    }
    words.insert(at, BEFORE.into());
    words
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_command_is_in_one_group_with_its_description() {
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let root = Cli::command();
        let all: BTreeSet<&str> = root.get_subcommands().map(Command::get_name).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(listed.len(), all.len(), "a command is in two groups");
        let help = grouped(root, 80).render_help().to_string();
        assert!(help.contains("\nLook:\n  status       Show the machine"), "{help}");
        assert!(help.contains("\nOptions:\n  -h, --help"), "{help}");
        assert!(help.contains("\nOptions of every command:\n      --json         Print"), "{help}");
        assert!(help.contains("\n      --color[=WHEN] "), "{help}");
        for columns in [40, 80, 100] {
            let help = grouped(Cli::command().term_width(columns), columns).render_help();
            let longest = help.to_string().lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= columns && longest > columns - 20, "{longest} of {columns}: {help}");
        }
    }

    #[test]
    fn an_option_before_the_command_belongs_to_the_command() {
        let moved = |typed: &str| {
            let words = typed.split(' ').map(OsString::from).collect();
            let words = in_order(&Cli::command(), words);
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (typed, meant) in [
            ("nearfar --json", "nearfar status --json"),
            ("nearfar --json topo", "nearfar topo --json"),
            ("nearfar --json --json topo -h", "nearfar topo --json -h"),
            ("nearfar -q --json --color=never topo", "nearfar -q --color=never topo --json"),
            ("nearfar --json -q", "nearfar -q status --json"),
            ("nearfar -q topo", "nearfar -q topo"),
            ("nearfar oci-runtime", "nearfar oci-runtime"),
            ("nearfar -q oci-runtime -v", "nearfar -q oci-runtime -- -v"),
            (
                "nearfar oci-runtime --runtime runc --kind=1=cxl -q create c",
                "nearfar oci-runtime --runtime runc --kind=1=cxl -- -q create c",
            ),
            ("nearfar oci-runtime -- -v", "nearfar oci-runtime -- -v"),
            ("nearfar --json report info FILE", "nearfar report info --json FILE"),
            ("nearfar --json absent", "nearfar --json absent"),
            ("nearfar topo --json", "nearfar topo --json"),
            ("nearfar", "nearfar"),
        ] {
            assert_eq!(moved(typed), meant);
        }
    }
}
