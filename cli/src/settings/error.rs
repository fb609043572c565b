//! Errors of environment variables and of the configuration file.

use std::fmt;

use ixc_failure::Class;

use super::source::{FileLine, SettingSource};

/// Max characters of a key in a message.
const KEY_CHARACTERS: usize = 60;

/// Key of the configuration file.
#[derive(Clone, Debug)]
pub struct FileKey(pub String);

impl fmt::Display for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.0.chars().take(KEY_CHARACTERS).collect();
        let rest = if shown.len() < self.0.len() { ".." } else { "" };
        write!(f, "`{shown}{rest}`")
    }
}

/// Error of a variable or of the configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not TOML.
    #[error("{line}: invalid TOML: {problem}")]
    Syntax {
        /// Line of the configuration file.
        line: FileLine,
        /// Message of the TOML parser.
        problem: String,
    },
    /// A key is neither an option nor a command.
    #[error("{line}: {key} is not an option of {scope}{}", suggestion(.nearest.as_deref()))]
    UnknownKey {
        /// Line of the configuration file.
        line: FileLine,
        /// Key that is neither an option nor a command.
        key: FileKey,
        /// Command of the table.
        scope: String,
        /// Known key with a similar name.
        nearest: Option<String>,
    },
    /// A value has another type than its option.
    #[error("{line}: {key} is {found}; expected {expected}")]
    WrongType {
        /// Line of the configuration file.
        line: FileLine,
        /// Key of the option.
        key: FileKey,
        /// Value in the file, by type.
        found: String,
        /// Expected types.
        expected: &'static str,
    },
    /// An option refuses its value.
    #[error("{origin}: {problem}")]
    Refused {
        /// Source of the value.
        origin: SettingSource,
        /// Message of the option's parser, with the option and the value.
        problem: String,
    },
}

impl ConfigError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ConfigError::Syntax { .. }
            | ConfigError::UnknownKey { .. }
            | ConfigError::WrongType { .. }
            | ConfigError::Refused { origin: SettingSource::File(_), .. } => Class::Data,
            ConfigError::Refused { .. } => Class::Usage,
        }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}
