//! Arguments of this process with the values of variables and of the configuration file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command};

use super::definition::{self, CONFIG, SettingValue, options};
use super::file::{self, ConfigFile, ConfigPath};
use super::layers;
use super::source::{Setting, SettingSource};
use crate::output::Printable;

/// Settings of this process's command.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Arguments of the process, with those that variables and the configuration file add.
    pub arguments: Vec<OsString>,
    /// Options of the command line.
    pub given: Vec<Setting>,
    /// Options that variables and the configuration file set.
    added: Vec<Setting>,
    /// Path of the configuration file.
    pub path: ConfigPath,
    /// Configuration file, if there is one.
    pub file: Option<ConfigFile>,
}

static SETTINGS: RwLock<Option<Settings>> = RwLock::new(None);

/// Returns the settings of this process's command; `None` before the command line is read.
pub fn current() -> Option<Settings> {
    SETTINGS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sets the settings of this process's command.
pub fn set_current(settings: Settings) {
    *SETTINGS.write().unwrap_or_else(PoisonError::into_inner) = Some(settings);
}

/// Returns the option that names the configuration file.
pub fn config_argument() -> Arg {
    Arg::new(CONFIG)
        .long(CONFIG)
        .global(true)
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Configuration file; `none` reads no file [default: ~/.config/ixc/config.toml]")
        // Resets the help heading, so that this option is not listed under the previous heading.
        .help_heading(None::<&'static str>)
}

/// Error of a command line, or of the variables and the file that complete it.
#[derive(Debug)]
pub enum ParseError {
    /// The command line is wrong, or asks for help.
    CommandLine(clap::Error),
    /// A variable or the file is wrong.
    Settings(anyhow::Error),
}

impl From<clap::Error> for ParseError {
    fn from(error: clap::Error) -> ParseError {
        ParseError::CommandLine(error)
    }
}

/// Adds the values of variables and of the configuration file to the arguments of a command.
///
/// # Errors
/// If the arguments are wrong or ask for help, or a variable or the file is wrong.
pub fn add(command: &Command, arguments: Vec<OsString>) -> Result<Settings, ParseError> {
    let found = match command.clone().try_get_matches_from(&arguments) {
        Ok(found) => found,
        // A variable or the file may set the missing option.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            command.clone().ignore_errors(true).try_get_matches_from(&arguments)?
        }
        Err(error) => return Err(error.into()),
    };
    let mut built = command.clone();
    built.build();
    let (names, matches) = chain(&found);
    let Some(leaf) = definition::descend(&built, &names) else {
        return Ok(Settings { arguments, given: Vec::new(), added: Vec::new(), path: ConfigPath::Off, file: None });
    };
    let path = ConfigPath::find(matches.get_one::<PathBuf>(CONFIG).map(PathBuf::as_path));
    let file = file::read(&path, &built).map_err(ParseError::Settings)?;
    let added = layers::settings(leaf, &names, matches, file.as_ref()).map_err(|e| ParseError::Settings(e.into()))?;
    let words = added.iter().flat_map(|setting| setting.value.arguments(&setting.option));
    let mut arguments = arguments;
    if let Some(at) = end_of_names(&built, &names, &arguments) {
        arguments.splice(at..at, words);
    }
    Ok(Settings { arguments, given: command_line_settings(leaf, matches), added, path, file })
}

/// Returns the names of the command and its subcommands, and the matches of the last one.
fn chain(found: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let (mut names, mut matches) = (Vec::new(), found);
    while let Some((name, inner)) = matches.subcommand() {
        names.push(name);
        matches = inner;
    }
    (names, matches)
}

/// Returns the position after the names of the command and its subcommands in valid arguments.
fn end_of_names(root: &Command, names: &[&str], arguments: &[OsString]) -> Option<usize> {
    let (mut at, mut command) = (1, root);
    for name in names {
        loop {
            let word = arguments.get(at)?.to_str().unwrap_or_default();
            at += 1;
            if let Some(found) = command.find_subcommand(word).filter(|found| found.get_name() == *name) {
                command = found;
                break;
            }
            let Some(option) = word.strip_prefix("--") else { continue };
            // Skip the value of an option, which may look like a command.
            at += usize::from(definition::find(command, option).is_some_and(definition::takes_value));
        }
    }
    Some(at)
}

/// Returns the options on the command line.
fn command_line_settings(leaf: &Command, matches: &ArgMatches) -> Vec<Setting> {
    let is_given = |arg: &&Arg| layers::is_given(matches, arg.get_id().as_str());
    let setting = |arg: &Arg| Setting {
        option: arg.get_long().unwrap_or_default().to_owned(),
        value: SettingValue::of_matches(arg, matches),
        source: SettingSource::CommandLine,
    };
    options(leaf).filter(is_given).map(setting).collect()
}

impl Settings {
    /// Returns a sentence with the source of each option that `message` names, if a variable or the
    /// configuration file set the option.
    fn sources_in(&self, message: &str) -> Vec<String> {
        let is_named = |setting: &&Setting| {
            let name = format!("--{}", setting.option);
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            message.match_indices(&name).any(|(at, _)| ends(&message[at + name.len()..]))
        };
        let named = self.added.iter().filter(is_named);
        named
            .map(|setting| format!("--{} comes from {}", setting.option, Printable(&setting.source.to_string())))
            .collect()
    }

    /// Adds the sources of options to clap's error about them.
    pub fn explain(&self, mut error: clap::Error) -> clap::Error {
        let sources = self.sources_in(&error.render().to_string());
        if !sources.is_empty() {
            let sources = sources.into_iter().map(StyledStr::from).collect();
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(sources));
        }
        error
    }
}

/// Returns whether an option has its value from a variable or from the file.
pub fn is_added(option: &str) -> bool {
    current().is_some_and(|settings| settings.added.iter().any(|setting| setting.option == option))
}

/// Adds the sources of options to a message about the wrong usage of a command.
pub fn with_sources(message: String) -> String {
    let sources = current().map(|settings| settings.sources_in(&message)).unwrap_or_default();
    sources.into_iter().fold(message, |message, source| message + "; " + &source)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// `IXC_` variables that do not set options: variables of the program, its packages and its
    /// tests.
    const OTHERS: [&str; 16] = [
        "IXC_ALL",
        "IXC_AS_V2",
        "IXC_BLESS",
        "IXC_BOCHS",
        "IXC_HISTORY",
        "IXC_LOG",
        "IXC_LONG",
        "IXC_MNEMONIC",
        "IXC_NEW",
        "IXC_PROGRESS_DELAY",
        "IXC_QEMU",
        "IXC_SCHEMAS",
        "IXC_SERVE",
        "IXC_TEMPLATES",
        "IXC_TEXTS",
        "IXC_TOKENIZERS",
    ];

    fn build_command() -> Command {
        let mut command = crate::command();
        command.build();
        command
    }

    #[test]
    fn every_option_has_its_own_variable() {
        let built = build_command();
        let mut options_of: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        let leaves = definition::leaves(&built);
        assert!(leaves.len() > 28, "{}", leaves.len());
        for arg in leaves.iter().flat_map(|(_, leaf)| leaf.get_arguments()) {
            let Some(option) = arg.get_long().filter(|option| !["help", "version"].contains(option)) else { continue };
            let variable = definition::variable(option);
            assert!(variable.bytes().all(|b| b == b'_' || b.is_ascii_uppercase() || b.is_ascii_digit()), "{variable}");
            assert!(!OTHERS.contains(&&*variable) && !variable.starts_with("IXC_TEST_"), "{variable}");
            options_of.entry(variable).or_default().insert(option);
        }
        assert!(options_of.len() > 150 && options_of.contains_key("IXC_QUEUE_DEPTH"), "{options_of:?}");
        for (variable, options) in options_of {
            assert_eq!(options.len(), 1, "{variable}: {options:?}");
        }
    }

    #[test]
    fn manual_pages_name_the_variable_of_every_option() {
        let with_variables = definition::with_variables(build_command());
        for (names, leaf) in definition::leaves(&with_variables) {
            for arg in options(leaf) {
                let variable = definition::variable(arg.get_long().unwrap());
                assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(&*variable), "{names:?}");
            }
        }
    }

    /// A key of the file with a command's name is the table of this command. So an option of the
    /// same name can only be set in the table of its own command.
    #[test]
    fn two_options_are_called_as_commands() {
        let built = build_command();
        let mut found = BTreeSet::new();
        for (names, leaf) in definition::leaves(&built) {
            for option in options(leaf).filter_map(Arg::get_long) {
                for at in 0..names.len() {
                    let command = definition::descend(&built, &names[..at]).unwrap();
                    found.extend(command.find_subcommand(option).map(|_| (names.join(" "), option)));
                }
            }
        }
        let policy = ["bench", "embed", "eval", "logits", "run", "serve"].map(|name| (name.to_owned(), "cache"));
        assert_eq!(found, policy.into_iter().chain([("dump".to_owned(), "kernel")]).collect());
    }

    #[test]
    fn values_are_added_after_the_names_of_the_command() {
        let built = build_command();
        let at = |line: &str, names: &[&str]| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            end_of_names(&built, names, &words)
        };
        for (line, names, expected) in [
            ("ixc run -p run", &["run"][..], 2),
            ("ixc -q run", &["run"], 3),
            ("ixc --log-file run run x", &["run"], 4),
            ("ixc --log-file=run run x", &["run"], 3),
            ("ixc --config serve -v kernel --colour never run rms", &["kernel", "run"], 8),
            ("ixc quantize a b", &["quantise"], 2),
        ] {
            assert_eq!(at(line, names), Some(expected), "{line}");
        }
    }

    /// Options that clap requires are found, so that probing a single value works.
    #[test]
    fn required_options_are_found() {
        let built = build_command();
        let required = |command: &str, option: &str, text: &str| {
            let setting = Setting {
                option: option.to_owned(),
                value: SettingValue::Texts(vec![text.into()]),
                source: SettingSource::CommandLine,
            };
            layers::Probe::new(built.find_subcommand(command).unwrap()).required_options(&setting).unwrap()
        };
        assert_eq!(required("run", "parallel", "8"), ["output", "batch"]);
        assert_eq!(required("inspect", "target", "portable"), ["html"]);
        assert_eq!(required("serve", "parallel", "8"), [""; 0]);
    }
}
