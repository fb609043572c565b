//! All values that variables, the configuration file and the command line set, for `ixc doctor`.

use std::collections::BTreeSet;
use std::io::{self, Write};

use clap::Command;
use serde_json::{Value as Json, json};

use super::arguments::Settings;
use super::definition::{self, SettingValue, options};
use super::file::ConfigPath;
use super::layers::{Probe, SettingLayer};
use super::source::{Setting, SettingSource};
use crate::output::Printable;

/// Max columns of an option and its value, to which shorter ones are padded.
const MAX_COLUMNS: usize = 40;

/// Option values in effect in this process, for all commands.
pub struct SettingsReport {
    path: ConfigPath,
    is_read: bool,
    rows: Vec<SettingRow>,
}

/// An option value in effect.
struct SettingRow {
    /// Command of the file's table; empty for all commands with the option.
    command: String,
    setting: Setting,
    /// Error of the first command that refuses the value.
    problem: Option<String>,
}

impl SettingsReport {
    /// Returns the option values in effect. `root` is the whole command, after `Command::build`.
    pub fn new(settings: &Settings, root: &Command) -> SettingsReport {
        let leaves = definition::leaves(root);
        let mut rows = Vec::new();
        let mut variables = BTreeSet::new();
        for arg in leaves.iter().flat_map(|(_, leaf)| options(leaf)) {
            let Some(option) = arg.get_long() else { continue };
            if variables.contains(option) || std::env::var_os(definition::variable(option)).is_none() {
                continue;
            }
            variables.insert(option);
            rows.extend(SettingRow::new(&SettingLayer::Variables, option, &leaves, &[]));
        }
        let entries = settings.file.iter().flat_map(|file| file.entries.iter().map(move |entry| (file, entry)));
        for (file, entry) in entries.filter(|(_, entry)| !variables.contains(&*entry.option)) {
            let layer = SettingLayer::Table(file, entry.table.clone());
            rows.extend(SettingRow::new(&layer, &entry.option, &leaves, &entry.table));
        }
        let given = settings.given.iter().cloned();
        rows.extend(given.map(|setting| SettingRow { command: String::new(), setting, problem: None }));
        SettingsReport { path: settings.path.clone(), is_read: settings.file.is_some(), rows }
    }

    /// Writes the values as lines with labels.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.path {
            ConfigPath::Off => writeln!(out, "config     none")?,
            ConfigPath::Default(path) | ConfigPath::Named(path) => {
                let state = if self.is_read { "" } else { " (no such file)" };
                writeln!(out, "config     {}{state}", Printable(&path.to_string_lossy()))?;
            }
        }
        let texts: Vec<String> = self.rows.iter().map(SettingRow::text).collect();
        let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).min(MAX_COLUMNS);
        for (at, (row, text)) in self.rows.iter().zip(&texts).enumerate() {
            let title = if at == 0 { "settings" } else { "" };
            let origin = match &row.setting.source {
                SettingSource::File(line) => format!("line {}", line.number),
                other => other.to_string(),
            };
            writeln!(out, "{title:<10} {text:<width$}  {}", Printable(&origin))?;
            if let Some(problem) = &row.problem {
                writeln!(out, "{:<10} {}", "", Printable(problem))?;
            }
        }
        Ok(())
    }

    /// Returns the path of the file as JSON, `null` for none.
    pub fn file_facts(&self) -> Json {
        match &self.path {
            ConfigPath::Off => Json::Null,
            ConfigPath::Default(path) | ConfigPath::Named(path) => {
                json!({"path": path.to_string_lossy(), "exists": self.is_read})
            }
        }
    }

    /// Returns the values as JSON.
    pub fn facts(&self) -> Vec<Json> {
        self.rows.iter().map(SettingRow::facts).collect()
    }
}

impl SettingRow {
    /// Returns a source's value for an option of the commands below `table`, if it has one.
    fn new(
        layer: &SettingLayer<'_>,
        option: &str,
        leaves: &[(Vec<&str>, &Command)],
        table: &[String],
    ) -> Option<SettingRow> {
        let (mut found, mut problem) = (None, None);
        for (names, leaf) in leaves.iter().filter(|(names, _)| names.iter().take(table.len()).eq(table)) {
            let Some(arg) = options(leaf).find(|arg| arg.get_long() == Some(option)) else { continue };
            let checked = layer.setting(arg).map_err(|error| error.to_string()).and_then(|setting| {
                let check = |setting: &Setting| Probe::new(leaf).required_options(setting).map(drop);
                let refused = setting.as_ref().and_then(|setting| check(setting).err());
                found = found.take().or(setting);
                refused.map_or(Ok(()), |error| Err(error.to_string()))
            });
            let of_command = |error| format!("`ixc {}` refuses this value: {error}", names.join(" "));
            problem = problem.or(checked.err().map(of_command));
        }
        // No command accepts the value, so its raw text is shown.
        let raw = || {
            let variable = definition::variable(option);
            let value = SettingValue::Texts(vec![std::env::var_os(&variable)?]);
            Some(Setting { option: option.to_owned(), value, source: SettingSource::Variable(variable) })
        };
        Some(SettingRow { command: table.join(" "), setting: found.or_else(raw)?, problem })
    }

    /// Returns the option with its value.
    fn text(&self) -> String {
        let Setting { option, value, .. } = &self.setting;
        let space = if self.command.is_empty() { "" } else { " " };
        let value = value.display_text(option);
        format!("{}{space}{option} = {}", self.command, Printable(&value))
    }

    fn facts(&self) -> Json {
        let Setting { option, value, source } = &self.setting;
        let (kind, name, line) = match source {
            SettingSource::CommandLine => ("command line", None, None),
            SettingSource::Variable(name) => ("variable", Some(name.clone()), None),
            SettingSource::File(line) => ("file", None, Some(line.number)),
        };
        json!({
            "command": (!self.command.is_empty()).then_some(&self.command),
            "option": option,
            "value": value.display_text(option),
            "source": kind,
            "variable": name,
            "line": line,
            "problem": self.problem,
        })
    }
}
