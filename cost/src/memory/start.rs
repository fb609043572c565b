//! Cache level of a buffer before the counted call, as text such as `w=memory`.

use std::str::FromStr;

use ixc_targets::memory::Level;

/// A buffer, and its level before the counted call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Name of the buffer, without the `%`.
    pub buffer: String,
    /// Level to which the buffer's lines are moved. Lines that do not fit into that cache are in
    /// the next level.
    pub level: Level,
}

/// The text is not a [`Start`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The text has no `=`.
    #[error("{found:?} is not BUFFER=LEVEL; expected for example w=memory")]
    Form {
        /// The text that has no `=`.
        found: String,
    },
    /// The level does not exist.
    #[error("there is no memory level {found:?}; the levels are l1, l2, l3 and memory")]
    Level {
        /// The unknown level, as text.
        found: String,
    },
}

impl FromStr for Start {
    type Err = StartError;

    /// # Errors
    /// Fails if the text is not `BUFFER=LEVEL`. The buffer's name is checked later.
    fn from_str(text: &str) -> Result<Start, StartError> {
        let (buffer, level) = text.split_once('=').ok_or_else(|| StartError::Form { found: text.into() })?;
        let level = Level::from_name(level).ok_or_else(|| StartError::Level { found: level.into() })?;
        Ok(Start { buffer: buffer.trim_start_matches('%').into(), level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_levels_are_parsed_and_errors_list_valid_names() {
        let start = |level| Ok(Start { buffer: "w".into(), level });
        assert_eq!("w=memory".parse(), start(Level::Memory));
        assert_eq!("%w=L3".parse(), start(Level::L3));
        let said = |text: &str| text.parse::<Start>().map_err(|error| error.to_string());
        assert_eq!(said("w"), Err("\"w\" is not BUFFER=LEVEL; expected for example w=memory".into()));
        assert_eq!(said("w=l4"), Err("there is no memory level \"l4\"; the levels are l1, l2, l3 and memory".into()));
    }
}
