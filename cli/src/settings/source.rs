//! Sources of an option's value, and a value with its source.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::definition::SettingValue;

/// Value of an option, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Long name of the option.
    pub option: String,
    /// Value of the option.
    pub value: SettingValue,
    /// Source of the value.
    pub source: SettingSource,
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// The command line.
    CommandLine,
    /// An environment variable, by name.
    Variable(String),
    /// A line of the configuration file.
    File(FileLine),
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::CommandLine => f.write_str("the command line"),
            SettingSource::Variable(name) => f.write_str(name),
            SettingSource::File(line) => line.fmt(f),
        }
    }
}

/// Line of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLine {
    /// Path of the file.
    pub path: Arc<Path>,
    /// Number of the line, from 1.
    pub number: usize,
}

impl fmt::Display for FileLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.path.display(), self.number)
    }
}
