//! The configuration file: its path, its keys and their types.
//!
//! ```toml
//! threads = 8              # of all commands with this option
//!
//! [serve]
//! port = 9000
//! stop = ["END", "STOP"]   # an option that may be given several times
//!
//! [kernel.tune]
//! repetitions = 30
//! ```
//!
//! Invariant: the file is hostile. Its size has a limit, and each failure is an error with a line.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::definition::{self, CONFIG, OptionShape, SettingValue, options, subcommands};
use super::error::{ConfigError, FileKey};
use super::source::FileLine;
use crate::suggestions;

/// Value of `--config` that reads no file.
pub const OFF: &str = "none";
/// Max characters of a number in an error.
const NUMBER_CHARACTERS: usize = 20;
/// Max bytes of the file.
const MAX_BYTES: u64 = 64 << 10;

/// Path of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigPath {
    /// `--config none`, or no home folder.
    Off,
    /// Path in the user's folder of configurations. The file may be missing.
    Default(PathBuf),
    /// Path of `--config` or of its variable. The file must exist.
    Named(PathBuf),
}

impl ConfigPath {
    /// Returns the path from the command line, the variables, or the user's folder.
    pub fn find(given: Option<&Path>) -> ConfigPath {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = given.map(Path::to_owned).or_else(|| variable(&definition::variable(CONFIG)));
        if let Some(path) = named {
            return if path.as_os_str() == OFF { ConfigPath::Off } else { ConfigPath::Named(path) };
        }
        // Relative paths are invalid (XDG Base Directory Specification).
        let folder = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        let folder = folder.or_else(|| Some(variable("HOME")?.join(".config")));
        folder.map_or(ConfigPath::Off, |folder| ConfigPath::Default(folder.join("ixc/config.toml")))
    }
}

/// Keys of a configuration file.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Keys with their values, by line.
    pub entries: Vec<FileEntry>,
}

/// Key of a configuration file.
#[derive(Clone, Debug)]
pub struct FileEntry {
    /// Names of the command whose table has the key; empty for the top of the file.
    pub table: Vec<String>,
    /// Long name of the option.
    pub option: String,
    /// Line of the key.
    pub line: FileLine,
    value: FileValue,
}

/// Value of a key.
#[derive(Clone, Debug)]
enum FileValue {
    Boolean(bool),
    Number(String),
    Text(String),
    List(Vec<String>),
}

impl FileEntry {
    /// Returns the value in the form that the option takes.
    ///
    /// # Errors
    /// If the option takes values of another type.
    pub fn value(&self, arg: &Arg) -> Result<SettingValue, ConfigError> {
        let shape = OptionShape::from_arg(arg);
        self.value.of_shape(arg, shape).ok_or_else(|| ConfigError::WrongType {
            line: self.line.clone(),
            key: FileKey(self.option.clone()),
            found: self.value.description(),
            expected: expected_value(shape),
        })
    }
}

impl FileValue {
    fn of_shape(&self, arg: &Arg, shape: OptionShape) -> Option<SettingValue> {
        let is_flag = !matches!(shape, OptionShape::Text { optional: false, .. });
        Some(match (self, shape) {
            (FileValue::Boolean(true), _) if is_flag => SettingValue::On(1),
            (FileValue::Boolean(false), _) if is_flag => SettingValue::Off,
            (FileValue::Number(count), OptionShape::Count) => match count.parse().ok()? {
                0 => SettingValue::Off,
                count => SettingValue::On(count),
            },
            (FileValue::Number(text) | FileValue::Text(text), OptionShape::Text { .. }) => {
                SettingValue::of_texts(arg, vec![text.into()])
            }
            (FileValue::List(texts), OptionShape::Text { repeats: true, .. }) => {
                SettingValue::of_texts(arg, texts.iter().map(OsString::from).collect())
            }
            _ => return None,
        })
    }

    /// Describes the value in an error.
    fn description(&self) -> String {
        match self {
            FileValue::Boolean(value) => format!("the boolean {value}"),
            FileValue::Number(number) => {
                format!("the number {}", number.chars().take(NUMBER_CHARACTERS).collect::<String>())
            }
            FileValue::Text(_) => "a string".to_owned(),
            FileValue::List(_) => "a list".to_owned(),
        }
    }
}

/// Describes the values of an option in a file.
fn expected_value(shape: OptionShape) -> &'static str {
    match shape {
        OptionShape::Flag => "true or false",
        OptionShape::Count => "a number from 0 to 255",
        OptionShape::Text { repeats: true, .. } => "a string, a number, or a list of them",
        OptionShape::Text { optional: true, .. } => "true, false, a string or a number",
        OptionShape::Text { .. } => "a string or a number",
    }
}

/// Reads the configuration file, if there is one. `root` is the whole command.
///
/// # Errors
/// If a named file is missing, a file cannot be read, or it has a wrong key or type.
pub fn read(path: &ConfigPath, root: &Command) -> anyhow::Result<Option<ConfigFile>> {
    let (path, text) = match path {
        ConfigPath::Off => return Ok(None),
        ConfigPath::Default(path) if !path.exists() => return Ok(None),
        ConfigPath::Default(path) => (path, ixc_files::read_text(path, MAX_BYTES)),
        ConfigPath::Named(path) => (path, ixc_files::read_argument(path, MAX_BYTES)),
    };
    let text = text.map_err(ixc_error::Error::from)?;
    Ok(Some(parse(path, &text, root)?))
}

/// Checks the text of a configuration file, as each command does. Returns the number of keys.
///
/// # Errors
/// If the text is no TOML, or it has a wrong key or type.
pub fn check_configuration(path: &Path, text: &str) -> Result<usize, ConfigError> {
    Ok(parse(path, text, &crate::command())?.entries.len())
}

/// Parses the text of a configuration file.
///
/// # Errors
/// If the text is no TOML, or it has a wrong key or type.
pub fn parse(path: &Path, text: &str, root: &Command) -> Result<ConfigFile, ConfigError> {
    let mut reader = Reader { text, path: path.into(), entries: Vec::new() };
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        line: reader.line(error.span().map_or(0, |span| span.start)),
        problem: error.message().to_owned(),
    })?;
    reader.add_table(table.get_ref(), root, &[])?;
    // Errors and reports name the first line first.
    reader.entries.sort_by_key(|entry| entry.line.number);
    Ok(ConfigFile { entries: reader.entries })
}

/// Reader of a parsed file.
struct Reader<'t> {
    text: &'t str,
    path: Arc<Path>,
    entries: Vec<FileEntry>,
}

impl Reader<'_> {
    /// Returns the line that contains the byte at this offset.
    fn line(&self, byte: usize) -> FileLine {
        let before = &self.text.as_bytes()[..byte.min(self.text.len())];
        let number = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        FileLine { path: Arc::clone(&self.path), number }
    }

    /// Adds the keys of a command's table.
    fn add_table(&mut self, table: &DeTable<'_>, command: &Command, names: &[String]) -> Result<(), ConfigError> {
        for (key, value) in table {
            let (line, name) = (self.line(key.span().start), key.get_ref().as_ref());
            if let Some(inner) = subcommands(command).find(|inner| inner.get_name() == name) {
                let DeValue::Table(inner_table) = value.get_ref() else {
                    let key = FileKey(name.to_owned());
                    let found = type_name(value.get_ref()).to_owned();
                    return Err(ConfigError::WrongType {
                        line,
                        key,
                        found,
                        expected: "a table with options of the command",
                    });
                };
                self.add_table(inner_table, inner, &[names, &[name.to_owned()]].concat())?;
                continue;
            }
            let args = args_below(command, name);
            if args.is_empty() {
                return Err(ConfigError::UnknownKey {
                    line,
                    key: FileKey(name.to_owned()),
                    scope: scope(names, name),
                    nearest: nearest(command, name),
                });
            }
            let entry = self.entry(value, args[0], FileKey(name.to_owned()), line, names)?;
            // At least one command with this option must accept the value's type. Each command
            // checks the type again.
            if let Err(error) = entry.value(args[0])
                && !args.iter().any(|arg| entry.value(arg).is_ok())
            {
                return Err(error);
            }
            self.entries.push(entry);
        }
        Ok(())
    }

    fn entry(
        &self,
        value: &Spanned<DeValue<'_>>,
        arg: &Arg,
        key: FileKey,
        line: FileLine,
        names: &[String],
    ) -> Result<FileEntry, ConfigError> {
        let wrong = |found: &str, line| ConfigError::WrongType {
            line,
            key: key.clone(),
            found: found.to_owned(),
            expected: expected_value(OptionShape::from_arg(arg)),
        };
        let value = match value.get_ref() {
            DeValue::Array(items) => {
                let mut texts = Vec::new();
                for item in items {
                    match scalar(item.get_ref()) {
                        Some(FileValue::Number(text) | FileValue::Text(text)) => texts.push(text),
                        _ => {
                            return Err(wrong(
                                "a list whose items are not all strings or numbers",
                                self.line(item.span().start),
                            ));
                        }
                    }
                }
                FileValue::List(texts)
            }
            other => scalar(other).ok_or_else(|| wrong(type_name(other), line.clone()))?,
        };
        Ok(FileEntry { table: names.to_vec(), option: key.0.clone(), line, value })
    }
}

/// Returns a value that is neither a list nor a table nor a date.
fn scalar(value: &DeValue<'_>) -> Option<FileValue> {
    Some(match value {
        DeValue::Boolean(value) => FileValue::Boolean(*value),
        DeValue::String(text) => FileValue::Text(text.as_ref().to_owned()),
        DeValue::Float(number) => FileValue::Number(number.as_str().to_owned()),
        DeValue::Integer(number) if number.radix() == 10 => FileValue::Number(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            FileValue::Number(i128::from_str_radix(number.as_str(), number.radix()).ok()?.to_string())
        }
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => return None,
    })
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Returns the options with this name, of `command` and of all commands below it.
fn args_below<'c>(command: &'c Command, name: &str) -> Vec<&'c Arg> {
    let leaves = definition::leaves(command).into_iter();
    let args = leaves.flat_map(|(_, leaf)| options(leaf)).filter(|arg| arg.get_long() == Some(name));
    args.filter(|arg| arg.get_id() != CONFIG).collect()
}

/// Returns the known key that is most similar to a name. An alias is similar to its option.
fn nearest(command: &Command, name: &str) -> Option<String> {
    let leaves = definition::leaves(command);
    if let Some(arg) = leaves.iter().find_map(|(_, leaf)| definition::find(leaf, name))
        && arg.get_id() != CONFIG
    {
        return arg.get_long().map(str::to_owned);
    }
    let known = leaves.iter().flat_map(|(_, leaf)| options(leaf)).filter_map(Arg::get_long);
    let known = known.chain(subcommands(command).map(Command::get_name));
    suggestions::nearest(name, known.filter(|known| *known != CONFIG)).map(str::to_owned)
}

/// Describes, for an error, the commands of a table that do not have a key.
fn scope(names: &[String], key: &str) -> String {
    match names {
        _ if key == CONFIG => "a configuration file".to_owned(),
        [] => "any command".to_owned(),
        names => format!("`ixc {}`", names.join(" ")),
    }
}
