//! A command line: shown as a user would type it, run as it is shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Program and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line(Vec<String>);

impl Line {
    /// A line of these words; words are not split.
    pub(crate) fn new<W: Into<String>>(words: impl IntoIterator<Item = W>) -> Self {
        Self(words.into_iter().map(Into::into).collect())
    }

    /// From text without quotes: words are split at spaces.
    pub(crate) fn words(text: &str) -> Self {
        Self::new(text.split_whitespace())
    }

    /// The same followed by more words.
    #[must_use]
    pub(crate) fn and(mut self, more: &Self) -> Self {
        self.0.extend(more.0.iter().cloned());
        self
    }

    /// The process to spawn. `nearfar` and `nearfar-bench` are replaced by the files beside `nearfar` wherever they are
    /// the name of a program: as the first word, after `--`, and after the CPUs of `taskset -c`, which may itself
    /// follow `chrt`.
    pub(crate) fn command(&self, nearfar: &Path) -> Command {
        let pinned = self.0.iter().position(|word| word == "taskset").map(|at| at + 3);
        let program = |at: usize| at == 0 || self.0[at - 1] == "--" || Some(at) == pinned;
        let mut words = self.0.iter().enumerate().map(|(at, word)| match word.as_str() {
            "nearfar" if program(at) => nearfar.into(),
            "nearfar-bench" if program(at) => nearfar.with_file_name(word),
            _ => PathBuf::from(word),
        });
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }
}

impl fmt::Display for Line {
    /// Quoted for a shell where necessary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PLAIN: &str = "-_./:=,+@%";
        for (at, word) in self.0.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            let plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
            if !word.is_empty() && word.chars().all(plain) {
                write!(f, "{space}{word}")?;
            } else {
                write!(f, "{space}'{}'", word.replace('\'', r"'\''"))?;
            }
        }
        Ok(())
    }
}

/// The path of a program, by the `PATH` of this process.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_quoted_for_the_shell() {
        let line = Line::new(["redis-cli", "EVAL", "return 'a'", ""]);
        assert_eq!(line.to_string(), r"redis-cli EVAL 'return '\''a'\''' ''");
    }

    #[test]
    fn program_names_resolve_to_our_binaries_but_arguments_do_not() {
        let line = Line::words("nearfar run -m near -- nearfar-bench nearfar");
        let command = line.command(Path::new("/x/nearfar"));
        assert_eq!(command.get_program(), "/x/nearfar");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(arguments, ["run", "-m", "near", "--", "/x/nearfar-bench", "nearfar"]);
    }

    #[test]
    fn our_own_binary_may_be_pinned() {
        let line = Line::words("chrt -b 0 taskset -c 0 nearfar run -m far -- x");
        assert_eq!(line.command(Path::new("/x/n")).get_args().nth(5).unwrap(), "/x/n");
    }

    #[test]
    fn a_program_missing_from_path_is_not_found() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-here"), None);
    }
}
