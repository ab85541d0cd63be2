//! Man pages: generated from the definition of the command line, plus examples, files and related pages.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;

mod examples;

use examples::EXAMPLES;

const EXIT_STATUS: &str = "0 success; 1 failure; 2 bad usage. Commands that run CMD end with CMD's own status (128 plus \
    the signal, if one ended it), or with 125 if nearfar failed before CMD, 126 if CMD can't be executed and 127 if it \
    was not found.";

const ENVIRONMENT: [(&str, &str); 3] = [
    ("NEARFAR_STATE", "Directory of saved measurements and of the journal of settings."),
    ("NEARFAR_CACHE", "Directory of the lab's emulator and kernels."),
    ("NEARFAR_ADVICE", "File of the advice page that nearfar daemon publishes."),
];

const FILES: [(&str, &str); 5] = [
    ("/var/lib/nearfar", "State of root: saved measurements, journal of settings."),
    ("~/.local/state/nearfar", "Saved measurements of other users ($XDG_STATE_HOME/nearfar)."),
    ("~/.cache/nearfar", "The lab's emulator and kernels ($XDG_CACHE_HOME/nearfar)."),
    ("/run/nearfar/advice", "The advice page."),
    ("PREFIX/share/doc/nearfar/docs", "The manual; its pages are the docs/... of messages."),
];

/// Writes a page for each command into `directory`.
pub(super) fn write(command: Command, directory: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    each(&command, None, directory)
}

fn each(command: &Command, parent: Option<&Command>, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        each(below, Some(command), directory)?;
    }
    let man = Man::new(command.clone());
    std::fs::write(directory.join(man.get_filename()), page(command, parent, man)?)
}

fn page(command: &Command, parent: Option<&Command>, man: Man) -> io::Result<Vec<u8>> {
    let man = man.source(concat!("nearfar ", env!("CARGO_PKG_VERSION"))).manual("nearfar");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend(synopsis(command).bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(notes) = command.get_after_long_help() {
        let _ = section(&mut page, "NOTES", &paragraphs(&notes.to_string()));
    }
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    // A group shows those of its commands.
    let group = format!("{name} ");
    let of_this =
        |(of, ..): &&(&str, &str, &str)| *of == name || parent.is_some() && of.starts_with(&group);
    let examples = EXAMPLES.iter().filter(of_this);
    let examples = examples.map(|(_, typed, what)| (*typed, *what)).collect::<Vec<_>>();
    let related = related(command, parent);
    let general =
        if parent.is_none() { super::groups::of_every_command(command) } else { Vec::new() };
    let general: Vec<_> = general.iter().map(|(term, says)| (term.trim(), says.as_str())).collect();
    for (title, text) in [
        ("OPTIONS OF EVERY COMMAND", listed(&general)),
        ("EXAMPLES", listed(&examples)),
        ("EXIT STATUS", escaped(EXIT_STATUS) + "\n"),
        ("ENVIRONMENT", listed(&ENVIRONMENT)),
        ("FILES", listed(&FILES)),
        ("SEE ALSO", related),
    ] {
        if !text.is_empty() {
            let _ = section(&mut page, title, &text);
        }
    }
    Ok(page)
}

fn section(page: &mut impl io::Write, title: &str, text: &str) -> io::Result<()> {
    write!(page, ".SH \"{title}\"\n{text}")
}

/// Text with roff's requests escaped.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

/// Each option with its value; required ones without brackets.
fn synopsis(command: &Command) -> String {
    let name = escaped(command.get_bin_name().unwrap_or_else(|| command.get_name()));
    let mut out = format!(".SH SYNOPSIS\n.nh\n.ad l\n\\fB{name}\\fR\n");
    let shown = |argument: &&Arg| {
        let is_general = matches!(argument.get_id().as_str(), "help" | "version");
        let is_special = !is_general && !argument.is_global_set();
        !argument.is_hide_set() && !argument.is_positional() && is_special
    };
    for option in command.get_arguments().filter(shown) {
        let name = match (option.get_short(), option.get_long()) {
            (Some(short), _) => format!("-{short}"),
            (None, long) => format!("--{}", long.unwrap_or_default()),
        };
        let values = option.get_value_names().unwrap_or_default();
        let takes = option.get_num_args().is_some_and(|number| number.takes_values());
        let values = values.iter().filter(|_| takes).map(|value| escaped(value));
        let is_optional = option.get_num_args().is_some_and(|number| number.min_values() == 0);
        let value = |value: String| match is_optional {
            true => format!("[=\\fI{value}\\fR]"),
            false => format!(" \\fI{value}\\fR"),
        };
        let values = values.map(value).collect::<String>();
        let (open, close) = if option.is_required_set() { ("", "") } else { ("[", "]") };
        let _ = writeln!(out, "{open}\\fB{}\\fR{values}{close}", escaped(&name));
    }
    for positional in command.get_positionals().filter(|positional| !positional.is_hide_set()) {
        let values = positional.get_value_names().unwrap_or_default().join(" ");
        let (open, close) = if positional.is_required_set() { ("", "") } else { ("[", "]") };
        let more = if positional.is_trailing_var_arg_set() { "..." } else { "" };
        let _ = writeln!(out, "{open}\\fI{}\\fR{more}{close}", escaped(&values));
    }
    if command.has_subcommands() {
        let is_needed = command.is_subcommand_required_set();
        out += if is_needed { "\\fICOMMAND\\fR\n" } else { "[\\fICOMMAND\\fR]\n" };
    }
    out + ".ad b\n.hy\n"
}

/// Paragraphs as roff; indented lines are kept as they are.
fn paragraphs(text: &str) -> String {
    let mut out = String::new();
    let mut is_literal = false;
    for line in text.lines() {
        let literal = line.starts_with(' ');
        if literal != is_literal {
            out += if literal { ".nf\n" } else { ".fi\n" };
            is_literal = literal;
        }
        out += &if line.is_empty() { String::from(".PP\n") } else { escaped(line) + "\n" };
    }
    out + if is_literal { ".fi\n" } else { "" }
}

/// Terms, each with its meaning.
fn listed(terms: &[(&str, &str)]) -> String {
    let line = |(term, what): &(&str, &str)| {
        format!(".TP\n\\fB{}\\fR\n{}\n", escaped(term), escaped(what))
    };
    terms.iter().map(line).collect()
}

/// Commands, and the pages of the files that they read.
const FORMATS: [(&str, &str); 5] = [
    ("nearfar-tier-start", "nearfar-tier.toml"),
    ("nearfar-tier-config", "nearfar-tier.toml"),
    ("nearfar-daemon", "nearfar-daemon.toml"),
    ("nearfar-lab", "nearfar-machine"),
    ("nearfar-lab-machines", "nearfar-machine"),
];

/// The pages of the parent, sibling and child commands, and of files.
fn related(command: &Command, parent: Option<&Command>) -> String {
    let beside = parent.into_iter().flat_map(Command::get_subcommands);
    let all = parent.into_iter().chain(beside).chain(command.get_subcommands());
    let names = all.filter(|other| !other.is_hide_set()).filter_map(Command::get_display_name);
    let own = command.get_display_name();
    let names = names.filter(|name| Some(*name) != own);
    let files = FORMATS.iter().filter(|(of, _)| Some(*of) == own).map(|(_, page)| (*page, 5));
    let pages = names.map(|name| (name, 1)).chain(files);
    let pages = pages.map(|(name, section)| format!("\\fB{}\\fR({section})", escaped(name)));
    pages.collect::<Vec<_>>().join(",\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_page_has_its_sections_and_groff_accepts_them() {
        let dir = tempfile::tempdir().unwrap();
        write(crate::cli::Cli::command(), dir.path()).unwrap();
        let mut groff = std::process::Command::new("groff");
        groff.args(["-s", "-man", "-Tutf8", "-ww", "-z"]);
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for title in
                ["NAME", "SYNOPSIS", "\"EXAMPLES\"", "\"EXIT STATUS\"", "\"FILES\"", "\"SEE ALSO\""]
            {
                assert!(text.contains(&format!(".SH {title}\n")), "{title}: {}", path.display());
            }
            assert!(!text.contains(".SH EXTRA"), "{}", path.display());
            groff.arg(path);
        }
        if let Ok(output) = groff.output() {
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        }
        let run = std::fs::read_to_string(dir.path().join("nearfar-run.1")).unwrap();
        assert!(run.contains("[\\fB\\-m\\fR \\fINODES\\fR]\n"), "{run}");
        assert!(run.contains("[\\fB\\-\\-report\\fR[=\\fIFILE\\fR]]\n"), "{run}");
        assert!(run.contains("redis\\-server") && run.contains("\\fBnearfar\\-topo\\fR(1)"));
    }

    /// The names of the commands below this one that have none below them.
    fn leaves(command: &Command) -> Vec<String> {
        let below: Vec<&Command> =
            command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
        match below.is_empty() {
            true => vec![command.get_bin_name().unwrap().to_owned()],
            false => below.into_iter().flat_map(leaves).collect(),
        }
    }

    /// Commands in the running text and the tables of a document, as words.
    fn in_text(document: &str) -> Vec<Vec<String>> {
        // Blocks of commands have tests of their own.
        let text: String = document.split("```").step_by(2).collect();
        let spans = text.split('`').skip(1).step_by(2).map(str::split_whitespace);
        let spans = spans.map(|words| words.map(str::to_owned).collect::<Vec<_>>());
        spans.filter(|words| words.first().is_some_and(|first| first == "nearfar")).collect()
    }

    #[test]
    fn commands_in_documents_have_existing_names_and_options() {
        use clap::error::ErrorKind::{InvalidSubcommand, UnknownArgument};
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let documents = std::fs::read_dir(root.join("docs")).unwrap();
        let documents =
            documents.map(|entry| entry.unwrap().path()).chain([root.join("README.md")]);
        let mut command = crate::cli::Cli::command();
        command.build();
        let mut seen = 0;
        for path in documents.filter(|path| path.extension().is_some_and(|end| end == "md")) {
            for words in in_text(&std::fs::read_to_string(&path).unwrap()) {
                // `tier start|stop` is two commands; words after -- are another program's.
                let own = words.iter().take_while(|word| *word != "--" && !word.contains('|'));
                let own = own.filter(|word| *word != "...");
                let wrong =
                    command.clone().try_get_matches_from(own).err().filter(|error| {
                        [InvalidSubcommand, UnknownArgument].contains(&error.kind())
                    });
                assert!(wrong.is_none(), "{}: {}: {wrong:?}", path.display(), words.join(" "));
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut command = crate::cli::Cli::command().disable_help_subcommand(true);
        command.build();
        for leaf in leaves(&command) {
            assert!(EXAMPLES.iter().any(|(of, ..)| *of == leaf), "{leaf} has no example");
        }
        for (of, typed, _) in EXAMPLES {
            let parsed = command.clone().try_get_matches_from(typed.split(' '));
            assert!(typed.starts_with(of) && parsed.is_ok(), "{typed}: {parsed:?}");
        }
    }
}
