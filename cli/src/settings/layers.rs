//! Precedence: the command line, then variables, then the table of the command, then the tables
//! above it.
//!
//! A value is left out if it conflicts with a value of a source before it, or if the options that
//! it requires are missing. Conflicts and requirements are clap's, plus those in [`GIVES_WAY`].

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::definition::{CONFIG, SettingValue, options, variable};
use super::error::ConfigError;
use super::file::ConfigFile;
use super::source::{Setting, SettingSource};

/// Option that is dropped if an earlier source sets a conflicting argument. The program would
/// refuse both arguments together.
struct GivesWay {
    /// Long name of the option.
    option: &'static str,
    /// Value of the option that conflicts; `None` for any value.
    value: Option<&'static str>,
    /// Identifier of the argument.
    argument: &'static str,
    /// Value of the argument that conflicts; `None` for any value.
    argument_value: Option<&'static str>,
}

/// Conflicts that clap does not know.
const GIVES_WAY: [GivesWay; 4] = [
    // `--model` is the model file of a plan if there is also a MODEL.
    GivesWay { option: "model", value: None, argument: "model", argument_value: None },
    GivesWay { option: "model", value: None, argument: "input", argument_value: None },
    GivesWay { option: "memory", value: None, argument: "experts", argument_value: Some("map") },
    GivesWay { option: "experts", value: Some("map"), argument: "memory", argument_value: None },
];

/// Returns whether the command line has an option or argument.
pub fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Returns the values of variables and of a configuration file that apply to the command `leaf`.
/// `names` are the command's names, and `matches` is its command line. Only flags that are on and
/// options with values are returned.
///
/// # Errors
/// If an option refuses its value.
pub fn settings(
    leaf: &Command,
    names: &[&str],
    matches: &ArgMatches,
    file: Option<&ConfigFile>,
) -> Result<Vec<Setting>, ConfigError> {
    let mut given = GivenValues::from_matches(leaf, matches);
    let mut named: BTreeSet<&str> = given.texts.keys().copied().collect();
    let mut kept: Vec<(&Arg, Setting)> = Vec::new();
    for source in sources(names, file) {
        let mut level = Vec::new();
        for arg in options(leaf).filter(|arg| arg.get_id() != CONFIG) {
            let id = arg.get_id().as_str();
            if named.contains(id) {
                continue;
            }
            let Some(setting) = source.setting(arg)? else { continue };
            named.insert(id);
            let is_off = setting.value == SettingValue::Off;
            if !is_off && !given.excludes(leaf, arg, &setting.value) {
                level.push((arg, setting));
            }
        }
        level.iter().for_each(|(arg, setting)| given.add(arg, &setting.value));
        kept.extend(level);
    }
    let probe = Probe::new(leaf);
    let mut checked = Vec::new();
    for (arg, setting) in kept {
        let required = probe.required_options(&setting)?;
        checked.push((arg, setting, required));
    }
    // Repeat, because another option may require an option that was left out.
    while let Some(at) = checked.iter().position(|(_, _, required)| !given.has_all(leaf, required)) {
        let (arg, ..) = checked.remove(at);
        given.texts.remove(arg.get_id().as_str());
    }
    Ok(checked.into_iter().map(|(_, setting, _)| setting).collect())
}

/// Source of values: the variables, or a table of the file.
pub enum SettingLayer<'f> {
    /// Environment variables.
    Variables,
    /// A table of the file, by the names of its command.
    Table(&'f ConfigFile, Vec<String>),
}

/// Returns the sources for a command, the strongest first.
fn sources<'f>(names: &[&str], file: Option<&'f ConfigFile>) -> Vec<SettingLayer<'f>> {
    let table = |count: usize| names[..count].iter().map(|name| (*name).to_owned()).collect();
    let tables = file.into_iter().flat_map(|file| (0..=names.len()).rev().map(move |count| (file, count)));
    let tables = tables.map(|(file, count)| SettingLayer::Table(file, table(count)));
    [SettingLayer::Variables].into_iter().chain(tables).collect()
}

impl SettingLayer<'_> {
    /// Returns the value of an option, if this source has one.
    ///
    /// # Errors
    /// If the value has another type than the option.
    pub fn setting(&self, arg: &Arg) -> Result<Option<Setting>, ConfigError> {
        let Some(option) = arg.get_long() else { return Ok(None) };
        let (value, source) = match self {
            SettingLayer::Variables => {
                let variable = variable(option);
                let Some(value) = env::var_os(&variable) else { return Ok(None) };
                let shown = value.to_string_lossy().into_owned();
                let origin = SettingSource::Variable(variable);
                let value = SettingValue::of_variable(arg, value).map_err(|expected| ConfigError::Refused {
                    origin: origin.clone(),
                    problem: format!("invalid value '{shown}' for '--{option}'; expected {expected}"),
                })?;
                (value, origin)
            }
            SettingLayer::Table(file, table) => {
                let mut entries = file.entries.iter();
                let Some(entry) = entries.find(|entry| entry.table == *table && entry.option == option) else {
                    return Ok(None);
                };
                (entry.value(arg)?, SettingSource::File(entry.line.clone()))
            }
        };
        Ok(Some(Setting { option: option.to_owned(), value, source }))
    }
}

/// Options and arguments that the command line and the sources so far have set, by identifier, with
/// their values.
struct GivenValues<'c> {
    texts: BTreeMap<&'c str, Vec<OsString>>,
}

impl<'c> GivenValues<'c> {
    fn from_matches(leaf: &'c Command, matches: &ArgMatches) -> GivenValues<'c> {
        let ids = leaf.get_arguments().map(|arg| arg.get_id().as_str()).filter(|id| is_given(matches, id));
        let texts = |id: &str| matches.get_raw(id).into_iter().flatten().map(ToOwned::to_owned).collect();
        GivenValues { texts: ids.map(|id| (id, texts(id))).collect() }
    }

    fn add(&mut self, arg: &'c Arg, value: &SettingValue) {
        let texts = match value {
            SettingValue::Off | SettingValue::On(_) => Vec::new(),
            SettingValue::Texts(texts) | SettingValue::Tuple(texts) => texts.clone(),
        };
        self.texts.insert(arg.get_id().as_str(), texts);
    }

    /// Returns whether an option conflicts with any of the given options.
    fn excludes(&self, leaf: &Command, arg: &Arg, value: &SettingValue) -> bool {
        let conflict = |a: &Arg, b: &str| leaf.get_arg_conflicts_with(a).iter().any(|arg| arg.get_id() == b);
        let others = leaf.get_arguments().filter(|other| self.texts.contains_key(other.get_id().as_str()));
        let mut others = others.filter(|other| other.get_id() != arg.get_id());
        others.any(|other| conflict(arg, other.get_id().as_str()) || conflict(other, arg.get_id().as_str()))
            || self.replaces(arg, value)
    }

    /// Returns whether an option is dropped in favour of a given option.
    fn replaces(&self, arg: &Arg, value: &SettingValue) -> bool {
        let texts: &[OsString] = match value {
            SettingValue::Texts(texts) => texts,
            _ => &[],
        };
        let has = |texts: &[OsString], one: Option<&str>| one.is_none_or(|one| texts.iter().any(|text| text == one));
        GIVES_WAY.iter().any(|row| {
            let is_option = arg.get_long() == Some(row.option) && arg.get_id() != row.argument;
            let others = self.texts.get(row.argument);
            is_option && has(texts, row.value) && others.is_some_and(|others| has(others, row.argument_value))
        })
    }

    /// Returns whether all options with these long names are given.
    fn has_all(&self, leaf: &Command, names: &[String]) -> bool {
        let arg = |name: &str| options(leaf).find(|arg| arg.get_long() == Some(name));
        names.iter().all(|name| arg(name).is_none_or(|arg| self.texts.contains_key(arg.get_id().as_str())))
    }
}

/// Copy of a command without required or conflicting options, which parses a single option.
pub struct Probe {
    command: Command,
}

impl Probe {
    /// Returns the probe of a command.
    pub fn new(leaf: &Command) -> Probe {
        Probe { command: leaf.clone().no_binary_name(true).mut_args(|arg| arg.required(false)) }
    }

    /// Checks a value. Returns the long names of the options that it requires.
    ///
    /// # Errors
    /// If the option refuses the value.
    pub fn required_options(&self, setting: &Setting) -> Result<Vec<String>, ConfigError> {
        let arguments = setting.value.arguments(&setting.option);
        let Err(error) = self.command.clone().try_get_matches_from(arguments) else { return Ok(Vec::new()) };
        if error.kind() == ErrorKind::MissingRequiredArgument {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
                return Ok(Vec::new());
            };
            // `missing` has the form `--prompt-cache <DIR>`.
            let name = |missing: &String| missing.split_whitespace().next()?.strip_prefix("--").map(str::to_owned);
            return Ok(missing.iter().filter_map(name).collect());
        }
        Err(refused_value(setting, &error))
    }
}

/// Returns the error of a value that its option refuses.
fn refused_value(setting: &Setting, error: &clap::Error) -> ConfigError {
    let text = error.render().to_string();
    // Clap's usage text and advice apply only to a command line, so they are removed.
    let problem = text.split("\n\n").next().unwrap_or_default();
    let problem = problem.strip_prefix("error: ").unwrap_or(problem);
    let problem = problem.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    ConfigError::Refused { origin: setting.source.clone(), problem }
}
