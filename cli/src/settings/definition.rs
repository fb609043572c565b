//! Options by clap's definitions: their environment variables, the shapes of their values, and the
//! arguments that set them.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, ArgMatches, Command};

/// Name and identifier of the option that names the configuration file.
pub const CONFIG: &str = "config";
/// Options with values that are never shown.
const SECRETS: [&str; 1] = ["api-key"];

/// Shape of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionShape {
    /// A flag.
    Flag,
    /// A flag that counts, such as `-vv`.
    Count,
    /// A text or a number.
    Text {
        /// Whether the option may have several values.
        repeats: bool,
        /// Whether the option may stand without a value.
        optional: bool,
    },
}

impl OptionShape {
    /// Returns the shape of an option.
    pub fn from_arg(arg: &Arg) -> OptionShape {
        match arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => OptionShape::Flag,
            ArgAction::Count => OptionShape::Count,
            action => OptionShape::Text {
                repeats: matches!(action, ArgAction::Append),
                optional: arg.get_num_args().is_some_and(|values| values.min_values() == 0),
            },
        }
    }
}

/// Value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// A flag that is off, or no values.
    Off,
    /// A flag, and how many times it is given.
    On(u8),
    /// Values, each for a repetition of the option.
    Texts(Vec<OsString>),
    /// Values for one occurrence of the option.
    Tuple(Vec<OsString>),
}

impl SettingValue {
    /// Parses the value of an option's environment variable. The error describes the expected
    /// value.
    ///
    /// # Errors
    /// If a flag or a count has another value.
    pub fn of_variable(arg: &Arg, value: OsString) -> Result<SettingValue, &'static str> {
        let word = match value.to_str() {
            Some("true" | "1") => Some(SettingValue::On(1)),
            Some("false" | "0" | "") => Some(SettingValue::Off),
            _ => None,
        };
        match OptionShape::from_arg(arg) {
            OptionShape::Flag => word.ok_or("true, false, 1 or 0"),
            OptionShape::Count => {
                let count = || value.to_str().and_then(|count| count.parse().ok()).map(SettingValue::On);
                word.or_else(count).ok_or("a number from 0 to 255")
            }
            OptionShape::Text { optional, .. } => {
                Ok(word.filter(|_| optional).unwrap_or_else(|| SettingValue::of_texts(arg, vec![value])))
            }
        }
    }

    /// Returns the value of an option that takes texts.
    pub fn of_texts(arg: &Arg, texts: Vec<OsString>) -> SettingValue {
        match arg.get_num_args() {
            _ if texts.is_empty() => SettingValue::Off,
            Some(values) if values.max_values() > 1 => SettingValue::Tuple(texts),
            _ => SettingValue::Texts(texts),
        }
    }

    /// Returns the value of an option on the command line.
    pub fn of_matches(arg: &Arg, matches: &ArgMatches) -> SettingValue {
        let id = arg.get_id().as_str();
        match OptionShape::from_arg(arg) {
            OptionShape::Flag => SettingValue::On(1),
            OptionShape::Count => SettingValue::On(matches.get_count(id)),
            OptionShape::Text { .. } => {
                let texts = matches.get_raw(id).into_iter().flatten().map(OsStr::to_owned).collect();
                SettingValue::of_texts(arg, texts)
            }
        }
    }

    /// Returns the arguments that give an option this value.
    pub fn arguments(&self, option: &str) -> Vec<OsString> {
        let name = OsString::from(format!("--{option}"));
        match self {
            SettingValue::Off => Vec::new(),
            SettingValue::On(count) => vec![name; usize::from(*count)],
            // After `=`, a value may begin with a hyphen.
            SettingValue::Texts(texts) => {
                texts.iter().map(|text| [name.as_os_str(), "=".as_ref(), text].into_iter().collect()).collect()
            }
            SettingValue::Tuple(texts) => [name].into_iter().chain(texts.iter().cloned()).collect(),
        }
    }

    /// Returns the value as text for display. Secrets are hidden.
    pub fn display_text(&self, option: &str) -> String {
        let texts = match self {
            SettingValue::Off => return "false".to_owned(),
            SettingValue::On(1) => return "true".to_owned(),
            SettingValue::On(count) => return count.to_string(),
            SettingValue::Texts(_) | SettingValue::Tuple(_) if SECRETS.contains(&option) => {
                return "(hidden)".to_owned();
            }
            SettingValue::Texts(texts) | SettingValue::Tuple(texts) => texts,
        };
        texts.iter().map(|text| text.to_string_lossy()).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the environment variable of an option.
pub fn variable(option: &str) -> String {
    format!("IXC_{}", option.to_ascii_uppercase().replace('-', "_"))
}

/// Returns the options of a command, except `--help` and `--version`.
pub fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| is_option(arg))
}

fn is_option(arg: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    arg.get_long().is_some() && !matches!(arg.get_action(), Help | HelpShort | HelpLong | Version)
}

/// Returns the subcommands of a command, without clap's `help`.
pub fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| command.get_name() != "help")
}

/// Returns the commands without subcommands: `command` or those below it, with their names.
pub fn leaves(command: &Command) -> Vec<(Vec<&str>, &Command)> {
    let (mut leaves, mut open) = (Vec::new(), vec![(Vec::new(), command)]);
    while let Some((names, command)) = open.pop() {
        let inner = subcommands(command).map(|inner| ([&names[..], &[inner.get_name()]].concat(), inner));
        let before = open.len();
        open.extend(inner);
        if open.len() == before {
            leaves.push((names, command));
        }
    }
    leaves.reverse();
    leaves
}

/// Returns the subcommand of `command` at the end of these names, one name for each level.
pub fn descend<'c>(command: &'c Command, names: &[&str]) -> Option<&'c Command> {
    names.iter().try_fold(command, |command, name| command.find_subcommand(name))
}

/// Returns the option of a long name or alias.
pub fn find<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    let is_alias = |arg: &Arg| arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name));
    options(command).find(|arg| arg.get_long() == Some(name) || is_alias(arg))
}

/// Returns whether the word after an option is its value.
pub fn takes_value(arg: &Arg) -> bool {
    matches!(OptionShape::from_arg(arg), OptionShape::Text { optional: false, .. })
}

/// Sets the variables of all options, for a manual page.
pub fn with_variables(command: Command) -> Command {
    command.mut_subcommands(with_variables).mut_args(|arg| match arg.get_long().map(variable) {
        // clap takes static names only. A process prints manual pages once.
        Some(name) if is_option(&arg) => arg.env(&*name.leak()),
        _ => arg,
    })
}
