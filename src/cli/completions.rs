//! `ixc completions`: what a shell completes of commands and options, from the same table as their help.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::Cli;

/// Prints a shell's completions of commands and options.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc completions bash > ~/.local/share/bash-completion/completions/ixc
  ixc completions zsh > ~/.zfunc/_ixc        in a folder of $fpath
  ixc completions fish > ~/.config/fish/completions/ixc.fish")]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        // What generates it panics where a writer fails.
        let mut text = Vec::new();
        generate(self.shell, &mut Cli::command(), "ixc", &mut text);
        Ok(out.write_all(&text)?)
    }
}
