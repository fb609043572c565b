//! `ixc completions`: shell completion of commands and options, from the same table as their help.

use std::io::Write;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::{Shell, generate};
use ixc_targets::TARGETS;
use ixc_text::template::known;
use ixc_workbench::kernels::catalogue::ROWS;

use super::wrap::Text;
use super::{command, terminal};

/// Prints a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc completions bash > ~/.local/share/bash-completion/completions/ixc
  ixc completions zsh > ~/.zfunc/_ixc        in a folder of $fpath
  ixc completions fish > ~/.config/fish/completions/ixc.fish")]
pub struct Args {
    /// Shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        // The generator panics if a writer fails, so it writes to memory.
        let mut text = Vec::new();
        generate(self.shell, &mut with_values(command()), "ixc", &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        terminal::set_text(Text::Verbatim);
        Ok(out.write_all(with_files(self.shell, text).as_bytes())?)
    }
}

/// Returns the names that an argument takes, if its parser does not list them.
fn names(arg: &Arg) -> Option<Vec<&'static str>> {
    match (arg.get_long(), arg.get_id().as_str()) {
        (Some("target"), _) => Some(["native"].into_iter().chain(TARGETS.iter().map(|row| row.name)).collect()),
        (Some("chat-template"), _) => Some(known::names()),
        (None, "kernel" | "a" | "filter") => Some(ROWS.iter().map(|row| row.name).collect()),
        _ => None,
    }
}

/// Adds the possible values to arguments that take names, in a command and its subcommands.
fn with_values(command: Command) -> Command {
    command.mut_subcommands(with_values).mut_args(|arg| match names(&arg) {
        Some(names) => arg.value_parser(PossibleValuesParser::new(names)),
        None => arg,
    })
}

/// Adds files to the completions of arguments that take a name or a file. Bash adds files itself if
/// no name matches. Fish also gets the names of kernels, since `clap_complete` writes no positional
/// arguments for it.
fn with_files(shell: Shell, mut text: String) -> String {
    let kernels: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    match shell {
        Shell::Zsh => {
            for names in [known::names(), kernels] {
                let names = names.join(" ");
                text = text.replace(&format!(":({names})"), &format!(":{{compadd {names}; _files}}"));
            }
        }
        Shell::Fish => {
            if let Some(name) = known::names().first() {
                text = text.replace(&format!("-r -f -a \"{name}\\t"), &format!("-r -F -a \"{name}\\t"));
            }
            let commands = "show run bench cost diff tune reduce export list";
            text += &format!(
                "complete -c ixc -n \"__fish_ixc_using_subcommand kernel; and __fish_seen_subcommand_from {commands}\" -a \"{}\"\n",
                kernels.join(" ")
            );
        }
        _ => {}
    }
    text
}
