//! Options of every command for its output on the terminal. They are in the help and the man page of nearfar itself.

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;
use nearfar_command::terminal::{self, Terminal};

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Args {
    /// Print results, warnings and errors only: no remarks, no progress
    #[arg(short, long, global = true, hide = true)]
    quiet: bool,
    /// Print each value that this process writes to a file of the kernel, such as a setting in /sys
    #[arg(short, long, global = true, hide = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Use colours: always, never, or auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, hide = true, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_value = "auto", default_missing_value = "always", hide_default_value = true, hide_possible_values = true)]
    color: When,
    /// Show no progress
    #[arg(long, global = true, hide = true)]
    no_progress: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum When {
    #[default]
    Auto,
    Always,
    Never,
}

impl Args {
    /// Has them take effect for this process.
    pub(super) fn set(self) -> anyhow::Result<()> {
        // The parser sees a conflict only of options on the same side of the command.
        if self.quiet && self.verbose > 0 {
            return Err(anyhow::anyhow!("--quiet and --verbose can't be combined"))
                .ends_with(Exit::Usage);
        }
        let colours = match self.color {
            When::Auto => None,
            When::Always => Some(true),
            When::Never => Some(false),
        };
        let terminal = Terminal::of_process(self.quiet, !self.no_progress, colours);
        terminal::set(terminal);
        if !terminal.progress {
            nearfar_lab::cli::hide_progress();
        }
        if self.verbose > 0 {
            nearfar_kernel::fs::observe(|path, text| {
                output::note(format_args!("wrote {text} to {}", path.display()));
            });
        }
        Ok(())
    }
}
