//! Additions to the generated completion scripts: words for values, processes and cgroups, and completion of the command
//! after `--`.
//!
//! The parser accepts more than these words (node numbers, machine files), so they are added to the definition only
//! when a script is generated.

use std::collections::BTreeSet;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;
use nearfar_lab::fetch::SERIES;
use nearfar_lab::machine::catalog;
use nearfar_sim::policy::POLICIES;
use nearfar_sim::workload;

/// Words for nodes.
const NODES: [&str; 9] = ["near", "far", "local", "remote", "all", "dram", "cxl", "hbm", "pmem"];

/// In bash, words after `--` are completed as those of the command they belong to; process ids, cgroups and
/// nodes are read when the user asks. `@NODES@` stands for the words for nodes.
const BASH: &str = r#"
_nearfar_pids() {
    local pids=(/proc/[0-9]*)
    COMPREPLY+=($(compgen -W "${pids[*]#/proc/}" -- "${COMP_WORDS[COMP_CWORD]}"))
}
_nearfar_cgroups() {
    local root=/sys/fs/cgroup word=${COMP_WORDS[COMP_CWORD]} found
    compopt -o nospace 2> /dev/null
    while read -r found; do COMPREPLY+=("${found#"$root"}/"); done < <(compgen -d -- "$root/${word#/}")
}
_nearfar_nodes() {
    local nodes=(/sys/devices/system/node/node[0-9]*)
    [[ -d ${nodes[0]} ]] || nodes=()
    COMPREPLY=($(compgen -W "@NODES@ ${nodes[*]##*/node}" -- "${COMP_WORDS[COMP_CWORD]}"))
}
_nearfar_or_command() {
    local at offset=_command_offset
    declare -F _comp_command_offset > /dev/null && offset=_comp_command_offset
    for ((at = 1; at < COMP_CWORD; at++)); do
        if [[ ${COMP_WORDS[at]} == -- ]]; then
            if declare -F "$offset" > /dev/null; then
                "$offset" $((at + 1))
            elif ((at + 1 == COMP_CWORD)); then
                COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
            else
                COMPREPLY=()
            fi
            return
        fi
    done
    COMPREPLY=()
    case ${COMP_WORDS[COMP_CWORD - 1]} in
        --pid) _nearfar_pids; return ;;
        --cgroup) _nearfar_cgroups; return ;;
    esac
    case $COMP_CWORD-${COMP_WORDS[*]:1:2} in
        2-move* | 2-ps* | 3-vm\ move | 3-vm\ resize | 3-vm\ show | 3-vm\ verify)
            case ${COMP_WORDS[COMP_CWORD]} in
                '' | [0-9]*) _nearfar_pids; return ;;
                /*) [[ ${COMP_WORDS[1]} != move ]] || { _nearfar_cgroups; return; } ;;
            esac
            ;;
    esac
    case $COMP_CWORD-${COMP_WORDS[1]} in
        3-move) [[ ${COMP_WORDS[2]} == -* || ${COMP_WORDS[COMP_CWORD]} == -* ]] || { _nearfar_nodes; return; } ;;
    esac
    _nearfar "$@"
}
complete -F _nearfar_or_command -o bashdefault -o default nearfar
"#;

/// The completion script of `shell` for `command`.
pub(super) fn script(shell: Shell, command: Command) -> Vec<u8> {
    let mut internal = BTreeSet::new();
    find_internal(&command, &mut internal);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_words(command, ""), "nearfar", &mut script);
    let text = String::from_utf8_lossy(&script);
    match shell {
        Shell::Bash => {
            let without = |text: String, name: &String| text.replace(&format!(" --{name} "), " ");
            let script = internal.iter().fold(text.into_owned(), without);
            (script + &BASH.replace("@NODES@", &NODES.join(" "))).into_bytes()
        }
        Shell::Zsh | Shell::Fish => {
            let is_internal = |line: &&str| {
                internal.iter().any(|name| {
                    line.contains(&format!("--{name}[")) || line.contains(&format!(" -l {name} "))
                })
            };
            let lines = text.lines().filter(|line| !is_internal(line));
            lines.map(|line| with_live_values(line) + "\n").collect::<String>().into_bytes()
        }
        _ => script,
    }
}

/// Adds the names of hidden options: those that a process of nearfar passes to another one, and those for tests. The
/// generator offers them too, and a definition can't do without an argument again. The options of every command are hidden
/// only since the help has a list of its own for them.
fn find_internal(command: &Command, found: &mut BTreeSet<String>) {
    let hidden = command.get_arguments().filter(|option| option.is_hide_set());
    let hidden = hidden.filter(|option| !option.is_global_set());
    found.extend(hidden.filter_map(|option| option.get_long().map(str::to_owned)));
    command.get_subcommands().for_each(|below| find_internal(below, found));
}

/// A line of the script of zsh or fish; those of options for processes and cgroups name the shell's way to list them.
fn with_live_values(line: &str) -> String {
    let zsh = [
        ("--pid=[", ":_default'", ":_pids'"),
        ("--cgroup=[", ":_default'", ":_files -W /sys/fs/cgroup -/'"),
        ("::whose -- A process, or a cgroup", ":_default'", ":_pids'"),
    ];
    for (option, before, after) in zsh {
        if line.contains(option) {
            return line.replace(before, after);
        }
    }
    let fish = [
        (" -l pid -d ", "(__fish_complete_pids)"),
        (" -l cgroup -d ", "(string replace /sys/fs/cgroup '' /sys/fs/cgroup/*/)"),
    ];
    for (option, values) in fish {
        if line.contains(option) && line.ends_with(" -r") {
            return format!("{line} -f -a \"{values}\"");
        }
    }
    line.to_owned()
}

/// Adds the words to `command`, whose parents' names are `parents`, and to its subcommands.
fn with_words(command: Command, parents: &str) -> Command {
    let path = format!("{parents} {}", command.get_name());
    let command = command.mut_args(|argument| with_values(argument, &path));
    command.mut_subcommands(|below| with_words(below, &path))
}

fn with_values(argument: Arg, path: &str) -> Arg {
    if argument.is_trailing_var_arg_set() {
        return argument.value_hint(ValueHint::CommandWithArguments);
    }
    let shown: Vec<_> = argument.get_value_names().unwrap_or_default().to_vec();
    let shown = shown.first().map(ToString::to_string).unwrap_or_default();
    let long = argument.get_long().unwrap_or_default();
    let is_simulated = path.contains(" sim ");
    let words: Vec<&'static str> = match (long, shown.as_str()) {
        ("sensor", _) => nearfar_sensors::NAMES.into(),
        ("policies", _) => POLICIES.iter().map(|(name, ..)| *name).collect(),
        ("workload", _) if is_simulated => workload::NAMES.iter().map(|(name, ..)| *name).collect(),
        ("machine", "NAME|FILE" | "NAME|FILE,...") => {
            let is_offered = |text: &str| !is_simulated || text.contains("\n[traffic]\n");
            let files = catalog::FILES.iter().filter(|(_, text)| is_offered(text));
            files.map(|(name, _)| *name).collect()
        }
        ("kernel", "VERSION|PATH") => SERIES.into(),
        (_, "NODES|auto|NODES=N") => NODES.into_iter().chain(["auto", "same"]).collect(),
        (_, "NODE" | "NODES" | "KIND|CONF") => NODES.into(),
        ("from", "probe|hmat|kernel|FILE") => vec!["probe", "hmat", "kernel"],
        _ => return argument,
    };
    argument.value_parser(PossibleValuesParser::new(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn script_of(shell: Shell) -> String {
        String::from_utf8(script(shell, crate::cli::Cli::command())).unwrap()
    }

    /// The completions that bash offers for the last of these words.
    fn offered(words: &[&str]) -> Vec<String> {
        let mut bash = std::process::Command::new("bash");
        let run = r#"source /dev/stdin; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));
            _nearfar_or_command nearfar "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            printf '%s\n' "${COMPREPLY[@]}""#;
        bash.args(["--norc", "-c", run, "bash"]).args(words);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nearfar.bash");
        std::fs::write(&file, script_of(Shell::Bash)).unwrap();
        bash.stdin(std::fs::File::open(&file).unwrap());
        let output = bash.output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_offers_words_for_values_and_commands_after_the_dashes() {
        for (words, word) in [
            (&["nearfar", "run", "-m", "c"][..], "cxl"),
            (&["nearfar", "run", "-w", "a"], "auto"),
            (&["nearfar", "tier", "start", "--near", "h"], "hbm"),
            (&["nearfar", "lab", "run", "-M", "numa"], "numa-4node"),
            (&["nearfar", "lab", "run", "-K", "7"], "7.2"),
            (&["nearfar", "sim", "compare", "--policies", "first"], "first-touch"),
            (&["nearfar", "sim", "compare", "--workload", "hot-s"], "hot-set"),
            (&["nearfar", "sense", "--sensor", "ib"], "ibs"),
            (&["nearfar", "run", "-m", "0", "--", "grou"], "groups"),
            (&["nearfar", "run", "--heap", "f"], "far"),
            (&["nearfar", "move", "1", "n"], "near"),
            (&["nearfar", "weights", "--from", "h"], "hmat"),
            (&["nearfar", "sim", "compare", "--machine", "numa"], "numa-4node"),
        ] {
            let offered = offered(words);
            assert!(offered.iter().any(|offer| offer == word), "{words:?}: {offered:?}");
        }
        assert!(!offered(&["nearfar", "run", "--", "ls", "--"]).contains(&"--membind".to_owned()));
        assert!(!offered(&["nearfar", "move", "--undo", "n"]).contains(&"near".to_owned()));
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script_of(shell);
            assert!(script.contains("no-progress"), "{shell}");
            for internal in ["for-run", "claimed", "debug-time"] {
                assert!(!script.contains(internal), "{shell}: {internal}");
            }
        }
    }

    #[test]
    fn completion_offers_processes_and_cgroups() {
        let own = std::process::id().to_string();
        for words in [
            &["nearfar", "move", &own][..],
            &["nearfar", "ps", &own],
            &["nearfar", "tier", "start", "--pid", &own],
            &["nearfar", "vm", "show", &own],
        ] {
            assert!(offered(words).contains(&own), "{words:?}");
        }
        let groups =
            std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().filter_map(Result::ok);
        let mut groups = groups.filter(|entry| entry.path().is_dir());
        if let Some(group) = groups.next() {
            let name = format!("/{}", group.file_name().to_str().unwrap());
            for words in
                [&["nearfar", "record", "--cgroup", &name][..], &["nearfar", "move", &name]]
            {
                assert!(offered(words).contains(&format!("{name}/")), "{words:?}");
            }
        }
        let fish = script_of(Shell::Fish);
        let pids = fish.lines().filter(|line| line.contains(" -l pid "));
        assert!(pids.clone().count() > 2);
        assert!(pids.into_iter().all(|line| line.ends_with("-f -a \"(__fish_complete_pids)\"")));
    }

    #[test]
    fn zsh_completes_a_command_after_its_options_and_processes() {
        let script = script_of(Shell::Zsh);
        assert!(script.contains("::command -- The program and its arguments:_cmdambivalent"));
        let pids: Vec<_> = script.lines().filter(|line| line.contains("--pid=[")).collect();
        assert!(pids.len() > 2 && pids.iter().all(|line| line.contains(":PID:_pids'")), "{pids:?}");
    }
}
