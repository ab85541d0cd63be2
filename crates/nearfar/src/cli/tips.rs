//! Suggestions for words that users of other tools type, where the parser's own guess is misleading or missing.
//!
//! The parser guesses by spelling alone: it suggests nothing for `numastat`, and a wrong
//! option for `run --pid`. [`TIPS`] has
//! the equivalent here, by command and word; [`improved`] puts it in place of the parser's guess, and numbers are refused
//! without Rust's wording. A tip depends on the command and the first unknown word only, not on words after it.

use std::error::Error as _;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Cli;

/// Stands for any command.
const ANY: &str = "*";
const BEFORE: &str = "options follow the command: nearfar run -m far -- CMD";
const METRICS: &str = "nearfar cache serve --metrics ADDRESS:PORT, nearfar nri --metrics-file FILE; other commands have --json";
const SHARED: &str =
    "numactl's option for segments of shared memory, which nearfar does not create";
const CPUSET: &str = "nearfar run keeps to this process's cpuset; within it all CPUs are used unless -N or -C says otherwise";
const BALANCING: &str = "nearfar run --balance -- CMD has nearfar's own policy; the kernel's NUMA balancing within -m is not offered";
const ACCESSES: &str = "nearfar record, then nearfar report; nearfar tier start";

/// A command (`""` for none), a word or option typed after it, and its equivalent here.
const TIPS: &[(&str, &str, &str)] = &[
    ("", "list", "nearfar topo shows nodes; nearfar lab machines emulated machines"),
    ("", "ls", "nearfar topo shows nodes; nearfar lab machines emulated machines"),
    ("", "version", "nearfar --version"),
    ("", "numactl", "nearfar run takes numactl's letters; nearfar topo is numactl -H"),
    ("", "numastat", "nearfar ps shows programs' memory, nearfar ps PID one's by node"),
    ("", "lstopo", "nearfar topo, nearfar topo --draw"),
    ("", "hardware", "nearfar topo"),
    ("", "numad", "nearfar balance start"),
    ("", "memtierd", "nearfar tier start"),
    ("", "pcm", "nearfar sense"),
    ("", "bwactl", "nearfar weights"),
    ("", "migratepages", "nearfar move PID NODES"),
    ("", "heatmap", "nearfar report heatmap FILE"),
    ("", "wss", "nearfar report wss FILE"),
    ("", "config", "nearfar tier config"),
    ("", "top", "nearfar ps --watch shows programs' memory; nearfar sense shows current traffic"),
    ("", "metrics", METRICS),
    ("", "exporter", METRICS),
    ("", "damo", ACCESSES),
    ("", "damon", ACCESSES),
    ("", "interleave", "nearfar run -i or -w"),
    ("", "place", "nearfar run, or nearfar move for a running program"),
    ("", "migrate", "nearfar move PID NODES"),
    ("", "nodes", "nearfar topo"),
    ("", "show", "nearfar topo shows the machine, nearfar status what nearfar does"),
    ("", "info", "nearfar topo shows the machine, nearfar status what nearfar does"),
    ("", "monitor", "nearfar ps --watch 1s, nearfar sense"),
    ("", "trace", "nearfar record"),
    ("", "exec", "nearfar run -- CMD"),
    ("", "pin", "nearfar run -m NODES -- CMD"),
    ("", "auto", "nearfar run -w auto -- CMD"),
    ("", "--sysfs", "nearfar status --sysfs FILE"),
    ("", "latency", "nearfar probe"),
    ("", "bandwidth", "nearfar probe"),
    ("", "mlc", "nearfar probe"),
    ("", "qemu", "nearfar vm run -- qemu-system-x86_64 ..."),
    ("", "docker", "nearfar oci-runtime is a runtime of docker"),
    ("", "kubernetes", "nearfar dra for claims, nearfar nri for annotations"),
    ("", "hmctl", "nearfar run"),
    ("", "emulate", "nearfar lab run -- CMD"),
    ("", "reset", "nearfar off"),
    ("", "-m", BEFORE),
    ("", "-p", BEFORE),
    ("", "-i", BEFORE),
    ("", "-w", BEFORE),
    ("", "-N", BEFORE),
    ("", "--membind", BEFORE),
    ("", "--interleave", BEFORE),
    ("", "--preferred", BEFORE),
    ("", "--cpunodebind", BEFORE),
    ("", "-H", "nearfar topo shows the machine"),
    ("", "--hardware", "nearfar topo shows the machine"),
    ("", "--show", "nearfar run --dry-run shows what would be done"),
    ("topo", "-H", "nearfar topo shows the machine"),
    ("ps", "-p", "nearfar ps PID"),
    ("ps", "--pid", "nearfar ps PID"),
    ("move", "--pid", "nearfar move PID NODES"),
    ("move", "--to", "nearfar move PID NODES"),
    ("why", "tier", "nearfar why explains tiering and balancing"),
    ("status", "tier", "nearfar tier status"),
    ("cache", "start", "nearfar cache serve"),
    ("cache", "stop", "end its process (SIGTERM); nearfar status names it"),
    ("cache", "status", "its statistics: stats, by any client of memcached"),
    ("cache", "--daemon", "systemctl start nearfar-cache"),
    ("weights", "--undo", "nearfar weights --restore"),
    ("", "logs", "nearfar writes to standard error; of services: journalctl -u UNIT"),
    ("", "undo", "nearfar off"),
    ("", "restore", "nearfar off, or nearfar weights --restore"),
    ("", "enable", "nearfar tier start, nearfar balance start"),
    ("", "disable", "nearfar tier stop, nearfar balance stop"),
    ("", "bench", "benchmarks are in nearfar-bench; a cache's is nearfar cache bench"),
    ("", "install", "make install, in the sources"),
    ("", "serve", "nearfar cache serve"),
    ("", "start", "nearfar tier start, nearfar balance start, or nearfar daemon"),
    ("", "stop", "nearfar tier stop, nearfar balance stop"),
    ("daemon", "start", "nearfar daemon starts it"),
    ("daemon", "stop", "end its process (SIGTERM); nearfar daemon status names it"),
    ("daemon", "restart", "end its process (SIGTERM), then nearfar daemon"),
    ("tier", "restart", "nearfar tier stop, then nearfar tier start"),
    ("balance", "restart", "nearfar balance stop, then nearfar balance start"),
    ("tier", "--pause-damon-stat", "it is the default; --keep-damon-stat refuses instead"),
    ("run", "--pause-damon-stat", "it is the default; --keep-damon-stat refuses instead"),
    ("record", "--pause-damon-stat", "it is the default; --keep-damon-stat refuses instead"),
    ("tier", "enable", "nearfar tier start"),
    ("tier", "disable", "nearfar tier stop"),
    ("tier", "on", "nearfar tier start"),
    ("tier", "log", "nearfar why"),
    ("tier", "list", "nearfar tier status"),
    ("tier", "show", "nearfar tier status"),
    ("balance", "list", "nearfar balance status"),
    ("balance", "show", "nearfar balance status"),
    ("balance", "log", "nearfar why"),
    ("balance", "explain", "nearfar why"),
    ("off", "--json", "nearfar status --json has the changed settings"),
    ("tier", "explain", "nearfar why"),
    (
        "tier",
        "--dry-run",
        "nearfar run --tier --dry-run -- true shows the tiers of this machine; nearfar off --dry-run the changes now in force",
    ),
    ("balance", "--dry-run", "nearfar off --dry-run shows the changes now in force"),
    ("topo", "svg", "nearfar topo --draw=svg"),
    ("balance", "enable", "nearfar balance start"),
    ("balance", "disable", "nearfar balance stop"),
    ("lab", "list", "nearfar lab machines"),
    ("lab", "accuracy", "nearfar dev accuracy"),
    ("lab", "overhead", "nearfar dev overhead"),
    ("lab", "repeat", "nearfar dev repeat"),
    ("sim", "bench", "nearfar dev sim-bench"),
    ("sim", "lab", "nearfar dev sim-lab"),
    ("lab", "ls", "nearfar lab machines"),
    ("lab", "exec", "nearfar lab run -- CMD"),
    ("lab", "start", "nearfar lab run -- CMD, or nearfar lab shell"),
    ("lab", "stop", "a guest ends with its command"),
    ("run", "--balanced", "nearfar run --balance -- CMD"),
    ("run", "--all", CPUSET),
    ("run", "--show", "nearfar run --dry-run shows what would be done"),
    ("run", "-s", "nearfar run --dry-run shows what would be done"),
    ("run", "--hardware", "nearfar topo shows the machine"),
    ("run", "-H", "nearfar topo shows the machine"),
    ("run", "-a", CPUSET),
    ("run", "-b", BALANCING),
    ("run", "--balancing", BALANCING),
    ("run", "-c", "nearfar run -N NODES -- CMD: numactl's -c is its old name of -N"),
    ("run", "--touch", SHARED),
    ("run", "--huge", SHARED),
    ("run", "--shm", SHARED),
    ("run", "--file", SHARED),
    ("run", "--pid", "nearfar move PID NODES moves a running program's pages"),
    (
        "report",
        "",
        "which report: nearfar report heatmap, wss, temperature, residency or info FILE",
    ),
    (
        "balance",
        "config",
        "nearfar balance start takes its options; nearfar balance status shows them",
    ),
    ("weights", "--set", "nearfar weights 0=3,1=1 --apply sets weights of your own"),
    (ANY, "-j", "--json, in commands that print data"),
    (ANY, "--output", "--json, in commands that print data"),
    (ANY, "--format", "--json, in commands that print data"),
];

/// Replaces the parser's guess in the error where there is a better suggestion; `words` are the arguments after the
/// program's name.
pub(crate) fn improved(error: clap::Error, words: &[String]) -> clap::Error {
    let kind = match error.kind() {
        ErrorKind::ValueValidation => return without_rusts_words(error),
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return error,
    };
    let Some(ContextValue::String(invalid)) = error.get(kind) else { return error };
    let typed = invalid.split('=').next().unwrap_or_default();
    let is_negative =
        typed.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if is_negative
        && let Some([option, value]) = words
            .array_windows()
            .find(|[option, value]| option.starts_with('-') && value.starts_with(typed))
    {
        let text = format!("invalid value '{value}' for '{option}': it can't be negative\n");
        return clap::Error::raw(ErrorKind::ValueValidation, text);
    }
    let before: Vec<&str> =
        words.iter().map(String::as_str).take_while(|word| *word != typed).collect();
    let command = before.into_iter().find(|word| !word.starts_with('-')).unwrap_or_default();
    let fits = |(of, word, _): &&(&str, &str, &str)| {
        // A file name stands in place of a report's name.
        *of == command && (*word == typed || word.is_empty() && typed.contains(['.', '/']))
            || *of == ANY && *word == typed
    };
    let tip = TIPS.iter().find(fits).map(|(_, _, tip)| *tip);
    // A misspelt option is hardly ever a value that begins with a hyphen.
    let guess = error.get(ContextKind::Suggested).map(ToString::to_string).unwrap_or_default();
    if tip.is_none() && !guess.contains("'-- -") {
        return error;
    }
    // The context of a clap error can be replaced, but not removed.
    let mut better = clap::Error::new(error.kind()).with_cmd(&Cli::command());
    better.insert(kind, ContextValue::String(invalid.clone()));
    if let Some(tip) = tip {
        let tip = clap::builder::StyledStr::from(tip.to_owned());
        better.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    better
}

/// The error of an invalid number, without Rust's own wording.
fn without_rusts_words(error: clap::Error) -> clap::Error {
    let Some(source) = error.source() else { return error };
    let found = source.to_string();
    let allowed = if source.is::<std::num::ParseIntError>() {
        "write a whole number".to_owned()
    } else if source.is::<std::num::ParseFloatError>() {
        "write a number such as 2.5".to_owned()
    } else if let Some((_, range)) = found.split_once(" is not in ") {
        let (least, most) = range.split_once("..").unwrap_or((range, ""));
        match most.trim_start_matches('=') {
            "" => format!("write a number of at least {least}"),
            most => format!("write a number from {least} to {most}"),
        }
    } else {
        return error;
    };
    let said = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (value, argument) = (said(ContextKind::InvalidValue), said(ContextKind::InvalidArg));
    let text = format!("invalid value '{value}' for '{argument}': {allowed}\n");
    clap::Error::raw(ErrorKind::ValueValidation, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn said(words: &str) -> String {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let all = ["nearfar".to_owned()].into_iter().chain(words.clone());
        improved(Cli::try_parse_from(all).unwrap_err(), &words).to_string()
    }

    #[test]
    fn words_of_other_tools_get_a_tip_with_the_matching_command() {
        for (words, tip) in [
            ("undo", "nearfar off"),
            ("lab list", "nearfar lab machines"),
            ("daemon start", "nearfar daemon starts it"),
            ("report x.nfr", "nearfar report heatmap"),
            ("run --hardware", "nearfar topo"),
            ("run --pid 1 -- true", "nearfar move PID"),
            ("top", "nearfar ps --watch"),
            ("lstopo", "nearfar topo"),
            ("run --balancing -- true", "nearfar run --balance"),
            ("off --json", "nearfar status --json"),
            ("tier status -j", "--json"),
            ("-q tier enable", "nearfar tier start"),
            ("-m far run true", "options follow the command"),
            ("tier start --pause-damon-stat", "it is the default"),
        ] {
            let said = said(words);
            assert!(said.contains(&format!("tip: {tip}")) || said.contains(tip), "{words}: {said}");
            assert!(!said.contains("--physcpubind") && !said.contains("--kind"), "{words}: {said}");
        }
    }

    #[test]
    fn invalid_numbers_are_refused_without_rusts_own_messages() {
        for (words, allowed) in [
            ("sim compare --seed x", "write a whole number"),
            ("cache bench --workload uniform --keys 1.5", "write a whole number"),
            ("lab run --cpus x -- true", "write a whole number"),
            ("tier start --headroom five", "write a whole number"),
            ("tier start --headroom 200", "write a whole number"),
            ("record --pid 4294967296", "write a number from 0 to 4294967295"),
            ("lab run --boot-timeout 0 -- true", "write a number from 1 to 86400"),
        ] {
            let said = said(words);
            assert!(said.contains(allowed), "{words}: {said}");
            assert!(!said.contains("invalid digit") && !said.contains("..="), "{words}: {said}");
        }
    }

    #[test]
    fn unknown_options_are_not_taken_for_values() {
        for words in ["run --jsno -- true", "ps --sysfs x", "run -Z true"] {
            let said = said(words);
            assert!(
                said.contains("unexpected argument") && !said.contains("'-- "),
                "{words}: {said}"
            );
        }
    }

    #[test]
    fn a_negative_number_is_refused_for_its_option() {
        for (words, option) in
            [("tier start --headroom -1", "--headroom"), ("ps --watch -1s", "--watch")]
        {
            let said = said(words);
            assert!(
                said.contains(&format!("for '{option}': it can't be negative")),
                "{words}: {said}"
            );
        }
    }

    #[test]
    fn other_words_keep_the_parsers_own_guess() {
        assert!(said("topology").contains("'topo'"));
        assert!(said("topo --jsno").contains("'--json'"));
    }

    #[test]
    fn every_tip_is_for_a_word_that_the_parser_rejects() {
        for (command, word, _) in TIPS.iter().filter(|(_, word, _)| !word.is_empty()) {
            let words = [command.replace(ANY, "topo"), (*word).to_owned()];
            let all = ["nearfar".to_owned()].into_iter().chain(words);
            let error = Cli::try_parse_from(all.filter(|word| !word.is_empty())).unwrap_err();
            let kinds = [ErrorKind::InvalidSubcommand, ErrorKind::UnknownArgument];
            assert!(kinds.contains(&error.kind()), "{command} {word}: {error}");
        }
    }
}
