//! `ixc man`: prints manual pages, from the same table as the help.

use std::io::Write;
use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;
use ixc_compile::build;
use ixc_files::folder::NewFolder;

use super::output::count_text;
use super::settings::definition::with_variables;
use super::wrap::Text;
use super::{Usage, command, terminal};

/// Prints a command's manual page, or writes the pages of all commands.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc man run | man -l -                     reads one
  ixc man -o man1                            writes all: ixc.1, ixc-run.1, ..")]
pub struct Args {
    /// Command, such as `run` or `kernel show`; without it, ixc itself.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands into this folder, which must be new or empty.
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    output: Option<PathBuf>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut command = with_variables(without_help(command()));
        command.build();
        if let Some(place) = &self.output {
            let folder = NewFolder::create(place).map_err(ixc_error::Error::from)?;
            let pages = pages(&command)?;
            for (name, page) in &pages {
                folder.put(&format!("{name}.1"), page).map_err(ixc_error::Error::from)?;
            }
            folder.finish().map_err(ixc_error::Error::from)?;
            return Ok(writeln!(out, "{}: {}", place.display(), count_text(pages.len() as u64, "page"))?);
        }
        let mut name = "ixc".to_owned();
        let mut found = &command;
        for word in &self.command {
            name = format!("{name}-{word}");
            found = found.find_subcommand(word).ok_or_else(|| {
                let known: Vec<&str> = commands(found).map(Command::get_name).collect();
                let known = if known.is_empty() {
                    "this command has no commands of its own".to_owned()
                } else {
                    format!("the commands are {}", known.join(", "))
                };
                Usage(format!("there is no command {word:?}; {known}"))
            })?;
        }
        terminal::set_text(Text::Verbatim);
        Ok(out.write_all(&page(found, &name)?)?)
    }
}

/// Removes clap's `help` from a command and all of its subcommands, so that no page describes it.
fn without_help(command: Command) -> Command {
    let names: Vec<String> = commands(&command).map(|command| command.get_name().to_owned()).collect();
    let command = command.disable_help_subcommand(true);
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, without_help))
}

/// Returns the subcommands of a command.
fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands()
}

/// Returns all pages, with their names.
fn pages(command: &Command) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    let mut open = vec![("ixc".to_owned(), command)];
    while let Some((name, command)) = open.pop() {
        pages.push((name.clone(), page(command, &name)?));
        open.extend(commands(command).map(|command| (format!("{name}-{}", command.get_name()), command)));
    }
    Ok(pages)
}

/// Returns the page of a command.
fn page(command: &Command, name: &str) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).title(name).section("1").source(format!("ixc {}", build::version())).render(&mut page)?;
    Ok(page)
}
